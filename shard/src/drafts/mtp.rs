//! A block for multi-token prediction guesses on from the rows that the tail has just computed.
//!
//! It has keys and values of its own, and reads every token that is accepted together with the hidden row behind the
//! token before it. So each state slot remembers one hidden row besides: that of the last token that is certain.

use std::sync::Arc;

use paceline_compute::device::{ChunkLog, LogSpec, MemoryOperation, MemorySpec, MemoryUse};
use paceline_compute::program::Buffer;
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::Gguf;
use paceline_model::Overrides;
use paceline_proto::Drafted;

use super::{Certain, Drafter, Reading, best, read};
use crate::{Error, Result};

/// The model's own block for multi-token prediction.
pub struct MtpDrafter {
    loaded: Box<dyn LoadedStage>,
    logits: Buffer,
    hidden: Buffer,
    /// Values of a hidden row.
    width: usize,
    /// Values of a row of logits.
    vocabulary: usize,
    /// Bytes of weights that were in memory before.
    shared: u64,
    /// The hidden row behind each slot's last certain token, `(slots, width)`; zeros where there is none.
    pending: Vec<f32>,
}

impl MtpDrafter {
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
        let (width, vocabulary) = (program.width(hidden), program.width(logits));
        // Every chunk may have the token that was just sampled besides.
        let rows = memory.rows.saturating_add(memory.wanted);
        let spec = MemorySpec { rows, slots: 0, logs: LogSpec::NONE, ..memory };
        // The head, and what else the tail has too.
        let shared = device.keep(&program, model).bytes();
        let loaded = device.load(program, model, spec, progress)?;
        let pending = vec![0.0; memory.slots * width];
        Ok(Self { loaded, logits, hidden, width, vocabulary, shared, pending })
    }

    /// The tokens of a chunk that are certain, and the one sampled behind them if guesses are wanted. Appends the
    /// hidden rows before them to `vectors`, and remembers the last one.
    fn reading<'a>(
        &mut self,
        index: usize,
        chunk: &Certain<'a>,
        features: &[f32],
        vectors: &mut Vec<f32>,
    ) -> Option<Reading<'a>> {
        let pending = &mut self.pending[chunk.slot * self.width..(chunk.slot + 1) * self.width];
        let own = &features[chunk.first_row * self.width..(chunk.first_row + chunk.rows) * self.width];
        let (before, last) = own.split_at(own.len() - self.width);
        // From before rows that are no tokens nothing is guessed.
        let reading = chunk.tokens.clone().map(|mut tokens| {
            vectors.extend_from_slice(pending);
            vectors.extend_from_slice(before);
            let newest = chunk.newest.filter(|_| chunk.propose > 0);
            if let Some(newest) = newest {
                tokens.push(newest);
                vectors.extend_from_slice(last);
            }
            let (start, guess, log) = (chunk.start, newest.is_some(), ChunkLog::default());
            Reading { chunk: index, start, tokens, slot: 0, pages: chunk.pages, log, guess }
        });
        pending.copy_from_slice(last);
        reading
    }
}

impl Drafter for MtpDrafter {
    fn features(&self) -> Option<usize> {
        Some(self.width)
    }

    fn memory_use(&self) -> MemoryUse {
        let used = self.loaded.memory_use();
        let pending = size_of_val(&self.pending[..]) as u64;
        MemoryUse { weights: used.weights - self.shared, buffers: used.buffers + pending, ..used }
    }

    fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        let row = |slot: usize| slot * self.width..(slot + 1) * self.width;
        match operation {
            MemoryOperation::ClearState { slot } => self.pending[row(slot)].fill(0.0),
            MemoryOperation::CopyState { from, to } => self.pending.copy_within(row(from), to * self.width),
            MemoryOperation::CopyPage { .. } => self.loaded.apply(operation)?,
        }
        Ok(())
    }

    fn follow(&mut self, chunks: &[Certain<'_>], features: &[f32]) -> Result<Vec<Vec<Drafted>>> {
        let (mut readings, mut vectors) = (Vec::new(), Vec::new());
        for (index, chunk) in chunks.iter().enumerate() {
            readings.extend(self.reading(index, chunk, features, &mut vectors));
        }
        let mut guesses = vec![Vec::new(); chunks.len()];
        while !readings.is_empty() {
            read(self.loaded.as_mut(), &readings, &vectors)?;
            vectors.clear();
            let mut next = Vec::new();
            for (row, reading) in readings.iter().filter(|reading| reading.guess).enumerate() {
                let guess = best(self.loaded.as_mut(), self.logits, row, self.vocabulary)?;
                if chunks[reading.chunk].take(guess, &mut guesses[reading.chunk]) {
                    let at = vectors.len();
                    vectors.resize(at + self.width, 0.0);
                    self.loaded.read(self.hidden, row..row + 1, &mut vectors[at..])?;
                    next.push(Reading { start: reading.end(), tokens: vec![guess.token], ..*reading });
                }
            }
            readings = next;
        }
        Ok(guesses)
    }
}
