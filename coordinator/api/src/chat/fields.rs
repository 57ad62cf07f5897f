//! The fields that only chat requests have, in all the shapes that clients and gateways give them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::prompt::Conversation;
use crate::settings::{MAX_LOGPROBS, integer};
use crate::structure::Structure;
use crate::wishes::{Effort, Thinking, ToolChoice, Wishes};

/// The fields, not looked at yet.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
pub(super) struct ChatFields {
    #[schema(value_type = Vec<crate::openapi::ChatMessage>)]
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    chat_template_kwargs: Option<Map<String, Value>>,
    reasoning_effort: Option<String>,
    /// `{"effort": ..., "max_tokens": ..., "enabled": ...}`, as some gateways put it.
    reasoning: Option<ReasoningFields>,
    enable_thinking: Option<bool>,
    /// `{"type": "enabled", "budget_tokens": ...}`, as in the Anthropic API.
    thinking: Option<ThinkingFields>,
    #[serde(alias = "thinking_budget")]
    thinking_budget_tokens: Option<i64>,
    reasoning_format: Option<String>,
    logprobs: Option<bool>,
    top_logprobs: Option<i64>,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct ReasoningFields {
    effort: Option<String>,
    max_tokens: Option<i64>,
    enabled: Option<bool>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
struct ThinkingFields {
    r#type: String,
    budget_tokens: Option<i64>,
}

impl ChatFields {
    pub(super) fn logprobs(&self) -> Result<Option<u32>> {
        let top = integer("top_logprobs", self.top_logprobs, 0, MAX_LOGPROBS)?;
        match (self.logprobs.unwrap_or(false), top) {
            (true, top) => Ok(Some(top.unwrap_or(0) as u32)),
            (false, Some(top)) if top > 0 => {
                let problem = format!("top_logprobs is {top}, but logprobs is not true");
                Err(Error::parameter("top_logprobs", problem))
            }
            (false, _) => Ok(None),
        }
    }

    pub(super) fn conversation(self, structure: Option<Structure>) -> Result<Conversation> {
        let missing = || Error::parameter("messages", "messages is missing, send a list of messages");
        let thinking = self.thinking()?;
        let keep_tags = self.keeps_tags()?;
        let mut tools = self.tools.filter(|tools| !tools.is_empty());
        check_tools(tools.as_deref().unwrap_or_default())?;
        let tool_choice = self.tool_choice.map_or(Ok(ToolChoice::Auto), |choice| read_choice(&choice, &mut tools))?;
        // Who forbids tools need not read about them.
        let tools = tools.filter(|_| tool_choice != ToolChoice::None);
        tool_choice.check(tools.as_deref())?;
        let one_call = self.parallel_tool_calls == Some(false);
        Ok(Conversation {
            messages: self.messages.ok_or_else(missing)?,
            tools,
            variables: self.chat_template_kwargs.unwrap_or_default(),
            wishes: Wishes { thinking, tool_choice, one_call, keep_tags, structure },
        })
    }

    /// The most particular field wins: a budget over an effort, a field of its own over one within another.
    fn thinking(&self) -> Result<Thinking> {
        let budget =
            |param, value| Ok::<_, Error>(integer(param, value, 0, u64::from(u32::MAX))?.map(|value| value as u32));
        let effort = |param, name: Option<&String>| name.map(|name| Effort::read(param, name)).transpose();
        let reasoning = self.reasoning.as_ref();
        let within =
            reasoning.map(|reasoning| budget("reasoning.max_tokens", reasoning.max_tokens)).transpose()?.flatten();
        let nested = self.thinking.as_ref();
        let nested_budget = nested.map(|thinking| budget("thinking.budget_tokens", thinking.budget_tokens));
        // -1 is how some clients say "no limit".
        let own = self.thinking_budget_tokens.filter(|budget| *budget != -1);
        let nested_enabled = nested.map(|thinking| match thinking.r#type.as_str() {
            "enabled" | "adaptive" => Ok(true),
            "disabled" => Ok(false),
            other => {
                let problem =
                    format!("thinking.type is {other:?}, it must be \"enabled\", \"adaptive\" or \"disabled\"");
                Err(Error::parameter("thinking.type", problem))
            }
        });
        let own_effort = effort("reasoning_effort", self.reasoning_effort.as_ref())?;
        let inner_effort = effort("reasoning.effort", reasoning.and_then(|reasoning| reasoning.effort.as_ref()))?;
        Ok(Thinking {
            enabled: self.enable_thinking.or(nested_enabled.transpose()?).or(reasoning.and_then(|it| it.enabled)),
            effort: own_effort.or(inner_effort),
            budget: budget("thinking_budget_tokens", own)?.or(nested_budget.transpose()?.flatten()).or(within),
        })
    }

    fn keeps_tags(&self) -> Result<bool> {
        match self.reasoning_format.as_deref() {
            None | Some("auto" | "deepseek" | "parsed" | "hidden") => Ok(false),
            Some("none" | "raw") => Ok(true),
            Some(other) => {
                let problem = format!("reasoning_format is {other:?}, it must be \"auto\" or \"none\"");
                Err(Error::parameter("reasoning_format", problem))
            }
        }
    }
}

/// Tools must be functions with names.
fn check_tools(tools: &[Value]) -> Result<()> {
    for (index, tool) in tools.iter().enumerate() {
        let wrong = |place: &str, problem: &str| {
            let param = format!("tools[{index}]{place}");
            Err(Error::parameter(&param, format!("{param} {problem}")))
        };
        if !tool.is_object() {
            return wrong("", "is no object, it must be {\"type\": \"function\", \"function\": {...}}");
        }
        if tool.get("type").is_some_and(|kind| kind != "function") {
            return wrong(".type", &format!("is {}, only functions are served", tool["type"]));
        }
        let (place, function) = tool.get("function").map_or(("", tool), |function| (".function", function));
        match function.get("name") {
            Some(Value::String(name)) if !name.is_empty() => {}
            _ => return wrong(&format!("{place}.name"), "is missing or empty, a function must have a name"),
        }
        let parameters = function.get("parameters").unwrap_or(&Value::Null);
        if !parameters.is_object() && !parameters.is_null() {
            return wrong(&format!("{place}.parameters"), "is no JSON schema, it must be an object");
        }
    }
    Ok(())
}

/// The choice, which may also leave only some of the tools.
fn read_choice(choice: &Value, tools: &mut Option<Vec<Value>>) -> Result<ToolChoice> {
    if let Some(word) = choice.as_str() {
        return read_mode("tool_choice", word);
    }
    let name = |value: &Value| value["function"]["name"].as_str().or(value["name"].as_str()).map(str::to_owned);
    match choice["type"].as_str() {
        Some("function" | "tool") => name(choice).map(ToolChoice::Named).ok_or_else(|| {
            Error::parameter("tool_choice.function.name", "tool_choice.function.name is missing, name a function")
        }),
        Some("allowed_tools") => {
            let inner = choice.get("allowed_tools").unwrap_or(choice);
            let allowed: Vec<String> = inner["tools"].as_array().into_iter().flatten().filter_map(name).collect();
            if let Some(tools) = tools {
                tools.retain(|tool| name(tool).is_some_and(|name| allowed.contains(&name)));
            }
            *tools = tools.take().filter(|tools| !tools.is_empty());
            read_mode("tool_choice.allowed_tools.mode", inner["mode"].as_str().unwrap_or("auto"))
        }
        Some(word @ ("auto" | "none" | "any" | "required")) => read_mode("tool_choice.type", word),
        _ if choice.is_null() => Ok(ToolChoice::Auto),
        _ => Err(Error::parameter(
            "tool_choice",
            format!("tool_choice is {choice}, it must be \"auto\", \"none\", \"required\" or name a function"),
        )),
    }
}

fn read_mode(param: &str, word: &str) -> Result<ToolChoice> {
    match word {
        "auto" => Ok(ToolChoice::Auto),
        "none" => Ok(ToolChoice::None),
        "required" | "any" => Ok(ToolChoice::Required),
        _ => {
            let problem = format!("{param} is {word:?}, it must be \"auto\", \"none\" or \"required\"");
            Err(Error::parameter(param, problem))
        }
    }
}
