//! Drafts of the tail: a block for multi-token prediction guesses on from the rows that the tail has just computed.
//!
//! The draft model has keys and values of its own, in pages of the same numbers, and reads every token that is accepted
//! together with the hidden row behind the token before it. So each state slot remembers one hidden row besides: that
//! of the last token that is certain. Guesses never change a text, they only save steps.

use std::sync::Arc;

use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemoryOperation, MemorySpec, MemoryUse, StepInputs};
use paceline_compute::program::Buffer;
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::Gguf;
use paceline_model::Overrides;
use paceline_proto::{Chunk, ChunkInput, ChunkResult, Drafted, Outcome, Verify, Wanted};

use crate::sessions::SessionTable;
use crate::{Error, Result};

/// A draft model beside the tail's layers.
pub struct Drafter {
    loaded: Box<dyn LoadedStage>,
    logits: Buffer,
    hidden: Buffer,
    /// Values of a hidden row.
    width: usize,
    /// Bytes of weights that were in memory before.
    shared: u64,
    /// The hidden row behind each slot's last certain token, `(slots, width)`; zeros where there is none.
    pending: Vec<f32>,
    /// The token that each slot's session got last.
    newest: Vec<Option<u32>>,
}

/// What the draft model reads of one chunk, and how far it guesses on.
struct Reading<'a> {
    /// Which of the step's results it belongs to.
    result: usize,
    start: usize,
    tokens: Vec<u32>,
    pages: &'a [u32],
    verify: Verify,
}

impl Reading<'_> {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

impl Drafter {
    /// Loads the block for multi-token prediction of `model`, beside a tail that has reserved `memory`.
    ///
    /// # Errors
    /// A file without such a block; memory that cannot be had.
    pub fn load(
        device: &dyn Device,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        overrides: &Overrides,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let program = paceline_model::record_mtp(model, overrides)?;
        let (Some(logits), Some(hidden)) = (program.logits, program.hidden) else { return Err(Error::NotTail) };
        let width = program.width(hidden);
        // Every chunk may have the token that was just sampled besides.
        let rows = memory.rows.saturating_add(memory.wanted);
        let spec = MemorySpec { rows, slots: 0, logs: LogSpec::NONE, ..memory };
        // The head, and what else the tail has too.
        let shared = device.keep(&program, model).bytes();
        let loaded = device.load(program, model, spec, progress)?;
        let (pending, newest) = (vec![0.0; memory.slots * width], vec![None; memory.slots]);
        Ok(Self { loaded, logits, hidden, width, shared, pending, newest })
    }

    /// Bytes that it occupies.
    pub fn memory_use(&self) -> MemoryUse {
        let used = self.loaded.memory_use();
        let pending = size_of_val(&self.pending[..]) as u64;
        MemoryUse { weights: used.weights - self.shared, buffers: used.buffers + pending, ..used }
    }

