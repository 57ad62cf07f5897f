//! A request of the Anthropic API, told as the chat request that asks for the same.
//!
//! Everything behind it is then the same for both: templates, tools, thinking, limits. What is said here is checked here,
//! so that errors name the fields that the client sent.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::blocks;
use crate::error::{Error, Result};

/// The least budget of thinking that the Anthropic API takes.
const LEAST_BUDGET: i64 = 1024;

/// The fields of a request.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(super) struct MessagesFields {
    pub(super) model: Option<String>,
    max_tokens: Option<i64>,
    messages: Option<Vec<InputMessage>>,
    #[schema(value_type = Option<crate::openapi::MessageContent>)]
    system: Option<Content>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    top_k: Option<i64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<ToolChoice>,
    thinking: Option<Thinking>,
    output_config: Option<OutputConfig>,
    /// What `output_config.format` was called first.
    output_format: Option<Value>,
    mcp_servers: Option<Vec<Value>>,
    container: Option<Value>,
}

/// One message.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct InputMessage {
    role: String,
    #[schema(value_type = Option<crate::openapi::MessageContent>)]
    content: Option<Content>,
}

/// A text, or blocks.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a string or a list of content blocks")]
pub(super) enum Content {
    /// All of it.
    Text(String),
    /// One after the other.
    Blocks(Vec<Value>),
}

/// Whether tools must be used.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct ToolChoice {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

/// Whether and how long the model thinks.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct Thinking {
    #[serde(rename = "type")]
    kind: String,
    budget_tokens: Option<i64>,
}

/// How much effort, and which form.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct OutputConfig {
    effort: Option<String>,
    format: Option<Value>,
}

impl MessagesFields {
    /// The chat request that asks for the same answer.
    pub(super) fn into_chat(self) -> Result<Value> {
        self.refuse_unserved()?;
        let max_tokens = match self.max_tokens {
            Some(tokens) if tokens >= 1 => tokens,
            Some(tokens) => {
                return Err(Error::parameter("max_tokens", format!("max_tokens is {tokens}, it must be at least 1")));
            }
            None => return Err(Error::parameter("max_tokens", "max_tokens is missing, it must be at least 1")),
        };
        let mut chat = self.into_conversation()?;
        chat.insert("max_completion_tokens".to_owned(), max_tokens.into());
        Ok(Value::Object(chat))
    }

    /// The same without what an answer needs: enough to count the tokens of the prompt.
    pub(super) fn into_count(self) -> Result<Value> {
        self.refuse_unserved()?;
        Ok(Value::Object(self.into_conversation()?))
    }

    fn refuse_unserved(&self) -> Result<()> {
        if self.mcp_servers.as_ref().is_some_and(|servers| !servers.is_empty()) {
            return Err(Error::unsupported(
                "mcp_servers",
                "mcp_servers is not served, let the client call them as tools",
            ));
        }
        if self.container.as_ref().is_some_and(|container| !container.is_null()) {
            return Err(Error::unsupported("container", "container is not served; leave it out"));
        }
        Ok(())
    }

