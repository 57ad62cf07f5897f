//! Items of the Responses API as messages of a chat.

use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::tools::FREE_TEXT;
use crate::error::{Error, Result};

/// Appends items to a conversation. What the model thought, said and called one after the other is one message.
pub(super) fn append(messages: &mut Vec<Value>, items: &[Value]) -> Result<()> {
    for (index, item) in items.iter().enumerate() {
        let place = format!("input[{index}]");
        match item["type"].as_str() {
            None | Some("message") => append_message(messages, &place, item)?,
            Some("reasoning") => {
                let text = reasoning_text(item);
                if !text.is_empty() {
                    add_text(assistant(messages), "reasoning_content", &text);
                }
            }
            Some("function_call") => {
                let arguments = string(&place, item, "arguments")?;
                append_call(messages, &place, item, arguments)?;
            }
            Some("custom_tool_call") => {
                let arguments = json!({ FREE_TEXT: string(&place, item, "input")? }).to_string();
                append_call(messages, &place, item, &arguments)?;
            }
            Some("function_call_output" | "custom_tool_call_output") => {
                let id = string(&place, item, "call_id")?;
                let output = text_of(&format!("{place}.output"), &item["output"])?;
                messages.push(json!({ "role": "tool", "tool_call_id": id, "content": output }));
            }
            Some(kind) => {
                let problem = format!("{place}.type is {kind:?}, which is not served here");
                return Err(Error::unsupported(format!("{place}.type"), problem));
            }
        }
    }
    Ok(())
}

/// The conversation with the instructions before it. What the system and developers say at its beginning is part of them:
/// templates know one message of the system.
pub(super) fn instructed(instructions: Option<String>, messages: &[Value]) -> Vec<Value> {
    let is_system = |message: &&Value| message["role"] == "system" || message["role"] == "developer";
    let leading = messages.iter().take_while(is_system).count();
    let said = messages[..leading].iter().filter_map(|message| message["content"].as_str().map(str::to_owned));
    let texts: Vec<String> = instructions.into_iter().chain(said).collect();
    let system = (!texts.is_empty()).then(|| json!({ "role": "system", "content": texts.join("\n\n") }));
    system.into_iter().chain(messages[leading..].iter().cloned()).collect()
}

/// Items with an id each, as they are listed later.
pub(super) fn with_ids(items: Vec<Value>) -> Vec<Value> {
    let with_id = |mut item: Value| {
        if let Some(fields) = item.as_object_mut() {
            let prefix = match fields.get("type").and_then(Value::as_str) {
                Some("function_call") => "fc",
                Some("function_call_output") => "fco",
                Some("reasoning") => "rs",
                _ => "msg",
            };
            fields.entry("type").or_insert_with(|| "message".into());
            if !fields.get("id").is_some_and(Value::is_string) {
                fields.insert("id".to_owned(), new_id(prefix).into());
            }
        }
        item
    };
    items.into_iter().map(with_id).collect()
}

/// A name that nothing else has.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}_{}", Uuid::new_v4().simple())
}

fn append_message(messages: &mut Vec<Value>, place: &str, item: &Value) -> Result<()> {
    let role = string(place, item, "role")?;
    let content = text_of(&format!("{place}.content"), &item["content"])?;
    match role {
        "assistant" => add_text(assistant(messages), "content", &content),
        "user" | "system" | "developer" => messages.push(json!({ "role": role, "content": content })),
        _ => {
            let param = format!("{place}.role");
            let problem =
                format!("{param} is {role:?}, it must be \"user\", \"assistant\", \"system\" or \"developer\"");
            return Err(Error::parameter(&param, problem));
        }
    }
    Ok(())
}

/// The model's message at the end of the conversation.
fn assistant(messages: &mut Vec<Value>) -> &mut Map<String, Value> {
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({ "role": "assistant", "content": "" }));
    }
    let last = messages.last_mut().and_then(Value::as_object_mut);
    last.expect("messages are made here, as objects")
}

