//! Counts and times of an answer, as clients read them.

use std::time::Duration;

use paceline_coordinator::{Finished, Missed, Reuse};
use serde::Serialize;
use utoipa::ToSchema;

use crate::reuse;

/// Tokens of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Usage {
    prompt_tokens: usize,
    completion_tokens: usize,
    total_tokens: usize,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
struct PromptDetails {
    cached_tokens: usize,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
struct CompletionDetails {
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
    reasoning_tokens: usize,
}

/// Where the time went, with the names of llama.cpp. Of several answers at once it is the time of the slowest and
/// the tokens of all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, ToSchema)]
pub(crate) struct Timings {
    queued_ms: f64,
    cache_n: usize,
    /// Where the slowest of them came from: `device`, `ram` or `disk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_tier: Option<&'static str>,
    /// Why no more of the prompts was cached: `unknown`, `new` or `no-state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_miss: Option<&'static str>,
    prompt_n: usize,
    prompt_ms: f64,
    prompt_per_second: f64,
    predicted_n: usize,
    predicted_ms: f64,
    predicted_per_second: f64,
    /// Guesses that were run, and those that were right.
    draft_n: usize,
    draft_n_accepted: usize,
}

/// Adds up the choices of a request.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    prompt: usize,
    cached: usize,
    completion: usize,
    drafts: usize,
    accepted_drafts: usize,
    reasoning: usize,
    finished: usize,
    /// Of all prompts together.
    reuse: Reuse,
    queued: Duration,
    prefill: Duration,
    decode: Duration,
}

impl Tally {
    /// Counts a finished answer. A prompt of several choices counts once, with its first choice: the others find it
    /// in the cache.
    pub(crate) fn add(&mut self, finished: &Finished, first_choice: bool) {
        if first_choice {
            self.prompt += finished.usage.prompt_tokens;
            self.cached += finished.usage.cached_tokens;
            self.reuse = reuse::together(self.reuse, finished.reuse);
        }
        self.completion += finished.usage.completion_tokens;
        self.drafts += finished.usage.drafts;
        self.accepted_drafts += finished.usage.accepted_drafts;
        self.finished += 1;
        self.queued = self.queued.max(finished.timings.queued);
        self.prefill = self.prefill.max(finished.timings.prefill);
        self.decode = self.decode.max(finished.timings.decode);
    }

    /// Counts the tokens of an answer that were thoughts.
    pub(crate) fn add_reasoning(&mut self, tokens: usize) {
        self.reasoning += tokens;
    }

    /// How many answers were counted.
    pub(crate) fn finished(&self) -> usize {
        self.finished
    }

    /// Notes the counts in the span of the request.
    pub(crate) fn record(&self) {
        let span = tracing::Span::current();
        span.record("prompt_tokens", self.prompt);
        span.record("completion_tokens", self.completion);
    }

    /// What was known of the prompts.
    pub(crate) fn reuse(&self) -> Reuse {
        self.reuse
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt_tokens: self.prompt,
            completion_tokens: self.completion,
            total_tokens: self.prompt + self.completion,
            prompt_tokens_details: PromptDetails { cached_tokens: self.cached },
            completion_tokens_details: CompletionDetails {
                accepted_prediction_tokens: self.accepted_drafts,
                rejected_prediction_tokens: self.drafts.saturating_sub(self.accepted_drafts),
                reasoning_tokens: self.reasoning,
            },
        }
    }

    pub(crate) fn timings(&self) -> Timings {
        let computed = self.prompt.saturating_sub(self.cached);
        // The first token of each answer comes with its prefill.
        let decoded = self.completion.saturating_sub(self.finished);
        Timings {
            queued_ms: milliseconds(self.queued),
            cache_n: self.cached,
            cache_tier: (self.cached > 0).then(|| reuse::tier(self.reuse.tier)),
            cache_miss: self.reuse.missed.map(Missed::name),
            prompt_n: computed,
            prompt_ms: milliseconds(self.prefill),
            prompt_per_second: rate(computed, self.prefill),
            predicted_n: self.completion,
            predicted_ms: milliseconds(self.decode),
            predicted_per_second: rate(decoded, self.decode),
            draft_n: self.drafts,
            draft_n_accepted: self.accepted_drafts,
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1000.0
}

/// Nothing in no time is no speed; JSON has no infinity.
fn rate(tokens: usize, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { tokens as f64 / time.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use paceline_coordinator::{FinishReason, Reuse, Timings as EngineTimings, Usage as EngineUsage};

    use super::*;

    fn finished(completion_tokens: usize, decode: Duration) -> Finished {
        Finished {
            reason: FinishReason::Length,
            text: String::new(),
            marks: Vec::new(),
            usage: EngineUsage {
                prompt_tokens: 10,
                completion_tokens,
                cached_tokens: 4,
                drafts: 6,
                accepted_drafts: 4,
            },
            reuse: Reuse::default(),
            timings: EngineTimings { queued: Duration::ZERO, prefill: Duration::from_millis(3), decode },
        }
    }

    #[test]
    fn a_prompt_counts_once() {
        let mut tally = Tally::default();
        tally.add(&finished(5, Duration::from_secs(1)), true);
        tally.add(&finished(7, Duration::from_secs(2)), false);
        let usage = tally.usage();
        assert_eq!((usage.prompt_tokens, usage.completion_tokens, usage.total_tokens), (10, 12, 22));
        let timings = tally.timings();
        assert_eq!((timings.prompt_n, timings.cache_n, timings.prompt_per_second), (6, 4, 2000.0));
        assert_eq!((timings.predicted_n, timings.predicted_per_second), (12, 5.0));
        assert_eq!((timings.draft_n, timings.draft_n_accepted), (12, 8));
        let details = usage.completion_tokens_details;
        assert_eq!((details.accepted_prediction_tokens, details.rejected_prediction_tokens), (8, 4));
    }

    #[test]
    fn no_time_is_no_speed() {
        let mut tally = Tally::default();
        tally.add(&finished(1, Duration::ZERO), true);
        assert_eq!(tally.timings().predicted_per_second, 0.0);
    }
}
