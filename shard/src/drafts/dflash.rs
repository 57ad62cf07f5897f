//! A DFlash model drafts whole blocks: one pass over the newest token and masks behind it guesses at all of them.
//!
//! What it knows of the tokens before are keys and values that it makes of the tail's features, for every row that is
//! certain; those of a block itself are overwritten when its tokens are.

use std::sync::Arc;

use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemoryOperation, MemorySpec, MemoryUse, StepInputs};
use paceline_compute::program::Buffer;
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::{DflashShape, Gguf};
use paceline_model::{DRAFT, INJECT};
use paceline_proto::Drafted;

use super::{Certain, Drafter, best, positions_of};
use crate::{Error, Result};

/// A DFlash model beside a tail.
pub struct DflashDrafter {
    loaded: Box<dyn LoadedStage>,
    logits: Buffer,
    shape: DflashShape,
    /// Bytes of weights that were in memory before.
    shared: u64,
}

/// A block that is to be drafted.
struct Block<'a> {
    /// Which of the chunks it follows.
    chunk: usize,
    start: usize,
    newest: u32,
    /// Tokens to guess at, at least one.
    masks: usize,
    pages: &'a [u32],
}

impl Block<'_> {
    fn rows(&self) -> usize {
        1 + self.masks
    }
}

impl DflashDrafter {
    /// Loads the DFlash model that is open together with `model`, beside a tail that has reserved `memory` and whose
    /// program was recorded for it.
    ///
    /// # Errors
    /// A model without such a draft model, or with one that does not fit it; memory that cannot be had.
    pub fn load(
        device: &dyn Device,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        let (program, shape) = paceline_model::record_dflash(model)?;
        let logits = program.logits.ok_or(Error::NotTail)?;
        let spec = MemorySpec { slots: 0, logs: LogSpec::NONE, ..memory };
        // The head, which the tail has too.
        let shared = device.keep(&program, model).bytes();
        let loaded = device.load(program, model, spec, progress)?;
        Ok(Self { loaded, logits, shape, shared })
    }

    /// Makes keys and values of all rows that are certain.
    fn inject(&mut self, chunks: &[Certain<'_>], features: &[f32]) -> Result<()> {
        let width = self.shape.embedding_length;
        let (mut rows, mut vectors, mut positions) = (Vec::new(), Vec::new(), Vec::new());
        for chunk in chunks {
            let own = chunk.first_row..chunk.first_row + chunk.rows;
            rows.push(chunk_rows(positions.len(), chunk.start, chunk.rows, chunk.pages));
            vectors.extend_from_slice(&features[own.start * width..own.end * width]);
            positions.extend(positions_of(chunk.start..chunk.end()));
        }
        let inputs = StepInputs { chunks: &rows, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
        Ok(self.loaded.run_entry(INJECT, &inputs)?)
    }

    /// The block that is wanted behind a chunk: shorter where fewer guesses are wanted, or pages end.
    fn block<'a>(&self, index: usize, chunk: &Certain<'a>) -> Option<Block<'a>> {
        let MemorySpec { rows, wanted, .. } = self.loaded.memory();
        let masks = chunk.propose.min(self.shape.block - 1).min(chunk.room.saturating_sub(chunk.end() + 1));
        let masks = masks.min(wanted).min(rows.saturating_sub(1));
        let newest = chunk.newest.filter(|_| masks > 0)?;
        Some(Block { chunk: index, start: chunk.end(), newest, masks, pages: chunk.pages })
    }

    /// How many of these blocks fit into one pass, at least one.
    fn fitting(&self, blocks: &[Block<'_>]) -> usize {
        let MemorySpec { rows, wanted, .. } = self.loaded.memory();
        let (mut all_rows, mut all_masks) = (0, 0);
        let fits = |block: &&Block<'_>| {
            all_rows += block.rows();
            all_masks += block.masks;
            all_rows <= rows && all_masks <= wanted
        };
        blocks.iter().take_while(fits).count().max(1)
    }

    /// Guesses at all tokens of some blocks in one pass.
    fn draft(&mut self, blocks: &[Block<'_>], chunks: &[Certain<'_>], guesses: &mut [Vec<Drafted>]) -> Result<()> {
        let (mut rows, mut tokens, mut positions, mut wanted) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for block in blocks {
            let first = tokens.len();
            rows.push(chunk_rows(first, block.start, block.rows(), block.pages));
            tokens.push(block.newest);
            tokens.extend(std::iter::repeat_n(self.shape.mask_token, block.masks));
            positions.extend(positions_of(block.start..block.start + block.rows()));
            wanted.extend(
                (first + 1..tokens.len()).map(|row| u32::try_from(row).expect("a step has some thousand rows")),
            );
        }
        let (tokens, positions, wanted) = (&tokens[..], &positions[..], &wanted[..]);
        self.loaded.run_entry(DRAFT, &StepInputs { chunks: &rows, tokens, vectors: &[], positions, wanted })?;
        let (vocabulary, mut row) = (self.loaded.program().width(self.logits), 0);
        for block in blocks {
            for mask in 0..block.masks {
                let guess = best(self.loaded.as_mut(), self.logits, row + mask, vocabulary)?;
                if !chunks[block.chunk].take(guess, &mut guesses[block.chunk]) {
                    break;
                }
            }
            row += block.masks;
        }
        Ok(())
    }
}

impl Drafter for DflashDrafter {
    fn features(&self) -> Option<usize> {
        Some(self.shape.embedding_length)
    }

    fn memory_use(&self) -> MemoryUse {
        let used = self.loaded.memory_use();
        MemoryUse { weights: used.weights - self.shared, ..used }
    }

    fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        match operation {
            MemoryOperation::CopyPage { .. } => Ok(self.loaded.apply(operation)?),
            // It has no states.
            MemoryOperation::ClearState { .. } | MemoryOperation::CopyState { .. } => Ok(()),
        }
    }

    fn follow(&mut self, chunks: &[Certain<'_>], features: &[f32]) -> Result<Vec<Vec<Drafted>>> {
        self.inject(chunks, features)?;
        let blocks = chunks.iter().enumerate().filter_map(|(index, chunk)| self.block(index, chunk));
        let blocks: Vec<Block<'_>> = blocks.collect();
        let (mut guesses, mut left) = (vec![Vec::new(); chunks.len()], &blocks[..]);
        while !left.is_empty() {
            let (pass, later) = left.split_at(self.fitting(left));
            self.draft(pass, chunks, &mut guesses)?;
            left = later;
        }
        Ok(guesses)
    }
}

fn chunk_rows(first_row: usize, start: usize, rows: usize, pages: &[u32]) -> ChunkRows<'_> {
    ChunkRows { first_row, rows, start, slot: 0, pages, log: ChunkLog::default() }
}
