//! One conversation to be answered, in whichever dialect it was asked. Other dialects than chat completions are told as a
//! chat first, so that there is one way from messages to tokens; what differs is how the answer is told.

use actix_web::web;
use paceline_coordinator::{Finished, Generate, TokenUpdate};
use paceline_text::{AnswerParser, Part};
use serde_json::Value;

use crate::chat;
use crate::error::{Error, Result};
use crate::json::Document;
use crate::server::Api;

/// A conversation, ready to be answered once.
pub(crate) struct Turn {
    pub(crate) request: Generate,
    pub(crate) spoken: Spoken,
    /// As events, while it is made.
    pub(crate) stream: bool,
    /// The name of a line that was taken out of the messages, where one was.
    pub(crate) removed: Option<&'static str>,
}

/// An answer as it comes, taken apart.
pub(crate) struct Spoken {
    parser: AnswerParser,
    /// Tokens of the prompt.
    pub(crate) prompt_tokens: usize,
    /// The most tokens of a session.
    pub(crate) context: usize,
    /// The model's name.
    pub(crate) model: String,
}

impl Turn {
    /// Prepares the answer to a chat request. The ids of tool calls begin with `call_ids`, which no other answer has.
    pub(crate) async fn prepare(api: &web::Data<Api>, chat: Value, call_ids: String) -> Result<Self> {
        Api::in_background(api, move |api| Self::new(api, &chat, call_ids)).await
    }

    fn new(api: &Api, chat: &Value, call_ids: String) -> Result<Self> {
        let (mut requests, reply) = chat::prepare(api, &Document::of(chat))?;
        let nothing = || Error::Internal("a chat without an answer was prepared".to_owned());
        let request = requests.pop().ok_or_else(nothing)?;
        let parser = reply.parser(call_ids);
        let model = api.engine.model();
        let spoken =
            Spoken { parser, prompt_tokens: request.prompt.len(), context: model.context, model: model.id.clone() };
        Ok(Self { request, spoken, stream: reply.delivery.stream, removed: reply.removed() })
    }
}

impl Spoken {
    /// What a token adds.
    pub(crate) fn token(&mut self, update: &TokenUpdate) -> Vec<Part> {
        self.parser.push(&update.text, &update.marks)
    }

    /// What the end adds.
    pub(crate) fn finished(&mut self, finished: &Finished) -> Vec<Part> {
        self.parser.end(&finished.text, &finished.marks)
    }

    /// Whether any tool is called.
    pub(crate) fn has_calls(&self) -> bool {
        self.parser.has_calls()
    }

    /// How many tokens came while the model was thinking.
    pub(crate) fn reasoning_tokens(&self) -> usize {
        self.parser.reasoning_tokens()
    }
}
