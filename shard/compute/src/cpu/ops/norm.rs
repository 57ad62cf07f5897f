//! Root-mean-square norms, plain and gated.

#![expect(unsafe_code, reason = "members borrow their own rows and heads")]

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, Weight};

/// [`Op::Norm`](crate::program::Op::Norm).
pub(super) struct Norm {
    pub(super) input: Buffer,
    pub(super) weight: Weight,
    pub(super) epsilon: f32,
    pub(super) output: Buffer,
}

impl Operation for Norm {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.rows(self.output)) {
            // SAFETY: a row is one member's.
            self.row(step, row, unsafe { step.row_mut(self.output, row) });
        }
    }
}

impl Norm {
    /// Norms a row of the input, which nobody writes.
    pub(super) fn row(&self, step: &Step<'_>, row: usize, output: &mut [f32]) {
        // SAFETY: nobody writes the input, which is not the output.
        let input = unsafe { step.buffer(self.input).row(row) };
        step.isa.run(NormRow { input, weight: step.vector(self.weight), epsilon: self.epsilon, output });
    }
}

struct NormRow<'a> {
    input: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
    output: &'a mut [f32],
}

impl Kernel for NormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = simd.splat(inverse_rms(simd, self.input, self.epsilon));
        let weights = self.weight.chunks(LANES);
        for ((input, weight), output) in self.input.chunks(LANES).zip(weights).zip(self.output.chunks_mut(LANES)) {
            let normed = simd.mul(load(simd, input), scale);
            store(simd, simd.mul(normed, load(simd, weight)), output);
        }
    }
}

/// Norms a vector in place.
pub(super) struct NormInPlace<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) weight: &'a [f32],
    pub(super) epsilon: f32,
}

impl Kernel for NormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = simd.splat(inverse_rms(simd, self.values, self.epsilon));
        for (values, weight) in self.values.chunks_mut(LANES).zip(self.weight.chunks(LANES)) {
            let normed = simd.mul(load(simd, values), scale);
            store(simd, simd.mul(normed, load(simd, weight)), values);
        }
    }
}

/// [`Op::GatedNorm`](crate::program::Op::GatedNorm).
pub(super) struct GatedNorm {
    pub(super) buffer: Buffer,
    pub(super) gate: Buffer,
    pub(super) weight: Weight,
    pub(super) head_dim: usize,
    pub(super) epsilon: f32,
}

impl Operation for GatedNorm {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let buffer = step.buffer(self.buffer);
        let heads = buffer.width / self.head_dim;
        for task in member.share(step.rows(self.buffer) * heads) {
            self.head(step, task / heads, task % heads);
        }
    }
}

impl GatedNorm {
    /// One head of a row, which no other member touches.
    pub(super) fn head(&self, step: &Step<'_>, row: usize, head: usize) {
        let columns = head * self.head_dim..(head + 1) * self.head_dim;
        // SAFETY: a head of a row is one member's; nobody writes the gate, another buffer.
        let (values, gate) = unsafe {
            (step.buffer(self.buffer).columns_mut(row, columns.clone()), step.buffer(self.gate).columns(row, columns))
        };
        step.isa.run(GatedNormHead { values, gate, weight: step.vector(self.weight), epsilon: self.epsilon });
    }
}

struct GatedNormHead<'a> {
    values: &'a mut [f32],
    gate: &'a [f32],
    weight: &'a [f32],
    epsilon: f32,
}

impl Kernel for GatedNormHead<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let scale = simd.splat(inverse_rms(simd, self.values, self.epsilon));
        let factors = self.weight.chunks(LANES).zip(self.gate.chunks(LANES));
        for (values, (weight, gate)) in self.values.chunks_mut(LANES).zip(factors) {
            let normed = simd.mul(load(simd, values), scale);
            let weighted = simd.mul(normed, load(simd, weight));
            store(simd, simd.mul(weighted, math::silu(simd, load(simd, gate))), values);
        }
    }
}

/// `1 / sqrt(mean(values²) + epsilon)`.
#[inline(always)]
fn inverse_rms<S: Simd>(simd: S, values: &[f32], epsilon: f32) -> f32 {
    let mean = sum_of_squares(simd, values) / values.len() as f32;
    1.0 / (mean + epsilon).sqrt()
}

/// Sum of squares: vector `i` is added to chain `i mod 4`, then `(0 + 1) + (2 + 3)`, then the lanes.
#[inline(always)]
pub(super) fn sum_of_squares<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let mut chains = [simd.zero(); 4];
    let (vectors, tail) = values.as_chunks::<LANES>();
    let (quads, rest) = vectors.as_chunks::<4>();
    for quad in quads {
        for (chain, vector) in chains.iter_mut().zip(quad) {
            let x = simd.load(vector);
            *chain = simd.fma(x, x, *chain);
        }
    }
    for (chain, vector) in chains.iter_mut().zip(rest) {
        let x = simd.load(vector);
        *chain = simd.fma(x, x, *chain);
    }
    if !tail.is_empty() {
        let x = load(simd, tail);
        chains[rest.len()] = simd.fma(x, x, chains[rest.len()]);
    }
    let [a, b, c, d] = chains;
    simd.reduce_sum(simd.add(simd.add(a, b), simd.add(c, d)))
}