    fn into_conversation(self) -> Result<Map<String, Value>> {
        let mut chat = Map::new();
        let mut put = |name: &str, value: Option<Value>| value.map(|value| chat.insert(name.to_owned(), value));
        put("model", self.model.map(Value::from));
        put("stream", self.stream.map(Value::from));
        put("stop", self.stop_sequences.filter(|stop| !stop.is_empty()).map(Value::from));
        put("temperature", self.temperature.map(Value::from));
        put("top_p", self.top_p.map(Value::from));
        put("top_k", self.top_k.map(Value::from));
        let tools = self.tools.filter(|tools| !tools.is_empty());
        put("tools", tools.map(|tools| blocks::tools(&tools)).transpose()?.map(Value::from));
        if let Some(choice) = self.tool_choice {
            put("parallel_tool_calls", choice.disable_parallel_tool_use.map(|disable| Value::from(!disable)));
            put("tool_choice", Some(choice.into_chat()?));
        }
        let thinking = self.thinking.unwrap_or_default();
        put("chat_template_kwargs", Some(json!({ "enable_thinking": thinking.is_on()? })));
        put("thinking_budget_tokens", thinking.budget()?.map(Value::from));
        let output = self.output_config.unwrap_or_default();
        put("reasoning_effort", output.effort.map(Value::from));
        let format = output.format.map(|format| ("output_config.format", format));
        let format = format.or(self.output_format.map(|format| ("output_format", format)));
        put("response_format", format.map(|(param, format)| response_format(param, &format)).transpose()?);
        let missing = || Error::parameter("messages", "messages is missing, send a list of messages");
        let mut messages: Vec<Value> = self.system.map(blocks::system).transpose()?.into_iter().collect();
        for (index, message) in self.messages.ok_or_else(missing)?.into_iter().enumerate() {
            messages.extend(message.into_chat(index)?);
        }
        put("messages", Some(Value::from(messages)));
        Ok(chat)
    }
}

impl InputMessage {
    fn into_chat(self, index: usize) -> Result<Vec<Value>> {
        let place = format!("messages[{index}]");
        let content = self.content.ok_or_else(|| {
            let param = format!("{place}.content");
            Error::parameter(&param, format!("{param} is missing, it must be a text or a list of content blocks"))
        })?;
        match self.role.as_str() {
            "user" => blocks::of_user(&place, content),
            "assistant" => Ok(vec![blocks::of_assistant(&place, content)?]),
            // Some clients put reminders of the system between messages.
            "system" => Ok(vec![blocks::system(content)?]),
            role => {
                let param = format!("{place}.role");
                Err(Error::parameter(&param, format!("{param} is {role:?}, it must be \"user\" or \"assistant\"")))
            }
        }
    }
}

impl ToolChoice {
    fn into_chat(self) -> Result<Value> {
        match (self.kind.as_str(), self.name) {
            ("auto", _) => Ok("auto".into()),
            ("any", _) => Ok("required".into()),
            ("none", _) => Ok("none".into()),
            ("tool", Some(name)) => Ok(json!({ "type": "function", "function": { "name": name } })),
            ("tool", None) => {
                Err(Error::parameter("tool_choice.name", "tool_choice.name is missing, it must name one of the tools"))
            }
            (kind, _) => {
                let problem =
                    format!("tool_choice.type is {kind:?}, it must be \"auto\", \"any\", \"tool\" or \"none\"");
                Err(Error::parameter("tool_choice.type", problem))
            }
        }
    }
}

impl Thinking {
    /// The Anthropic API thinks only when it is asked to.
    fn is_on(&self) -> Result<bool> {
        match self.kind.as_str() {
            "" | "disabled" => Ok(false),
            "enabled" | "adaptive" => Ok(true),
            kind => {
                let problem =
                    format!("thinking.type is {kind:?}, it must be \"enabled\", \"adaptive\" or \"disabled\"");
                Err(Error::parameter("thinking.type", problem))
            }
        }
    }

    fn budget(&self) -> Result<Option<i64>> {
        match self.budget_tokens {
            None if self.kind == "enabled" => {
                Err(Error::parameter("thinking.budget_tokens", "thinking.budget_tokens is missing"))
            }
            Some(tokens) if tokens < LEAST_BUDGET && self.is_on()? => {
                let problem = format!("thinking.budget_tokens is {tokens}, it must be at least {LEAST_BUDGET}");
                Err(Error::parameter("thinking.budget_tokens", problem))
            }
            budget => Ok(budget.filter(|_| self.kind != "disabled")),
        }
    }
}

fn response_format(param: &str, format: &Value) -> Result<Value> {
    match format["type"].as_str() {
        Some("json_schema") => Ok(json!({
            "type": "json_schema",
            "json_schema": { "name": "answer", "strict": true, "schema": format["schema"] },
        })),
        _ => {
            let param = format!("{param}.type");
            Err(Error::parameter(&param, format!("{param} must be \"json_schema\"")))
        }
    }
}
