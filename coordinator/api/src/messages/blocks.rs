//! Content blocks of the Anthropic API as messages of a chat.

use serde_json::{Map, Value, json};

use super::request::Content;
use crate::error::{Error, Result};

/// What stands between blocks of one message: they are paragraphs of their own.
const BETWEEN: &str = "\n";

/// The system's texts. They stay parts, so that what a client changes in one of them is found there.
pub(super) fn system(content: Content) -> Result<Value> {
    let content = match content {
        Content::Text(text) => Value::from(text),
        Content::Blocks(blocks) => {
            let count = blocks.len();
            let part = |(index, block): (usize, &Value)| {
                let mut text = text_of(&format!("system[{index}]"), block)?.to_owned();
                if index + 1 < count {
                    text += BETWEEN;
                }
                Ok(json!({ "type": "text", "text": text }))
            };
            Value::from(blocks.iter().enumerate().map(part).collect::<Result<Vec<_>>>()?)
        }
    };
    Ok(json!({ "role": "system", "content": content }))
}

/// What a user says: results of tools are messages of their own.
pub(super) fn of_user(place: &str, content: Content) -> Result<Vec<Value>> {
    let blocks = match content {
        Content::Text(text) => return Ok(vec![json!({ "role": "user", "content": text })]),
        Content::Blocks(blocks) => blocks,
    };
    let mut messages: Vec<Value> = Vec::new();
    let mut texts: Vec<String> = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{index}]");
        if block["type"] == "tool_result" {
            messages.extend(said(&mut texts));
            messages.push(tool_result(&place, block)?);
        } else {
            texts.push(user_text(&place, block)?);
        }
    }
    let nothing = messages.is_empty() && texts.is_empty();
    messages.extend(said(&mut texts));
    if nothing {
        messages.push(json!({ "role": "user", "content": "" }));
    }
    Ok(messages)
}

fn said(texts: &mut Vec<String>) -> Option<Value> {
    (!texts.is_empty()).then(|| json!({ "role": "user", "content": std::mem::take(texts).join(BETWEEN) }))
}

/// What the model said, thought, and called.
pub(super) fn of_assistant(place: &str, content: Content) -> Result<Value> {
    let blocks = match content {
        Content::Text(text) => return Ok(json!({ "role": "assistant", "content": text })),
        Content::Blocks(blocks) => blocks,
    };
    let (mut text, mut reasoning, mut calls) = (String::new(), String::new(), Vec::new());
    for (index, block) in blocks.iter().enumerate() {
        let place = format!("{place}.content[{index}]");
        match block["type"].as_str() {
            Some("thinking") => reasoning += string(&place, block, "thinking")?,
            // Thoughts of another service that nobody here can read.
            Some("redacted_thinking") => {}
            Some("tool_use") => calls.push(tool_use(&place, block)?),
            _ => text += text_of(&place, block)?,
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), "assistant".into());
    message.insert("content".to_owned(), text.into());
    if !reasoning.is_empty() {
        message.insert("reasoning_content".to_owned(), reasoning.into());
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), calls.into());
    }
    Ok(Value::Object(message))
}

/// Tools as chats have them.
pub(super) fn tools(tools: &[Value]) -> Result<Vec<Value>> {
    tools.iter().enumerate().map(|(index, tool)| one_tool(&format!("tools[{index}]"), tool)).collect()
}

fn one_tool(place: &str, tool: &Value) -> Result<Value> {
    if let Some(kind) = tool["type"].as_str()
        && kind != "custom"
    {
        let problem =
            format!("{place}.type is {kind:?}, only tools that the client runs itself (\"custom\") are served");
        return Err(Error::unsupported(format!("{place}.type"), problem));
    }
    let name = string(place, tool, "name")?;
    let Value::Object(schema) = &tool["input_schema"] else {
        let param = format!("{place}.input_schema");
        return Err(Error::parameter(&param, format!("{param} is missing or no object, it must be a JSON schema")));
    };
    let mut function = Map::new();
    function.insert("name".to_owned(), name.into());
    if let Some(description) = tool["description"].as_str() {
        function.insert("description".to_owned(), description.into());
    }
    function.insert("parameters".to_owned(), schema.clone().into());
    if let Some(strict) = tool["strict"].as_bool() {
        function.insert("strict".to_owned(), strict.into());
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn tool_use(place: &str, block: &Value) -> Result<Value> {
    let (id, name) = (string(place, block, "id")?, string(place, block, "name")?);
    let arguments = match &block["input"] {
        Value::Object(input) => Value::Object(input.clone()).to_string(),
        Value::Null => "{}".to_owned(),
        _ => {
            let param = format!("{place}.input");
            return Err(Error::parameter(&param, format!("{param} is no object")));
        }
    };
    Ok(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
}

fn tool_result(place: &str, block: &Value) -> Result<Value> {
    let id = string(place, block, "tool_use_id")?;
    let text = match &block["content"] {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let text = |(index, part)| user_text(&format!("{place}.content[{index}]"), part);
            parts.iter().enumerate().map(text).collect::<Result<Vec<_>>>()?.join(BETWEEN)
        }
        _ => {
            let param = format!("{place}.content");
            return Err(Error::parameter(&param, format!("{param} is neither a text nor a list of content blocks")));
        }
    };
    // Models are told of failures in words.
    let text = if block["is_error"] == true { format!("Error: {text}") } else { text };
    Ok(json!({ "role": "tool", "tool_call_id": id, "content": text }))
}

/// The text of a block that a user may send: text, or a document that is text.
fn user_text(place: &str, block: &Value) -> Result<String> {
    let source = &block["source"];
    if block["type"] == "document" && source["type"] == "text" {
        let data = string(&format!("{place}.source"), source, "data")?;
        return Ok(block["title"].as_str().map_or_else(|| data.to_owned(), |title| format!("{title}\n{data}")));
    }
    text_of(place, block).map(str::to_owned)
}

/// The text of a block that can be nothing else.
fn text_of<'b>(place: &str, block: &'b Value) -> Result<&'b str> {
    match block["type"].as_str() {
        Some("text") => string(place, block, "text"),
        Some(kind) => {
            let problem = format!("{place}.type is {kind:?}, which is not served here; send text");
            Err(Error::unsupported(format!("{place}.type"), problem))
        }
        None => {
            let param = format!("{place}.type");
            Err(Error::parameter(&param, format!("{param} is missing or no text, such as \"text\"")))
        }
    }
}

fn string<'b>(place: &str, block: &'b Value, name: &str) -> Result<&'b str> {
    block[name].as_str().ok_or_else(|| {
        let param = format!("{place}.{name}");
        Error::parameter(&param, format!("{param} is missing or no text"))
    })
}
