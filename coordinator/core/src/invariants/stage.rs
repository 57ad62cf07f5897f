//! A row that computes nothing but remembers of what everything was made.
//!
//! Each position of each page, and each state, holds a number made of all tokens up to there. A chunk may run only where
//! every position before it, in its own page table, and its state hold the numbers of exactly its own tokens. So a page
//! that was given to two, a state restored from elsewhere, or a token read from a neighbour is found where it is read. The
//! next token is made of the same number: a session that was given anything else gets another answer. As long as tokens
//! are uncertain a state holds the number before them.

use std::collections::{BTreeMap, BTreeSet};

use paceline_proto::{
    Chunk, ChunkInput, ChunkResult, Operation, Outcome, PageId, SampledToken, SessionId, Slot, StageTime, Step,
    StepDone, StepId, Ticket, Verified, Wanted,
};

use super::{Broken, Invariant};
use crate::limits::Limits;

/// A session that is open.
#[derive(Debug, Clone)]
struct Open {
    slot: usize,
    table: Vec<usize>,
    /// By position: the number that belongs there.
    made: Vec<u64>,
    /// How many of them are certain: the state is of these. The others are logged.
    certain: usize,
    sampled: BTreeMap<StepId, u32>,
    /// The token that was sampled last, and its place.
    newest: Option<(usize, u32)>,
}

/// What a lower tier copies out of such a row, and brings back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SymbolicMemory {
    /// The numbers of pages.
    pub pages: Vec<Vec<u64>>,
    /// The number of a state.
    pub state: Option<u64>,
}

/// The memory of a row. See the module's text.
#[derive(Debug, Clone)]
pub struct SymbolicStage {
    page_tokens: usize,
    has_states: bool,
    pages: Vec<Vec<u64>>,
    states: Vec<u64>,
    open: BTreeMap<SessionId, Open>,
    cancelled: BTreeSet<SessionId>,
    staged: BTreeMap<Ticket, SymbolicMemory>,
    /// Tokens that were run.
    pub rows: u64,
}

impl SymbolicStage {
    /// A row in which nothing was computed.
    pub fn new(limits: &Limits) -> Self {
        Self {
            page_tokens: limits.page_tokens,
            has_states: limits.has_states,
            pages: vec![vec![0; limits.page_tokens]; limits.pages],
            states: vec![0; limits.slots + limits.snapshots],
            open: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            staged: BTreeMap::new(),
            rows: 0,
        }
    }

    /// Another row to which only this memory was copied.
    #[must_use]
    pub fn moved(&self, limits: &Limits, pages: &[PageId], slots: &[Slot]) -> Self {
        let mut other = Self { open: self.open.clone(), cancelled: self.cancelled.clone(), ..Self::new(limits) };
        other.rows = self.rows;
        for page in pages.iter().map(|page| page.0 as usize) {
            other.pages[page].clone_from(&self.pages[page]);
        }
        for slot in slots.iter().map(|slot| slot.0 as usize) {
            other.states[slot] = self.states[slot];
        }
        other
    }

    /// What is in these pages and this slot now.
    pub fn copy_out(&self, pages: &[PageId], slot: Option<Slot>) -> SymbolicMemory {
        let pages = pages.iter().map(|page| self.pages[page.0 as usize].clone()).collect();
        SymbolicMemory { pages, state: slot.map(|slot| self.states[slot.0 as usize]) }
    }

    /// Something is ready to be installed under a ticket.
    pub fn stage_up(&mut self, ticket: Ticket, memory: SymbolicMemory) {
        self.staged.insert(ticket, memory);
    }

    /// It will not be.
    pub fn drop_staged(&mut self, ticket: Ticket) {
        self.staged.remove(&ticket);
    }

    /// Nobody waits for the session's chunks any more: they are void from now on.
    pub fn cancel(&mut self, session: SessionId) {
        if self.open.contains_key(&session) {
            self.cancelled.insert(session);
        }
    }

    /// How many sessions are open.
    pub fn open_sessions(&self) -> usize {
        self.open.len()
    }

    /// Runs a step. `tokens` says which tokens a session that reuses some really has.
    ///
    /// # Errors
    /// A chunk that would read what was not made of its tokens.
    pub fn run(&mut self, step: &Step, tokens: impl Fn(SessionId) -> Vec<u32>) -> Result<StepDone, Broken> {
        for operation in &step.operations {
            self.apply(operation, &tokens)?;
        }
        let results = step.chunks.iter().map(|chunk| self.compute(step.id, chunk)).collect::<Result<_, _>>()?;
        let times = vec![StageTime { busy: 1000, ..StageTime::default() }];
        Ok(StepDone { epoch: step.epoch, step: step.id, results, times })
    }

