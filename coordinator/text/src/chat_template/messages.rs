//! Messages as clients send them, made into what templates expect.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Joins text parts, and parses tool call arguments that are JSON in a string.
pub(super) fn normalize(messages: &[Value]) -> Result<Vec<Value>> {
    messages.iter().enumerate().map(|(index, message)| normalize_message(index, message)).collect()
}

fn normalize_message(index: usize, message: &Value) -> Result<Value> {
    let malformed = |problem| Error::BadMessage { message: index, problem };
    let mut message = message.as_object().ok_or(malformed("it is no object"))?.clone();
    if !message.get("role").is_some_and(Value::is_string) {
        return Err(malformed("its role is no text"));
    }
    let mut thoughts = String::new();
    if let Some(content) = message.get_mut("content") {
        thoughts = normalize_content(index, content)?;
    }
    keep_reasoning(&mut message, thoughts);
    match message.get_mut("tool_calls") {
        None | Some(Value::Null) => {}
        Some(Value::Array(calls)) => {
            for call in calls {
                normalize_call(call).map_err(malformed)?;
            }
        }
        Some(_) => return Err(malformed("its tool_calls are no list")),
    }
    Ok(Value::Object(message))
}

/// Text and null stay; parts become one text with nothing between them. Gives what parts say of thoughts.
fn normalize_content(index: usize, content: &mut Value) -> Result<String> {
    let malformed = |problem| Error::BadMessage { message: index, problem };
    let parts = match content {
        Value::String(_) | Value::Null => return Ok(String::new()),
        Value::Array(parts) => parts,
        _ => return Err(malformed("its content is neither text nor a list of parts")),
    };
    let (mut text, mut thoughts) = (String::new(), String::new());
    for part in parts {
        if let Value::String(part) = part {
            text += part;
            continue;
        }
        let kind = part.get("type").and_then(Value::as_str).ok_or(malformed("a content part has no type"))?;
        let said = |name: &str| part.get(name).and_then(Value::as_str);
        match kind {
            "text" | "input_text" | "output_text" => {
                text += said("text").ok_or(malformed("a text part has no text"))?;
            }
            "refusal" => text += said("refusal").ok_or(malformed("a refusal part has no refusal"))?,
            "thinking" | "reasoning" => thoughts += said(kind).or(said("text")).unwrap_or_default(),
            _ => return Err(Error::UnsupportedContent { message: index, kind: kind.to_owned() }),
        }
    }
    *content = Value::String(text);
    Ok(thoughts)
}

/// Templates call what an answer was thought out with `reasoning_content`; some clients send it back under another name.
fn keep_reasoning(message: &mut Map<String, Value>, thoughts: String) {
    let is_told = |message: &Map<String, Value>| message.get("reasoning_content").is_some_and(Value::is_string);
    if is_told(message) {
        return;
    }
    // Null is how clients say that there was none; to a template it would be a text to look into.
    message.remove("reasoning_content");
    let other = message.get("reasoning").and_then(Value::as_str).map(str::to_owned);
    if let Some(reasoning) = other.or_else(|| (!thoughts.is_empty()).then_some(thoughts)) {
        message.insert("reasoning_content".to_owned(), reasoning.into());
    }
}

/// Templates iterate over arguments, so they must be a mapping. Nothing at all is an empty one.
fn normalize_call(call: &mut Value) -> std::result::Result<(), &'static str> {
    let call = call.as_object_mut().ok_or("a tool call is no object")?;
    let function = if call.contains_key("function") {
        call["function"].as_object_mut().ok_or("the function of a tool call is no object")?
    } else {
        call
    };
    match function.get_mut("arguments") {
        None | Some(Value::Object(_)) => Ok(()),
        Some(arguments @ Value::Null) => {
            *arguments = Value::Object(Map::new());
            Ok(())
        }
        Some(arguments) => {
            let json = arguments.as_str().ok_or("the arguments of a tool call are neither an object nor text")?;
            let json = if json.trim().is_empty() { "{}" } else { json };
            let object: Map<String, Value> =
                serde_json::from_str(json).map_err(|_| "the arguments of a tool call are not the JSON of an object")?;
            *arguments = Value::Object(object);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(message: Value) -> Result<Value> {
        Ok(normalize(&[message])?.remove(0))
    }

    #[test]
    fn text_parts_are_joined() {
        let parts = json!([{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]);
        assert_eq!(one(json!({"role": "user", "content": parts})).unwrap(), json!({"role": "user", "content": "a b"}));
        let null = json!({"role": "assistant", "content": null, "x": 1});
        assert_eq!(one(null.clone()).unwrap(), null);
    }

    #[test]
    fn parts_of_other_clients_are_understood() {
        let parts = json!([
            {"type": "thinking", "thinking": "hm", "signature": "x"}, "a", {"type": "input_text", "text": "b"},
            {"type": "refusal", "refusal": "c"},
        ]);
        let wanted = json!({"role": "assistant", "content": "abc", "reasoning_content": "hm"});
        assert_eq!(one(json!({"role": "assistant", "content": parts})).unwrap(), wanted);
        let other = json!({"role": "assistant", "content": "a", "reasoning": "hm", "reasoning_content": null});
        assert_eq!(one(other).unwrap()["reasoning_content"], "hm");
        let none = json!({"role": "assistant", "content": "a", "reasoning_content": null});
        assert_eq!(one(none).unwrap(), json!({"role": "assistant", "content": "a"}));
    }

    #[test]
    fn images_are_refused_by_name() {
        let image = json!({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]});
        let error = one(image).unwrap_err();
        assert!(error.to_string().contains("image_url"), "{error}");
        assert!(error.is_client_error());
    }

    #[test]
    fn arguments_become_mappings() {
        let call = |arguments: Value| {
            let message =
                json!({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]});
            one(message).map(|message| message["tool_calls"][0]["function"]["arguments"].clone())
        };
        assert_eq!(call(json!(r#"{"b": 1, "a": [2]}"#)).unwrap().to_string(), r#"{"b":1,"a":[2]}"#);
        assert_eq!(call(json!({"a": 1})).unwrap(), json!({"a": 1}));
        assert_eq!(call(json!("")).unwrap(), json!({}));
        assert_eq!(call(Value::Null).unwrap(), json!({}));
        for bad in [json!("{\"a\":"), json!("[1]"), json!(3)] {
            assert!(matches!(call(bad), Err(Error::BadMessage { .. })));
        }
    }

    #[test]
    fn malformed_messages_are_errors() {
        for bad in [
            json!("hello"),
            json!({"content": "no role"}),
            json!({"role": 1, "content": ""}),
            json!({"role": "user", "content": 5}),
            json!({"role": "user", "content": [{"type": "text"}]}),
            json!({"role": "assistant", "tool_calls": {}}),
            json!({"role": "assistant", "tool_calls": [1]}),
            json!({"role": "assistant", "tool_calls": [{"function": 1}]}),
        ] {
            assert!(one(bad.clone()).unwrap_err().is_client_error(), "{bad}");
        }
    }
}
