//! The gated delta rule, one token after another.
//!
//! First the queries and keys of all rows are normalized and the gates computed, into scratch. Then every
//! tile of 16 columns of every head's matrix goes through the rows of a chunk on one thread, a few rows at a
//! time: the tile stays in the first-level cache, and the rows, which all tiles read, in the second. What a row
//! writes to the tile and what the next row reads from it are done in one pass.

#![expect(unsafe_code, reason = "members borrow their own rows, heads and tiles")]

use std::ops::Range;

use super::norm::sum_of_squares;
use super::vectors::{load, store};
use super::{Limits, Operation, ScratchSize, Step, overlap};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
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
        let tiles = limits.threads * self.spec.head_dim * LANES;
        let floats = (limits.rows + limits.replayed) * self.scratch_row() + tiles;
        ScratchSize { floats, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let heads = self.key_heads;
        for chunk in step.inputs.chunks {
            for task in member.share(chunk.replayed_and_rows() * heads) {
                self.normalize(step, step.row_of(chunk, task / heads), task % heads);
            }
            for row in member.share(chunk.replayed_and_rows()) {
                self.gates(step, chunk, row, 0..self.spec.value_heads);
            }
        }
        member.wait();
        for chunk in step.inputs.chunks {
            for head in member.share(self.spec.value_heads) {
                self.log_gates(step, chunk, head);
            }
        }
        let memory = step.state(self.state);
        let tiles = memory.tiles() * self.spec.value_heads;
        let own = member.share(step.inputs.chunks.len() * tiles);
        for (index, chunk) in step.inputs.chunks.iter().enumerate() {
            for rows in rows_in_cache(chunk) {
                for tile in overlap(&own, index * tiles, tiles) {
                    self.run_tile(step, member, chunk, rows.clone(), tile);
                }
            }
        }
    }
}

