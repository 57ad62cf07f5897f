//! Log probabilities in the two shapes that clients know.

use paceline_coordinator::TokenUpdate;
use paceline_proto::{Logprobs, TokenLogprob};
use paceline_text::Tokenizer;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

/// What stands for minus infinity, which JSON does not have.
const NEVER: f32 = -9999.0;

/// The shape of chat completions.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct ChatLogprobs {
    content: Vec<ChatToken>,
    #[schema(value_type = Option<String>)]
    refusal: Option<()>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ChatToken {
    #[serde(flatten)]
    chosen: ScoredToken,
    top_logprobs: Vec<ScoredToken>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ScoredToken {
    token: String,
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// Appends a token, if its log probabilities are there.
    pub(crate) fn push(&mut self, update: &TokenUpdate, tokenizer: &Tokenizer) {
        let Some(logprobs) = &update.logprobs else { return };
        let scored = |token, logprob| ScoredToken {
            token: tokenizer.token_text(token),
            logprob: finite(logprob),
            bytes: tokenizer.token_bytes(token).to_vec(),
        };
        let Logprobs { chosen, top } = &**logprobs;
        self.content.push(ChatToken {
            chosen: scored(update.token, *chosen),
            top_logprobs: top.iter().map(|TokenLogprob { token, logprob }| scored(*token, *logprob)).collect(),
        });
    }
}

/// The shape of text completions.
#[derive(Debug, Default, Serialize, ToSchema)]
pub(crate) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<f32>,
    top_logprobs: Vec<Map<String, Value>>,
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// Appends a token, if its log probabilities are there; `offset` is where its text begins.
    pub(crate) fn push(&mut self, update: &TokenUpdate, tokenizer: &Tokenizer, offset: usize) {
        let Some(logprobs) = &update.logprobs else { return };
        let top = logprobs.top.iter().map(|TokenLogprob { token, logprob }| {
            (distinct_text(tokenizer.token_bytes(*token)), Value::from(finite(*logprob)))
        });
        self.tokens.push(distinct_text(tokenizer.token_bytes(update.token)));
        self.token_logprobs.push(finite(logprobs.chosen));
        self.top_logprobs.push(top.collect());
        self.text_offset.push(offset);
    }
}

/// How many characters begin in the text of `token`; a character split over tokens begins in the first of them.
pub(crate) fn characters(tokenizer: &Tokenizer, token: u32) -> usize {
    tokenizer.token_bytes(token).iter().filter(|byte| **byte & 0xC0 != 0x80).count()
}

/// The text of a token that may be half a character: those get names that differ, as in the OpenAI API.
fn distinct_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |text, byte| format!("{text}\\x{byte:02x}")),
    }
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { NEVER }
}
