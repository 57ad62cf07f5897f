//! What goes to the stages' disks, and comes back.
//!
//! *Down*: every snapshot that enters the index is kept on disk as soon as the step that made it is back, with the pages
//! on its way that are not yet kept; in a model without states, the full pages of every session that ends. Until all
//! stages have answered, the pages and the slot are held: they can be used by others, and not given away. What finds no
//! room there stays where it is.
//!
//! *Up*: a session of whose tokens the disks know more than the index is admitted and waits (`following.rs`), others pass
//! it. When every stage has staged what is missing, the next step installs it, into pages of the session's and the slot of
//! a snapshot, and it enters the index; the session begins as with any other hit. What is late, missing or finds no room is
//! computed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::{Operation, PageId, Slot, StepId, Ticket, TierAnswer};

use super::caching::add_page;
use super::following::{Awaits, LEAST};
use super::running::Running;
use super::status::DiskStatus;
use super::switching::Hold;
use super::{Action, Coordinator};
use crate::disk::{Disk, Fetching, Pinned};
use crate::prefix::{Found, NodeId};
use crate::reuse::Tier;

/// What may wait to be kept; of more the oldest stays unkept.
const UNKEPT: usize = 256;
/// Of all pages, the share that may be held for being kept, unless it is one entry.
const HELD_SHARE: usize = 4;
/// Orders for one text, on top of one for each stride of its tokens: entries that a stage did not keep are ordered again.
const MORE_ORDERS: usize = 4;

/// What is to be kept.
#[derive(Debug)]
pub(super) struct Unkept {
    what: What,
    /// It is there when this step is back.
    after: StepId,
    /// Orders that were given for it.
    orders: usize,
}

#[derive(Debug, Clone, Copy)]
enum What {
    /// With its number: another one may be in its slot by then, and not yet be there.
    Snapshot(Slot, u64),
    Path(NodeId),
}

impl Coordinator {
    /// The time has come this far; a row that has no tier yet gets one, if its stages have.
    pub(super) fn begin_disk(&mut self, now: Duration) {
        if self.disk.is_none()
            && let Some(root) = self.limits.disk.filter(|_| self.broken.is_none() && self.limits.caches())
        {
            let (stages, stride) = (self.limits.stages, self.limits.snapshot_stride);
            let counts = self.counts.disk;
            self.disk = Some(Disk::new(root, stages, self.limits.has_states, stride, self.tickets, counts));
        }
        if let Some(disk) = &mut self.disk {
            disk.tick(now);
        }
    }

    /// The memory of the stages is worth nothing any more. The index must be cleared behind it.
    pub(super) fn end_disk(&mut self) {
        self.unkept.clear();
        if let Some(disk) = self.disk.take() {
            let (pinned, tickets, counts) = disk.end();
            (self.tickets, self.counts.disk) = (tickets, counts);
            pinned.iter().flat_map(|pinned| &pinned.pages).for_each(|page| self.pages.drop_reference(*page));
        }
    }

    /// Another row takes over the memory: what the old one was to keep or to fetch comes to nothing.
    pub(super) fn release_disk(&mut self) {
        if let Some(disk) = self.disk.take() {
            let (pinned, tickets, counts) = disk.end();
            (self.tickets, self.counts.disk) = (tickets, counts);
            pinned.into_iter().for_each(|pinned| self.unpin_kept(pinned));
        }
        for running in self.running.values_mut() {
            if let Some(following) = &mut running.following
                && matches!(following.awaits, Awaits::Fetch { .. })
            {
                following.awaits = Awaits::Listing;
            }
        }
    }

    pub(super) fn tier_answers(&mut self, stage: usize, answer: TierAnswer) {
        if let Some(disk) = &mut self.disk {
            disk.answer(stage, answer);
        }
        self.unpin_all_kept();
    }

    fn unpin_all_kept(&mut self) {
        let unpinned = self.disk.as_mut().map(Disk::take_unpinned).unwrap_or_default();
        unpinned.into_iter().for_each(|pinned| self.unpin_kept(pinned));
    }

    fn unpin_kept(&mut self, Pinned { pages, slot }: Pinned) {
        pages.into_iter().for_each(|page| self.pages.drop_reference(page));
        if let Some(slot) = slot {
            let freed = self.index.done_with(slot);
            self.take_back(freed);
        }
    }

    /// Pages that are held for being kept, each once for every entry.
    pub(super) fn pinned_pages(&self) -> usize {
        self.disk.iter().flat_map(Disk::pinned).map(|pinned| pinned.pages.len()).sum()
    }

    pub(super) fn disk_status(&self) -> Option<DiskStatus> {
        let disk = self.disk.as_ref()?;
        Some(DiskStatus { counts: disk.counts(), entries: disk.catalog().len(), tiers: disk.tiers().to_vec() })
    }

