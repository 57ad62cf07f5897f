//! The prefix index: which token sequences the row's memory still knows, and where.
//!
//! A tree of pages. A node is one page of tokens behind those of its parent and holds one reference on the page of keys
//! and values; a *tail* is a node of fewer tokens than a page holds, and has nothing behind it. A model with recurrent states
//! needs the state too: *snapshots* are kept at any exact position, by the tokens (fewer than a page) behind their node.
//! So page size and snapshot position are independent. Read [`PrefixIndex::find`].
//!
//! What is found need not begin or end with a page: the first tokens of any page can be used by copying it, whatever
//! follows them there. [`PrefixIndex::find`] says of which.
//!
//! Two budgets, two orders of eviction (`eviction.rs`), so that neither pages nor snapshots crowd the other out. Nothing
//! here looks at more than one path of the tree.

mod eviction;
mod keeping;
mod snapshots;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use paceline_proto::{PageId, Slot};

pub use keeping::{CachedPath, PinnedCounts, SHOWN_TOKENS};
use snapshots::Snapshot;

/// A node: where it is, and its number, which no other one ever has. What it names may be evicted unless it is
/// [held](PrefixIndex::hold); see [`PrefixIndex::contains`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(usize, u64);

/// Where every path begins: no tokens, no page. Never evicted.
pub const ROOT: NodeId = NodeId(0, 0);

/// One page of tokens, or fewer in a tail.
#[derive(Debug)]
struct Node {
    number: u64,
    parent: NodeId,
    tokens: Box<[u32]>,
    page: PageId,
    /// Pages from the root to here.
    depth: usize,
    /// By their tokens. None of them begins with another one's tokens.
    children: BTreeMap<Box<[u32]>, NodeId>,
    /// By the tokens behind this node, fewer than a page.
    snapshots: BTreeMap<Box<[u32]>, Slot>,
    /// Who relies on it.
    holders: usize,
    /// An operator wants it kept.
    pinned: bool,
    used: u64,
    reuses: u64,
}

/// What the index knows of some tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Found {
    /// The last node of which all tokens are used.
    pub node: NodeId,
    /// Tokens whose memory can be used.
    pub cached: usize,
    /// Tokens that agree with anything in the index.
    pub matched: usize,
    /// A page whose first `cached % page_tokens` tokens are the last ones used; nothing if there are none.
    pub partial: Option<NodeId>,
    /// Where the state is kept that belongs to the cached tokens; nothing in a model without states, or if none is cached.
    pub snapshot: Option<Slot>,
}

impl Found {
    /// Nothing that can be used of `matched` known tokens.
    pub fn nothing(matched: usize) -> Self {
        Self { node: ROOT, cached: 0, matched, partial: None, snapshot: None }
    }
}

/// What is no longer in the index: whoever owns pages and slots is to take them back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use = "pages and slots that nobody takes back are lost"]
pub struct Freed {
    /// One reference each.
    pub pages: Vec<PageId>,
    /// Slots of snapshots.
    pub slots: Vec<Slot>,
}

/// How often something was evicted, and how much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PrefixCounts {
    /// Pages in the tree now.
    pub pages: usize,
    /// Snapshots in the tree now.
    pub snapshots: usize,
    /// Pages evicted since the start.
    pub evicted_pages: u64,
    /// Snapshots evicted for others since the start.
    pub evicted_snapshots: u64,
    /// Snapshots that went because the pages before them did.
    pub stranded_snapshots: u64,
}

/// The tree. See the module's text.
#[derive(Debug)]
pub struct PrefixIndex {
    page_tokens: usize,
    /// Whether a position is of use only where a snapshot is.
    has_states: bool,
    /// What a page gains by each reuse, in pages that come after it: as many as there are.
    reuse_bonus: u64,
    nodes: Vec<Option<Node>>,
    vacant: Vec<usize>,
    /// Nodes with nothing behind them that nobody holds, least valuable first.
    leaves: BTreeSet<(u64, NodeId)>,
    snapshots: BTreeMap<Slot, Snapshot>,
    /// Snapshots that may be evicted, least valuable first, by what they were worth when that was last looked at.
    order: BTreeSet<(u64, Slot)>,
    /// Counts insertions and uses.
    clock: u64,
    /// What the last evicted snapshot was worth.
    inflation: u64,
    counts: PrefixCounts,
    /// Snapshots that ever came.
    numbers: u64,
    /// Snapshots that came since somebody asked; the oldest are left out of more than there can be.
    added: VecDeque<(Slot, u64)>,
}

impl PrefixIndex {
    /// An empty index of a row with `pages` pages of `page_tokens` tokens.
    pub fn new(pages: usize, page_tokens: usize, has_states: bool) -> Self {
        let root = Node::new(0, ROOT, Box::default(), PageId(u32::MAX), 0);
        Self {
            page_tokens,
            has_states,
            reuse_bonus: pages as u64,
            nodes: vec![Some(root)],
            vacant: Vec::new(),
            leaves: BTreeSet::new(),
            snapshots: BTreeMap::new(),
            order: BTreeSet::new(),
            clock: 0,
            inflation: 0,
            counts: PrefixCounts::default(),
            numbers: 0,
            added: VecDeque::new(),
        }
    }

