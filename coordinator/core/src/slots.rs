//! The places for recurrent states: one per running session, and some for snapshots.
//!
//! Both have the same ids, so that the state of a session that ends becomes a snapshot where it lies.

use paceline_proto::Slot;

/// Which slots are free.
#[derive(Debug)]
pub(crate) struct Slots {
    /// The last is taken next.
    free: Vec<Slot>,
    /// Of sessions: how many are taken, and how many may be.
    sessions: (usize, usize),
    /// Of snapshots.
    snapshots: (usize, usize),
}

impl Slots {
    /// Free slots, numbered from 0.
    pub(crate) fn new(sessions: usize, snapshots: usize) -> Self {
        let count = u32::try_from(sessions + snapshots).expect("a placement has fewer than 2^32 slots");
        Self { free: (0..count).rev().map(Slot).collect(), sessions: (0, sessions), snapshots: (0, snapshots) }
    }

    /// A free slot for a session.
    pub(crate) fn take(&mut self) -> Option<Slot> {
        take(&mut self.free, &mut self.sessions)
    }

    /// Back from a session that ended.
    pub(crate) fn give(&mut self, slot: Slot) {
        give(&mut self.free, &mut self.sessions, slot);
    }

    /// A free slot for a snapshot.
    pub(crate) fn take_snapshot(&mut self) -> Option<Slot> {
        take(&mut self.free, &mut self.snapshots)
    }

    /// Back from a snapshot.
    pub(crate) fn give_snapshot(&mut self, slot: Slot) {
        give(&mut self.free, &mut self.snapshots, slot);
    }

    /// The slot of a session that ended is a snapshot's from now on.
    ///
    /// # Panics
    /// When there are as many snapshots as there may be.
    pub(crate) fn keep(&mut self) {
        assert!(self.snapshots.0 < self.snapshots.1, "more snapshots than there may be");
        self.sessions.0 -= 1;
        self.snapshots.0 += 1;
    }

    /// How many more sessions may have one.
    pub(crate) fn free(&self) -> usize {
        self.sessions.1 - self.sessions.0
    }

    /// How many more snapshots may have one.
    pub(crate) fn free_snapshots(&self) -> usize {
        self.snapshots.1 - self.snapshots.0
    }
}

fn take(free: &mut Vec<Slot>, (taken, most): &mut (usize, usize)) -> Option<Slot> {
    if taken == most {
        return None;
    }
    *taken += 1;
    Some(free.pop().expect("there are as many slots as may be taken"))
}

fn give(free: &mut Vec<Slot>, (taken, _): &mut (usize, usize), slot: Slot) {
    debug_assert!(!free.contains(&slot), "slot {} given back twice", slot.0);
    *taken = taken.checked_sub(1).expect("no more slots are given back than were taken");
    free.push(slot);
}
