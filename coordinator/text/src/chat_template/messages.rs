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
    if let Some(content) = message.get_mut("content") {
        normalize_content(index, content)?;
    }
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

/// Text and null stay; parts become one text with nothing between them.
fn normalize_content(index: usize, content: &mut Value) -> Result<()> {
    let malformed = |problem| Error::BadMessage { message: index, problem };
    let parts = match content {
        Value::String(_) | Value::Null => return Ok(()),
        Value::Array(parts) => parts,
        _ => return Err(malformed("its content is neither text nor a list of parts")),
    };
    let mut text = String::new();
    for part in parts {
        let kind = part.get("type").and_then(Value::as_str).ok_or(malformed("a content part has no type"))?;
        if kind != "text" {
            return Err(Error::UnsupportedContent { message: index, kind: kind.to_owned() });
        }
        text += part.get("text").and_then(Value::as_str).ok_or(malformed("a text part has no text"))?;
    }
    *content = Value::String(text);
    Ok(())
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
            json!({"role": "user", "content": ["text"]}),
            json!({"role": "user", "content": [{"type": "text"}]}),
            json!({"role": "assistant", "tool_calls": {}}),
            json!({"role": "assistant", "tool_calls": [1]}),
            json!({"role": "assistant", "tool_calls": [{"function": 1}]}),
        ] {
            assert!(one(bad.clone()).unwrap_err().is_client_error(), "{bad}");
        }
    }
}