    /// Whether a node is still there.
    pub fn contains(&self, id: NodeId) -> bool {
        self.nodes.get(id.0).and_then(Option::as_ref).is_some_and(|node| node.number == id.1)
    }

    /// The last full page that begins like `tokens`, and how many pages there are to it.
    pub fn walk(&self, tokens: &[u32]) -> (NodeId, usize) {
        let (mut node, mut depth) = (ROOT, 0);
        for page in tokens.chunks_exact(self.page_tokens) {
            let Some(child) = self.node(node).children.get(page) else { break };
            (node, depth) = (*child, depth + 1);
        }
        (node, depth)
    }

    /// Looks for the longest beginning of `tokens`, of at most `most` tokens, whose memory is there.
    pub fn find(&self, tokens: &[u32], most: usize) -> Found {
        let (mut node, depth) = self.walk(tokens);
        let position = depth * self.page_tokens;
        let (source, common) = self.nearest(node, &tokens[position..]);
        let matched = position + common;
        let nothing = Found::nothing(matched);
        if self.has_states {
            return self
                .find_snapshot(tokens, node, most.min(matched))
                .map_or(nothing, |found| Found { matched, ..found });
        }
        let cached = matched.min(most);
        let (mut partial, mut above) = (source, position);
        while cached < above {
            partial = Some(node);
            node = self.node(node).parent;
            above -= self.page_tokens;
        }
        let partial = partial.filter(|_| cached > above);
        Found { node, cached, matched, partial, snapshot: None }
    }

    /// The deepest snapshot of a beginning of `tokens` of at most `most` tokens, all of which are at `node` or behind it.
    fn find_snapshot(&self, tokens: &[u32], mut node: NodeId, most: usize) -> Option<Found> {
        loop {
            let start = self.node(node).depth * self.page_tokens;
            if start <= most && !self.node(node).snapshots.is_empty() {
                let end = (start + self.page_tokens - 1).min(most);
                for position in (start..=end).rev() {
                    let behind = &tokens[start..position];
                    if let Some(slot) = self.node(node).snapshots.get(behind) {
                        let partial = self.nearest(node, behind).0.filter(|_| !behind.is_empty());
                        let (cached, snapshot) = (position, Some(*slot));
                        return Some(Found { node, cached, matched: cached, partial, snapshot });
                    }
                }
            }
            if node == ROOT {
                return None;
            }
            node = self.node(node).parent;
        }
    }

    /// The child of `node` with the most of the first of `tokens`, and how many these are.
    fn nearest(&self, node: NodeId, tokens: &[u32]) -> (Option<NodeId>, usize) {
        let children = &self.node(node).children;
        let before = children.range::<[u32], _>((Bound::Unbounded, Bound::Included(tokens))).next_back();
        let after = children.range::<[u32], _>((Bound::Excluded(tokens), Bound::Unbounded)).next();
        let all = before.into_iter().chain(after);
        let best = all.map(|(key, child)| (Some(*child), common(key, tokens))).max_by_key(|(_, common)| *common);
        best.filter(|(_, common)| *common > 0).unwrap_or((None, 0))
    }

    /// The pages from the root to `node`, in order.
    pub fn pages_to(&self, mut node: NodeId) -> Vec<PageId> {
        let mut pages = Vec::with_capacity(self.node(node).depth);
        while node != ROOT {
            pages.push(self.node(node).page);
            node = self.node(node).parent;
        }
        pages.reverse();
        pages
    }

    /// The tokens from the root to `node`.
    pub fn tokens_to(&self, mut node: NodeId) -> Vec<u32> {
        let mut way = Vec::with_capacity(self.node(node).depth);
        while node != ROOT {
            way.push(node);
            node = self.node(node).parent;
        }
        way.iter().rev().flat_map(|id| self.node(*id).tokens.iter().copied()).collect()
    }

    /// The page of a node.
    pub fn page(&self, node: NodeId) -> PageId {
        self.node(node).page
    }

    /// The node above `node` at `depth` pages from the root, or itself.
    ///
    /// # Panics
    /// When it is not that deep.
    pub fn above(&self, mut node: NodeId, depth: usize) -> NodeId {
        assert!(depth <= self.node(node).depth, "nothing at {depth} is above a node");
        while self.node(node).depth > depth {
            node = self.node(node).parent;
        }
        node
    }

    /// Keeps a node and all above it from being evicted.
    pub fn hold(&mut self, node: NodeId) {
        if node == ROOT {
            return;
        }
        self.unlist(node);
        self.node_mut(node).holders += 1;
    }

    /// One holder less.
    ///
    /// # Panics
    /// When nobody holds it.
    pub fn release(&mut self, node: NodeId) {
        if node == ROOT {
            return;
        }
        let holders = &mut self.node_mut(node).holders;
        *holders = holders.checked_sub(1).expect("who releases a node has held it");
        self.list(node);
    }

