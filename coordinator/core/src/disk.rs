//! The disk tier as the coordinator sees it: what the stages keep, and what they are asked to do.
//!
//! Pure, as everything here. [`Disk`] holds a [`DiskCatalog`] of the entries that stages keep and the orders under way. An
//! entry counts only when every stage has it, since a session's memory is in all of them. The rules:
//!
//! - Pages and the slot of an entry that is being kept stay as they are until *every* stage has answered, whatever time
//!   that takes: what is copied later would be kept under the wrong name. Only a row that is over ends that.
//! - Whoever waits for a fetch waits until its deadline and no longer; then it computes what it lacks. What a late stage
//!   has staged is dropped.
//! - After a restart the stages are asked what they keep, part by part; until all have said it or the deadline has come,
//!   nobody is told that nothing is there.

mod catalog;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::entries::ENTRY_TOKENS;
use paceline_proto::tiers::FETCHED;
use paceline_proto::{
    Entry, EntryKey, PageId, Slot, Ticket, TierAnswer, TierCounts, TierOrder, TierOutcome, TierRefusal, TierTask,
};

pub use catalog::{DiskCatalog, DiskPath};

/// Entries that are being kept at once: while they are, their pages cannot be evicted.
pub const KEEPING: usize = 8;
/// Fetches that stages have not answered, of whoever waits or has left.
pub const FETCHING: usize = 64;
/// Texts that are being forgotten at once.
pub const FORGETTING: usize = 16;
/// Orders that a stage has not answered, at most: those, and a list or a count.
pub const ORDERS: usize = KEEPING + FETCHING + FORGETTING + 2;
/// What was on disk is there again within this time, or is computed.
pub const FETCH: Duration = Duration::from_secs(20);
/// The stages have said within this time what they keep, or nothing more is heard of it.
pub const LISTING: Duration = Duration::from_secs(10);

/// What was to be kept, and was held for that.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pinned {
    /// One reference each.
    pub pages: Vec<PageId>,
    /// Of the state.
    pub slot: Option<Slot>,
}

/// What is to be staged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetch {
    /// Entries that end behind what was known, and their pages.
    path: Vec<EntryKey>,
    /// Tokens before the first page that is fetched, and before the end.
    pub start: usize,
    /// See `start`.
    pub end: usize,
    /// The first `end` of them are those of the path.
    pub tokens: Arc<[u32]>,
}

/// How far a fetch is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetching {
    /// Not all stages have answered.
    UnderWay,
    /// Every stage has staged it: a step may install it.
    Staged,
    /// A step installs it.
    Installed,
    /// It is not to be had; what is kept is known better now if something was missing.
    Failed {
        /// Something was missing.
        missing: bool,
    },
}

/// What the disk tier did since the service began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskCounts {
    /// Entries that all stages have kept.
    pub kept: u64,
    /// Entries that a stage has not kept.
    pub not_kept: u64,
    /// Paths that were installed.
    pub fetched: u64,
    /// Paths that were not to be had, or not in time.
    pub not_fetched: u64,
}

/// See the module's text.
#[derive(Debug)]
pub struct Disk {
    catalog: DiskCatalog,
    stages: usize,
    has_states: bool,
    /// Where there are no states, entries end at multiples of so many tokens.
    stride: usize,
    next: u64,
    now: Duration,
    begun: bool,
    orders: BTreeMap<Ticket, Order>,
    /// Fetches that somebody waits for.
    fetches: BTreeMap<Ticket, (Fetch, Fetching)>,
    /// Orders for stages.
    outbox: Vec<(usize, TierOrder)>,
    /// What may change again.
    unpinned: Vec<Pinned>,
    /// No more may be kept until something is unpinned.
    full: bool,
    /// What each stage's tier has.
    tiers: Vec<TierCounts>,
    counts: DiskCounts,
}

/// An order under way.
#[derive(Debug)]
struct Order {
    task: Task,
    /// Stages that have not answered.
    waits: BTreeSet<usize>,
    /// Why a stage did not do it.
    refusal: Option<TierRefusal>,
}

#[derive(Debug)]
enum Task {
    Keep { entry: Entry, state: bool, pinned: Pinned },
    Fetch { until: Duration },
    List { until: Duration },
    Count,
    Forget,
}

