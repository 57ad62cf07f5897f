//! What must always hold, each with an id: of the coordinator's accounts after every event, and of the stream of
//! steps it sends. The coordinator checks its accounts in debug builds; tests and the simulation check both.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use paceline_proto::{Chunk, ChunkInput, Operation, PageId, SessionId, Slot, Step, StepId, Wanted};

use crate::coordinator::Accounts;
use crate::limits::Limits;

mod stage;
#[cfg(test)]
mod tests;

pub use stage::{SymbolicMemory, SymbolicStage, next_token};

/// Something that must always hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Invariant {
    /// A1.
    #[error("A1: pages held and free are all pages")]
    PagesBalance,
    /// A2.
    #[error("A2: every reference to a page is counted")]
    ReferencesCounted,
    /// A3.
    #[error("A3: as many pages are reserved as sessions were promised, and all of them are free")]
    ReservedPagesAreFree,
    /// A4.
    #[error("A4: slots had and free are all slots")]
    SlotsBalance,
    /// A5.
    #[error("A5: no more steps are in flight than there are credits")]
    StepsWithinCredits,
    /// A6.
    #[error("A6: the queue is bounded")]
    QueueBounded,
    /// A7.
    #[error("A7: answers are waited for from those who owe one")]
    AnswersAwaited,
    /// A8.
    #[error("A8: nobody waits who came before somebody who runs")]
    NobodyOvertakes,
    /// A9.
    #[error("A9: snapshots kept and free are all snapshots")]
    SnapshotsBalance,
    /// S1.
    #[error("S1: step ids are consecutive")]
    StepsConsecutive,
    /// S2.
    #[error("S2: a session is opened while it is not open, and closed while it is")]
    OpenThenClose,
    /// S3.
    #[error("S3: a slot belongs to one open session, and is overwritten only before its first chunk")]
    SlotHasOneOwner,
    /// S4.
    #[error("S4: a page into which a session writes is no other's")]
    PageHasOneWriter,
    /// S5.
    #[error("S5: a session has at most one chunk in a step")]
    OneChunkPerSession,
    /// S6.
    #[error("S6: a session's chunks cover its tokens once, in order, but for those that are uncertain")]
    ChunksContiguous,
    /// S7.
    #[error("S7: a chunk's tokens have pages")]
    ChunkHasPages,
    /// S8.
    #[error("S8: a step's rows fit the stages' buffers")]
    RowsWithinStep,
    /// S9.
    #[error("S9: a step's wanted rows fit the tail's buffers")]
    WantedWithinStep,
    /// S10.
    #[error("S10: a sampled token is run once, after the step that samples it")]
    SampledFollows,
    /// S11.
    #[error("S11: a session that reuses tokens is given their state")]
    StateRestored,
    /// S12.
    #[error("S12: what a chunk reads was computed from exactly the tokens before it")]
    MemoryOfItsTokens,
    /// S13.
    #[error("S13: no state is copied while tokens behind it are uncertain")]
    CopiesAreCertain,
    /// S14.
    #[error("S14: uncertain tokens fit the stages' logs")]
    LogsSuffice,
    /// S15.
    #[error("S15: a chunk sent ahead follows all that is sent of its session")]
    AheadFollows,
    /// S16.
    #[error("S16: what was certain stays so")]
    CertainStays,
}

/// An invariant that does not hold.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}, but {found}")]
pub struct Broken {
    /// Which.
    pub invariant: Invariant,
    /// What is the case instead.
    pub found: String,
}

impl Invariant {
    fn holds(self, holds: bool, found: impl Display) -> Result<(), Broken> {
        if holds { Ok(()) } else { Err(Broken { invariant: self, found: found.to_string() }) }
    }
}

/// Checks all of A1 to A9.
///
/// # Errors
/// The first that does not hold.
pub fn accounts_balance(accounts: &Accounts) -> Result<(), Broken> {
    let Accounts { pages, pages_free, pages_held, pages_reserved, pages_promised, .. } = accounts;
    Invariant::PagesBalance
        .holds(pages_held + pages_free == *pages, format_args!("{pages_held} held and {pages_free} free of {pages}"))?;
    Invariant::ReservedPagesAreFree.holds(
        pages_promised == pages_reserved && pages_reserved <= pages_free,
        format_args!("{pages_promised} promised, {pages_reserved} reserved, {pages_free} free"),
    )?;
    let Accounts { slots, slots_free, running, steps, credits, waiting, queue, awaited, unanswered, .. } = accounts;
    Invariant::SlotsBalance
        .holds(running + slots_free == *slots, format_args!("{running} had and {slots_free} free of {slots}"))?;
    Invariant::StepsWithinCredits.holds(steps <= credits, format_args!("{steps} in flight of {credits}"))?;
    Invariant::QueueBounded.holds(waiting <= queue, format_args!("{waiting} wait of {queue}"))?;
    Invariant::AnswersAwaited.holds(awaited == unanswered, format_args!("{awaited} awaited, {unanswered} owed"))?;
    let Accounts { references, references_held, snapshots, snapshots_free, snapshots_held, .. } = accounts;
    Invariant::ReferencesCounted
        .holds(references == references_held, format_args!("{references} counted, {references_held} held"))?;
    Invariant::SnapshotsBalance.holds(
        snapshots_held + snapshots_free == *snapshots,
        format_args!("{snapshots_held} kept and {snapshots_free} free of {snapshots}"),
    )?;
    let Accounts { oldest_waiting, newest_running, .. } = accounts;
    let overtaken = oldest_waiting.zip(*newest_running).is_some_and(|(oldest, newest)| oldest < newest);
    Invariant::NobodyOvertakes.holds(!overtaken, format_args!("{oldest_waiting:?} waits, {newest_running:?} runs"))
}