    /// Does to its memories what was done to the tail's, which has checked it.
    pub(crate) fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        let row = |slot: usize| slot * self.width..(slot + 1) * self.width;
        match operation {
            MemoryOperation::ClearState { slot } => {
                self.pending[row(slot)].fill(0.0);
                self.newest[slot] = None;
            }
            MemoryOperation::CopyState { from, to } => {
                self.pending.copy_within(row(from), to * self.width);
                self.newest[to] = self.newest[from];
            }
            MemoryOperation::CopyPage { .. } => self.loaded.apply(operation)?,
        }
        Ok(())
    }

    /// Reads what a step has made certain, and guesses on where that is wanted. `features` are the hidden rows of all
    /// its rows, `(rows, width)`.
    pub(crate) fn follow(
        &mut self,
        features: &[f32],
        chunks: &[Chunk],
        results: &mut [ChunkResult],
        sessions: &SessionTable,
    ) -> Result<()> {
        let (mut readings, mut vectors) = (Vec::new(), Vec::new());
        let mut first_row = 0;
        for (result, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| !chunk.void) {
            let rows = chunk.input.rows();
            let own = &features[first_row * self.width..(first_row + rows) * self.width];
            first_row += rows;
            readings.extend(self.read(result, chunk, &results[result].outcome, own, sessions, &mut vectors)?);
        }
        let page_tokens = self.loaded.memory().page_tokens;
        while !readings.is_empty() {
            let guesses = self.guess(&readings, &vectors)?;
            vectors.clear();
            readings = guesses.into_iter().filter_map(|guess| guess.take(page_tokens, results, &mut vectors)).collect();
        }
        Ok(())
    }

    /// The tokens of a chunk that are certain, and the one sampled behind them if the session wants guesses. Appends
    /// the hidden rows before them to `vectors`, and remembers the last one.
    fn read<'a>(
        &mut self,
        result: usize,
        chunk: &Chunk,
        outcome: &Outcome,
        features: &[f32],
        sessions: &'a SessionTable,
        vectors: &mut Vec<f32>,
    ) -> Result<Option<Reading<'a>>> {
        let memory = sessions.get(chunk.session)?;
        let rows = chunk.input.rows();
        let (certain, newest) = match outcome {
            Outcome::Void | Outcome::Failed(_) => return Ok(None),
            Outcome::Verified(verified) => {
                let certain = rows - chunk.wanted.wanted_rows(rows) + verified.tokens.len();
                (certain, verified.tokens.last().map(|sampled| sampled.token))
            }
            Outcome::Sampled(sampled) => (rows, Some(sampled.token)),
            Outcome::Stored | Outcome::Vector(_) => (rows, None),
        };
        let before_newest = std::mem::replace(&mut self.newest[memory.slot], newest);
        let slot = memory.slot * self.width..(memory.slot + 1) * self.width;
        let ahead = &features[..certain * self.width];
        let (before, last) = ahead.split_at(ahead.len() - self.width);
        let start = chunk.start as usize;
        let page_tokens = self.loaded.memory().page_tokens;
        let tokens = match &chunk.input {
            ChunkInput::Tokens(tokens) => Some(tokens[..certain].to_vec()),
            // The token that a step before this one has sampled, which only the stages know yet.
            ChunkInput::Sampled { .. } => before_newest.map(|token| vec![token]),
            // Rows that are no tokens: nothing is guessed from before them.
            ChunkInput::Rows { .. } => None,
        };
        let reading = match tokens {
            Some(tokens) => {
                vectors.extend_from_slice(&self.pending[slot.clone()]);
                vectors.extend_from_slice(before);
                let mut reading = Reading { result, start, tokens, pages: &memory.pages, verify: Verify::default() };
                if let (Wanted::Verify(verify), Some(newest)) = (chunk.wanted, newest)
                    && verify.propose > 0
                    && reading.end() < memory.pages.len() * page_tokens
                {
                    reading.verify = verify;
                    reading.tokens.push(newest);
                    vectors.extend_from_slice(last);
                }
                Some(reading)
            }
            None => None,
        };
        self.pending[slot].copy_from_slice(last);
        Ok(reading)
    }

    /// Runs the draft model over these tokens, and takes the most probable token behind each that wants a guess.
    fn guess<'a>(&mut self, readings: &[Reading<'a>], vectors: &[f32]) -> Result<Vec<Guess<'a>>> {
        let (mut chunks, mut wanted, mut guesses) = (Vec::new(), Vec::new(), Vec::new());
        let (mut tokens, mut positions) = (Vec::new(), Vec::new());
        for reading in readings {
            let (first_row, rows, start) = (tokens.len(), reading.tokens.len(), reading.start);
            let log = ChunkLog::default();
            chunks.push(ChunkRows { first_row, rows, start, slot: 0, pages: reading.pages, log });
            tokens.extend_from_slice(&reading.tokens);
            positions.extend((start..reading.end()).map(|at| {
                let at = u32::try_from(at).expect("tokens are counted in 32 bits");
                [at, at, at, 0]
            }));
            if reading.verify.propose > 0 {
                wanted.push(u32::try_from(tokens.len() - 1).expect("a step has some thousand rows"));
                guesses.push(reading);
            }
        }
        let (tokens, positions, wanted) = (&tokens[..], &positions[..], &wanted[..]);
        self.loaded.run(&StepInputs { chunks: &chunks, tokens, vectors, positions, wanted })?;
        guesses.into_iter().enumerate().map(|(row, reading)| self.best(row, reading)).collect()
    }

    fn best<'a>(&mut self, row: usize, reading: &Reading<'a>) -> Result<Guess<'a>> {
        let mut logits = vec![0.0; self.loaded.program().width(self.logits)];
        self.loaded.read(self.logits, row..row + 1, &mut logits)?;
        let mut hidden = vec![0.0; self.width];
        self.loaded.read(self.hidden, row..row + 1, &mut hidden)?;
        let (result, end) = (reading.result, reading.end());
        Ok(Guess { result, end, pages: reading.pages, verify: reading.verify, drafted: most_probable(&logits), hidden })
    }
}

/// A guessed token, and what the next guess is made from.
struct Guess<'a> {
    result: usize,
    /// The position of the token.
    end: usize,
    pages: &'a [u32],
    verify: Verify,
    drafted: Drafted,
    hidden: Vec<f32>,
}

impl<'a> Guess<'a> {
    /// Notes the guess, if it is probable enough, and what is to be read for the next one.
    fn take(self, page_tokens: usize, results: &mut [ChunkResult], vectors: &mut Vec<f32>) -> Option<Reading<'a>> {
        let Guess { result, end, pages, verify, drafted, hidden } = self;
        if drafted.probability * 1000.0 < f32::from(verify.least_probability) {
            return None;
        }
        let Outcome::Verified(verified) = &mut results[result].outcome else { return None };
        verified.drafted.push(drafted);
        if verified.drafted.len() >= verify.propose as usize || end >= pages.len() * page_tokens {
            return None;
        }
        let reading = Reading { result, start: end, tokens: vec![drafted.token], pages, verify };
        vectors.extend_from_slice(&hidden);
        Some(reading)
    }
}

/// The most probable token, the lowest of several, and its probability.
fn most_probable(logits: &[f32]) -> Drafted {
    let mut best = (0, f32::NEG_INFINITY);
    for (token, logit) in (0..).zip(logits) {
        if *logit > best.1 {
            best = (token, *logit);
        }
    }
    let mass: f64 = logits.iter().map(|logit| f64::from(logit - best.1).exp()).sum();
    // A row without a single finite logit is improbable as a whole.
    let probability = if mass.is_finite() && mass > 0.0 { (1.0 / mass) as f32 } else { 0.0 };
    Drafted { token: best.0, probability }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_token_is_the_lowest_of_several() {
        let found = most_probable(&[0.0, 2.0_f32.ln(), 2.0_f32.ln(), f32::NEG_INFINITY]);
        assert_eq!(found.token, 1);
        assert!((found.probability - 0.4).abs() < 1e-6, "{found:?}");
        assert_eq!(most_probable(&[f32::NAN, f32::NAN]).probability, 0.0);
    }
}
