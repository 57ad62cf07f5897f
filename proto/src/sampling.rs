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
    /// The model's reasoning, where its tokens are known.
    pub thinking: Option<Box<ThinkingSettings>>,
    /// What the text must look like that follows reasoning, or all of it.
    pub constraint: Option<Box<ConstraintSettings>>,
}

/// What a text must look like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConstraintSettings {
    /// A grammar as text, as `paceline_grammar` writes it.
    pub grammar: String,
    /// Tokens that end an answer. They are possible where the text is complete.
    pub ends: Vec<u32>,
}

/// What a tail must know of reasoning to end it in time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinkingSettings {
    /// The prompt ends within it.
    pub is_open: bool,
    /// The token that opens it, if it is the first of an answer.
    pub opens: Option<u32>,
    /// The token that closes it.
    pub closes: u32,
    /// After so many tokens of it come those of `closing`, whatever the model wants; without it, never.
    pub budget: Option<u32>,
    /// Tokens that close it as the model is used to; `closes` is one of them.
    pub closing: Vec<u32>,
}

impl SamplingSettings {
    /// Whether the choice of a token depends on the tokens before it, in more than the model sees.
    pub fn has_penalties(&self) -> bool {
        self.repetition_penalty != 1.0 || self.sees_generated()
    }

    /// How many of the last of `tokens` tokens the penalties and guides look at, where those from position `generated_from` on count
    /// as generated.
    pub fn tokens_seen(&self, tokens: usize, generated_from: usize) -> usize {
        let window = match self.penalty_window as usize {
            _ if self.repetition_penalty == 1.0 => 0,
            0 => tokens,
            window => window.min(tokens),
        };
        let generated = if self.sees_generated() { tokens.saturating_sub(generated_from) } else { 0 };
        window.max(generated)
    }

    /// Whether all tokens of the answer matter.
    fn sees_generated(&self) -> bool {
        self.frequency_penalty != 0.0 || self.presence_penalty != 0.0 || self.is_guided()
    }

    /// Whether some tokens are impossible because of those before them in the answer.
    pub fn is_guided(&self) -> bool {
        self.constraint.is_some() || self.thinking.as_ref().is_some_and(|thinking| thinking.budget.is_some())
    }
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
            thinking: None,
            constraint: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalties_see_their_window_and_all_that_was_generated() {
        let seen = |repetition_penalty: f32, presence_penalty: f32, penalty_window: u32| {
            let others = SamplingSettings::default();
            let settings = SamplingSettings { repetition_penalty, presence_penalty, penalty_window, ..others };
            (settings.has_penalties(), settings.tokens_seen(100, 70))
        };
        assert_eq!(seen(1.0, 0.0, 64), (false, 0));
        assert_eq!(seen(1.5, 0.0, 0), (true, 100));
        assert_eq!(seen(1.5, 0.0, 8), (true, 8));
        assert_eq!(seen(1.5, 0.0, 200), (true, 100));
        assert_eq!(seen(1.0, 0.5, 64), (true, 30));
        assert_eq!(seen(1.5, 0.5, 64), (true, 64));
        assert_eq!(seen(1.5, 0.5, 8), (true, 30));
    }
}
