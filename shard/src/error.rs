//! What can go wrong in a stage.

use paceline_proto::{Epoch, SessionId, StepId};

/// An error of running a stage. After one the stage runs nothing more: its memory may disagree with the
/// other stages'.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device could not do it.
    #[error(transparent)]
    Device(#[from] paceline_compute::Error),
    /// The link could not do it.
    #[error(transparent)]
    Link(#[from] paceline_transport::Error),
    /// A step of another placement.
    #[error("a step of epoch {found} reached a stage of epoch {expected}")]
    Epoch {
        /// The step's.
        found: Epoch,
        /// The stage's.
        expected: Epoch,
    },
    /// A step is missing or came twice.
    #[error("step {found} came where step {expected} was due")]
    Order {
        /// The step's number.
        found: StepId,
        /// The number due.
        expected: StepId,
    },
    /// A step speaks of a session that this stage does not know.
    #[error("session {session} is not open on this stage")]
    UnknownSession {
        /// Whose.
        session: SessionId,
    },
    /// A session is opened twice.
    #[error("session {session} is open already")]
    OpenTwice {
        /// Whose.
        session: SessionId,
    },
    /// A chunk refers to a token that was never sampled.
    #[error("step {step} sampled no token for session {session}")]
    NotSampled {
        /// Whose.
        session: SessionId,
        /// The step it was to come from.
        step: StepId,
    },
    /// The rows that came do not fit the step's chunks.
    #[error("the frame carries {found} values of activations, its chunks need {expected}")]
    Rows {
        /// Values there are.
        found: usize,
        /// Values needed.
        expected: usize,
    },
    /// Logits are at the tail only.
    #[error("this stage has no logits, it is not the last of its row")]
    NotTail,
    /// The stage's thread could not be started.
    #[error("the stage's thread could not be started: {0}")]
    Thread(std::io::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
