//! What the actors measure, by name.

use std::time::Duration;

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

/// Rows that took the place of another, by the way in which sessions came to them.
pub const ROW_SWITCHES: &str = "paceline_row_switches_total";
/// Seconds in which no step was sent because another row was to take over.
pub const SWITCH_PAUSE_SECONDS: &str = "paceline_switch_pause_seconds";
/// Sessions whose row was over while they ran.
pub const INTERRUPTED: &str = "paceline_sessions_interrupted_total";

/// How sessions come from one row to the next.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Their memory went there.
    Moved,
    /// They read all their tokens again.
    Replayed,
    /// Not at all: the old row went on.
    RolledBack,
}

pub(crate) fn row_switched(way: Way) {
    let way = match way {
        Way::Moved => "moved",
        Way::Replayed => "replayed",
        Way::RolledBack => "rolled_back",
    };
    counter!(ROW_SWITCHES, "way" => way).increment(1);
}

pub(crate) fn paused(pause: Duration) {
    histogram!(SWITCH_PAUSE_SECONDS).record(pause.as_secs_f64());
}

pub(crate) fn interrupted() {
    counter!(INTERRUPTED).increment(1);
}

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
