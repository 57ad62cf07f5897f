//! What people see of the index, and what they want kept or forgotten.

use paceline_proto::Slot;

use super::{Freed, Node, NodeId, PrefixIndex, ROOT};

/// Tokens of a path's beginning and of its end that are told.
pub const SHOWN_TOKENS: usize = 24;

/// A text in the index: the way to one of its ends.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CachedPath {
    /// Tokens to its end.
    pub tokens: usize,
    /// The first [`SHOWN_TOKENS`] of them.
    pub begins: Vec<u32>,
    /// The last of those that follow, at most as many.
    pub ends: Vec<u32>,
    /// Positions on it at which a state is kept, ascending.
    pub snapshots: Vec<usize>,
    /// Its pages, which other paths may share.
    pub pages: usize,
    /// How often its end was used again.
    pub reuses: u64,
    /// Whether its end, or anything on the way, stays until it is unpinned.
    pub pinned: bool,
}

/// How much is pinned. A path counts with all its pages, shared ones too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PinnedCounts {
    /// Pages of pinned paths.
    pub pages: usize,
    /// Pinned states.
    pub snapshots: usize,
}

impl PrefixIndex {
    /// At most `limit` paths, the last used first, and how many more there are. Looks at every node once.
    pub fn paths(&self, limit: usize) -> (Vec<CachedPath>, usize) {
        let nodes = self.nodes.iter().enumerate().skip(1);
        let ends = nodes.filter_map(|(id, node)| {
            node.as_ref().filter(|node| node.children.is_empty()).map(|node| (node.used, NodeId(id, node.number)))
        });
        let mut ends: Vec<(u64, NodeId)> = ends.collect();
        ends.sort_unstable_by(|one, other| other.cmp(one));
        let left_off = ends.len().saturating_sub(limit);
        (ends.into_iter().take(limit).map(|(_, end)| self.path(end)).collect(), left_off)
    }

    fn path(&self, end: NodeId) -> CachedPath {
        let mut way = vec![end];
        while let Some(parent) = way.last().map(|id| self.node(*id).parent).filter(|parent| *parent != ROOT) {
            way.push(parent);
        }
        way.push(ROOT);
        way.reverse();
        let mut path = CachedPath { reuses: self.node(end).reuses, pages: way.len() - 1, ..CachedPath::default() };
        for (place, id) in way.iter().enumerate() {
            let node = self.node(*id);
            let begins = SHOWN_TOKENS.saturating_sub(path.begins.len()).min(node.tokens.len());
            path.begins.extend_from_slice(&node.tokens[..begins]);
            path.ends.extend_from_slice(&node.tokens[begins..]);
            path.ends.drain(..path.ends.len().saturating_sub(SHOWN_TOKENS));
            path.tokens += node.tokens.len();
            path.pinned |= node.pinned;
            // those behind this node that lie on the way
            let next = way.get(place + 1).map_or(&[][..], |next| &*self.node(*next).tokens);
            let on_the_way = node.snapshots.keys().filter(|behind| next.starts_with(behind));
            path.snapshots.extend(on_the_way.map(|behind| path.tokens + behind.len()));
        }
        path
    }

    /// Pins what is known of `tokens`; says up to where it can be used. Pages above a pinned one stay with it. Of states the
    /// deepest is pinned: it is the one that whoever begins so goes on from.
    pub fn pin(&mut self, tokens: &[u32]) -> usize {
        let found = self.find(tokens, tokens.len());
        if found.cached == 0 {
            return 0;
        }
        self.set_pinned(found.partial.unwrap_or(found.node), true);
        if let Some(slot) = found.snapshot {
            self.pin_snapshot(slot, true);
        }
        found.cached
    }

