//! The gated delta rule, one token after another.
//!
//! First the queries and keys of all rows are normalized and the gates computed, into scratch. Then every
//! tile of 16 columns of every head's matrix goes through the rows of a chunk on one thread, a few rows at a
//! time: the tile stays in the first-level cache, and the rows, which all tiles read, in the second.

#![expect(unsafe_code, reason = "members borrow their own rows, heads and tiles")]

use std::ops::Range;

use super::norm::sum_of_squares;
use super::vectors::{load, store};
use super::{Limits, Operation, ScratchSize, Step, overlap};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::cpu::states::Recurrent;
use crate::device::ChunkRows;
use crate::program::{Buffer, State, StateSpec, Weight};

/// Rows that all tiles go through before the next rows; their inputs are some hundred KiB.
const ROWS_IN_CACHE: usize = 16;

/// [`Op::DeltaRule`](crate::program::Op::DeltaRule).
pub(super) struct DeltaRule {
    pub(super) input: Buffer,
    pub(super) alpha: Buffer,
    pub(super) beta: Buffer,
    pub(super) time_bias: Weight,
    pub(super) decay: Weight,
    pub(super) key_heads: usize,
    pub(super) epsilon: f32,
    pub(super) state: State,
    pub(super) output: Buffer,
    pub(super) spec: StateSpec,
}

impl Operation for DeltaRule {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let floats = limits.rows * self.scratch_row();
        ScratchSize { floats, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for task in member.share(step.inputs.rows() * self.key_heads) {
            self.normalize(step, task / self.key_heads, task % self.key_heads);
        }
        for row in member.share(step.inputs.rows()) {
            self.gates(step, row);
        }
        member.wait();
        let memory = step.state(self.state);
        let tiles = memory.tiles() * self.spec.value_heads;
        let own = member.share(step.inputs.chunks.len() * tiles);
        for (index, chunk) in step.inputs.chunks.iter().enumerate() {
            for first in (0..chunk.rows).step_by(ROWS_IN_CACHE) {
                let rows = first..(first + ROWS_IN_CACHE).min(chunk.rows);
                for tile in overlap(&own, index * tiles, tiles) {
                    self.run_tile(step, memory, chunk, rows.clone(), tile);
                }
            }
        }
    }
}

impl DeltaRule {
    /// Scratch of a row: all queries, all keys, the decays, the betas.
    fn scratch_row(&self) -> usize {
        2 * self.key_heads * self.spec.head_dim + 2 * self.spec.value_heads
    }

    fn scratch_part(&self, row: usize, part: Range<usize>) -> Range<usize> {
        let first = row * self.scratch_row();
        first + part.start..first + part.end
    }

    /// Columns of a query head (`0`) or key head (`key_heads`), in the input as in scratch.
    fn head(&self, head: usize) -> Range<usize> {
        head * self.spec.head_dim..(head + 1) * self.spec.head_dim
    }

    fn normalize(&self, step: &Step<'_>, row: usize, head: usize) {
        let root = (self.spec.head_dim as f32).sqrt();
        for (head, divisor) in [(head, root), (self.key_heads + head, 1.0)] {
            // SAFETY: a head of a row is one member's, in scratch; nobody writes the input.
            let (input, output) = unsafe {
                (
                    step.buffer(self.input).columns(row, self.head(head)),
                    step.scratch.floats.part_mut(self.scratch_part(row, self.head(head))),
                )
            };
            step.isa.run(Normalize { input, epsilon: self.epsilon, divisor, output });
        }
    }

    fn gates(&self, step: &Step<'_>, row: usize) {
        let heads = self.spec.value_heads;
        let first = 2 * self.key_heads * self.spec.head_dim;
        let part = self.scratch_part(row, first..first + 2 * heads);
        // SAFETY: a row's gates are one member's, in scratch; nobody writes alpha and beta.
        let (alpha, beta, gates) = unsafe {
            (step.buffer(self.alpha).row(row), step.buffer(self.beta).row(row), step.scratch.floats.part_mut(part))
        };
        let (decays, betas) = gates.split_at_mut(heads);
        let rates = step.vector(self.time_bias).iter().zip(step.vector(self.decay));
        for ((exponent, alpha), (bias, rate)) in decays.iter_mut().zip(alpha).zip(rates) {
            *exponent = math::softplus(alpha + bias) * rate;
        }
        step.isa.run(Gates { decays, beta, betas });
    }

