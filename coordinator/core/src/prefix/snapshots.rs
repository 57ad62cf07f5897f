//! Copies of recurrent states at exact positions, and which of them go first.
//!
//! All snapshots of a model have the same size, so what counts is what they save. The lowest goes of
//!
//! > value = inflation at the last use + uses (at most 8) × tokens that would have to be run again without it,
//!
//! where these tokens are those since the snapshot before it on its path (or since the beginning), and inflation is the
//! value of the last that went (this is GreedyDual-Size-Frequency). So a path loses first what lies close behind another
//! snapshot; the last one of a much-used beginning is worth all of its tokens many times; and what is not used any more
//! is overtaken by what comes, as inflation rises. A new one is always taken in, however short its prompt.
//!
//! What lies before a snapshot changes as others go, so values are looked at again when it is their turn.

use paceline_proto::{PageId, Slot};

use super::{Freed, NodeId, PrefixIndex, ROOT};

/// Uses that count.
const MOST_USES: u64 = 8;
/// Closer behind another snapshot than so many tokens none is worth its memory: to run them again takes one small step.
pub(super) const LEAST_DISTANCE: usize = 16;
/// How many are looked at again before one goes: each look finds its value only higher.
const MOST_LOOKS: usize = 32;

/// A state that is kept.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// As no other one ever has, whatever slot it is in.
    number: u64,
    /// Behind which node; nothing if it went while a session was about to use it.
    place: Option<NodeId>,
    behind: Box<[u32]>,
    uses: u64,
    /// The inflation when it was last used.
    base: u64,
    /// Its value when that was last looked at.
    value: u64,
    /// Sessions that are about to use it.
    users: usize,
    pinned: bool,
}

impl PrefixIndex {
    /// Whether there is a snapshot `behind` a node.
    pub fn has_snapshot(&self, node: NodeId, behind: &[u32]) -> bool {
        self.node(node).snapshots.contains_key(behind)
    }

    /// Tokens between a position and the snapshot before it, or the beginning.
    pub fn distance(&self, node: NodeId, behind: &[u32]) -> usize {
        let mut distance = behind.len();
        let (mut node, mut behind) = (node, behind);
        loop {
            // the position itself does not count
            let before = (0..behind.len()).rev().find(|length| self.has_snapshot(node, &behind[..*length]));
            if let Some(length) = before {
                return distance - length;
            }
            if node == ROOT {
                return distance;
            }
            let one = self.node(node);
            (node, behind) = (one.parent, &one.tokens);
            distance += behind.len();
        }
    }

    /// Keeps the state in `slot`, which is that of all tokens to `node` and of those `behind` it. The slot comes back at
    /// once if there is one already, one close before it, or no page with the tokens behind.
    pub fn add_snapshot(&mut self, node: NodeId, behind: &[u32], slot: Slot) -> Freed {
        debug_assert!(behind.len() < self.page_tokens, "a whole page is a node");
        let covered = behind.is_empty() || self.nearest(node, behind).1 == behind.len();
        let worth = self.worth(node, behind);
        if !covered || !worth {
            return Freed { slots: vec![slot], ..Freed::default() };
        }
        let base = self.inflation;
        let value = base + self.distance(node, behind) as u64;
        self.numbers += 1;
        let (number, place, behind) = (self.numbers, Some(node), Box::from(behind));
        let snapshot = Snapshot { number, place, behind, uses: 1, base, value, users: 0, pinned: false };
        self.node_mut(node).snapshots.insert(snapshot.behind.clone(), slot);
        self.snapshots.insert(slot, snapshot);
        self.order.insert((value, slot));
        self.counts.snapshots += 1;
        self.added.push_back((slot, number));
        if self.added.len() > self.snapshots.len() {
            self.added.pop_front();
        }
        Freed::default()
    }

    /// Snapshots that were added since this was last asked, each with its number. Some may be gone.
    pub fn take_added(&mut self) -> impl Iterator<Item = (Slot, u64)> + use<> {
        std::mem::take(&mut self.added).into_iter()
    }

    /// The tokens of which the snapshot of this number has the state, and the pages that hold them; nothing if it is not in
    /// the tree, though another one may be in its slot.
    pub fn snapshot_path(&self, slot: Slot, number: u64) -> Option<(Vec<u32>, Vec<PageId>)> {
        let snapshot = self.snapshots.get(&slot).filter(|snapshot| snapshot.number == number)?;
        let node = snapshot.place?;
        let (mut tokens, mut pages) = (self.tokens_to(node), self.pages_to(node));
        if !snapshot.behind.is_empty() {
            let (last, common) = self.nearest(node, &snapshot.behind);
            debug_assert_eq!(common, snapshot.behind.len(), "a snapshot without its page");
            pages.push(self.page(last?));
        }
        tokens.extend_from_slice(&snapshot.behind);
        Some((tokens, pages))
    }

