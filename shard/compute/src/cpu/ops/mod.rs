//! The operations of a program, one file per family.
//!
//! Read [`Step`], what an operation sees, then [`Operation`]. [`prepare`](prepare::prepare) is the one place that
//! knows all of [`Op`](crate::program::Op).
//!
//! The law of every operation: each output element is one fixed sequence of floating-point operations that
//! depends on its own row's inputs only. Members may split rows, heads, columns and tiles between them in any
//! way, but never change the order inside one element.

#![expect(unsafe_code, reason = "members borrow their own rows")]

mod attention;
mod convolve;
mod delta_rule;
mod elementwise;
mod embed;
mod experts;
mod fused;
mod keys_values;
mod layer_norm;
mod linear;
mod norm;
mod prepare;
mod rope;
mod route;
mod vectors;

pub(crate) use prepare::{Prepared, prepare};

use std::ops::Range;
use std::sync::Arc;

use super::buffers::Rows;
use super::linear::{PackedWeight, QuantizedBlock, RowPair};
use super::pages::PagedCache;
use super::pool::Member;
use super::shared::Shared;
use super::simd::Isa;
use super::states::Recurrent;
use super::weights::Loaded;
use crate::Result;
use crate::device::{ChunkRows, MemorySpec, StepInputs};
use crate::program::{Buffer, Cache, RowSpace, State, Weight};
use crate::tensors::Table;

/// Sizes that scratch space depends on.
pub(crate) struct Limits {
    /// The most rows of a step.
    pub(crate) rows: usize,
    /// The most rows that are replayed from logs before those of a step.
    pub(crate) replayed: usize,
    /// Members of the pool.
    pub(crate) threads: usize,
}

/// How much scratch an operation uses.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct ScratchSize {
    /// Values.
    floats: usize,
    /// Blocks of quantized activations.
    blocks: usize,
    /// Pairs of rows to multiply.
    pairs: usize,
    /// Groups of such pairs.
    groups: usize,
}

impl ScratchSize {
    /// Enough for both.
    pub(crate) fn max(self, other: Self) -> Self {
        Self {
            floats: self.floats.max(other.floats),
            blocks: self.blocks.max(other.blocks),
            pairs: self.pairs.max(other.pairs),
            groups: self.groups.max(other.groups),
        }
    }
}

/// Space that belongs to one operation from its start to its end.
pub(crate) struct Scratch {
    floats: Shared<f32>,
    blocks: Shared<QuantizedBlock>,
    pairs: Shared<RowPair>,
    /// First pair of each group, and the one behind its last.
    groups: Shared<[u32; 2]>,
}

impl Scratch {
    /// Reserves space for the operation that needs most.
    pub(crate) fn reserve(size: &ScratchSize) -> Result<Self> {
        Ok(Self {
            floats: Shared::zeroed("scratch", size.floats)?,
            blocks: Shared::zeroed("scratch", size.blocks)?,
            pairs: Shared::zeroed("scratch", size.pairs)?,
            groups: Shared::zeroed("scratch", size.groups)?,
        })
    }

    /// Bytes reserved.
    pub(crate) fn bytes(&self) -> u64 {
        self.floats.bytes() + self.blocks.bytes() + self.pairs.bytes() + self.groups.bytes()
    }
}

/// An operation that is ready to run.
pub(crate) trait Operation: Send + Sync {
    /// How much scratch it uses.
    fn scratch(&self, _limits: &Limits) -> ScratchSize {
        ScratchSize::default()
    }

    /// Does one member's part. All members are past all earlier operations when it begins.
    fn run(&self, step: &Step<'_>, member: &Member<'_>);
}

/// Operations that follow one another in a program, and one that does the same.
pub(crate) struct Fused {
    /// The operations of the program.
    pub(crate) operations: Range<usize>,
    /// The one of them that takes most of the time.
    pub(crate) main: usize,
    /// Leaves all their results, bit for bit, but what one of them overwrites of another's.
    pub(crate) operation: Box<dyn Operation>,
}

/// All that operations work on in one step.
pub(crate) struct Step<'a> {
    pub(crate) isa: Isa,
    pub(crate) inputs: &'a StepInputs<'a>,
    pub(crate) buffers: &'a [Rows],
    pub(crate) weights: &'a [Arc<Loaded>],
    pub(crate) caches: &'a [PagedCache],
    pub(crate) states: &'a [Recurrent],
    pub(crate) scratch: &'a Scratch,
    /// What the stage has reserved.
    pub(crate) memory: MemorySpec,
}

impl Step<'_> {
    /// How many rows a buffer has in this step.
    fn rows(&self, buffer: Buffer) -> usize {
        match self.buffer(buffer).space {
            RowSpace::Step => self.inputs.rows(),
            RowSpace::Wanted => self.inputs.wanted.len(),
        }
    }

    fn buffer(&self, buffer: Buffer) -> &Rows {
        &self.buffers[usize::from(buffer.0)]
    }

    /// One row that this member writes.
    ///
    /// # Safety
    /// No other borrow of it exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "members borrow disjoint rows")]
    unsafe fn row_mut(&self, buffer: Buffer, row: usize) -> &mut [f32] {
        // SAFETY: the caller's promise.
        unsafe { self.buffer(buffer).rows_mut(row..row + 1) }
    }

    /// Where row `index` of a chunk lies in buffers of recurrent layers, counted from the first token that is replayed
    /// before the chunk. Replayed rows have a place of their own behind those of the step.
    fn row_of(&self, chunk: &ChunkRows<'_>, index: usize) -> usize {
        match index.checked_sub(chunk.log.before) {
            Some(row) => chunk.first_row + row,
            None => self.memory.rows + chunk.log.place * self.memory.logs.tokens + index,
        }
    }

    /// The chunk that a row belongs to.
    fn chunk_of(&self, row: usize) -> &ChunkRows<'_> {
        let after = self.inputs.chunks.partition_point(|chunk| chunk.first_row <= row);
        &self.inputs.chunks[after - 1]
    }

    fn cache(&self, cache: Cache) -> &PagedCache {
        &self.caches[usize::from(cache.0)]
    }

    fn state(&self, state: State) -> &Recurrent {
        &self.states[usize::from(state.0)]
    }

    fn vector(&self, weight: Weight) -> &[f32] {
        self.weights[weight.0 as usize].vector()
    }

    fn packed(&self, weight: Weight) -> &PackedWeight {
        self.weights[weight.0 as usize].packed()
    }

    fn table(&self, weight: Weight) -> &Table {
        self.weights[weight.0 as usize].table()
    }
}

/// The part of `own`, a share of things that lie in a row, that is among the `count` from `first` on, counted
/// from there.
fn overlap(own: &Range<usize>, first: usize, count: usize) -> Range<usize> {
    let start = own.start.saturating_sub(first).min(count);
    let end = own.end.saturating_sub(first).min(count);
    start..end
}
