//! Which sessions a stage has open, and which of them are cancelled: the one thing that the stage's thread and
//! the shard actor share, so that a cancel overtakes the frames on the link.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_proto::SessionId;

/// The open sessions of one stage. A cancel of a session that is not open is forgotten, so that the set holds
/// no more than the sessions there are.
#[derive(Debug, Clone, Default)]
pub struct OpenSessions(Arc<Mutex<BTreeMap<SessionId, bool>>>);

impl OpenSessions {
    /// Voids the session's chunks from now on.
    pub fn cancel(&self, session: SessionId) {
        if let Some(cancelled) = self.lock().get_mut(&session) {
            *cancelled = true;
        }
    }

    /// How many are open.
    pub fn len(&self) -> usize {
        self.lock().len()
    }

    /// Is none open?
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub(crate) fn open(&self, session: SessionId) {
        self.lock().insert(session, false);
    }

    pub(crate) fn close(&self, session: SessionId) {
        self.lock().remove(&session);
    }

    pub(crate) fn is_cancelled(&self, session: SessionId) -> bool {
        self.lock().get(&session).copied().unwrap_or(false)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<SessionId, bool>> {
        // The map is whole between any two calls, so a panic elsewhere cannot have broken it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_cancel_lasts_until_the_session_closes_and_never_longer() {
        let (open, session) = (OpenSessions::default(), SessionId(Uuid::from_u128(1)));
        open.cancel(session);
        assert!(!open.is_cancelled(session) && open.is_empty());
        open.open(session);
        assert!(!open.is_cancelled(session));
        open.cancel(session);
        assert!(open.is_cancelled(session));
        open.close(session);
        assert!(!open.is_cancelled(session) && open.is_empty());
    }
}