    /// Whether a snapshot there would save enough to be kept.
    pub fn worth(&self, node: NodeId, behind: &[u32]) -> bool {
        !self.has_snapshot(node, behind)
            && (self.distance(node, behind) >= LEAST_DISTANCE || self.is_first(node, behind))
    }

    /// Whether no snapshot lies before the position.
    fn is_first(&self, node: NodeId, behind: &[u32]) -> bool {
        self.distance(node, behind) == self.node(node).depth * self.page_tokens + behind.len()
    }

    /// Takes the least valuable snapshot out. Nothing if all are in use.
    pub fn evict_snapshot(&mut self) -> Option<Slot> {
        for _ in 0..MOST_LOOKS {
            let (seen, slot) = self.order.iter().copied().find(|(_, slot)| self.snapshots[slot].users == 0)?;
            if self.snapshot_value(slot) <= seen {
                break;
            }
            self.relist(slot);
        }
        let (value, slot) = self.order.iter().copied().find(|(_, slot)| self.snapshots[slot].users == 0)?;
        self.inflation = self.inflation.max(value);
        self.take_out(slot);
        self.counts.evicted_snapshots += 1;
        Some(slot)
    }

    /// A session is about to use a snapshot: its slot is not given away until [`done_with`](Self::done_with).
    pub fn use_snapshot(&mut self, slot: Slot) {
        self.snapshots.get_mut(&slot).expect("a snapshot that is found is there").users += 1;
    }

    /// A session has used the snapshot, or will not. Its slot is free if it went meanwhile.
    pub fn done_with(&mut self, slot: Slot) -> Freed {
        let snapshot = self.snapshots.get_mut(&slot).expect("it was kept for its users");
        snapshot.users -= 1;
        if snapshot.users > 0 || snapshot.place.is_some() {
            return Freed::default();
        }
        self.snapshots.remove(&slot);
        Freed { slots: vec![slot], ..Freed::default() }
    }

    pub(super) fn touch_snapshot(&mut self, slot: Slot) {
        let inflation = self.inflation;
        let snapshot = self.snapshots.get_mut(&slot).expect("a snapshot that is found is there");
        (snapshot.uses, snapshot.base) = (snapshot.uses + 1, inflation);
        self.relist(slot);
    }

    /// Pins a snapshot, or lets it go like others.
    pub(super) fn pin_snapshot(&mut self, slot: Slot, pinned: bool) {
        self.snapshots.get_mut(&slot).expect("it is in the tree").pinned = pinned;
        self.relist(slot);
    }

    /// How many are pinned.
    pub(super) fn pinned_snapshots(&self) -> usize {
        self.snapshots.values().filter(|snapshot| snapshot.pinned).count()
    }

    fn relist(&mut self, slot: Slot) {
        let value = self.snapshot_value(slot);
        let snapshot = self.snapshots.get_mut(&slot).expect("it is there");
        self.order.remove(&(snapshot.value, slot));
        snapshot.value = value;
        if !snapshot.pinned {
            self.order.insert((value, slot));
        }
    }

    fn snapshot_value(&self, slot: Slot) -> u64 {
        let snapshot = &self.snapshots[&slot];
        let node = snapshot.place.expect("it is in the tree");
        snapshot.base + snapshot.uses.min(MOST_USES) * self.distance(node, &snapshot.behind) as u64
    }

    fn take_out(&mut self, slot: Slot) {
        let snapshot = self.snapshots.remove(&slot).expect("it is there");
        self.order.remove(&(snapshot.value, slot));
        let node = snapshot.place.expect("it is in the tree");
        self.node_mut(node).snapshots.remove(&snapshot.behind);
        self.counts.snapshots -= 1;
    }

    /// The pages before a snapshot went, and it is out of its node already.
    pub(super) fn strand(&mut self, slot: Slot, freed: &mut Freed) {
        let snapshot = self.snapshots.get_mut(&slot).expect("it was in the tree");
        self.order.remove(&(snapshot.value, slot));
        snapshot.place = None;
        self.counts.snapshots -= 1;
        self.counts.stranded_snapshots += 1;
        if snapshot.users == 0 {
            self.snapshots.remove(&slot);
            freed.slots.push(slot);
        }
    }
}
