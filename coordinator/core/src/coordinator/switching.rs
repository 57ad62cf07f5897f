//! How another row takes over in the middle of everything.
//!
//! The row is *held*: no further step is sent, and when those under way are back it is *still*. Then the memory of its
//! stages stands, whoever wants to may copy it, and [`Action::Still`] says what of it is in use. Either a new row that
//! has the copies is switched to, and sessions run on in it as if nothing had happened: the same pages, slots and
//! tokens, and the number of the next step goes on. Or the row is resumed. Sessions may come, want and leave meanwhile;
//! what they cause waits with the next step. A row that fails while it is held is over as any other.

use std::time::Duration;

use paceline_proto::{Epoch, PageId, Slot};

use super::pace::Pace;
use super::running::Running;
use super::{Action, Coordinator};
use crate::drafts::Trials;
use crate::limits::Limits;

/// Whether steps are held back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Hold {
    /// They are sent.
    #[default]
    No,
    /// Not any more, but some are still under way.
    Asked,
    /// Nothing is under way.
    Still,
}

impl Coordinator {
    /// Whether the row is held and nothing is under way: the only time at which it can be switched.
    pub fn is_still(&self) -> bool {
        self.hold == Hold::Still
    }

    /// Holds a row that works; one that is held already stays so.
    pub(super) fn hold(&mut self) {
        if self.broken.is_none() && self.hold == Hold::No {
            self.hold = Hold::Asked;
        }
    }

    pub(super) fn resume(&mut self) {
        self.hold = Hold::No;
    }

    /// Says that the held row is still. The last closes are sent before, so that what the stages hold is what sessions
    /// here have.
    pub(super) fn come_to_rest(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.hold != Hold::Asked || !self.steps.is_empty() {
            return;
        }
        self.end_settling();
        if !self.closes.is_empty() {
            self.moved = now;
            let closes_only = self.making();
            return actions.push(self.send(closes_only, None));
        }
        self.hold = Hold::Still;
        // Who is not opened yet has nothing of its own, but may be about to read what it shares and restores from, which
        // may be gone from the index.
        let shared = self.running.values().flat_map(|running| running.pages().pages()).copied();
        let restored = self.running.values().filter_map(|running| running.caching.restore()?.source);
        let mut pages: Vec<PageId> = shared.chain(restored).chain(self.index.pages()).collect();
        let open = self.running.values().filter(|running| running.opened()).map(Running::slot);
        let mut slots: Vec<Slot> = open.chain(self.index.slots()).collect();
        pages.sort_unstable();
        pages.dedup();
        slots.sort_unstable();
        actions.push(Action::Still { pages, slots });
    }

    /// Takes the new row, which has the memory of the old one. A row that is not still has none to take over.
    pub(super) fn switch(&mut self, epoch: Epoch, limits: Limits, now: Duration, actions: &mut Vec<Action>) {
        if !self.is_still() {
            return;
        }
        debug_assert!(limits.same_memory(&self.limits), "{limits:?} after {:?}", self.limits);
        self.hold = Hold::No;
        self.release_disk();
        (self.epoch, self.limits) = (epoch, limits);
        self.begin_disk(now);
        // Other stages, other times.
        self.pace = Pace::default();
        self.trials = Trials::default();
        self.counts.stages.clear();
        self.cut_queue(actions);
    }
}