fn add_text(message: &mut Map<String, Value>, name: &str, text: &str) {
    let before = message.get(name).and_then(Value::as_str).unwrap_or_default();
    let together = format!("{before}{text}");
    message.insert(name.to_owned(), together.into());
}

fn append_call(messages: &mut Vec<Value>, place: &str, item: &Value, arguments: &str) -> Result<()> {
    let (id, name) = (string(place, item, "call_id")?, string(place, item, "name")?);
    let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
    let calls = assistant(messages).entry("tool_calls").or_insert_with(|| Value::Array(Vec::new()));
    calls.as_array_mut().expect("calls are made here, as a list").push(call);
    Ok(())
}

/// What was thought: the thoughts themselves, or their summary where there is no more.
fn reasoning_text(item: &Value) -> String {
    let texts = |name: &str| {
        let parts = item[name].as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n")
    };
    let thoughts = texts("content");
    if thoughts.is_empty() { texts("summary") } else { thoughts }
}

/// A text, or the texts of parts.
fn text_of(place: &str, content: &Value) -> Result<String> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let text = |(index, part)| part_text(&format!("{place}[{index}]"), part);
            Ok(parts.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?.concat())
        }
        _ => Err(Error::parameter(place, format!("{place} is missing, it must be a text or a list of parts"))),
    }
}

fn part_text<'p>(place: &str, part: &'p Value) -> Result<&'p str> {
    match part["type"].as_str() {
        Some("input_text" | "output_text" | "text") => string(place, part, "text"),
        Some("refusal") => string(place, part, "refusal"),
        Some(kind) => {
            let problem = format!("{place}.type is {kind:?}, which is not served here; send text");
            Err(Error::unsupported(format!("{place}.type"), problem))
        }
        None => {
            let param = format!("{place}.type");
            Err(Error::parameter(&param, format!("{param} is missing or no text, such as \"input_text\"")))
        }
    }
}

fn string<'v>(place: &str, value: &'v Value, name: &str) -> Result<&'v str> {
    value[name].as_str().ok_or_else(|| {
        let param = format!("{place}.{name}");
        Error::parameter(&param, format!("{param} is missing or no text"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_model_did_in_one_turn_is_one_message() {
        let mut messages = Vec::new();
        let items = [
            json!({ "role": "developer", "content": "be brief" }),
            json!({ "type": "message", "role": "user", "content": [{ "type": "input_text", "text": "hi" }] }),
            json!({ "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": "hm" }] }),
            json!({ "type": "message", "role": "assistant", "content": [{ "type": "output_text", "text": "a" }] }),
            json!({ "type": "function_call", "call_id": "1", "name": "f", "arguments": "{}" }),
            json!({ "type": "custom_tool_call", "call_id": "2", "name": "g", "input": "x" }),
            json!({ "type": "function_call_output", "call_id": "1", "output": "done" }),
        ];
        append(&mut messages, &items).unwrap();
        let call = |id: &str, name: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        let expected = json!([
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": "hi" },
            {
                "role": "assistant",
                "content": "a",
                "reasoning_content": "hm",
                "tool_calls": [call("1", "f", "{}"), call("2", "g", "{\"input\":\"x\"}")],
            },
            { "role": "tool", "tool_call_id": "1", "content": "done" },
        ]);
        assert_eq!(Value::from(messages), expected);
    }

    #[test]
    fn what_is_not_served_is_named() {
        for (item, param) in [
            (json!({ "type": "item_reference", "id": "x" }), "input[0].type"),
            (json!({ "role": "king", "content": "x" }), "input[0].role"),
            (json!({ "role": "user" }), "input[0].content"),
            (json!({ "role": "user", "content": [{ "type": "input_image" }] }), "input[0].content[0].type"),
            (json!({ "type": "function_call", "name": "f", "arguments": "{}" }), "input[0].call_id"),
            (json!(5), "input[0].role"),
        ] {
            let (Error::Parameter { param: found, .. } | Error::Unsupported { param: found, .. }) =
                append(&mut Vec::new(), std::slice::from_ref(&item)).unwrap_err()
            else {
                panic!("{item}");
            };
            assert_eq!(found, param, "{item}");
        }
    }
}
