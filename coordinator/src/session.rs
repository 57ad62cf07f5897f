//! One user's session: its actor, and what its core's words mean to a client.

pub(crate) mod actor;
pub(crate) mod outbox;

use paceline_core::session::FinishReason as Ended;
use paceline_core::{Loss, Refusal};

use crate::engine::FinishReason;
use crate::error::Error;

/// Why the session was not let in, as a client is told.
pub(crate) fn refused(refusal: Refusal) -> Error {
    match refusal {
        Refusal::EmptyPrompt => Error::EmptyPrompt,
        Refusal::NeverFits { needed, total } => Error::NeverFits { needed, pages: total },
        Refusal::QueueFull { waiting, limit } => Error::QueueFull { waiting, limit },
        Refusal::QueueDeadline { waited } => Error::QueueDeadline { seconds: waited.as_secs() },
        // The engine has refused these before.
        other @ (Refusal::TooLong { .. } | Refusal::OverOwnLimit { .. }) => {
            Error::Request { reason: other.to_string() }
        }
        Refusal::Broken { reason } => Error::Restoring { reason },
        other @ Refusal::Duplicate { .. } => Error::Lost { reason: other.to_string() },
    }
}

/// Why the session could not go on, as a client is told.
pub(crate) fn lost(loss: &Loss) -> Error {
    match loss {
        Loss::Stopped => Error::ShuttingDown,
        other => Error::Lost { reason: other.to_string() },
    }
}

/// How the answer ended, as a client is told. `stop` is the stop string that was found, if one was.
pub(crate) fn ended(reason: Ended, stop: Option<String>) -> Result<FinishReason, Error> {
    match (reason, stop) {
        (Ended::Stop | Ended::Length, Some(text)) => Ok(FinishReason::StopString(text)),
        (Ended::Stop, None) => Ok(FinishReason::EndToken),
        (Ended::Length, None) => Ok(FinishReason::Length),
        (Ended::Cancelled, _) => Err(Error::ClientLeft),
        (Ended::Refused(refusal), _) => Err(refused(refusal)),
        (Ended::Lost(loss), _) => Err(lost(&loss)),
    }
}
