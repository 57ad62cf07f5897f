//! From messages and texts to the tokens of a prompt.

use std::time::SystemTime;

use paceline_coordinator::Engine;
use paceline_text::{ChatTemplate, ClientNoise, EncodedChat, Error as TextError, RemovedNoise, RenderRequest, Special};
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::server::Api;
use crate::wishes::{AnswerShape, Wishes};

/// Who can say something in a conversation.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// The tokens that an answer goes on from.
#[derive(Debug, Default)]
pub(crate) struct Prompt {
    pub(crate) tokens: Vec<u32>,
    /// Where in them later prompts are likely to part from this one.
    pub(crate) boundaries: Vec<usize>,
    /// What was taken out of the messages because their client changes it every time.
    pub(crate) removed: Vec<RemovedNoise>,
    /// How answers to it are to be read.
    pub(crate) answer: AnswerShape,
}

/// A conversation as the client sent it.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    pub(crate) tools: Option<Vec<Value>>,
    /// Further variables of the chat template.
    pub(crate) variables: Map<String, Value>,
    /// What is wanted of the answer.
    pub(crate) wishes: Wishes,
}

impl Conversation {
    fn request(&self, add_generation_prompt: bool) -> RenderRequest<'_> {
        RenderRequest {
            messages: &self.messages,
            tools: self.tools.as_deref(),
            add_generation_prompt,
            kwargs: Some(&self.variables),
            now: Some(SystemTime::now()),
        }
    }
}

/// Renders a conversation and encodes it, ready for the assistant's answer.
pub(crate) fn encode_conversation(api: &Api, mut conversation: Conversation) -> Result<Prompt> {
    let (removed, template) = prepare(api, &mut conversation)?;
    let budget = settle_variables(api, template, &mut conversation);
    let request = conversation.request(true);
    let text = template.render(&request)?;
    check_length("messages", text.len(), api.config.prompt_bytes)?;
    let tokenizer = api.engine.tokenizer();
    let answer = AnswerShape::new(&conversation.wishes, template, tokenizer, &text, request.tools, budget)?;
    let EncodedChat { tokens, boundaries } = template.encode(&request, &text, tokenizer);
    Ok(Prompt { tokens, boundaries, removed, answer })
}

/// The tokens of a conversation to the end of its last message.
pub(crate) fn encode_unanswered(api: &Api, mut conversation: Conversation) -> Result<Vec<u32>> {
    let (_, template) = prepare(api, &mut conversation)?;
    settle_variables(api, template, &mut conversation);
    let text = template.render(&conversation.request(false))?;
    check_length("messages", text.len(), api.config.prompt_bytes)?;
    Ok(api.engine.tokenizer().encode(&text, Special::Parse, false))
}

/// Gives the template the variables of the server and of the request, and says how many tokens of thinking it may be.
fn settle_variables(api: &Api, template: &ChatTemplate, conversation: &mut Conversation) -> Option<u32> {
    let defaults = &api.defaults;
    for (name, value) in &defaults.template_variables {
        conversation.variables.entry(name).or_insert_with(|| value.clone());
    }
    conversation.wishes.thinking.settle(defaults, template, &mut conversation.variables)
}

/// Checks a conversation, and takes out what its client changes every time.
fn prepare<'a>(api: &'a Api, conversation: &mut Conversation) -> Result<(Vec<RemovedNoise>, &'a ChatTemplate)> {
    if conversation.messages.is_empty() {
        return Err(Error::parameter("messages", "messages is empty, send at least one"));
    }
    let template = api.engine.template().ok_or(TextError::NoChatTemplate)?;
    for (index, message) in conversation.messages.iter_mut().enumerate() {
        check_role(index, message)?;
        check_content(index, message)?;
    }
    let keeps_noise = api.config.keep_client_noise;
    let removed = if keeps_noise { Vec::new() } else { ClientNoise::remove(&mut conversation.messages) };
    Ok((removed, template))
}

/// Encodes a text as a model expects to see it: with its beginning token, control tokens spelled out in it parsed.
pub(crate) fn encode_text(engine: &Engine, text: &str, limit: usize) -> Result<Vec<u32>> {
    check_length("prompt", text.len(), limit)?;
    Ok(engine.tokenizer().encode(text, Special::Parse, true))
}

/// Takes numbers from outside as tokens of a vocabulary; `param` says where they were given.
pub(crate) fn check_tokens(param: &str, ids: &[i64], vocabulary: usize) -> Result<Vec<u32>> {
    let token = |(index, &id): (usize, &i64)| match u32::try_from(id) {
        Ok(token) if (token as usize) < vocabulary => Ok(token),
        _ => {
            let problem = format!("{param}[{index}] is {id}, token ids are below {vocabulary}");
            Err(Error::parameter(format!("{param}[{index}]"), problem))
        }
    };
    ids.iter().enumerate().map(token).collect()
}

/// Checks the length of a text from outside.
pub(crate) fn check_length(param: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes <= limit {
        return Ok(());
    }
    Err(Error::parameter(param, format!("{param} has {bytes} bytes of text, the most is {limit}")))
}

/// Templates know no developers: to them a developer is the system.
fn check_role(index: usize, message: &mut Value) -> Result<()> {
    let Some(Value::String(role)) = message.get_mut("role") else {
        let param = format!("messages[{index}].role");
        return Err(Error::parameter(&param, format!("{param} is missing or no string, it must be one of {ROLES:?}")));
    };
    if !ROLES.contains(&role.as_str()) {
        let param = format!("messages[{index}].role");
        return Err(Error::parameter(&param, format!("{param} is {role:?}, it must be one of {ROLES:?}")));
    }
    match role.as_str() {
        "developer" => "system".clone_into(role),
        // What answers of tools were called before.
        "function" => "tool".clone_into(role),
        _ => {}
    }
    Ok(())
}

/// Who calls tools need not say anything. Templates know empty texts better than none.
fn check_content(index: usize, message: &mut Value) -> Result<()> {
    let may_be_missing = message["role"] == "assistant";
    match message.get("content") {
        None if !may_be_missing => {
            let param = format!("messages[{index}].content");
            Err(Error::parameter(&param, format!("{param} is missing, it must be a text or a list of text parts")))
        }
        None | Some(Value::Null) => {
            message["content"] = Value::from("");
            Ok(())
        }
        Some(_) => Ok(()),
    }
}
