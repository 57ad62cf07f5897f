//! A text completion in one piece.

use serde::Serialize;
use utoipa::ToSchema;

use super::Reply;
use crate::head::Head;
use crate::logprobs::{TextLogprobs, characters};
use crate::transcript::Transcript;
use crate::usage::{Tally, Timings, Usage};

/// The response.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct TextCompletion<'r> {
    #[serde(flatten)]
    head: &'r Head,
    choices: Vec<Choice<'r>>,
    usage: Usage,
    timings: Timings,
}

#[derive(Debug, Serialize, ToSchema)]
#[schema(as = TextChoice)]
struct Choice<'r> {
    index: usize,
    text: String,
    logprobs: Option<TextLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<u32>>)]
    prompt_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

impl<'r> TextCompletion<'r> {
    pub(super) fn new(reply: &'r Reply, transcripts: Vec<Transcript>, tally: &Tally) -> Self {
        let choices = transcripts.into_iter().enumerate();
        Self {
            head: &reply.head,
            choices: choices.map(|(index, transcript)| Choice::new(reply, index, &transcript)).collect(),
            usage: tally.usage(),
            timings: tally.timings(),
        }
    }
}

impl<'r> Choice<'r> {
    fn new(reply: &'r Reply, index: usize, transcript: &Transcript) -> Self {
        Self {
            index,
            logprobs: reply.logprobs.then(|| logprobs(reply, transcript)),
            finish_reason: transcript.finish_reason,
            prompt_token_ids: reply.prompt_token_ids(index),
            token_ids: reply.delivery.token_ids.then(|| transcript.token_ids()),
            text: format!("{}{}", reply.echo(index), transcript.answer.text),
        }
    }
}

fn logprobs(reply: &Reply, transcript: &Transcript) -> TextLogprobs {
    let mut logprobs = TextLogprobs::default();
    let mut offset = 0;
    for update in &transcript.tokens {
        logprobs.push(update, &reply.tokenizer, offset);
        offset += characters(&reply.tokenizer, update.token);
    }
    logprobs
}
