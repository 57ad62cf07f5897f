//! A response while it is made, and when it is complete.

use std::sync::Arc;

use actix_web::web;
use paceline_coordinator::{FinishReason, Finished, Reuse, TokenUpdate};
use serde::Serialize;
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::items::{self, new_id};
use super::output::Output;
use super::shelf::{Kept, now};
use super::store::Record;
use super::tools::OfferedTools;
use crate::error::Error;
use crate::turn::Spoken;
use crate::usage::Tally;

/// A response as clients read it, without what it repeats of the request.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Response<'r> {
    id: &'r str,
    object: &'static str,
    created_at: u64,
    status: &'static str,
    background: bool,
    error: Option<Failure<'r>>,
    #[schema(value_type = Option<Object>)]
    incomplete_details: Option<Value>,
    model: &'r str,
    #[schema(value_type = Vec<Object>)]
    output: &'r [Value],
    usage: Option<ResponseUsage>,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    echo: &'r Map<String, Value>,
}

/// Why there is no answer.
#[derive(Debug, Serialize, ToSchema)]
struct Failure<'r> {
    code: &'r str,
    message: &'r str,
}

/// Tokens.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct ResponseUsage {
    input_tokens: usize,
    input_tokens_details: InputDetails,
    output_tokens: usize,
    output_tokens_details: OutputDetails,
    total_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct InputDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
struct OutputDetails {
    reasoning_tokens: usize,
}

/// What is needed to keep a response.
pub(super) struct Keeping {
    pub(super) kept: Arc<Kept>,
    pub(super) owner: String,
    pub(super) input: Vec<Value>,
    pub(super) messages: Vec<Value>,
}

/// A response on its way.
pub(super) struct Telling {
    spoken: Spoken,
    output: Output,
    echo: Map<String, Value>,
    keeping: Option<Keeping>,
    id: String,
    created_at: u64,
    tally: Tally,
    ended: Option<Ended>,
}

/// How it ended.
#[derive(Debug, Clone, Copy)]
struct Ended {
    cut_off: bool,
    usage: ResponseUsage,
}

impl Telling {
    pub(super) fn new(spoken: Spoken, tools: OfferedTools, echo: Map<String, Value>, keeping: Option<Keeping>) -> Self {
        let (id, created_at) = (new_id("resp"), now());
        let output = Output::new(tools);
        Self { spoken, output, echo, keeping, id, created_at, tally: Tally::default(), ended: None }
    }

    /// The events of a token.
    pub(super) fn token(&mut self, update: &TokenUpdate) -> Vec<Value> {
        let parts = self.spoken.token(update);
        parts.into_iter().flat_map(|part| self.output.part(part)).collect()
    }

    /// The events of the end, but the last.
    pub(super) fn finished(&mut self, finished: &Finished) -> Vec<Value> {
        self.tally.add(finished, true);
        let parts = self.spoken.finished(finished);
        let mut events: Vec<Value> = parts.into_iter().flat_map(|part| self.output.part(part)).collect();
        let cut_off = finished.reason == FinishReason::Length;
        events.extend(self.output.finish(if cut_off { "incomplete" } else { "completed" }));
        let usage = &finished.usage;
        let usage = ResponseUsage {
            input_tokens: usage.prompt_tokens,
            input_tokens_details: InputDetails { cached_tokens: usage.cached_tokens },
            output_tokens: usage.completion_tokens,
            output_tokens_details: OutputDetails { reasoning_tokens: self.spoken.reasoning_tokens() },
            total_tokens: usage.prompt_tokens + usage.completion_tokens,
        };
        self.ended = Some(Ended { cut_off, usage });
        events
    }

    /// What was known of the prompt.
    pub(super) fn reuse(&self) -> Reuse {
        self.tally.reuse()
    }

    /// As it is before its answer begins.
    pub(super) fn begun(&self) -> Value {
        self.tell("in_progress", None, None)
    }

    /// As it is when it broke off.
    pub(super) fn failed(&self, error: &Error) -> Value {
        let message = error.to_string();
        self.tell("failed", None, Some(Failure { code: "server_error", message: &message }))
    }

    /// As it is when it has ended; it is kept, if that is wanted.
    pub(super) fn complete(mut self) -> Option<Value> {
        self.end()
    }

    /// The same for a stream.
    pub(super) fn end(&mut self) -> Option<Value> {
        let ended = self.ended?;
        self.tally.record();
        let status = if ended.cut_off { "incomplete" } else { "completed" };
        let response = self.tell(status, Some(ended), None);
        if let Some(keeping) = self.keeping.take() {
            self.keep(keeping, response.clone());
        }
        Some(response)
    }

    fn tell(&self, status: &'static str, ended: Option<Ended>, error: Option<Failure>) -> Value {
        let cut_off = ended.is_some_and(|ended| ended.cut_off);
        let response = Response {
            id: &self.id,
            object: "response",
            created_at: self.created_at,
            status,
            background: false,
            error,
            incomplete_details: cut_off.then(|| json!({ "reason": "max_output_tokens" })),
            model: &self.spoken.model,
            output: self.output.items(),
            usage: ended.map(|ended| ended.usage),
            echo: &self.echo,
        };
        serde_json::to_value(response).expect("our own structures have text keys")
    }

    /// Keeps it; a disk is written in the background, for it may be slow.
    fn keep(&self, keeping: Keeping, response: Value) {
        let Keeping { kept, owner, input, mut messages } = keeping;
        // The items are ours, so they are read back as they are.
        if items::append(&mut messages, self.output.items()).is_err() {
            return;
        }
        let record = Record { id: self.id.clone(), owner, kept_at: 0, response, input, messages };
        if let Some(placing) = kept.put(record) {
            drop(web::block(move || placing.carry_out()));
        }
    }
}