    /// Takes one tile through some rows of a chunk.
    fn run_tile(&self, step: &Step<'_>, memory: &Recurrent, chunk: &ChunkRows<'_>, rows: Range<usize>, tile: usize) {
        let (head, tile) = (tile / memory.tiles(), tile % memory.tiles());
        let dim = self.spec.head_dim;
        let columns = head * dim + tile * LANES..head * dim + ((tile + 1) * LANES).min(dim);
        let values = 2 * self.key_heads * dim;
        let gates = values + head;
        // SAFETY: a tile of a slot is one member's, as no slot occurs twice in a step.
        let matrix = unsafe { memory.tile(chunk.slot, head, tile) };
        for row in chunk.first_row + rows.start..chunk.first_row + rows.end {
            // SAFETY: scratch was written before the barrier; nobody writes the input; these columns of
            // the output are this member's.
            let (scratch, value, output) = unsafe {
                (
                    step.scratch.floats.part(self.scratch_part(row, 0..self.scratch_row())),
                    step.buffer(self.input).columns(row, values + columns.start..values + columns.end),
                    step.buffer(self.output).columns_mut(row, columns.clone()),
                )
            };
            let key_head = head % self.key_heads;
            step.isa.run(Update {
                query: &scratch[self.head(key_head)],
                key: &scratch[self.head(self.key_heads + key_head)],
                value,
                decay: scratch[gates],
                beta: scratch[gates + self.spec.value_heads],
                matrix: &mut *matrix,
                output,
            });
        }
    }
}

/// `input / sqrt(Σ input² + epsilon) / divisor`.
struct Normalize<'a> {
    input: &'a [f32],
    epsilon: f32,
    divisor: f32,
    output: &'a mut [f32],
}

impl Kernel for Normalize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let length = (sum_of_squares(simd, self.input) + self.epsilon).sqrt();
        let scale = simd.splat(1.0 / length / self.divisor);
        for (input, output) in self.input.chunks(LANES).zip(self.output.chunks_mut(LANES)) {
            store(simd, simd.mul(load(simd, input), scale), output);
        }
    }
}

/// `exp` of the decays in place, and the sigmoid of the betas.
struct Gates<'a> {
    decays: &'a mut [f32],
    beta: &'a [f32],
    betas: &'a mut [f32],
}

impl Kernel for Gates<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for decays in self.decays.chunks_mut(LANES) {
            store(simd, math::exp(simd, load(simd, decays)), decays);
        }
        for (beta, betas) in self.beta.chunks(LANES).zip(self.betas.chunks_mut(LANES)) {
            store(simd, math::sigmoid(simd, load(simd, beta)), betas);
        }
    }
}

/// One token's update of a tile, and its output.
struct Update<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    beta: f32,
    /// A vector per key dimension.
    matrix: &'a mut [[f32; LANES]],
    output: &'a mut [f32],
}

impl Kernel for Update<'_> {
    type Output = ();

    /// Sums over the rows run in four chains, row `i` in chain `i mod 4`, added as `(0 + 1) + (2 + 3)`.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let decay = simd.splat(self.decay);
        let mut read = [simd.zero(); 4];
        for (row, (memory, key)) in self.matrix.iter_mut().zip(self.key).enumerate() {
            let decayed = simd.mul(simd.load(memory), decay);
            simd.store(decayed, memory);
            read[row % 4] = simd.fma(decayed, simd.splat(*key), read[row % 4]);
        }
        let missing = simd.sub(load(simd, self.value), join(simd, read));
        let change = simd.mul(simd.splat(self.beta), missing);
        let mut output = [simd.zero(); 4];
        let factors = self.key.iter().zip(self.query);
        for (row, (memory, (key, query))) in self.matrix.iter_mut().zip(factors).enumerate() {
            let written = simd.fma(simd.splat(*key), change, simd.load(memory));
            simd.store(written, memory);
            output[row % 4] = simd.fma(written, simd.splat(*query), output[row % 4]);
        }
        store(simd, join(simd, output), self.output);
    }
}

#[inline(always)]
fn join<S: Simd>(simd: S, [a, b, c, d]: [S::F; 4]) -> S::F {
    simd.add(simd.add(a, b), simd.add(c, d))
}