/// What a session has on the stages, as the stream of steps tells it.
#[derive(Debug)]
struct Open {
    slot: Slot,
    pages: Vec<PageId>,
    tokens: usize,
    /// How many of these are certain.
    certain: usize,
    /// It has had others: it keeps its log until it is closed.
    has_log: bool,
    /// A state was copied into its slot, or it needs none.
    restored: bool,
    /// It has run something.
    ran: bool,
    /// The step that samples its next token.
    samples: Option<StepId>,
}

/// Follows the steps of one epoch as a stage would, and checks S1 to S16 but for S12, which needs results.
#[derive(Debug)]
pub struct StepStream {
    next: StepId,
    page_tokens: usize,
    step_rows: usize,
    step_wanted: usize,
    log_sessions: usize,
    log_tokens: usize,
    open: BTreeMap<SessionId, Open>,
    slots: BTreeMap<Slot, SessionId>,
    /// By page: in how many tables it is.
    pages: BTreeMap<PageId, usize>,
    has_states: bool,
}

impl StepStream {
    /// The stream before its first step.
    pub fn new(limits: &Limits) -> Self {
        Self {
            next: StepId(0),
            page_tokens: limits.page_tokens,
            step_rows: limits.step_rows,
            step_wanted: limits.step_wanted,
            log_sessions: limits.log_sessions,
            log_tokens: limits.log_tokens,
            open: BTreeMap::new(),
            slots: BTreeMap::new(),
            pages: BTreeMap::new(),
            has_states: limits.has_states,
        }
    }

    /// Follows one step.
    ///
    /// # Errors
    /// The first invariant that it breaks.
    pub fn follow(&mut self, step: &Step) -> Result<(), Broken> {
        Invariant::StepsConsecutive.holds(step.id == self.next, format_args!("{} came, not {}", step.id, self.next))?;
        self.next.0 += 1;
        for operation in &step.operations {
            self.apply(operation)?;
        }
        self.check_size(step)?;
        let mut seen = BTreeSet::new();
        for chunk in &step.chunks {
            Invariant::OneChunkPerSession.holds(seen.insert(chunk.session), chunk.session)?;
            self.run(step.id, chunk)?;
        }
        let logs = self.open.values().filter(|open| open.has_log).count();
        Invariant::LogsSuffice.holds(logs <= self.log_sessions, format_args!("{logs} of {}", self.log_sessions))
    }

    /// How many sessions are open.
    pub fn open_sessions(&self) -> usize {
        self.open.len()
    }

    fn check_size(&self, step: &Step) -> Result<(), Broken> {
        let rows: usize = step.chunks.iter().map(|chunk| chunk.input.rows()).sum();
        let wanted: usize = step.chunks.iter().map(|chunk| chunk.wanted.wanted_rows(chunk.input.rows())).sum();
        Invariant::RowsWithinStep.holds(rows <= self.step_rows, format_args!("{rows} of {}", self.step_rows))?;
        Invariant::WantedWithinStep.holds(wanted <= self.step_wanted, format_args!("{wanted} of {}", self.step_wanted))
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), Broken> {
        match operation {
            Operation::Open { session, slot, reused, .. } => self.begin(*session, *slot, reused.tokens as usize),
            Operation::Grant { session, pages } => self.grant(*session, pages),
            Operation::Close { session } => self.end(*session),
            Operation::CopyPage { to, .. } => self.overwrite(*to),
            Operation::CopyState { from, to } => {
                let open = self.slots.get(from).map(|session| &self.open[session]);
                let is_certain = open.is_none_or(|open| open.certain == open.tokens);
                Invariant::CopiesAreCertain.holds(is_certain, format_args!("slot {} is copied", from.0))?;
                self.restore(*to)
            }
            Operation::Install { pages, slot, .. } => {
                pages.iter().try_for_each(|page| self.overwrite(*page))?;
                slot.map_or(Ok(()), |slot| self.restore(slot))
            }
        }
    }