impl Disk {
    /// The tier of a row with so many stages, which are asked what they keep at the first [`tick`](Self::tick). Tickets
    /// begin at `next`.
    pub fn new(root: EntryKey, stages: usize, has_states: bool, stride: usize, next: u64, counts: DiskCounts) -> Self {
        Self {
            catalog: DiskCatalog::new(root, stages),
            stages,
            has_states,
            stride: stride.min(ENTRY_TOKENS),
            next,
            now: Duration::ZERO,
            begun: false,
            orders: BTreeMap::new(),
            fetches: BTreeMap::new(),
            outbox: Vec::new(),
            unpinned: Vec::new(),
            full: false,
            tiers: vec![TierCounts::default(); stages],
            counts,
        }
    }

    /// The row is over: what was being kept or is no longer, and the ticket that was never given.
    pub fn end(mut self) -> (Vec<Pinned>, u64, DiskCounts) {
        let keeps = std::mem::take(&mut self.orders).into_values().filter_map(|order| match order.task {
            Task::Keep { pinned, .. } => Some(pinned),
            _ => None,
        });
        self.unpinned.extend(keeps);
        (self.unpinned, self.next, self.counts)
    }

    /// What the stages keep.
    pub fn catalog(&self) -> &DiskCatalog {
        &self.catalog
    }

    /// What happened.
    pub fn counts(&self) -> DiskCounts {
        self.counts
    }

    /// What each stage's tier has, as far as it has said.
    pub fn tiers(&self) -> &[TierCounts] {
        &self.tiers
    }

    /// Whether more may be there than is known.
    pub fn is_listing(&self) -> bool {
        !self.begun || self.orders.values().any(|order| matches!(order.task, Task::List { .. }))
    }

    /// The moment at which to [`tick`](Self::tick) if nothing is answered before.
    pub fn deadline(&self) -> Option<Duration> {
        self.orders.values().filter_map(Order::until).min()
    }

    /// The time, which begins the first lists and ends what has taken too long.
    pub fn tick(&mut self, now: Duration) {
        self.now = now;
        if !std::mem::replace(&mut self.begun, true) {
            (0..self.stages).for_each(|stage| self.list(stage, None, now + LISTING));
            self.order_all(Task::Count, &TierTask::Count);
        }
        let late = |order: &Order| order.until().is_some_and(|until| until <= now);
        let late: Vec<_> = self.orders.iter().filter(|(_, order)| late(order)).map(|(ticket, _)| *ticket).collect();
        for ticket in late {
            let Some(order) = self.orders.get_mut(&ticket) else { continue };
            match &mut order.task {
                // Its answers are still awaited, so that they are counted.
                Task::Fetch { until } => {
                    *until = Duration::MAX;
                    self.fail(ticket, false);
                }
                _ => drop(self.orders.remove(&ticket)),
            }
        }
    }

    /// Orders for stages, each with the stage, counted from 0.
    pub fn take_orders(&mut self) -> impl Iterator<Item = (usize, TierOrder)> + use<> {
        std::mem::take(&mut self.outbox).into_iter()
    }

    /// What all stages have kept or not: it may change again.
    pub fn take_unpinned(&mut self) -> Vec<Pinned> {
        self.full &= self.unpinned.is_empty();
        std::mem::take(&mut self.unpinned)
    }

    /// What is being kept.
    pub fn pinned(&self) -> impl Iterator<Item = &Pinned> {
        let keeping = self.orders.values().filter_map(|order| match &order.task {
            Task::Keep { pinned, .. } => Some(pinned),
            _ => None,
        });
        keeping.chain(&self.unpinned)
    }

    /// The first entry that is missing on the way to all of these tokens, and whether its state is to be kept with it,
    /// as far as it is neither kept nor being kept.
    pub fn missing(&self, tokens: &[u32]) -> Option<(Entry, bool)> {
        let (last, start, state) = self.catalog.reach(tokens);
        if start == tokens.len() {
            // The pages are kept; perhaps the state is not.
            return last.filter(|_| self.has_states && !state).map(|entry| (entry, true));
        }
        let end = if self.has_states {
            tokens.len().min(start + ENTRY_TOKENS)
        } else {
            tokens.len().min((start / self.stride + 1) * self.stride)
        };
        let parent = last.as_ref().map_or(self.catalog.root(), Entry::key);
        let (root, is_end) = (self.catalog.root(), end == tokens.len());
        let entry = Entry { root, parent, start: u32::try_from(start).ok()?, tokens: tokens[start..end].to_vec() };
        Some((entry, self.has_states && is_end))
    }

    /// So much is held that no more may be, until something is unpinned.
    pub fn hold_no_more(&mut self) {
        self.full = true;
    }

