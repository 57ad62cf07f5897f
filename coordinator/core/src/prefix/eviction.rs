//! Which pages go first.
//!
//! Only leaves that nobody holds, so a path is given up from its end. Among these the one with the lowest
//!
//! > value = time of the last use + pages there are × reuses (at most 4),
//!
//! where time counts pages that came and sessions that were served. What was never used again goes in the order in
//! which it came. What was used again stays for as many more new pages as the row has, once for every time: one long
//! document fills the pool at most once, so it cannot evict a beginning that several prompts share, however long it is.
//! The count is bounded, so that nothing stays for ever that was once in demand.

use super::{Freed, NodeId, PrefixIndex, ROOT};

/// Reuses that count.
const MOST_REUSES: u64 = 4;

impl PrefixIndex {
    /// Takes the least valuable page out, with the snapshots that are of no use without it. Nothing if all pages are in use.
    pub fn evict_page(&mut self) -> Option<Freed> {
        let (_, leaf) = *self.leaves.first()?;
        let mut freed = Freed::default();
        self.remove(leaf, &mut freed);
        self.counts.evicted_pages += 1;
        Some(freed)
    }

    /// Takes a path's end out of the order, before its value changes.
    pub(super) fn unlist(&mut self, id: NodeId) {
        self.leaves.remove(&(self.value(id), id));
    }

    /// Puts a node into the order, if it may be evicted.
    pub(super) fn list(&mut self, id: NodeId) {
        let node = self.node(id);
        if id != ROOT && node.children.is_empty() && node.holders == 0 && !node.pinned {
            self.leaves.insert((self.value(id), id));
        }
    }

    fn value(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        node.used + self.reuse_bonus * node.reuses.min(MOST_REUSES)
    }
}