    fn begin(&mut self, session: SessionId, slot: Slot, tokens: usize) -> Result<(), Broken> {
        let new = !self.open.contains_key(&session);
        Invariant::OpenThenClose.holds(new, format_args!("{session} is opened again"))?;
        let owner = self.slots.insert(slot, session);
        Invariant::SlotHasOneOwner.holds(owner.is_none(), format_args!("slot {} has two", slot.0))?;
        let restored = tokens == 0 || !self.has_states;
        let (certain, pages) = (tokens, Vec::new());
        let open = Open { slot, pages, tokens, certain, has_log: false, restored, ran: false, samples: None };
        self.open.insert(session, open);
        Ok(())
    }

    /// A page gets other content: nobody but its writer may have it.
    fn overwrite(&self, page: PageId) -> Result<(), Broken> {
        let tables = self.pages.get(&page).copied().unwrap_or(0);
        Invariant::PageHasOneWriter.holds(tables <= 1, format_args!("page {} is in {tables} tables", page.0))
    }

    /// A state is copied, or installed: into a snapshot, or into the slot of a session that goes on from there.
    fn restore(&mut self, slot: Slot) -> Result<(), Broken> {
        let Some(session) = self.slots.get(&slot) else { return Ok(()) };
        let open = self.open.get_mut(session).expect("slots belong to open sessions");
        Invariant::SlotHasOneOwner.holds(!open.ran, format_args!("the state of {session} is overwritten"))?;
        open.restored = true;
        Ok(())
    }

    fn grant(&mut self, session: SessionId, pages: &[PageId]) -> Result<(), Broken> {
        let Some(open) = self.open.get_mut(&session) else {
            return Invariant::OpenThenClose.holds(false, format_args!("{session} is granted pages while not open"));
        };
        for page in pages {
            *self.pages.entry(*page).or_default() += 1;
            open.pages.push(*page);
        }
        Ok(())
    }

    fn end(&mut self, session: SessionId) -> Result<(), Broken> {
        let Some(open) = self.open.remove(&session) else {
            return Invariant::OpenThenClose.holds(false, format_args!("{session} is closed while not open"));
        };
        self.slots.remove(&open.slot);
        for page in open.pages {
            *self.pages.get_mut(&page).expect("it was granted") -= 1;
        }
        Ok(())
    }

    fn run(&mut self, step: StepId, chunk: &Chunk) -> Result<(), Broken> {
        let session = chunk.session;
        let Some(open) = self.open.get_mut(&session) else {
            return Invariant::OpenThenClose.holds(false, format_args!("{session} has a chunk while not open"));
        };
        let (start, rows) = (chunk.start as usize, chunk.input.rows());
        Invariant::ChunksContiguous.holds(
            (open.certain..=open.tokens).contains(&start) && rows > 0,
            format_args!("{rows} rows of {session} start at {start}, not {} to {}", open.certain, open.tokens),
        )?;
        let drafts = chunk.wanted.drafts() as usize;
        Invariant::LogsSuffice.holds(drafts <= self.log_tokens, format_args!("{drafts} of {session}"))?;
        let follows = drafts < rows || (start == open.tokens && open.ran);
        Invariant::AheadFollows.holds(follows, format_args!("{session} has {} and goes on at {start}", open.tokens))?;
        let stays = open.certain + drafts <= start + rows;
        Invariant::CertainStays.holds(stays, format_args!("{drafts} of {session} up to {} are not", start + rows))?;
        (open.tokens, open.certain) = (start + rows, start + rows - drafts);
        open.has_log |= drafts > 0;
        let room = open.pages.len() * self.page_tokens;
        Invariant::ChunkHasPages
            .holds(open.tokens <= room, format_args!("{session} has {} tokens and room for {room}", open.tokens))?;
        let written = &open.pages[start / self.page_tokens..open.tokens.div_ceil(self.page_tokens)];
        if let Some(page) = written.iter().find(|page| self.pages[page] > 1) {
            return Invariant::PageHasOneWriter.holds(false, format_args!("{session} writes into page {}", page.0));
        }
        Invariant::StateRestored.holds(open.restored, format_args!("{session} has run nothing before {start}"))?;
        open.ran = true;
        if let ChunkInput::Sampled { step: sampled } = chunk.input {
            let found = format_args!("{session} runs the token of step {sampled}");
            Invariant::SampledFollows.holds(open.samples == Some(sampled), found)?;
        }
        open.samples = (chunk.wanted == Wanted::Sample).then_some(step);
        Ok(())
    }
}
