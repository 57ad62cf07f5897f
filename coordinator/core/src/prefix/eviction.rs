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

use paceline_proto::PageId;

use super::{Freed, NodeId, PrefixIndex, ROOT};

/// Reuses that count.
const MOST_REUSES: u64 = 4;

impl PrefixIndex {
    /// Takes the least valuable page out, with the snapshots that are of no use without it: of the pages that are idle,
    /// since the others would not be free. If none of these is at an end, what is behind them goes first: whoever uses
    /// such a page still has it. Nothing if that would free none.
    pub fn evict_page(&mut self, is_idle: impl Fn(PageId) -> bool) -> Option<Freed> {
        let ends = || self.leaves.iter().map(|(_, leaf)| *leaf);
        let idle = ends().find(|leaf| is_idle(self.node(*leaf).page));
        let leaf = idle.or_else(|| ends().find(|leaf| self.is_behind(*leaf, &is_idle)))?;
        let mut freed = Freed::default();
        self.remove(leaf, &mut freed);
        self.counts.evicted_pages += 1;
        Some(freed)
    }

    /// Whether any page above a node is idle.
    fn is_behind(&self, mut id: NodeId, is_idle: impl Fn(PageId) -> bool) -> bool {
        while id != ROOT {
            id = self.node(id).parent;
            if id != ROOT && is_idle(self.node(id).page) {
                return true;
            }
        }
        false
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

    pub(super) fn value(&self, id: NodeId) -> u64 {
        let node = self.node(id);
        node.used + self.reuse_bonus * node.reuses.min(MOST_REUSES)
    }
}
