//! How a session wants its tokens chosen. It crosses the wire once, when the session opens; the tail keeps it.

use serde::{Deserialize, Serialize};

/// Settings of one session's sampling. [`SamplingSettings::default`] is greedy without penalties.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SamplingSettings {
    /// Logits are divided by this; 0 takes the most probable token.
    pub temperature: f32,
    /// Only this many of the most probable tokens; 0 for all.
    pub top_k: u32,
    /// Only the most probable tokens whose probabilities reach this sum; 1 for all.
    pub top_p: f32,
    /// Only tokens at least this probable relative to the most probable; 0 for all.
    pub min_p: f32,
    /// Logits of tokens seen are divided (positive) or multiplied (negative) by this; 1 for none.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of a generated token for each time it occurred.
    pub frequency_penalty: f32,
    /// Subtracted from the logit of every generated token that occurred.
    pub presence_penalty: f32,
    /// How many of the last tokens the repetition penalty sees; 0 for all.
    pub penalty_window: u32,
    /// Added to the logits of single tokens.
    pub logit_bias: Vec<(u32, f32)>,
    /// Tokens that are never chosen (end tokens, when they are to be ignored).
    pub banned: Vec<u32>,
    /// With the choice and the position it determines every random number.
    pub seed: u64,
    /// Which of several answers to the same prompt this is.
    pub choice: u32,
    /// Report the chosen token's log probability, and those of this many most probable tokens.
    pub logprobs: Option<u32>,
}

impl Default for SamplingSettings {
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            penalty_window: 0,
            logit_bias: Vec::new(),
            banned: Vec::new(),
            seed: 0,
            choice: 0,
            logprobs: None,
        }
    }
}
