//! The places for recurrent states: one per running session.

use paceline_proto::Slot;

/// Which slots are free.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The last is taken next.
    free: Vec<Slot>,
    total: usize,
}

impl Slots {
    /// Free slots, numbered from 0.
    pub(crate) fn new(slots: usize) -> Self {
        let count = u32::try_from(slots).expect("a placement has fewer than 2^32 slots");
        Self { free: (0..count).rev().map(Slot).collect(), total: slots }
    }

    /// A free slot.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Back from a session that ended.
    pub(crate) fn give(&mut self, slot: Slot) {
        debug_assert!(!self.free.contains(&slot), "slot {} given back twice", slot.0);
        assert!(self.free.len() < self.total, "more slots given back than there are");
        self.free.push(slot);
    }

    /// How many are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }
}