    /// Whether nothing waits to be kept on disks or forgotten there, or is on its way.
    pub fn has_kept(&self) -> bool {
        let is_at_rest = |disk: &Disk| disk.pinned().next().is_none() && !disk.is_forgetting();
        self.unkept.is_empty() && self.disk.as_ref().is_none_or(is_at_rest)
    }

    /// Has kept what there is, forgets what nobody waits for, and gives the orders. To be called when everything else of an
    /// event is done.
    pub(super) fn use_disk(&mut self, actions: &mut Vec<Action>) {
        let added = self.index.take_added().map(|(slot, number)| What::Snapshot(slot, number));
        if self.disk.is_none() {
            return;
        }
        for what in added {
            self.add_unkept(what);
        }
        self.keep_unkept();
        let fetch = |running: &Running| match running.following.as_ref()?.awaits {
            Awaits::Fetch { ticket } => Some(ticket),
            _ => None,
        };
        let wanted: BTreeSet<Ticket> = self.running.values().filter_map(fetch).collect();
        if let Some(disk) = &mut self.disk {
            disk.retain_fetches(&wanted);
            actions.extend(disk.take_orders().map(|(stage, order)| Action::Order { stage, order }));
        }
    }

    fn add_unkept(&mut self, what: What) {
        if self.unkept.len() == UNKEPT {
            self.unkept.pop_front();
        }
        self.unkept.push_back(Unkept { what, after: StepId(self.next_step), orders: 0 });
    }

    /// The pages of a session that ends are to be kept.
    pub(super) fn keep_path(&mut self, node: NodeId) {
        if self.disk.is_some() {
            self.add_unkept(What::Path(node));
        }
    }

    /// Gives orders to keep what is there, as many as may be under way.
    fn keep_unkept(&mut self) {
        while let Some(unkept) = self.unkept.front().filter(|_| self.hold == Hold::No && self.broken.is_none()) {
            let may_keep = self.disk.as_ref().is_some_and(Disk::may_keep);
            if !may_keep || self.steps.front().is_some_and(|oldest| oldest.id <= unkept.after) {
                return; // copies of states are not awaited: they ride a step
            }
            let path = match unkept.what {
                What::Snapshot(slot, number) => self.index.snapshot_path(slot, number),
                What::Path(node) => {
                    self.index.contains(node).then(|| (self.index.tokens_to(node), self.index.pages_to(node)))
                }
            };
            let most = |tokens: &[u32]| tokens.len() / self.limits.snapshot_stride + MORE_ORDERS;
            let path = path.filter(|(tokens, _)| !tokens.is_empty() && unkept.orders < most(tokens));
            let Some((tokens, pages)) = path else {
                self.unkept.pop_front();
                continue;
            };
            match self.keep_next(&tokens, &pages) {
                Some(true) => self.unkept.front_mut().expect("it is at the front").orders += 1,
                Some(false) => return,
                None => drop(self.unkept.pop_front()),
            }
        }
    }

    /// Orders the first entry that is missing of these tokens, which are in these pages; `None` if none is, false if no more
    /// may be under way.
    fn keep_next(&mut self, tokens: &[u32], pages: &[PageId]) -> Option<bool> {
        let slot = match self.unkept.front()?.what {
            What::Snapshot(slot, _) => Some(slot),
            What::Path(_) => None,
        };
        let (entry, with_state) = self.disk.as_ref()?.missing(tokens)?;
        let (start, page_tokens) = (entry.start as usize, self.limits.page_tokens);
        let end = start + entry.tokens.len();
        let pages = pages[start / page_tokens..end.div_ceil(page_tokens)].to_vec();
        let slot = slot.filter(|_| with_state);
        let held = self.pinned_pages();
        let slots = self.disk.iter().flat_map(Disk::pinned).filter(|pinned| pinned.slot.is_some()).count();
        let disk = self.disk.as_mut()?;
        let much = held > 0 && held + pages.len() > self.limits.pages / HELD_SHARE;
        if much || (slot.is_some() && slots > 0 && slots >= self.limits.snapshots / 2) {
            disk.hold_no_more();
            return Some(false);
        }
        pages.iter().for_each(|page| self.pages.add_reference(*page));
        if let Some(slot) = slot {
            self.index.use_snapshot(slot);
        }
        disk.keep(entry, Pinned { pages, slot });
        Some(true)
    }

    /// Whether the disks know so many more than `known` of these tokens, or may, that it is worth waiting for.
    pub(super) fn more_on_disk(&self, tokens: &[u32], known: usize) -> bool {
        let (most, least) = (tokens.len() - 1, known + LEAST);
        let disk = self.disk.as_ref().filter(|_| self.hold == Hold::No && most >= least);
        disk.is_some_and(|disk| disk.is_listing() || disk.reach(tokens, most) >= least)
    }

