//! The load that a placement is made for.

use super::{StepShape, Wishes};

/// The prompt that is reckoned with if none is said.
const USUAL_PROMPT: usize = 2048;
/// The answer that is reckoned with if none is said.
const USUAL_ANSWER: usize = 256;

/// What every session does: it reads a prompt and writes an answer, after some tokens of conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Load {
    /// Tokens of a prompt.
    pub prompt: usize,
    /// Tokens of an answer.
    pub answer: usize,
    /// Tokens that an answer's rows attend to.
    pub depth: usize,
    /// Sessions that do so at once.
    pub users: usize,
}

impl Load {
    /// The usual load of sessions of so many tokens, which are half full.
    pub fn usual(context: usize, sessions: usize) -> Self {
        let depth = context / 2;
        Self {
            prompt: USUAL_PROMPT.min(depth).max(1),
            answer: USUAL_ANSWER.min(depth).max(1),
            depth,
            users: sessions.max(1),
        }
    }

    /// How many groups the users travel in, in a row of so many stages: one per stage, so that none waits.
    pub(super) fn groups(&self, stages: usize) -> usize {
        self.users.min(stages).max(1)
    }

    /// Users of the largest group.
    pub(super) fn group(&self, stages: usize) -> usize {
        self.users.div_ceil(self.groups(stages)).max(1)
    }
}

/// The steps that a load is made of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Steps {
    /// A row of one session alone.
    pub(super) alone: StepShape,
    /// A row of each session of a group.
    pub(super) decode: StepShape,
    /// A chunk in the middle of a prompt.
    pub(super) prefill: StepShape,
    /// The last chunk of a prompt, of which a token is wanted.
    pub(super) first_token: StepShape,
    /// Decode steps of a group.
    pub(super) decode_steps: f64,
    /// Chunks of one prompt.
    pub(super) chunks: usize,
    /// Chunks of all prompts of a group.
    pub(super) prefill_steps: f64,
}

impl Steps {
    pub(super) fn of(load: &Load, wishes: &Wishes, stages: usize) -> Self {
        let group = load.group(stages);
        let rows = wishes.prefill_rows().min(load.prompt).max(1);
        let chunks = load.prompt.div_ceil(rows).max(1);
        let prefill = StepShape::prefill(rows, load.prompt.saturating_sub(rows) / 2);
        Self {
            alone: StepShape::decode(1, load.depth),
            decode: StepShape::decode(group, load.depth),
            prefill,
            first_token: StepShape { wanted: 1, ..prefill },
            decode_steps: load.answer as f64,
            chunks,
            prefill_steps: (group * chunks) as f64,
        }
    }
}
