//! How sessions use what others have computed, and leave what they have.
//!
//! *Before*: a session that is admitted looks its tokens up in the [prefix index](crate::prefix). It shares the pages that
//! are there; its state is restored from a snapshot and a partly filled page is copied, by operations in the step of its
//! first chunk. Until that step is composed, all of this is kept from being evicted.
//!
//! *Meanwhile*: its pages enter the index as they are filled, and its state is copied where that is worth keeping
//! (`positions.rs`): chunks end there, and the next step begins with the copy. Only what is *verified* enters: what
//! came back as computed, with its tokens known. So whoever computes the same finds it while this session still runs.
//!
//! *After*: its last, partly filled page enters, and its slot becomes a snapshot of all that it has run. When all that is
//! under way is the one row that was run ahead, it lingers until that is back, since its state is not known before; and where
//! tokens are uncertain on the stages, until they are not (`speculation.rs`).

use std::collections::VecDeque;

use paceline_proto::{Operation, PageId, SessionId, Slot};

use super::Coordinator;
use super::running::Running;
use crate::pages::PagePool;
use crate::prefix::{Found, Freed, NodeId, PrefixIndex, ROOT};
use crate::reuse::{Missed, Reuse, Tier};
use crate::slots::Slots;

/// What a session has to do with the index.
#[derive(Debug)]
pub(super) struct Caching {
    /// All tokens that it wanted run or reuses, in order.
    pub(super) history: Vec<u32>,
    /// Not all that it wants run are tokens: what follows cannot be found by tokens.
    pub(super) unknown: bool,
    /// How many of its tokens came back as computed, or are reused.
    pub(super) verified: usize,
    /// The node of its last full page in the index; it may be evicted, then it enters again.
    node: NodeId,
    /// Pages from the root to there.
    depth: usize,
    /// Where its chunks end because the state is worth keeping there, ascending.
    pub(super) cuts: VecDeque<usize>,
    /// Where the last chunk sent ended for that reason: the next step begins with a copy.
    pub(super) due: Option<usize>,
    /// Copies that were sent, by position; the states in them are not verified.
    taken: Vec<(usize, Slot)>,
    /// Until its first chunk is composed.
    restore: Option<Restore>,
}

/// What a session restores from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Restore {
    /// A state.
    pub(super) snapshot: Option<Slot>,
    /// A page of which the first tokens are used.
    pub(super) source: Option<PageId>,
}

impl Default for Caching {
    fn default() -> Self {
        Self {
            history: Vec::new(),
            unknown: false,
            verified: 0,
            node: ROOT,
            depth: 0,
            cuts: VecDeque::new(),
            due: None,
            taken: Vec::new(),
            restore: None,
        }
    }
}

impl Caching {
    /// Of a session that uses what was found, which is held for it.
    pub(super) fn of(found: &Found, source: Option<PageId>, tokens: &[u32], page_tokens: usize) -> Self {
        let restore = (found.cached > 0).then_some(Restore { snapshot: found.snapshot, source });
        Self {
            history: tokens[..found.cached].to_vec(),
            verified: found.cached,
            node: found.node,
            depth: found.cached / page_tokens,
            restore,
            ..Self::default()
        }
    }

    /// What it restores from, while that is to be sent.
    pub(super) fn restore(&self) -> Option<Restore> {
        self.restore
    }

    /// Whether a state at `position` is about to be known.
    pub(super) fn awaits(&self, position: usize) -> bool {
        let up_to = |at: &usize| *at <= position;
        self.cuts.front().is_some_and(up_to)
            || self.due.as_ref().is_some_and(up_to)
            || self.taken.iter().any(|(at, _)| *at <= position)
    }

    /// The last position up to `most` at which a state is going to be known.
    pub(super) fn last_awaited(&self, most: usize) -> Option<usize> {
        let all = self.cuts.iter().chain(&self.due).chain(self.taken.iter().map(|(at, _)| at));
        all.copied().filter(|at| *at <= most).max()
    }

    /// The state is wanted at `position` too, if it is not yet passed.
    pub(super) fn also_at(&mut self, position: usize, sent: usize) {
        let place = self.cuts.partition_point(|cut| *cut < position);
        if position > sent && self.cuts.get(place) != Some(&position) {
            self.cuts.insert(place, position);
        }
    }

    /// A chunk was sent up to `sent`: says whether the state there is wanted.
    pub(super) fn passed(&mut self, sent: usize) {
        while let Some(cut) = self.cuts.pop_front_if(|cut| *cut <= sent) {
            self.due = (cut == sent).then_some(cut);
        }
    }

    /// Copies that are not in the index.
    pub(super) fn taken(&self) -> impl Iterator<Item = Slot> {
        self.taken.iter().map(|(_, slot)| *slot)
    }
}