    /// Begins to wait for what the disks know of these tokens, of which `known` are known.
    pub(super) fn await_disk(&mut self, tokens: &Arc<[u32]>, known: usize) -> Option<Awaits> {
        if !self.more_on_disk(tokens, known) {
            return None;
        }
        let page_tokens = self.limits.page_tokens;
        let paged = self.index.walk(tokens).1 * page_tokens;
        let disk = self.disk.as_mut()?;
        if disk.is_listing() {
            return Some(Awaits::Listing);
        }
        let ticket = disk.fetch(tokens, tokens.len() - 1, paged, page_tokens)?;
        Some(Awaits::Fetch { ticket })
    }

    /// Nothing more is to be waited for. While the row is held nothing is installed.
    pub(super) fn disk_is_settled(&self, awaits: Awaits) -> bool {
        let Some(disk) = &self.disk else { return true };
        match awaits {
            Awaits::Listing => !disk.is_listing(),
            Awaits::Fetch { ticket } => {
                self.hold == Hold::No && !matches!(disk.fetching(ticket), Some((_, Fetching::UnderWay)))
            }
            Awaits::Leader { .. } => true,
        }
    }

    /// Takes in what a session waited for, now that it is settled. Returns the next thing that it must wait for, `None` when
    /// it can begin.
    pub(super) fn await_more(&mut self, running: &mut Running, awaits: Awaits) -> Option<Awaits> {
        let ticket = match awaits {
            Awaits::Leader { .. } => return None,
            Awaits::Listing => None,
            Awaits::Fetch { ticket } => Some(ticket),
        };
        let state = ticket.and_then(|ticket| Some(self.disk.as_ref()?.fetching(ticket)?.1));
        match (ticket, state) {
            (Some(ticket), Some(Fetching::Staged)) => {
                let installed = self.install(ticket, running).is_some();
                self.disk.as_mut()?.settle(ticket, installed);
                None
            }
            // What is kept is known better now, so this comes to an end.
            (None, _) | (_, Some(Fetching::Failed { missing: true })) => {
                let tokens = Arc::clone(running.tokens());
                let known = self.find(&tokens).cached;
                self.await_disk(&tokens, known)
            }
            _ => None,
        }
    }

    /// The tier of what was found by a session that waited.
    pub(super) fn tier_of(&self, awaits: Awaits, found: &Found) -> Tier {
        let Awaits::Fetch { ticket } = awaits else { return Tier::Device };
        let fetch = self.disk.as_ref().and_then(|disk| disk.fetching(ticket));
        let installed = fetch.is_some_and(|(fetch, state)| state == Fetching::Installed && found.cached == fetch.end);
        if installed { Tier::Disk } else { Tier::Device }
    }

    /// Puts what every stage has staged into the index, and has the next step install it; nothing if there is no room, or
    /// what lies before it is gone.
    fn install(&mut self, ticket: Ticket, running: &mut Running) -> Option<()> {
        let (fetch, _) = self.disk.as_ref()?.fetching(ticket)?;
        let page_tokens = self.limits.page_tokens;
        let (first, end, tokens) = (fetch.start / page_tokens, fetch.end, Arc::clone(&fetch.tokens));
        let count = self.limits.pages_for(end) - first;
        let own = self.limits.pages_for(running.wanted_tokens(&self.limits)).saturating_sub(end / page_tokens);
        let lacking = (count + own).saturating_sub(running.pages().reserved());
        if !self.make_room(lacking) || !self.pages.promise(running.pages_mut(), lacking) {
            return None;
        }
        let (node, depth) = self.index.walk(&tokens[..end]);
        if depth < first {
            return None;
        }
        let slot = if self.limits.has_states {
            Some(self.slots.take_snapshot().or_else(|| self.index.evict_snapshot())?)
        } else {
            None
        };
        let mut node = self.index.above(node, first);
        let mut table = self.pages.split(running.pages_mut(), count);
        let pages = self.pages.grant(&mut table, count).to_vec();
        for (page, tokens) in pages.iter().zip(tokens[first * page_tokens..end].chunks(page_tokens)) {
            let added = add_page(node, tokens, *page, &mut self.index, &mut self.pages, &mut self.slots);
            node = if tokens.len() == page_tokens { added } else { node };
        }
        if let Some(slot) = slot {
            let freed = self.index.add_snapshot(node, &tokens[end / page_tokens * page_tokens..end], slot);
            self.take_back(freed);
        }
        // Pages whose tokens were known already are free again behind this.
        self.pages.release(table);
        self.closes.push(Operation::Install { ticket, pages, slot });
        Some(())
    }
}
