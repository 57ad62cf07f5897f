//! What the actors measure, by name.

use metrics::{counter, histogram};

use crate::engine::{Timings, Usage};

/// Seconds from a request to its first token.
pub const FIRST_TOKEN_SECONDS: &str = "paceline_first_token_seconds";
/// Seconds that requests waited to be admitted.
pub const QUEUED_SECONDS: &str = "paceline_queued_seconds";
/// Mean seconds between tokens, per answer.
pub const TOKEN_GAP_SECONDS: &str = "paceline_token_gap_seconds";
/// Tokens of prompts answered.
pub const PROMPT_TOKENS: &str = "paceline_prompt_tokens_total";
/// Tokens generated in answers.
pub const COMPLETION_TOKENS: &str = "paceline_completion_tokens_total";

pub(crate) fn first_token(timings: Timings) {
    histogram!(QUEUED_SECONDS).record(timings.queued.as_secs_f64());
    histogram!(FIRST_TOKEN_SECONDS).record((timings.queued + timings.prefill).as_secs_f64());
}

pub(crate) fn finished(usage: &Usage, timings: Timings) {
    counter!(PROMPT_TOKENS).increment(usage.prompt_tokens as u64);
    counter!(COMPLETION_TOKENS).increment(usage.completion_tokens as u64);
    if usage.completion_tokens > 1 {
        let gaps = (usage.completion_tokens - 1) as f64;
        histogram!(TOKEN_GAP_SECONDS).record(timings.decode.as_secs_f64() / gaps);
    }
}
