//! Why sessions end that nobody ended.

use std::time::Duration;

use paceline_proto::{Epoch, StepId};

use super::{Misuse, Refusal};

/// Why a session cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Loss {
    /// A stage failed, and the session's memory with it.
    #[error("stage {stage} failed: {reason}")]
    Stage {
        /// Which, counted from 0.
        stage: usize,
        /// What it says.
        reason: String,
    },
    /// No token can be chosen for it; others are not concerned.
    #[error("no token can be chosen: {reason}")]
    Session {
        /// What the tail says.
        reason: String,
    },
    /// The results of a step are not those of the chunks that were sent.
    #[error("the results of step {step} do not belong to what was sent")]
    Results {
        /// Which.
        step: StepId,
    },
    /// Steps come back in order, so this one never will.
    #[error("step {missing} is missing: step {came} came back before it")]
    Missing {
        /// The oldest in flight.
        missing: StepId,
        /// The one that came.
        came: StepId,
    },
    /// The oldest step is not back: a stage hangs, or what it sent never came.
    #[error("step {step} is not back after {} s: a stage hangs", waited.as_secs())]
    Overdue {
        /// Which.
        step: StepId,
        /// Since when nothing came back.
        waited: Duration,
    },
    /// There is no placement yet.
    #[error("no stages are placed yet")]
    Unplaced,
    /// Another placement is loaded in its place.
    #[error("the row makes room for another one")]
    Ended,
    /// A new placement took the old one's place.
    #[error("the placement was replaced by epoch {epoch}")]
    Replaced {
        /// The new placement's.
        epoch: Epoch,
    },
    /// Its row is over, and it has no place in another one.
    #[error("it was not restored within {} s: {reason}", waited.as_secs())]
    NotRestored {
        /// How long it waited.
        waited: Duration,
        /// Why it had to.
        reason: String,
    },
    /// It was interrupted again and again without getting a token.
    #[error("it was restored {restores} times without a new token: {reason}")]
    Restores {
        /// How often.
        restores: u32,
        /// What interrupted it last.
        reason: String,
    },
    /// The row was replaced by one in which it does not fit.
    #[error("the new placement is too small for it: {0}")]
    TooSmall(Refusal),
    /// The service ends.
    #[error("the service is shutting down")]
    Stopped,
    /// The session wanted what it may not.
    #[error(transparent)]
    Misuse(#[from] Misuse),
}