/// The rows of a chunk, with those replayed before it, in parts that the cache holds. What is uncertain is one part with
/// the last rows that are certain, so that each tile of the state is fetched once for both.
pub(super) fn rows_in_cache(chunk: &ChunkRows<'_>) -> impl Iterator<Item = Range<usize>> {
    let (certain, all) = (chunk.certain(), chunk.replayed_and_rows());
    let parts = certain.div_ceil(ROWS_IN_CACHE).max(usize::from(all > 0));
    (0..parts).map(move |part| {
        let end = if part + 1 == parts { all } else { (part + 1) * ROWS_IN_CACHE };
        part * ROWS_IN_CACHE..end
    })
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

    /// Norms a query head and its key head of a row, into scratch.
    pub(super) fn normalize(&self, step: &Step<'_>, row: usize, head: usize) {
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

    /// Decays and betas of some value heads of a row (counted from the first one that is replayed before the chunk),
    /// into scratch.
    pub(super) fn gates(&self, step: &Step<'_>, chunk: &ChunkRows<'_>, index: usize, heads: Range<usize>) {
        let row = step.row_of(chunk, index);
        let first = 2 * self.key_heads * self.spec.head_dim;
        let second = first + self.spec.value_heads;
        let decays = self.scratch_part(row, first + heads.start..first + heads.end);
        let betas = self.scratch_part(row, second + heads.start..second + heads.end);
        // SAFETY: a row's gates of these heads are one member's, in scratch; nobody writes alpha and beta, and what the
        // log has of them is written when all that is replayed has been read.
        let (alpha, beta, decays, betas) = unsafe {
            let [alpha, beta] = match index < chunk.log.before {
                true => [0, 1].map(|gate| &*self.logged(step, chunk, index, gate, heads.clone())),
                false => [self.alpha, self.beta].map(|gate| step.buffer(gate).columns(row, heads.clone())),
            };
            (alpha, beta, step.scratch.floats.part_mut(decays), step.scratch.floats.part_mut(betas))
        };
        let (time_bias, rates) = (&step.vector(self.time_bias)[heads.clone()], &step.vector(self.decay)[heads]);
        let rates = time_bias.iter().zip(rates);
        for ((exponent, alpha), (bias, rate)) in decays.iter_mut().zip(alpha).zip(rates) {
            *exponent = math::softplus(alpha + bias) * rate;
        }
        step.isa.run(Gates { decays, beta, betas });
    }

    /// What the log has of the alphas (`0`) or betas (`1`) of some value heads in a row.
    ///
    /// # Safety
    /// No other borrow of them exists while this one lasts, in any thread.
    #[expect(clippy::mut_from_ref, reason = "members borrow disjoint heads")]
    unsafe fn logged<'a>(
        &self,
        step: &'a Step<'_>,
        chunk: &ChunkRows<'_>,
        index: usize,
        gate: usize,
        heads: Range<usize>,
    ) -> &'a mut [f32] {
        let first = self.spec.channels + gate * self.spec.value_heads;
        let values = first + heads.start..first + heads.end;
        // SAFETY: the caller's promise.
        unsafe { step.state(self.state).logged(chunk.log.place, chunk.position(index), values) }
    }

    /// Logs what decides the gates of a value head in the rows of a chunk that are uncertain. To be called once, when
    /// the gates of all rows are in scratch.
    pub(super) fn log_gates(&self, step: &Step<'_>, chunk: &ChunkRows<'_>, head: usize) {
        for index in chunk.newly_uncertain() {
            let row = step.row_of(chunk, index);
            for (gate, buffer) in [self.alpha, self.beta].into_iter().enumerate() {
                // SAFETY: a head's part of the log is one member's, which reads it no more; nobody writes the buffers.
                unsafe {
                    let logged = self.logged(step, chunk, index, gate, head..head + 1);
                    logged.copy_from_slice(step.buffer(buffer).columns(row, head..head + 1));
                }
            }
        }
    }

    /// Takes one tile (counted through all heads) through some rows of a chunk, counted from the first one that is
    /// replayed before it. Rows that are uncertain change a copy of the tile.
    pub(super) fn run_tile(
        &self,
        step: &Step<'_>,
        member: &Member<'_>,
        chunk: &ChunkRows<'_>,
        rows: Range<usize>,
        tile: usize,
    ) {
        let memory = step.state(self.state);
        let (head, tile) = (tile / memory.tiles(), tile % memory.tiles());
        let dim = self.spec.head_dim;
        let columns = head * dim + tile * LANES..head * dim + ((tile + 1) * LANES).min(dim);
        // SAFETY: a tile of a slot is one member's, as no slot occurs twice in a step.
        let matrix = unsafe { memory.tile(chunk.slot, head, tile) };
        let certain = rows.start..rows.end.min(chunk.certain());
        let uncertain = certain.end..rows.end;
        let columns = || columns.clone();
        step.isa.run(Update { rule: self, step, chunk, head, columns: columns(), rows: certain, matrix });
        if !uncertain.is_empty() {
            // SAFETY: this part of scratch is this member's.
            let copy = unsafe { step.scratch.floats.part_mut(self.scratch_tile(step, member.index())) };
            copy.copy_from_slice(matrix.as_flattened());
            let matrix = copy.as_chunks_mut().0;
            step.isa.run(Update { rule: self, step, chunk, head, columns: columns(), rows: uncertain, matrix });
        }
    }

    /// Where in scratch a member has a copy of a tile.
    fn scratch_tile(&self, step: &Step<'_>, member: usize) -> Range<usize> {
        let length = self.spec.head_dim * LANES;
        let first = (step.memory.rows + step.memory.logs.rows()) * self.scratch_row() + member * length;
        first..first + length
    }

    /// What a tile reads of a row, and where its output goes.
    ///
    /// # Safety
    /// The row's part of scratch was written by this member or before a barrier, nobody writes the input, and no
    /// other member touches these columns of the output.
    #[inline(always)]
    unsafe fn token<'a>(&self, step: &'a Step<'_>, head: usize, columns: &Range<usize>, row: usize) -> Token<'a> {
        let dim = self.spec.head_dim;
        let values = 2 * self.key_heads * dim;
        let key_head = head % self.key_heads;
        // SAFETY: the caller's promise.
        let (query, key, gates, value, output) = unsafe {
            let scratch = |part| step.scratch.floats.part(self.scratch_part(row, part));
            (
                scratch(self.head(key_head)),
                scratch(self.head(self.key_heads + key_head)),
                [values + head, values + self.spec.value_heads + head].map(|gate| scratch(gate..gate + 1)[0]),
                step.buffer(self.input).columns(row, values + columns.start..values + columns.end),
                step.buffer(self.output).columns_mut(row, columns.clone()),
            )
        };
        Token { query, key, value, decay: gates[0], beta: gates[1], output }
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

/// One row, as a tile sees it.
struct Token<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    decay: f32,
    beta: f32,
    output: &'a mut [f32],
}

/// The updates of a tile by some rows, and their outputs.
struct Update<'a> {
    rule: &'a DeltaRule,
    step: &'a Step<'a>,
    chunk: &'a ChunkRows<'a>,
    head: usize,
    columns: Range<usize>,
    rows: Range<usize>,
    /// A vector per key dimension.
    matrix: &'a mut [[f32; LANES]],
}

