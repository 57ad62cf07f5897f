//! What people see of the cache, and what they want kept or forgotten.

use super::Coordinator;
use crate::prefix::CachedPath;

/// Why a text is not pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PinRefusal {
    /// Nothing that begins like it is cached with all that is needed to go on from it.
    #[error("nothing of it is cached; send it as a request first")]
    Unknown,
    /// Others need room too.
    #[error("{pinned} {what} would be pinned, at most half of the {all} may be; unpin something first")]
    TooMuch {
        /// How many would be.
        pinned: usize,
        /// Pages or snapshots.
        what: &'static str,
        /// How many there are.
        all: usize,
    },
}

/// What was forgotten.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Forgotten {
    /// Pages.
    pub pages: usize,
    /// States.
    pub snapshots: usize,
    /// The disks were told to forget it too.
    pub on_disk: bool,
}

impl Coordinator {
    /// At most `limit` texts that are cached, the last used first, and how many more there are.
    pub fn cached(&self, limit: usize) -> (Vec<CachedPath>, usize) {
        self.index.paths(limit)
    }

    /// Keeps the text of these tokens whatever needs room, as long as the row is there; says how many of them are kept.
    ///
    /// # Errors
    /// When nothing of it is cached, or so much is pinned that nobody else would find room.
    pub fn pin(&mut self, tokens: &[u32]) -> Result<usize, PinRefusal> {
        let kept = self.index.pin(tokens);
        if kept == 0 {
            return Err(PinRefusal::Unknown);
        }
        let pinned = self.index.pinned();
        let shares =
            [("pages", pinned.pages, self.limits.pages), ("snapshots", pinned.snapshots, self.limits.snapshots)];
        for (what, pinned, all) in shares {
            if pinned > all / 2 {
                self.index.unpin(tokens);
                return Err(PinRefusal::TooMuch { pinned, what, all });
            }
        }
        Ok(kept)
    }

    /// Lets a text go like others; says how many of its tokens were found.
    pub fn unpin(&mut self, tokens: &[u32]) -> usize {
        self.index.unpin(tokens)
    }

    /// Forgets a text and all that goes on from it, as far as no session relies on it. `None` unless all of it is in
    /// memory, or the disks may have it. What is free then can be used from the next event on.
    pub fn forget(&mut self, tokens: &[u32]) -> Option<Forgotten> {
        let freed = self.index.forget(tokens);
        let on_disk = !tokens.is_empty() && self.disk.as_mut().is_some_and(|disk| disk.forget(tokens));
        if freed.is_none() && !on_disk {
            return None;
        }
        let freed = freed.unwrap_or_default();
        let forgotten = Forgotten { pages: freed.pages.len(), snapshots: freed.slots.len(), on_disk };
        self.take_back(freed);
        Some(forgotten)
    }
}
