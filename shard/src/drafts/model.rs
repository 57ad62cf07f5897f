//! A model in a file of its own guesses on: any that has the vocabulary of the one that it drafts for.
//!
//! It reads every token that becomes certain, in pages and state slots of the same numbers as the tail's. Its guesses are
//! to it what drafts are to the tail: uncertain tokens, whose inputs of recurrent layers lie in a log while the states
//! stay behind the last token that is certain. So there is nothing to take back when a guess was wrong.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::device::{ChunkLog, MemoryOperation, MemorySpec, MemoryUse};
use paceline_compute::program::Buffer;
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::{DRAFT_PREFIX, Gguf, ModelShape};
use paceline_model::StageLayers;
use paceline_proto::Drafted;

use super::{Certain, Drafter, Reading, best, read};
use crate::{Error, Result};

/// Guesses in a row at most: each costs a pass of the model, and is right only where those before it are.
const MOST_GUESSES: usize = 8;

/// A model that drafts for another one.
pub struct ModelDrafter {
    loaded: Box<dyn LoadedStage>,
    logits: Buffer,
    /// Tokens that both models know; rows beyond them are padding.
    vocabulary: usize,
}

impl ModelDrafter {
    /// Loads the model that drafts for `model`, which was opened with it. `memory` is what the tail has reserved, with
    /// the types in which this model's keys and values are stored.
    ///
    /// # Errors
    /// A model that was opened without another one that drafts for it; another vocabulary; an architecture that is not
    /// known; memory that cannot be had.
    pub fn load(
        device: &dyn Device,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let draft = model.draft().ok_or(Error::NoDraft)?;
        let vocabulary = model.check_same_vocabulary(draft)?;
        let layers = ModelShape::read(draft)?.layers.len();
        let program = paceline_model::record(draft, &StageLayers::of(0..layers, layers))?.with_prefix(DRAFT_PREFIX);
        let Some(logits) = program.logits else { return Err(Error::NotTail) };
        // Every chunk may have the token that was just sampled besides.
        let rows = memory.rows.saturating_add(memory.wanted);
        let loaded = device.load(program, model, MemorySpec { rows, ..memory }, progress)?;
        Ok(Self { loaded, logits, vocabulary })
    }

    fn knows(&self, token: u32) -> bool {
        (token as usize) < self.vocabulary
    }

    /// The tokens of a chunk that are certain, and the one sampled behind them if guesses are wanted and one of the logs
    /// in `places` is left for them.
    fn reading<'a>(&self, index: usize, chunk: &Certain<'a>, places: &mut Range<usize>) -> Option<Reading<'a>> {
        let known = |tokens: &Vec<u32>| tokens.iter().all(|token| self.knows(*token));
        // From before rows that are no tokens nothing is guessed.
        let mut tokens = chunk.tokens.clone().filter(known)?;
        let newest = chunk.newest.filter(|newest| chunk.propose > 0 && self.knows(*newest));
        let newest = newest.and_then(|newest| Some((newest, places.next()?)));
        let log = newest.map_or_else(ChunkLog::default, |(_, place)| ChunkLog { place, before: 0, uncertain: 1 });
        tokens.extend(newest.map(|(newest, _)| newest));
        let Certain { start, slot, pages, .. } = *chunk;
        Some(Reading { chunk: index, start, tokens, slot, pages, log, guess: newest.is_some() })
    }
}

impl Drafter for ModelDrafter {
    fn features(&self) -> Option<usize> {
        None
    }

    fn memory_use(&self) -> MemoryUse {
        self.loaded.memory_use()
    }

    fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        Ok(self.loaded.apply(operation)?)
    }

    fn follow(&mut self, chunks: &[Certain<'_>], _features: &[f32]) -> Result<Vec<Vec<Drafted>>> {
        let logs = self.loaded.memory().logs;
        let most = logs.tokens.min(MOST_GUESSES);
        let mut places = if logs.tokens > 0 { 0..logs.sessions } else { 0..0 };
        let reading = |(index, chunk)| self.reading(index, chunk, &mut places);
        let mut readings: Vec<Reading<'_>> = chunks.iter().enumerate().filter_map(reading).collect();
        let mut guesses = vec![Vec::new(); chunks.len()];
        while !readings.is_empty() {
            read(self.loaded.as_mut(), &readings, &[])?;
            let mut next = Vec::new();
            for (row, reading) in readings.iter().filter(|reading| reading.guess).enumerate() {
                let guess = best(self.loaded.as_mut(), self.logits, row, self.vocabulary)?;
                let (chunk, guesses) = (&chunks[reading.chunk], &mut guesses[reading.chunk]);
                if chunk.take(guess, guesses) && guesses.len() < most {
                    let before = reading.log.uncertain;
                    let log = ChunkLog { before, uncertain: before + 1, ..reading.log };
                    next.push(Reading { start: reading.end(), tokens: vec![guess.token], log, ..*reading });
                }
            }
            readings = next;
        }
        Ok(guesses)
    }
}
