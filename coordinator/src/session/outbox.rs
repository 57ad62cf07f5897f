//! Updates on their way to the client: a bounded channel, and behind it the few that a full channel must not lose.

use std::collections::VecDeque;

use paceline_core::drafts::MOST_DRAFTS;
use tokio::sync::mpsc::{self, error::TrySendError};

use crate::engine::Update;

/// Updates that wait for a slow reader before its session pauses: some seconds of reading.
pub(crate) const UPDATES: usize = 128;
/// A session is paused when so few places are left: the tokens of one chunk, whose drafts may all be right, and the end.
const FEW: usize = MOST_DRAFTS + 2;
/// What may come after the session was paused: what is under way, and the end.
const AFTER_PAUSE: usize = 2 * FEW;

/// The session's end of the channel to its client.
pub(crate) struct Outbox {
    updates: mpsc::Sender<Update>,
    /// Came when the channel was full; in order, and only while the session is paused.
    held: VecDeque<Update>,
}

impl Outbox {
    pub(crate) fn new(updates: mpsc::Sender<Update>) -> Self {
        Self { updates, held: VecDeque::with_capacity(AFTER_PAUSE) }
    }

    /// Sends an update, or holds it back behind those that are held already. What the client no longer reads is
    /// dropped.
    pub(crate) fn send(&mut self, update: Update) {
        self.held.push_back(update);
        self.flush();
        assert!(self.held.len() <= AFTER_PAUSE, "a paused session goes on producing");
    }

    /// Sends what was held back, as far as there is room.
    pub(crate) fn flush(&mut self) {
        while let Some(update) = self.held.pop_front() {
            match self.updates.try_send(update) {
                Ok(()) => {}
                Err(TrySendError::Full(update)) => return self.held.push_front(update),
                Err(TrySendError::Closed(_)) => self.held.clear(),
            }
        }
    }

    /// Has the client all that was sent?
    pub(crate) fn is_flushed(&self) -> bool {
        self.held.is_empty()
    }

    /// Should the session pause?
    pub(crate) fn is_nearly_full(&self) -> bool {
        !self.held.is_empty() || (self.updates.capacity() <= FEW && !self.updates.is_closed())
    }

    /// Ready when half of the channel is free again; true unless the client has left. While it waits it takes every
    /// place that comes free, so that updates are held back meanwhile.
    pub(crate) fn room(&self) -> impl Future<Output = bool> + use<> {
        let updates = self.updates.clone();
        async move { updates.reserve_many(UPDATES / 2).await.is_ok() }
    }

    /// Ready when the client has left.
    pub(crate) fn closed(&self) -> impl Future<Output = ()> + use<> {
        let updates = self.updates.clone();
        async move { updates.closed().await }
    }
}