    /// Whether another entry may be kept.
    pub fn may_keep(&self) -> bool {
        !self.full && self.orders.values().filter(|order| matches!(order.task, Task::Keep { .. })).count() < KEEPING
    }

    /// Has an entry kept by all stages. What is pinned stays as it is until it is [unpinned](Self::take_unpinned).
    pub fn keep(&mut self, entry: Entry, pinned: Pinned) {
        let (pages, state) = (pinned.pages.clone(), pinned.slot);
        let task = TierTask::Keep { entry: entry.clone(), pages, state };
        self.catalog.begin(&entry, state.is_some());
        self.order_all(Task::Keep { entry, state: state.is_some(), pinned }, &task);
    }

    /// Has all stages forget texts that begin with these tokens; false if there is nothing to forget, or much is being
    /// forgotten already.
    pub fn forget(&mut self, tokens: &[u32]) -> bool {
        let forgetting = self.orders.values().filter(|order| matches!(order.task, Task::Forget)).count();
        let forgets = forgetting < FORGETTING && (self.is_listing() || !self.catalog.is_empty());
        if forgets {
            let task = TierTask::Forget { root: self.catalog.root(), tokens: tokens.to_vec() };
            self.order_all(Task::Forget, &task);
        }
        forgets
    }

    /// Whether stages have yet to forget something.
    pub fn is_forgetting(&self) -> bool {
        self.orders.values().any(|order| matches!(order.task, Task::Forget))
    }

    /// How many of these tokens' first are on disk, where a session can go on from them.
    pub fn reach(&self, tokens: &[u32], most: usize) -> usize {
        self.path(tokens, most).map_or(0, |path| path.tokens())
    }

    fn path(&self, tokens: &[u32], most: usize) -> Option<DiskPath> {
        self.catalog.find(tokens, most, self.has_states)
    }

    /// Has what is kept of these tokens, at most of the first `most`, staged by all stages; pages of the first `known` are
    /// there. Fetches what others fetch already with them. Nothing if there is nothing, or too much is under way.
    pub fn fetch(&mut self, tokens: &Arc<[u32]>, most: usize, known: usize, page_tokens: usize) -> Option<Ticket> {
        let path = self.path(tokens, most)?;
        let end = path.tokens();
        let first = path.entries.iter().position(|(_, end)| *end > known).unwrap_or(path.entries.len() - 1);
        let start = first.checked_sub(1).map_or(0, |before| path.entries[before].1) / page_tokens * page_tokens;
        let keys: Vec<EntryKey> = path.entries[first..].iter().map(|(key, _)| *key).collect();
        let same = |fetch: &Fetch| fetch.path.last() == keys.last() && fetch.start <= known.min(end);
        let shared = self.fetches.iter().find(|(_, (fetch, state))| *state == Fetching::UnderWay && same(fetch));
        if let Some((ticket, _)) = shared {
            return Some(*ticket);
        }
        let fetching = self.orders.values().filter(|order| matches!(order.task, Task::Fetch { .. })).count();
        if keys.len() > FETCHED || fetching >= FETCHING {
            return None;
        }
        let (until, task) = (self.now + FETCH, TierTask::Fetch { path: keys.clone(), state: self.has_states });
        let ticket = self.order_all(Task::Fetch { until }, &task);
        let fetch = Fetch { path: keys, start, end, tokens: Arc::clone(tokens) };
        self.fetches.insert(ticket, (fetch, Fetching::UnderWay));
        Some(ticket)
    }

    /// A fetch that somebody waits for, and how far it is.
    pub fn fetching(&self, ticket: Ticket) -> Option<(&Fetch, Fetching)> {
        self.fetches.get(&ticket).map(|(fetch, state)| (fetch, *state))
    }

    /// What was staged is in a step, or cannot be.
    pub fn settle(&mut self, ticket: Ticket, installed: bool) {
        if installed && let Some((_, state)) = self.fetches.get_mut(&ticket) {
            *state = Fetching::Installed;
            self.counts.fetched += 1;
        } else {
            self.fail(ticket, false);
        }
    }

    /// Nobody but these waits for fetches.
    pub fn retain_fetches(&mut self, wanted: &BTreeSet<Ticket>) {
        let unwanted: Vec<Ticket> = self.fetches.keys().filter(|ticket| !wanted.contains(ticket)).copied().collect();
        for ticket in unwanted {
            let state = self.fetches.remove(&ticket).map(|(_, state)| state);
            if matches!(state, Some(Fetching::UnderWay | Fetching::Staged)) {
                self.drop_staged(ticket);
            }
        }
    }

