//! The disk tiers of a row whose memory is symbols: one map for each stage, which outlives the row.

use std::collections::BTreeMap;

use paceline_core::invariants::{SymbolicMemory, SymbolicStage};
use paceline_proto::entries::beginning_with;
use paceline_proto::{
    Entry, EntryKey, KeptEntry, Ticket, TierAnswer, TierCounts, TierOrder, TierOutcome, TierRefusal, TierTask,
};

/// What is kept of an entry.
#[derive(Debug, Clone)]
struct Kept {
    entry: Entry,
    pages: Vec<Vec<u64>>,
    state: Option<u64>,
}

/// All tiers of a row, and the orders that they have not carried out.
#[derive(Debug, Default)]
pub(crate) struct Disks {
    page_tokens: usize,
    stages: Vec<BTreeMap<EntryKey, Kept>>,
    orders: Vec<(usize, TierOrder)>,
    /// Stages that have staged something under a ticket: the memory is there when all have.
    staged: BTreeMap<Ticket, usize>,
}

impl Disks {
    pub(crate) fn new(stages: usize, page_tokens: usize) -> Self {
        Self { page_tokens, stages: vec![BTreeMap::new(); stages], ..Self::default() }
    }

    /// How many orders wait.
    pub(crate) fn waiting(&self) -> usize {
        self.orders.len()
    }

    /// The row is over: nobody answers any more.
    pub(crate) fn lose_orders(&mut self) {
        self.orders.clear();
        self.staged.clear();
    }

    /// An order comes; what drops something is done at once.
    pub(crate) fn order(&mut self, stage: usize, order: TierOrder, row: &mut SymbolicStage) -> Option<TierAnswer> {
        if order.task != TierTask::Drop {
            self.orders.push((stage, order));
            return None;
        }
        let ticket = order.ticket;
        self.staged.remove(&ticket);
        row.drop_staged(ticket);
        let waits = self.orders.iter().position(|(at, order)| (*at, order.ticket) == (stage, ticket))?;
        self.orders.remove(waits);
        Some(TierAnswer { ticket, outcome: refused("it is no longer wanted") })
    }

    /// A stage loses an entry, and nobody is told.
    pub(crate) fn lose(&mut self, chance: usize) {
        let count = self.stages.len();
        let entries = &mut self.stages[chance % count];
        if let Some(key) = entries.keys().nth(chance / count % entries.len().max(1)).copied() {
            entries.remove(&key);
        }
    }

    /// Carries out the order in this place. By chance it is refused, or something else makes room for it.
    pub(crate) fn carry_out(&mut self, at: usize, chance: usize, row: &mut SymbolicStage) -> (usize, TierAnswer) {
        let (stage, TierOrder { ticket, task }) = self.orders.remove(at);
        if chance.is_multiple_of(16) && !matches!(task, TierTask::List { .. }) {
            return (stage, TierAnswer { ticket, outcome: TierOutcome::Refused(TierRefusal::Busy) });
        }
        let outcome = match task {
            TierTask::Keep { entry, pages, state } => {
                let memory = row.copy_out(&pages, state);
                let mut evicted = Vec::new();
                if chance.is_multiple_of(5) {
                    evicted.extend(self.stages[stage].keys().nth(chance / 5 % 20).copied());
                    evicted.iter().for_each(|key| drop(self.stages[stage].remove(key)));
                }
                let key = entry.key();
                let SymbolicMemory { pages, state } = memory;
                let kept = self.stages[stage].entry(key).or_insert(Kept { entry, pages, state: None });
                kept.state = kept.state.or(state);
                TierOutcome::Kept { evicted }
            }
            TierTask::Fetch { path, state } => self.fetch(stage, ticket, &path, state, row),
            TierTask::List { after, .. } => {
                let behind = |key: &EntryKey| after.is_none_or(|after| *key > after);
                let found: Vec<_> = self.stages[stage].iter().filter(|(key, _)| behind(key)).take(3).collect();
                let next = found.last().map(|(key, _)| **key);
                let kept = |kept: &Kept| KeptEntry { entry: kept.entry.clone(), state: kept.state.is_some() };
                TierOutcome::Listed { entries: found.iter().map(|(_, one)| kept(one)).collect(), next }
            }
            TierTask::Count => {
                let entries = self.stages[stage].len() as u64;
                TierOutcome::Counted(TierCounts { entries, ..TierCounts::default() })
            }
            TierTask::Forget { root, tokens } => {
                let entries: Vec<_> = self.stages[stage].values().map(|kept| kept.entry.clone()).collect();
                let keys = beginning_with(root, &entries, &tokens);
                keys.iter().for_each(|key| drop(self.stages[stage].remove(key)));
                TierOutcome::Forgotten(keys)
            }
            TierTask::Drop => unreachable!("it is done at once"),
        };
        (stage, TierAnswer { ticket, outcome })
    }

    fn fetch(
        &mut self,
        stage: usize,
        ticket: Ticket,
        path: &[EntryKey],
        state: bool,
        row: &mut SymbolicStage,
    ) -> TierOutcome {
        let has = &self.stages[stage];
        let last = path[path.len() - 1];
        let whole = |key: &EntryKey| has.get(key).is_some_and(|kept| !state || *key != last || kept.state.is_some());
        if let Some(missing) = path.iter().find(|key| !whole(key)) {
            return TierOutcome::Refused(TierRefusal::Missing(*missing));
        }
        let first = has[&path[0]].entry.start as usize / self.page_tokens;
        let mut memory = SymbolicMemory::default();
        for kept in path.iter().map(|key| &has[key]) {
            let from = kept.entry.start as usize / self.page_tokens - first;
            memory.pages.truncate(from);
            memory.pages.extend(kept.pages.iter().cloned());
            memory.state = kept.state.filter(|_| state);
        }
        let staged = self.staged.entry(ticket).or_default();
        *staged += 1;
        if *staged == self.stages.len() {
            row.stage_up(ticket, memory);
        }
        TierOutcome::Staged { bytes: 1 }
    }
}

fn refused(why: &str) -> TierOutcome {
    TierOutcome::Refused(TierRefusal::Failed(why.to_owned()))
}
