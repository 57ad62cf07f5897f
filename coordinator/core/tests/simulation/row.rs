//! The fake row of stages: real memory (pages and slots), pretended time.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::Limits;
use paceline_proto::{
    Chunk, ChunkInput, ChunkResult, Epoch, Operation, Outcome, PageId, SampledToken, SessionId, Slot, StageTime, Step,
    StepDone, StepId, Verified, Wanted,
};

use crate::model::{END, advance, attend, sample};

/// Sessions with this seed make the tail fail now and then.
pub(crate) const UNLUCKY: u64 = 13;

/// What the stages know of a session.
struct Memory {
    slot: usize,
    table: Vec<PageId>,
    /// How many of its tokens are certain: the state is the one behind them.
    certain: usize,
    /// Those behind them.
    log: Vec<u32>,
    end_is_banned: bool,
    unlucky: bool,
    generated_from: usize,
    sampled: BTreeMap<StepId, u32>,
    /// The token that was sampled last, and its place.
    newest: Option<(usize, u32)>,
}

/// How long things take, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Costs {
    /// Reading a stage's weights.
    pub(crate) step: u64,
    /// Computing one row on a stage.
    pub(crate) row: u64,
    /// From one stage to the next.
    pub(crate) hop: u64,
}

/// All stages, and the tail's sampler.
pub(crate) struct Row {
    pub(crate) epoch: Epoch,
    costs: Costs,
    page_tokens: usize,
    pages: Vec<Vec<u32>>,
    states: Vec<u64>,
    /// Without states the next token depends on the pages alone.
    has_states: bool,
    /// Tokens that were not run because their memory was there.
    pub(crate) reused: usize,
    sessions: BTreeMap<SessionId, Memory>,
    cancelled: BTreeSet<SessionId>,
    /// By stage: when it is free again.
    free: Vec<u64>,
    /// By stage: how long it has computed.
    pub(crate) busy: Vec<u64>,
    /// When the head has each step's tokens.
    finished: BTreeMap<StepId, u64>,
    /// By step with decode: how many rows of single tokens it had, and how long a stage took.
    pub(crate) decode_steps: Vec<(usize, u64)>,
}

impl Row {
    pub(crate) fn new(epoch: Epoch, limits: &Limits, costs: Costs) -> Self {
        Self {
            epoch,
            costs,
            page_tokens: limits.page_tokens,
            pages: vec![vec![0; limits.page_tokens]; limits.pages],
            states: vec![0; limits.slots + limits.snapshots],
            has_states: limits.has_states,
            reused: 0,
            sessions: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            free: vec![0; limits.stages],
            busy: vec![0; limits.stages],
            finished: BTreeMap::new(),
            decode_steps: Vec::new(),
        }
    }

    /// Another row to which only these pages and slots were copied, and the sessions that are open.
    pub(crate) fn moved(&self, epoch: Epoch, limits: &Limits, pages: &[PageId], slots: &[Slot]) -> Self {
        let mut row = Self::new(epoch, limits, self.costs);
        for page in pages.iter().map(|page| page.0 as usize) {
            row.pages[page].clone_from(&self.pages[page]);
        }
        for slot in slots.iter().map(|slot| slot.0 as usize) {
            row.states[slot] = self.states[slot];
        }
        // No step of the new row may run a token that a step of this one sampled, or be sent ahead of its result.
        let moved = |memory: &Memory| Memory {
            table: memory.table.clone(),
            log: memory.log.clone(),
            sampled: BTreeMap::new(),
            newest: None,
            ..*memory
        };
        row.sessions = self.sessions.iter().map(|(session, memory)| (*session, moved(memory))).collect();
        row.cancelled.clone_from(&self.cancelled);
        row
    }

    /// Runs a step that arrives at `now`; returns its results and when they are there.
    pub(crate) fn run(&mut self, step: Step, now: u64) -> (u64, StepDone) {
        for operation in step.operations {
            self.apply(operation);
        }
        let (finish, busy, idle) = self.pass(step.id, &step.chunks, now);
        let results = step.chunks.iter().map(|chunk| self.compute(step.id, chunk)).collect();
        let times = idle.into_iter().map(|idle| StageTime { busy, idle, ..StageTime::default() }).collect();
        (finish, StepDone { epoch: step.epoch, step: step.id, results, times })
    }

    /// Nobody waits for the session's chunks any more.
    pub(crate) fn cancel(&mut self, session: SessionId) {
        if self.sessions.contains_key(&session) {
            self.cancelled.insert(session);
        }
    }

    /// What leaves the tail: the chunks of cancelled sessions are void.
    pub(crate) fn leave_tail(&self, mut done: StepDone) -> StepDone {
        for result in done.results.iter_mut().filter(|result| self.cancelled.contains(&result.session)) {
            result.outcome = Outcome::Void;
        }
        done
    }

    pub(crate) fn open_sessions(&self) -> usize {
        self.sessions.len()
    }

