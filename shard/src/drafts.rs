//! Drafts of the tail: guesses at the tokens behind those that it has just made certain.
//!
//! Read [`Drafter`] first: it sees what a step has made certain, in order, and guesses on where that is wanted. What it
//! remembers lies in pages and slots of the same numbers as the tail's. Guesses never change a text, they only save steps.

use std::ops::Range;

use paceline_compute::LoadedStage;
use paceline_compute::device::{ChunkLog, ChunkRows, MemoryOperation, MemoryUse, StepInputs};
use paceline_compute::program::Buffer;
use paceline_proto::{Chunk, ChunkInput, ChunkResult, Drafted, Outcome, Verify, Wanted};
use paceline_sampling::most_probable_token;

use crate::Result;
use crate::sessions::SessionTable;

mod dflash;
mod model;
mod mtp;

pub use dflash::DflashDrafter;
pub use model::ModelDrafter;
pub use mtp::MtpDrafter;

/// What guesses at the tokens behind those that a tail has just made certain.
pub trait Drafter: Send {
    /// Values per row of the tail's [`features`](paceline_compute::program::Program::features) that it reads; `None` if
    /// it reads tokens alone.
    fn features(&self) -> Option<usize>;

    /// Bytes that it occupies, without weights that the tail has in memory anyway.
    fn memory_use(&self) -> MemoryUse;

    /// Does to its memories what was done to the tail's, which has checked it.
    ///
    /// # Errors
    /// A device that fails.
    fn apply(&mut self, operation: MemoryOperation) -> Result<()>;

    /// Reads what a step has made certain, and guesses on where that is wanted: one list of guesses per chunk.
    /// `features` are those of all rows of the step, `(rows, width)`, or empty if it reads none.
    ///
    /// # Errors
    /// A device that fails.
    fn follow(&mut self, chunks: &[Certain<'_>], features: &[f32]) -> Result<Vec<Vec<Drafted>>>;
}

/// What a step has made certain of a session.
#[derive(Debug)]
pub struct Certain<'a> {
    /// Which of the step's results it belongs to.
    result: usize,
    /// The session's state slot.
    pub slot: usize,
    /// The session's pages.
    pub pages: &'a [u32],
    /// Tokens that these pages hold.
    pub room: usize,
    /// How many tokens of the session came before.
    pub start: usize,
    /// The first of its rows among those of the step.
    pub first_row: usize,
    /// How many of the rows are certain, at least one.
    pub rows: usize,
    /// Their tokens; `None` for rows that are no tokens.
    pub tokens: Option<Vec<u32>>,
    /// The token that was sampled behind them, and has not been run.
    pub newest: Option<u32>,
    /// How many guesses are wanted behind the newest token; 0 if there is none, or no room for it.
    pub propose: usize,
    /// Guesses end before one that is less probable, in thousandths.
    pub least_probability: u16,
}

impl<'a> Certain<'a> {
    /// What a chunk that was run has made certain; `first_row` is its first row in the step.
    fn of(
        result: usize,
        chunk: &Chunk,
        outcome: &Outcome,
        first_row: usize,
        sessions: &'a SessionTable,
    ) -> Result<Option<Self>> {
        let memory = sessions.get(chunk.session)?;
        let rows = chunk.input.rows();
        let (rows, newest) = match outcome {
            Outcome::Void | Outcome::Failed(_) => return Ok(None),
            Outcome::Verified(verified) => {
                let certain = rows - chunk.wanted.wanted_rows(rows) + verified.tokens.len();
                (certain, verified.tokens.last().map(|sampled| sampled.token))
            }
            Outcome::Sampled(sampled) => (rows, Some(sampled.token)),
            Outcome::Stored | Outcome::Vector(_) => (rows, None),
        };
        let tokens = match &chunk.input {
            ChunkInput::Tokens(tokens) => Some(tokens[..rows].to_vec()),
            ChunkInput::Rows { .. } | ChunkInput::Sampled { .. } => None,
        };
        let (start, room) = (chunk.start as usize, sessions.room_of(memory));
        let verify = match chunk.wanted {
            Wanted::Verify(verify) if newest.is_some() && start + rows < room => verify,
            _ => Verify::default(),
        };
        Ok(Some(Self {
            result,
            slot: memory.slot,
            pages: &memory.pages,
            room,
            start,
            first_row,
            rows,
            tokens,
            newest,
            propose: verify.propose as usize,
            least_probability: verify.least_probability,
        }))
    }