impl Kernel for Update<'_> {
    type Output = ();

    /// Sums over the matrix's rows run in four chains, row `i` in chain `i mod 4`, added as `(0 + 1) + (2 + 3)`.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Update { rule, step, chunk, head, columns, rows, matrix } = self;
        // SAFETY: this member computed the rows' scratch, or it was computed before a barrier; nobody writes the
        // input; these columns of the output are this member's.
        let token = |row| unsafe { rule.token(step, head, &columns, step.row_of(chunk, row)) };
        let Some(last) = rows.end.checked_sub(1).filter(|last| *last >= rows.start) else { return };
        let mut current = token(rows.start);
        let mut change = current.change(simd, decay_and_read(simd, matrix, &current));
        for row in rows.start..last {
            let next = token(row + 1);
            let [output, read] = write_then_read(simd, matrix, &current, change, &next);
            store(simd, output, current.output);
            change = next.change(simd, read);
            current = next;
        }
        let output = write(simd, matrix, &current, change);
        store(simd, output, current.output);
    }
}

impl Token<'_> {
    /// `beta · (value − read)`
    #[inline(always)]
    fn change<S: Simd>(&self, simd: S, read: S::F) -> S::F {
        simd.mul(simd.splat(self.beta), simd.sub(load(simd, self.value), read))
    }
}

/// Decays the matrix, and multiplies it with the key.
#[inline(always)]
fn decay_and_read<S: Simd>(simd: S, matrix: &mut [[f32; LANES]], token: &Token<'_>) -> S::F {
    let decay = simd.splat(token.decay);
    let mut read = [simd.zero(); 4];
    for_rows(matrix, [token.key], |memory, [key], chain| {
        let decayed = simd.mul(simd.load(memory), decay);
        simd.store(decayed, memory);
        read[chain] = simd.fma(decayed, simd.splat(key), read[chain]);
    });
    join(simd, read)
}

/// Adds the change to the matrix, and multiplies it with the query.
#[inline(always)]
fn write<S: Simd>(simd: S, matrix: &mut [[f32; LANES]], token: &Token<'_>, change: S::F) -> S::F {
    let mut output = [simd.zero(); 4];
    for_rows(matrix, [token.key, token.query], |memory, [key, query], chain| {
        let written = simd.fma(simd.splat(key), change, simd.load(memory));
        simd.store(written, memory);
        output[chain] = simd.fma(written, simd.splat(query), output[chain]);
    });
    join(simd, output)
}

/// [`write()`] for one token and [`decay_and_read`] for the next, in one pass over the matrix.
#[inline(always)]
fn write_then_read<S: Simd>(
    simd: S,
    matrix: &mut [[f32; LANES]],
    token: &Token<'_>,
    change: S::F,
    next: &Token<'_>,
) -> [S::F; 2] {
    let decay = simd.splat(next.decay);
    let (mut output, mut read) = ([simd.zero(); 4], [simd.zero(); 4]);
    for_rows(matrix, [token.key, token.query, next.key], |memory, [key, query, next_key], chain| {
        let written = simd.fma(simd.splat(key), change, simd.load(memory));
        output[chain] = simd.fma(written, simd.splat(query), output[chain]);
        let decayed = simd.mul(written, decay);
        simd.store(decayed, memory);
        read[chain] = simd.fma(decayed, simd.splat(next_key), read[chain]);
    });
    [join(simd, output), join(simd, read)]
}

/// Calls `row` with every row of the matrix, its factors and its chain. The chain is a constant wherever `row`
/// ends up, so that sums stay in registers.
#[inline(always)]
fn for_rows<const N: usize>(
    matrix: &mut [[f32; LANES]],
    factors: [&[f32]; N],
    mut row: impl FnMut(&mut [f32; LANES], [f32; N], usize),
) {
    let (quads, rest) = matrix.as_chunks_mut::<4>();
    let parts = factors.map(|factors| factors.as_chunks::<4>());
    let whole = parts.map(|(whole, _)| &whole[..quads.len()]);
    for (index, memories) in quads.iter_mut().enumerate() {
        for chain in 0..4 {
            row(&mut memories[chain], whole.map(|factors| factors[index][chain]), chain);
        }
    }
    for chain in 0..3 {
        if let Some(memory) = rest.get_mut(chain) {
            row(memory, parts.map(|(_, rest)| rest[chain]), chain);
        }
    }
}

#[inline(always)]
fn join<S: Simd>(simd: S, [a, b, c, d]: [S::F; 4]) -> S::F {
    simd.add(simd.add(a, b), simd.add(c, d))
}