    fn apply(&mut self, operation: Operation) {
        match operation {
            Operation::Open { session, slot, sampling, generated_from, reused } => {
                self.reused += reused.tokens as usize;
                let slot = slot.0 as usize;
                self.states[slot] = 0;
                let memory = Memory {
                    slot,
                    table: Vec::new(),
                    certain: reused.tokens as usize,
                    log: Vec::new(),
                    end_is_banned: sampling.banned.contains(&END),
                    unlucky: sampling.seed == UNLUCKY,
                    generated_from: generated_from as usize,
                    sampled: BTreeMap::new(),
                    newest: None,
                };
                assert!(self.sessions.insert(session, memory).is_none());
            }
            Operation::Grant { session, pages } => {
                self.sessions.get_mut(&session).expect("open").table.extend(pages);
            }
            Operation::Close { session } => {
                assert!(self.sessions.remove(&session).is_some());
                self.cancelled.remove(&session);
            }
            Operation::CopyPage { from, to } => self.pages[to.0 as usize] = self.pages[from.0 as usize].clone(),
            Operation::CopyState { from, to } => self.states[to.0 as usize] = self.states[from.0 as usize],
            Operation::Install { .. } => unreachable!("this row has no lower tier"),
        }
    }

    /// Lets the step pass all stages, each behind what it has to do before. Returns when it has, how long each stage computed,
    /// and how long each had waited for it.
    fn pass(&mut self, id: StepId, chunks: &[Chunk], now: u64) -> (u64, u64, Vec<u64>) {
        let sampled = chunks.iter().filter_map(|chunk| match chunk.input {
            ChunkInput::Sampled { step } => self.finished.get(&step),
            _ => None,
        });
        let mut time = sampled.copied().fold(now, u64::max);
        let rows: usize = chunks.iter().map(|chunk| chunk.input.rows()).sum();
        let busy = if rows == 0 { 1 } else { self.costs.step + self.costs.row * rows as u64 };
        let mut idle = Vec::new();
        for stage in 0..self.free.len() {
            let hop = if stage == 0 { 0 } else { self.costs.hop };
            idle.push((time + hop).saturating_sub(self.free[stage]));
            time = (time + hop).max(self.free[stage]) + busy;
            self.free[stage] = time;
            self.busy[stage] += busy;
        }
        // the head of a longer row hears of the token a hop later
        let hop = if self.free.len() == 1 { 0 } else { self.costs.hop };
        self.finished.insert(id, time + hop);
        let decodes = chunks.iter().filter(|chunk| chunk.input.rows() == 1).count();
        if decodes > 0 {
            self.decode_steps.push((decodes, busy));
        }
        (time, busy, idle)
    }

    fn compute(&mut self, step: StepId, chunk: &Chunk) -> ChunkResult {
        let memory = self.sessions.get_mut(&chunk.session).expect("open");
        let tokens = match &chunk.input {
            ChunkInput::Tokens(tokens) => tokens.clone(),
            // a session without a token for it has failed there
            ChunkInput::Sampled { step } => vec![memory.sampled.get(step).copied().unwrap_or(0)],
            ChunkInput::Rows { .. } => panic!("nobody sends vectors"),
        };
        let start = chunk.start as usize;
        let is_ahead = chunk.wanted.drafts() as usize >= tokens.len();
        let is_void = is_ahead && memory.newest != Some((start, tokens[0]));
        let accepted = start.checked_sub(memory.certain).filter(|accepted| *accepted <= memory.log.len());
        let accepted = accepted.expect("a gap in the tokens, or a rejected draft before it");
        let mut state = memory.log[..accepted].iter().fold(self.states[memory.slot], |state, one| advance(state, *one));
        let certain = start + tokens.len() - chunk.wanted.drafts() as usize;
        let first = tokens.len() - chunk.wanted.wanted_rows(tokens.len());
        let (mut sampled, mut log): (Vec<u32>, _) = (Vec::new(), memory.log[..accepted].to_vec());
        for token in log.drain(..(certain - memory.certain).min(accepted)) {
            self.states[memory.slot] = advance(self.states[memory.slot], token);
        }
        let mut agrees = true;
        for (row, token) in tokens.iter().enumerate() {
            let position = start + row;
            let (page, place) = (position / self.page_tokens, position % self.page_tokens);
            self.pages[memory.table[page].0 as usize][place] = *token;
            state = advance(state, *token);
            if position < certain {
                self.states[memory.slot] = state;
            } else {
                log.push(*token);
            }
            agrees &= row <= first || sampled.last() == Some(token);
            if row >= first && agrees {
                let pages = memory.table.iter().flat_map(|page| &self.pages[page.0 as usize]);
                let stored = pages.take(position + 1);
                let state =
                    if self.has_states { state } else { stored.clone().fold(0, |state, one| advance(state, *one)) };
                // as penalties do, it depends on where the answer began
                let attended = attend(stored.copied()).wrapping_add(memory.generated_from as u64);
                sampled.push(sample(state, attended, memory.end_is_banned));
            }
        }
        (memory.certain, memory.log) = (certain, log);
        if is_void {
            return ChunkResult { session: chunk.session, outcome: Outcome::Void };
        }
        memory.newest = sampled.last().map(|token| (start + first + sampled.len(), *token));
        let outcome = match chunk.wanted {
            Wanted::Nothing => Outcome::Stored,
            Wanted::Vector => Outcome::Vector(vec![certain as f32]),
            _ if memory.unlucky && sampled.iter().any(|token| token.is_multiple_of(8)) => {
                memory.sampled.extend(sampled.last().map(|token| (step, *token)));
                Outcome::Failed("no token is allowed".into())
            }
            Wanted::Sample => {
                memory.sampled.insert(step, sampled[0]);
                Outcome::Sampled(SampledToken { token: sampled[0], logprobs: None })
            }
            Wanted::Verify(_) => {
                let token = |token| SampledToken { token, logprobs: None };
                Outcome::Verified(Verified { tokens: sampled.into_iter().map(token).collect(), drafted: Vec::new() })
            }
        };
        ChunkResult { session: chunk.session, outcome }
    }
}