    /// The position behind them.
    pub fn end(&self) -> usize {
        self.start + self.rows
    }

    /// Notes a guess behind those that there are, if it is probable enough. Is another one wanted behind it?
    pub(crate) fn take(&self, guess: Drafted, guesses: &mut Vec<Drafted>) -> bool {
        if guess.probability * 1000.0 < f32::from(self.least_probability) {
            return false;
        }
        guesses.push(guess);
        guesses.len() < self.propose && self.end() + guesses.len() < self.room
    }
}

/// Lets a drafter read what a step has made certain, and adds what it guesses to the results.
pub(crate) fn follow(
    drafter: &mut dyn Drafter,
    features: &[f32],
    chunks: &[Chunk],
    results: &mut [ChunkResult],
    sessions: &SessionTable,
) -> Result<()> {
    let (mut certain, mut first_row) = (Vec::new(), 0);
    for (result, chunk) in chunks.iter().enumerate().filter(|(_, chunk)| !chunk.void) {
        certain.extend(Certain::of(result, chunk, &results[result].outcome, first_row, sessions)?);
        first_row += chunk.input.rows();
    }
    if certain.is_empty() {
        return Ok(());
    }
    for (chunk, guesses) in certain.iter().zip(drafter.follow(&certain, features)?) {
        if let Outcome::Verified(verified) = &mut results[chunk.result].outcome {
            verified.drafted = guesses;
        }
    }
    Ok(())
}

/// Consecutive tokens of a session that a draft model reads.
#[derive(Debug)]
struct Reading<'a> {
    /// Which of the chunks of the step it follows.
    chunk: usize,
    start: usize,
    tokens: Vec<u32>,
    slot: usize,
    pages: &'a [u32],
    log: ChunkLog,
    /// Is a guess wanted behind the last token?
    guess: bool,
}

impl Reading<'_> {
    fn end(&self) -> usize {
        self.start + self.tokens.len()
    }
}

/// Lets a draft model read; its wanted rows are then the last ones of those behind which a guess is wanted, in order.
/// `vectors` are what it reads besides.
fn read(loaded: &mut dyn LoadedStage, readings: &[Reading<'_>], vectors: &[f32]) -> Result<()> {
    let (mut chunks, mut wanted) = (Vec::new(), Vec::new());
    let (mut tokens, mut positions) = (Vec::new(), Vec::new());
    for reading in readings {
        let (first_row, rows) = (tokens.len(), reading.tokens.len());
        let Reading { start, slot, pages, log, .. } = *reading;
        chunks.push(ChunkRows { first_row, rows, start, slot, pages, log });
        tokens.extend_from_slice(&reading.tokens);
        positions.extend(positions_of(start..reading.end()));
        if reading.guess {
            wanted.push(u32::try_from(tokens.len() - 1).expect("a step has some thousand rows"));
        }
    }
    let (tokens, positions, wanted) = (&tokens[..], &positions[..], &wanted[..]);
    loaded.run(&StepInputs { chunks: &chunks, tokens, vectors, positions, wanted })?;
    Ok(())
}

/// Positions as rows have them.
fn positions_of(positions: Range<usize>) -> impl Iterator<Item = [u32; 4]> {
    positions.map(|at| {
        let at = u32::try_from(at).expect("tokens are counted in 32 bits");
        [at, at, at, 0]
    })
}

/// The most probable of the first `vocabulary` tokens of a wanted row.
fn best(loaded: &mut dyn LoadedStage, logits: Buffer, row: usize, vocabulary: usize) -> Result<Drafted> {
    let mut values = vec![0.0; loaded.program().width(logits)];
    loaded.read(logits, row..row + 1, &mut values)?;
    // A row without a single possible token is improbable as a whole.
    let (token, probability) = most_probable_token(&values[..vocabulary]).unwrap_or_default();
    Ok(Drafted { token, probability })
}
