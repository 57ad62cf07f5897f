//! A chat answer in one piece.

use serde::Serialize;

use super::Reply;
use crate::head::Head;
use crate::logprobs::ChatLogprobs;
use crate::transcript::Transcript;
use crate::usage::{Tally, Timings, Usage};

/// The response.
#[derive(Debug, Serialize)]
pub(super) struct ChatCompletion<'r> {
    #[serde(flatten)]
    head: &'r Head,
    choices: Vec<Choice<'r>>,
    usage: Usage,
    timings: Timings,
}

#[derive(Debug, Serialize)]
struct Choice<'r> {
    index: usize,
    message: Message,
    logprobs: Option<ChatLogprobs>,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<Vec<u32>>,
}

#[derive(Debug, Serialize)]
struct Message {
    role: &'static str,
    content: String,
    refusal: Option<()>,
}

impl<'r> ChatCompletion<'r> {
    pub(super) fn new(reply: &'r Reply, transcripts: Vec<Transcript>, tally: &Tally) -> Self {
        let choices = transcripts.into_iter().enumerate();
        Self {
            head: &reply.head,
            choices: choices.map(|(index, transcript)| Choice::new(reply, index, transcript)).collect(),
            usage: tally.usage(),
            timings: tally.timings(),
        }
    }
}

impl<'r> Choice<'r> {
    fn new(reply: &'r Reply, index: usize, transcript: Transcript) -> Self {
        let logprobs = reply.logprobs.then(|| {
            let mut logprobs = ChatLogprobs::default();
            transcript.tokens.iter().for_each(|update| logprobs.push(update, &reply.tokenizer));
            logprobs
        });
        Self {
            index,
            logprobs,
            finish_reason: transcript.finish_reason,
            prompt_token_ids: reply.prompt_token_ids(),
            token_ids: reply.delivery.token_ids.then(|| transcript.token_ids()),
            message: Message { role: "assistant", content: transcript.text, refusal: None },
        }
    }
}
