//! Norms to mean 0 and variance 1.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, Weight};

/// [`Op::LayerNorm`](crate::program::Op::LayerNorm).
pub(super) struct LayerNorm {
    pub(super) buffer: Buffer,
    pub(super) weight: Weight,
    pub(super) bias: Weight,
    pub(super) epsilon: f32,
}

impl Operation for LayerNorm {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let (weight, bias) = (step.vector(self.weight), step.vector(self.bias));
        for row in member.share(step.rows(self.buffer)) {
            // SAFETY: a row is one member's.
            let values = unsafe { step.row_mut(self.buffer, row) };
            step.isa.run(LayerNormRow { values, weight, bias, epsilon: self.epsilon });
        }
    }
}

struct LayerNormRow<'a> {
    values: &'a mut [f32],
    weight: &'a [f32],
    bias: &'a [f32],
    epsilon: f32,
}

impl Kernel for LayerNormRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let count = self.values.len() as f32;
        let mean = simd.splat(sum(simd, self.values) / count);
        let variance = squared_distances(simd, self.values, mean) / count;
        let scale = simd.splat(1.0 / (variance + self.epsilon).sqrt());
        let factors = self.weight.chunks(LANES).zip(self.bias.chunks(LANES));
        for (values, (weight, bias)) in self.values.chunks_mut(LANES).zip(factors) {
            let normed = simd.mul(simd.sub(load(simd, values), mean), scale);
            store(simd, simd.fma(normed, load(simd, weight), load(simd, bias)), values);
        }
    }
}

/// Sum of values: vector after vector, then the lanes.
#[inline(always)]
fn sum<S: Simd>(simd: S, values: &[f32]) -> f32 {
    let add = |sum, values: &[f32]| simd.add(sum, load(simd, values));
    simd.reduce_sum(values.chunks(LANES).fold(simd.zero(), add))
}

/// Sum of squared distances from the mean, in the same order.
#[inline(always)]
fn squared_distances<S: Simd>(simd: S, values: &[f32], mean: S::F) -> f32 {
    let add = |sum, values: &[f32]| {
        // Lanes behind the last value have no distance.
        let distance = simd.sub(load(simd, values), mean);
        let distance = simd.select(simd.first_lanes(values.len()), distance, simd.zero());
        simd.fma(distance, distance, sum)
    };
    simd.reduce_sum(values.chunks(LANES).fold(simd.zero(), add))
}