    /// Notes that what was found is used by a session.
    pub fn touch(&mut self, found: &Found) {
        self.clock += 1;
        let clock = self.clock;
        let mut node = found.partial.unwrap_or(found.node);
        while node != ROOT {
            self.unlist(node);
            let one = self.node_mut(node);
            one.used = clock;
            one.reuses += 1;
            self.list(node);
            node = self.node(node).parent;
        }
        if let Some(slot) = found.snapshot {
            self.touch_snapshot(slot);
        }
    }

    /// Adds a page behind `parent`, which is full unless it is a tail. Says where its tokens are: if they are known already
    /// that is another page, and nothing is added.
    ///
    /// # Panics
    /// Without tokens, or with more than a page holds.
    pub fn insert(&mut self, parent: NodeId, tokens: &[u32], page: PageId) -> Inserted {
        assert!((1..=self.page_tokens).contains(&tokens.len()), "{} tokens in a page", tokens.len());
        let (nearest, common) = self.nearest(parent, tokens);
        if let Some(known) = nearest.filter(|_| common == tokens.len()) {
            return Inserted { node: known, added: false, freed: Freed::default() };
        }
        self.clock += 1;
        let node = Node::new(self.clock, parent, tokens.into(), page, self.node(parent).depth + 1);
        let id = NodeId(self.vacant.pop().unwrap_or(self.nodes.len()), self.clock);
        if id.0 == self.nodes.len() {
            self.nodes.push(None);
        }
        self.nodes[id.0] = Some(node);
        self.unlist(parent);
        self.node_mut(parent).children.insert(tokens.into(), id);
        self.counts.pages += 1;
        self.list(id);
        // what is a beginning of the new one says nothing more; snapshots that relied on it rely on that
        let mut freed = Freed::default();
        if let Some(shorter) = nearest.filter(|shorter| self.node(*shorter).tokens.len() == common) {
            debug_assert_eq!(self.node(shorter).holders, 0, "tails are not held");
            if self.node(shorter).pinned {
                self.set_pinned(id, true);
            }
            self.remove(shorter, &mut freed);
        }
        Inserted { node: id, added: true, freed }
    }

    /// Forgets everything.
    pub fn clear(&mut self) -> Freed {
        let pages = self.nodes.drain(..).skip(1).flatten().map(|node| node.page).collect();
        let slots = self.snapshots.keys().copied().collect();
        let (counts, clock) = (PrefixCounts { pages: 0, snapshots: 0, ..self.counts }, self.clock);
        *self = Self { counts, clock, ..Self::new(self.reuse_bonus as usize, self.page_tokens, self.has_states) };
        Freed { pages, slots }
    }

    /// Tokens in a page.
    pub fn page_tokens(&self) -> usize {
        self.page_tokens
    }

    /// Figures.
    pub fn counts(&self) -> PrefixCounts {
        self.counts
    }

    /// All pages of the tree, each once for every reference that it holds.
    pub fn pages(&self) -> impl Iterator<Item = PageId> {
        self.nodes.iter().skip(1).flatten().map(|node| node.page)
    }

    /// The slots of all snapshots.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.snapshots.keys().copied()
    }

    /// Takes a leaf out of the tree.
    fn remove(&mut self, id: NodeId, freed: &mut Freed) {
        self.unlist(id);
        let node = self.nodes[id.0].take_if(|node| node.number == id.1).expect("it is there");
        debug_assert!(node.children.is_empty() && node.holders == 0, "{node:?} is in use");
        self.vacant.push(id.0);
        self.counts.pages -= 1;
        freed.pages.push(node.page);
        node.snapshots.into_values().for_each(|slot| self.strand(slot, freed));
        let parent = self.node_mut(node.parent);
        parent.children.remove(&node.tokens);
        parent.used = parent.used.max(node.used);
        let behind = parent.snapshots.keys().filter(|behind| !behind.is_empty() && node.tokens.starts_with(behind));
        for behind in behind.cloned().collect::<Vec<_>>() {
            if self.nearest(node.parent, &behind).1 < behind.len() {
                let slot = self.node_mut(node.parent).snapshots.remove(&behind).expect("it was there");
                self.strand(slot, freed);
            }
        }
        self.list(node.parent);
    }

    fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().filter(|node| node.number == id.1).expect("a node that is used is there")
    }

    fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().filter(|node| node.number == id.1).expect("a node that is used is there")
    }
}

/// What became of a page that was to be added.
#[derive(Debug)]
#[must_use = "what is freed must be taken back"]
pub struct Inserted {
    /// Where its tokens are now.
    pub node: NodeId,
    /// Whether the index now holds a reference on the page.
    pub added: bool,
    /// What the new page takes the place of.
    pub freed: Freed,
}

impl Node {
    fn new(number: u64, parent: NodeId, tokens: Box<[u32]>, page: PageId, depth: usize) -> Self {
        let (children, snapshots, used) = (BTreeMap::new(), BTreeMap::new(), number);
        Self { number, parent, tokens, page, depth, children, snapshots, holders: 0, pinned: false, used, reuses: 0 }
    }
}

/// How many first tokens are the same.
fn common(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}