impl Coordinator {
    /// What of an opening's tokens is known. At least the last must be run, to know what follows.
    pub(super) fn find(&self, tokens: &[u32]) -> Found {
        if self.limits.caches() {
            return self.index.find(tokens, tokens.len() - 1);
        }
        Found::nothing(0)
    }

    /// Keeps the state and the page to copy from until they are used; returns the page.
    pub(super) fn hold_found(&mut self, found: &Found) -> Option<PageId> {
        if let Some(slot) = found.snapshot {
            self.index.use_snapshot(slot);
        }
        let source = found.partial.map(|partial| self.index.page(partial));
        source.inspect(|page| self.pages.add_reference(*page))
    }

    /// Makes sure that `pages` pages can be promised, without evicting what was found.
    pub(super) fn make_room_beside(&mut self, found: &Found, pages: usize) -> bool {
        let source = self.hold_found(found);
        let shared = self.index.pages_to(found.node);
        shared.iter().for_each(|page| self.pages.add_reference(*page));
        let nodes = [Some(found.node), found.partial];
        nodes.iter().flatten().for_each(|node| self.index.hold(*node));
        let fits = self.make_room(pages);
        nodes.iter().flatten().for_each(|node| self.index.release(*node));
        shared.iter().for_each(|page| self.pages.drop_reference(*page));
        self.used(Restore { snapshot: found.snapshot, source });
        fits
    }

    /// What a session restored from is no longer needed.
    fn used(&mut self, restore: Restore) {
        if let Some(page) = restore.source {
            self.pages.drop_reference(page);
        }
        if let Some(slot) = restore.snapshot {
            let freed = self.index.done_with(slot);
            self.take_back(freed);
        }
    }

    /// The operations that restore the session are in a step.
    pub(super) fn restored(&mut self, session: SessionId) {
        let running = self.running.get_mut(&session).expect("it has a chunk in the step");
        if let Some(restore) = running.caching.restore.take() {
            self.used(restore);
        }
    }

    /// What a session is told of what was found.
    pub(super) fn reuse(&mut self, found: &Found, tokens: usize, tier: Tier) -> Reuse {
        let (cached, useful) = (found.cached, found.matched.min(tokens - 1));
        let missed = match () {
            () if cached + 1 >= tokens => None,
            () if found.matched == 0 => Some(Missed::Unknown),
            () if useful > cached => Some(Missed::NoState),
            () => Some(Missed::New),
        };
        let counts = &mut self.counts.cache;
        counts.lookups += 1;
        counts.hits += u64::from(cached > 0);
        counts.cached_tokens += cached as u64;
        counts.disk_hits += u64::from(tier == Tier::Disk);
        counts.disk_tokens += if tier == Tier::Disk { cached as u64 } else { 0 };
        counts.reread_tokens += (useful - cached) as u64;
        Reuse { cached, tier, matched: found.matched, missed }
    }

    /// Makes room for pages by evicting the least valuable; false, and nothing evicted, if there are too few.
    pub(super) fn evict_pages(&mut self, pages: usize) -> bool {
        if pages > self.pages.available() + self.pages.idle() {
            return false;
        }
        while pages > self.pages.available() {
            let Some(freed) = self.index.evict_page(|page| self.pages.is_idle(page)) else { return false };
            self.take_back(freed);
        }
        true
    }

    pub(super) fn take_back(&mut self, freed: Freed) {
        take_back(&mut self.pages, &mut self.slots, freed);
    }

    /// The sessions whose states are to be copied, and where they are.
    pub(super) fn due(&self) -> Vec<(SessionId, usize)> {
        self.running.iter().filter_map(|(session, running)| Some((*session, running.caching.due?))).collect()
    }

    /// Copies states, by operations behind all others of a step and before its chunks.
    pub(super) fn take_snapshots(&mut self, due: Vec<(SessionId, usize)>, operations: &mut Vec<Operation>) {
        for (session, position) in due {
            let slot = self.slots.take_snapshot().or_else(|| self.index.evict_snapshot());
            let running = self.running.get_mut(&session).expect("it runs");
            running.caching.due.take_if(|due| *due == position);
            let Some(to) = slot else { continue };
            self.counts.cache.snapshots_taken += 1;
            operations.push(Operation::CopyState { from: running.slot(), to });
            running.caching.taken.push((position, to));
            learn(running, &mut self.index, &mut self.pages, &mut self.slots);
        }
    }

    /// What came back of the session enters the index.
    pub(super) fn learn(&mut self, session: SessionId) {
        if let Some(running) = self.running.get_mut(&session) {
            learn(running, &mut self.index, &mut self.pages, &mut self.slots);
        }
    }

