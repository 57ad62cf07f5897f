//! A request of the Responses API, told as the chat request that asks for the same.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::items;
use super::tools::OfferedTools;
use crate::error::{Error, Result};

/// The fields of a request.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(super) struct ResponsesFields {
    model: Option<String>,
    #[schema(value_type = Option<crate::openapi::ResponseInput>)]
    input: Option<Input>,
    instructions: Option<String>,
    previous_response_id: Option<String>,
    store: Option<bool>,
    stream: Option<bool>,
    max_output_tokens: Option<i64>,
    temperature: Option<f64>,
    top_p: Option<f64>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    reasoning: Option<Reasoning>,
    text: Option<TextSettings>,
    truncation: Option<String>,
    user: Option<String>,
    metadata: Option<Map<String, Value>>,
    seed: Option<Value>,
    background: Option<bool>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

/// A text, or items.
#[derive(Debug, Deserialize, Serialize)]
#[serde(untagged, expecting = "expected a string or a list of input items")]
pub(super) enum Input {
    /// What the user says.
    Text(String),
    /// A conversation, or what is new of it.
    Items(Vec<Value>),
}

/// How much the model thinks.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(super) struct Reasoning {
    effort: Option<String>,
    summary: Option<Value>,
}

/// The form of texts.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct TextSettings {
    format: Option<Value>,
    verbosity: Option<Value>,
}

/// A request, ready to be asked as a chat.
#[derive(Debug)]
pub(super) struct Asked {
    /// The chat request.
    pub(super) chat: Value,
    /// The input as items, with ids.
    pub(super) input: Vec<Value>,
    /// The conversation that is answered, without the instructions: they hold for this answer alone.
    pub(super) messages: Vec<Value>,
    /// The tools that may be called.
    pub(super) tools: OfferedTools,
    /// Whether the response is kept.
    pub(super) store: bool,
    /// The fields of the request that the response repeats.
    pub(super) echo: Map<String, Value>,
}

impl ResponsesFields {
    /// The response that this one goes on from.
    pub(super) fn previous(&self) -> Option<&str> {
        self.previous_response_id.as_deref()
    }

    /// Puts what is asked behind the conversation so far.
    pub(super) fn ask(mut self, mut messages: Vec<Value>) -> Result<Asked> {
        self.refuse_unserved()?;
        let input = match self.input.take() {
            Some(Input::Text(text)) => vec![json!({ "type": "message", "role": "user", "content": text })],
            Some(Input::Items(items)) => items,
            None => return Err(Error::parameter("input", "input is missing, send a text or a list of input items")),
        };
        if input.is_empty() && messages.is_empty() {
            return Err(Error::parameter("input", "input is empty, send at least one item"));
        }
        items::append(&mut messages, &input)?;
        let tools = OfferedTools::new(self.tools.as_deref().unwrap_or_default())?;
        let echo = self.echo(&tools);
        let mut chat = self.settings(&tools)?;
        chat.insert("messages".to_owned(), items::instructed(self.instructions, &messages).into());
        let store = self.store.unwrap_or(true);
        Ok(Asked { chat: Value::Object(chat), input: items::with_ids(input), messages, tools, store, echo })
    }

    fn refuse_unserved(&self) -> Result<()> {
        let refuse = |name: &str, problem: &str| Err(Error::unsupported(name, format!("{name} {problem}")));
        if self.background == Some(true) {
            return refuse("background", "is not served: stay connected, or stream");
        }
        if self.conversation.as_ref().is_some_and(|conversation| !conversation.is_null()) {
            return refuse("conversation", "is not served; go on with previous_response_id");
        }
        if self.prompt.as_ref().is_some_and(|prompt| !prompt.is_null()) {
            return refuse("prompt", "is not served: there are no stored prompts; send instructions");
        }
        match self.truncation.as_deref() {
            None | Some("disabled") => Ok(()),
            // Nothing is ever left out of a conversation without a word: what is too long is refused.
            Some(_) => refuse("truncation", "is only served as \"disabled\"; leave it out"),
        }
    }

    /// The chat request without its messages.
    fn settings(&self, tools: &OfferedTools) -> Result<Map<String, Value>> {
        let mut chat = Map::new();
        let mut put = |name: &str, value: Option<Value>| value.map(|value| chat.insert(name.to_owned(), value));
        put("model", self.model.clone().map(Value::from));
        put("stream", self.stream.map(Value::from));
        put("max_completion_tokens", self.max_output_tokens.map(at_least_one).transpose()?);
        put("temperature", self.temperature.map(Value::from));
        put("top_p", self.top_p.map(Value::from));
        put("seed", self.seed.clone());
        put("chat_template_kwargs", self.chat_template_kwargs.clone().map(Value::from));
        put("tools", (!tools.is_empty()).then(|| tools.for_chat().into()));
        if !tools.is_empty() {
            put("parallel_tool_calls", self.parallel_tool_calls.map(Value::from));
            put("tool_choice", self.tool_choice.as_ref().map(|choice| tools.choice(choice)).transpose()?);
        }
        put("reasoning_effort", self.reasoning.as_ref().and_then(|it| it.effort.clone()).map(Value::from));
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        put("response_format", format.map(response_format).transpose()?);
        Ok(chat)
    }

    /// What the response repeats of the request.
    fn echo(&self, tools: &OfferedTools) -> Map<String, Value> {
        let format = self.text.as_ref().and_then(|text| text.format.clone());
        let text = json!({ "format": format.unwrap_or_else(|| json!({ "type": "text" })) });
        let fields = json!({
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata.clone().unwrap_or_default(),
            "parallel_tool_calls": self.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": self.previous_response_id,
            "reasoning": self.reasoning.clone().unwrap_or_default(),
            "store": self.store.unwrap_or(true),
            "temperature": self.temperature,
            "text": text,
            "tool_choice": self.tool_choice.clone().unwrap_or_else(|| "auto".into()),
            "tools": tools.as_sent(),
            "top_p": self.top_p,
            "truncation": "disabled",
            "user": self.user,
        });
        let Value::Object(fields) = fields else { unreachable!("it is written as an object") };
        fields
    }
}

fn at_least_one(tokens: i64) -> Result<Value> {
    if tokens >= 1 {
        return Ok(tokens.into());
    }
    Err(Error::parameter("max_output_tokens", format!("max_output_tokens is {tokens}, it must be at least 1")))
}

/// The form of the answer, as chat requests have it.
fn response_format(format: &Value) -> Result<Value> {
    match format["type"].as_str() {
        Some("text" | "json_object") => Ok(json!({ "type": format["type"] })),
        Some("json_schema") => {
            let mut schema = Map::new();
            for name in ["name", "description", "schema", "strict"] {
                if let Some(value) = format.get(name) {
                    schema.insert(name.to_owned(), value.clone());
                }
            }
            Ok(json!({ "type": "json_schema", "json_schema": schema }))
        }
        _ => {
            let problem = "text.format.type must be \"text\", \"json_object\" or \"json_schema\"";
            Err(Error::parameter("text.format.type", problem))
        }
    }
}