    /// A stage answers. What nobody asked, or not this stage, is ignored.
    pub fn answer(&mut self, stage: usize, answer: TierAnswer) {
        let TierAnswer { ticket, outcome } = answer;
        let Some(order) = self.orders.get_mut(&ticket) else { return };
        if !order.waits.remove(&stage) {
            return;
        }
        let until = order.until();
        match outcome {
            TierOutcome::Kept { evicted } => {
                if let Task::Keep { entry, state, .. } = &order.task {
                    self.catalog.kept(stage, entry, *state);
                }
                evicted.into_iter().for_each(|key| self.catalog.lost(key));
            }
            TierOutcome::Listed { entries, next } => {
                entries.iter().for_each(|kept| self.catalog.kept(stage, &kept.entry, kept.state));
                if let (Some(until), Some(_)) = (until, next) {
                    self.list(stage, next, until);
                }
            }
            TierOutcome::Refused(refusal) => {
                if let TierRefusal::Missing(key) = refusal {
                    self.catalog.lost(key);
                }
                order.refusal.get_or_insert(refusal);
            }
            TierOutcome::Counted(counts) => {
                if let Some(tier) = self.tiers.get_mut(stage) {
                    *tier = counts;
                }
            }
            TierOutcome::Forgotten(keys) => keys.into_iter().for_each(|key| self.catalog.lost(key)),
            TierOutcome::Staged { .. } => {}
        }
        if self.orders.get(&ticket).is_some_and(|order| order.waits.is_empty()) {
            self.answered(ticket);
        }
    }

    /// All stages have answered an order.
    fn answered(&mut self, ticket: Ticket) {
        let Some(Order { task, refusal, .. }) = self.orders.remove(&ticket) else { return };
        match task {
            Task::Keep { entry, pinned, .. } => {
                self.catalog.end(entry.key());
                self.counts.kept += u64::from(refusal.is_none());
                self.counts.not_kept += u64::from(refusal.is_some());
                self.unpinned.push(pinned);
                if self.orders.values().all(|order| matches!(order.task, Task::Fetch { .. })) {
                    self.order_all(Task::Count, &TierTask::Count);
                }
            }
            Task::Fetch { .. } => match (self.fetches.get_mut(&ticket), refusal) {
                (Some((_, state @ Fetching::UnderWay)), None) => *state = Fetching::Staged,
                (Some((_, Fetching::UnderWay)), Some(refusal)) => {
                    self.fail(ticket, matches!(refusal, TierRefusal::Missing(_)));
                }
                // Nobody waits for it any more: a stage that was late has staged it.
                _ => self.drop_staged(ticket),
            },
            // What is there has changed.
            Task::Forget => drop(self.order_all(Task::Count, &TierTask::Count)),
            Task::List { .. } | Task::Count => {}
        }
    }

    fn fail(&mut self, ticket: Ticket, missing: bool) {
        if let Some((_, state)) = self.fetches.get_mut(&ticket) {
            *state = Fetching::Failed { missing };
            self.counts.not_fetched += 1;
            self.drop_staged(ticket);
        }
    }

    /// What is staged under a ticket will not be installed.
    fn drop_staged(&mut self, ticket: Ticket) {
        let order = TierOrder { ticket, task: TierTask::Drop };
        self.outbox.extend((0..self.stages).map(|stage| (stage, order.clone())));
    }

    fn list(&mut self, stage: usize, after: Option<EntryKey>, until: Duration) {
        let task = TierTask::List { root: self.catalog.root(), after };
        self.order(Task::List { until }, &task, std::iter::once(stage).collect());
    }

    fn order_all(&mut self, own: Task, task: &TierTask) -> Ticket {
        self.order(own, task, (0..self.stages).collect())
    }

    fn order(&mut self, own: Task, task: &TierTask, waits: BTreeSet<usize>) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let order = TierOrder { ticket, task: task.clone() };
        self.outbox.extend(waits.iter().map(|stage| (*stage, order.clone())));
        self.orders.insert(ticket, Order { task: own, waits, refusal: None });
        ticket
    }
}

impl Order {
    fn until(&self) -> Option<Duration> {
        match self.task {
            Task::Fetch { until } | Task::List { until } => Some(until).filter(|until| *until < Duration::MAX),
            Task::Keep { .. } | Task::Count | Task::Forget => None,
        }
    }
}