    /// Whether a session that leaves is worth waiting for: its state is known as soon as the one row is back that is under
    /// way.
    pub(super) fn lingers(&self, session: SessionId, running: &Running) -> bool {
        let mut rows = 0;
        let all = self.steps.iter().flat_map(|step| &step.chunks).filter(|chunk| chunk.session == session);
        all.for_each(|_| rows += 1);
        self.limits.caches()
            && self.limits.has_states
            && rows == 1
            && running.speculation.uncertain == 0
            && running.caching.verified + 1 == running.sent()
            && running.known_tokens() >= running.sent()
    }

    /// A session is over: what it has goes to the index, and the rest is free.
    pub(super) fn shelve(&mut self, mut running: Running) {
        running.know_last_token();
        learn(&mut running, &mut self.index, &mut self.pages, &mut self.slots);
        let (slot, sent, page_tokens) = (running.slot(), running.sent(), self.limits.page_tokens);
        let caching = &running.caching;
        let known = caching.verified.min(caching.history.len());
        let mut keeps_slot = false;
        if self.limits.caches() && !caching.unknown && running.opened() {
            let (node, behind) = (caching.node, &caching.history[caching.depth * page_tokens..known]);
            if !self.limits.has_states {
                self.keep_path(node);
            }
            if !behind.is_empty() {
                let page = running.pages().pages()[caching.depth];
                add_page(node, behind, page, &mut self.index, &mut self.pages, &mut self.slots);
            }
            let certain = known == sent && caching.verified == sent && running.speculation.uncertain == 0;
            let whole = known > 0 && certain && self.limits.has_states;
            if whole && self.index.worth(node, behind) && self.room_for_snapshot() {
                keeps_slot = true;
                self.slots.keep();
                let freed = self.index.add_snapshot(node, behind, slot);
                self.take_back(freed);
            }
        }
        if !keeps_slot {
            self.slots.give(slot);
        }
        let Caching { taken, restore, .. } = running.take_caching();
        taken.into_iter().for_each(|(_, slot)| self.slots.give_snapshot(slot));
        if let Some(restore) = restore {
            self.used(restore);
        }
        self.pages.release(running.into_pages());
    }

    fn room_for_snapshot(&mut self) -> bool {
        if self.slots.free_snapshots() == 0
            && let Some(slot) = self.index.evict_snapshot()
        {
            self.slots.give_snapshot(slot);
        }
        self.slots.free_snapshots() > 0
    }

    /// A session's memory is worth nothing any more. The index must be cleared behind the last.
    pub(super) fn discard(&mut self, mut running: Running) {
        self.slots.give(running.slot());
        let Caching { taken, restore, .. } = running.take_caching();
        taken.into_iter().for_each(|(_, slot)| self.slots.give_snapshot(slot));
        if let Some(page) = restore.and_then(|restore| restore.source) {
            self.pages.drop_reference(page);
        }
        self.pages.release(running.into_pages());
    }

    /// Nothing that the index knows is there any more.
    pub(super) fn clear_index(&mut self) {
        let freed = self.index.clear();
        self.take_back(freed);
    }
}

/// Puts what is verified into the index: full pages, and the states that were copied.
fn learn(running: &mut Running, index: &mut PrefixIndex, pages: &mut PagePool, slots: &mut Slots) {
    let page_tokens = index.page_tokens();
    let (caching, table) = running.memory();
    if caching.unknown {
        return;
    }
    let known = caching.verified.min(caching.history.len());
    if !index.contains(caching.node) {
        (caching.node, caching.depth) = index.walk(&caching.history[..caching.depth * page_tokens]);
    }
    while (caching.depth + 1) * page_tokens <= known {
        let tokens = &caching.history[caching.depth * page_tokens..(caching.depth + 1) * page_tokens];
        caching.node = add_page(caching.node, tokens, table[caching.depth], index, pages, slots);
        caching.depth += 1;
    }
    for (position, slot) in caching.taken.extract_if(.., |(position, _)| *position <= known) {
        let depth = position / page_tokens;
        let (node, behind) = (index.above(caching.node, depth), &caching.history[depth * page_tokens..position]);
        if !behind.is_empty() {
            // the session writes on behind these tokens, where nobody relies on the page
            add_page(node, behind, table[depth], index, pages, slots);
        }
        take_back(pages, slots, index.add_snapshot(node, behind, slot));
    }
}

/// Adds a page, unless its tokens are known; returns where they are.
pub(super) fn add_page(
    parent: NodeId,
    tokens: &[u32],
    page: PageId,
    index: &mut PrefixIndex,
    pages: &mut PagePool,
    slots: &mut Slots,
) -> NodeId {
    let inserted = index.insert(parent, tokens, page);
    if inserted.added {
        pages.keep(page);
    }
    take_back(pages, slots, inserted.freed);
    inserted.node
}

fn take_back(pages: &mut PagePool, slots: &mut Slots, freed: Freed) {
    freed.pages.into_iter().for_each(|page| pages.forget(page));
    freed.slots.into_iter().for_each(|slot| slots.give_snapshot(slot));
}