    fn apply(&mut self, operation: &Operation, tokens: impl Fn(SessionId) -> Vec<u32>) -> Result<(), Broken> {
        match operation {
            Operation::Open { session, slot, reused, .. } => {
                let slot = slot.0 as usize;
                self.states[slot] = 0;
                let mut made = Vec::new();
                let reused = if reused.tokens > 0 { &tokens(*session)[..reused.tokens as usize] } else { &[] };
                reused.iter().for_each(|token| made.push(advance(made.last().copied(), *token)));
                let certain = made.len();
                let (table, sampled) = (Vec::new(), BTreeMap::new());
                self.open.insert(*session, Open { slot, table, made, certain, sampled, newest: None });
            }
            Operation::Grant { session, pages } => {
                let open = self.open.get_mut(session).expect("it was opened");
                open.table.extend(pages.iter().map(|page| page.0 as usize));
            }
            Operation::Close { session } => {
                self.open.remove(session);
                self.cancelled.remove(session);
            }
            Operation::CopyPage { from, to } => {
                let page = self.pages[from.0 as usize].clone();
                self.pages[to.0 as usize] = page;
            }
            Operation::CopyState { from, to } => {
                let owner = self.open.values().find(|open| open.slot == from.0 as usize);
                let is_certain = owner.is_none_or(|open| open.certain == open.made.len());
                Invariant::CopiesAreCertain.holds(is_certain, format_args!("slot {} is copied", from.0))?;
                self.states[to.0 as usize] = self.states[from.0 as usize];
            }
            Operation::Install { ticket, pages, slot } => {
                let staged = self.staged.remove(ticket).expect("only what is staged is installed");
                assert_eq!((staged.pages.len(), staged.state.is_some()), (pages.len(), slot.is_some()));
                for (page, made) in pages.iter().zip(staged.pages) {
                    self.pages[page.0 as usize] = made;
                }
                slot.iter().zip(staged.state).for_each(|(slot, state)| self.states[slot.0 as usize] = state);
            }
        }
        Ok(())
    }

    fn compute(&mut self, step: StepId, chunk: &Chunk) -> Result<ChunkResult, Broken> {
        let session = chunk.session;
        if self.cancelled.contains(&session) || chunk.void {
            return Ok(ChunkResult { session, outcome: Outcome::Void });
        }
        let open = self.open.get_mut(&session).expect("it was opened");
        let (start, page_tokens) = (chunk.start as usize, self.page_tokens);
        let holds = |holds: bool, found: String| Invariant::MemoryOfItsTokens.holds(holds, found);
        let known = open.certain..=open.made.len();
        let is_ahead = chunk.wanted.drafts() as usize >= chunk.input.rows();
        if is_ahead && start > open.made.len() {
            return Ok(ChunkResult { session, outcome: Outcome::Void });
        }
        holds(known.contains(&start), format!("{session} starts at {start}, and has {known:?}"))?;
        let state = open.certain.checked_sub(1).map_or(0, |last| open.made[last]);
        let same = !self.has_states || self.states[open.slot] == state;
        holds(same, format!("{session} finds the state of something else in slot {} at {start}", open.slot))?;
        open.made.truncate(start);
        for (position, made) in open.made.iter().enumerate() {
            let page = open.table[position / page_tokens];
            let same = self.pages[page][position % page_tokens] == *made;
            holds(same, format!("{session} finds something else at {position} in page {page}"))?;
        }
        let tokens = match &chunk.input {
            ChunkInput::Tokens(tokens) => tokens.clone(),
            ChunkInput::Sampled { step } => vec![open.sampled[step]],
            ChunkInput::Rows { positions } => vec![0; positions.len()],
        };
        for token in &tokens {
            let position = open.made.len();
            let made = advance(open.made.last().copied(), *token);
            open.made.push(made);
            self.pages[open.table[position / page_tokens]][position % page_tokens] = made;
            self.rows += 1;
        }
        open.certain = open.made.len() - chunk.wanted.drafts() as usize;
        self.states[open.slot] = open.certain.checked_sub(1).map_or(0, |last| open.made[last]);
        if is_ahead && open.newest != tokens.first().map(|first| (start, *first)) {
            return Ok(ChunkResult { session, outcome: Outcome::Void });
        }
        let sampled = |row: usize| SampledToken { token: sample(open.made[start + row]), logprobs: None };
        let outcome = match chunk.wanted {
            Wanted::Nothing => Outcome::Stored,
            Wanted::Vector => Outcome::Vector(vec![0.0]),
            Wanted::Sample => {
                let token = sampled(tokens.len() - 1);
                open.sampled.insert(step, token.token);
                open.newest = Some((start + tokens.len(), token.token));
                Outcome::Sampled(token)
            }
            Wanted::Verify(_) => {
                let first = tokens.len() - chunk.wanted.wanted_rows(tokens.len());
                let mut verified = vec![sampled(first)];
                for (row, draft) in tokens.iter().enumerate().skip(first + 1) {
                    if verified.last().is_none_or(|last| last.token != *draft) {
                        break;
                    }
                    verified.push(sampled(row));
                }
                open.newest = verified.last().map(|last| (start + first + verified.len(), last.token));
                Outcome::Verified(Verified { tokens: verified, drafted: Vec::new() })
            }
        };
        Ok(ChunkResult { session, outcome })
    }
}

/// The token that follows these in such a row.
pub fn next_token(tokens: &[u32]) -> u32 {
    let made = tokens.iter().fold(None, |made, token| Some(advance(made, *token)));
    sample(made.expect("something to go on from"))
}

fn sample(made: u64) -> u32 {
    (made >> 32) as u32 % 1000
}

/// The number of one more token: never 0, which is of none.
fn advance(made: Option<u64>, token: u32) -> u64 {
    let mut bits = made.unwrap_or(0).rotate_left(9) ^ (u64::from(token) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (bits ^ bits >> 31) | 1
}