    /// Lets everything that is pinned on the way along `tokens` go like others; says up to where they can be used.
    pub fn unpin(&mut self, tokens: &[u32]) -> usize {
        let (way, rest) = self.way(tokens);
        for id in way {
            let node = self.node(id);
            let behind = &tokens[node.depth * self.page_tokens..];
            let slots = node.snapshots.iter().filter(|(key, _)| behind.starts_with(key)).map(|(_, slot)| *slot);
            let slots: Vec<Slot> = slots.collect();
            slots.into_iter().for_each(|slot| self.pin_snapshot(slot, false));
            // the page that was pinned for its first tokens may be any that begins with one of them
            let node = self.node(id);
            let first = rest.first().filter(|_| node.depth * self.page_tokens + rest.len() == tokens.len());
            let pages = node.children.iter().filter(|(key, _)| key.first() == first).map(|(_, child)| *child);
            let pages: Vec<NodeId> = pages.chain([id]).collect();
            pages.into_iter().filter(|id| *id != ROOT).for_each(|id| self.set_pinned(id, false));
        }
        self.find(tokens, tokens.len()).cached
    }

    /// The nodes of the full pages of `tokens` that are known, from the root on, and the tokens behind the last.
    fn way<'t>(&self, tokens: &'t [u32]) -> (Vec<NodeId>, &'t [u32]) {
        let (mut way, mut node, mut position) = (vec![ROOT], ROOT, 0);
        while let Some(next) = tokens.get(position..position + self.page_tokens)
            && let Some(child) = self.node(node).children.get(next)
        {
            (node, position) = (*child, position + self.page_tokens);
            way.push(node);
        }
        (way, &tokens[position..])
    }

    pub(super) fn set_pinned(&mut self, id: NodeId, pinned: bool) {
        self.unlist(id);
        self.node_mut(id).pinned = pinned;
        self.list(id);
    }

    /// Lets the least valuable of what is pinned go like others; false if nothing is. Looks at every node once.
    pub fn unpin_least(&mut self) -> bool {
        let pinned = |(id, node): (usize, &Option<Node>)| {
            node.as_ref().filter(|node| node.pinned).map(|node| NodeId(id, node.number))
        };
        let least = self.nodes.iter().enumerate().filter_map(pinned).min_by_key(|id| (self.value(*id), *id));
        least.inspect(|id| self.set_pinned(*id, false)).is_some()
    }

    /// How much is pinned. Looks at every node once.
    pub fn pinned(&self) -> PinnedCounts {
        let nodes = self.nodes.iter().flatten().filter(|node| node.pinned);
        PinnedCounts { pages: nodes.map(|node| node.depth).sum(), snapshots: self.pinned_snapshots() }
    }

    /// Forgets these tokens and all that goes on from them, pinned or not, as far as no session relies on it. Beginnings
    /// that other texts share stay. `None`, and nothing is forgotten, unless all the tokens are known.
    pub fn forget(&mut self, tokens: &[u32]) -> Option<Freed> {
        let (way, rest) = self.way(tokens);
        let last = way[way.len() - 1];
        let (above, mut all): (NodeId, Vec<NodeId>) = match rest {
            [] => (self.node(last).parent, vec![last]),
            rest => {
                let children = self.node(last).children.iter();
                (last, children.filter(|(key, _)| key.starts_with(rest)).map(|(_, child)| *child).collect())
            }
        };
        if tokens.is_empty() || all.is_empty() {
            return None;
        }
        let mut seen = 0;
        while let Some(&id) = all.get(seen) {
            all.extend(self.node(id).children.values());
            seen += 1;
        }
        let mut freed = Freed::default();
        for id in all.into_iter().rev() {
            self.forget_end(id, &mut freed);
        }
        // beginnings that were only this text's
        let mut node = above;
        while node != ROOT {
            let parent = self.node(node).parent;
            if !self.forget_end(node, &mut freed) {
                break;
            }
            node = parent;
        }
        Some(freed)
    }

    /// Takes a node out if nothing is behind it and nobody relies on it.
    fn forget_end(&mut self, id: NodeId, freed: &mut Freed) -> bool {
        let node = self.node(id);
        if !node.children.is_empty() || node.holders > 0 {
            return false;
        }
        self.unlist(id);
        self.node_mut(id).pinned = false;
        self.remove(id, freed);
        true
    }
}
