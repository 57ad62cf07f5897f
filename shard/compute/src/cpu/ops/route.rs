//! The router of a mixture of experts.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use super::vectors::{load, store};
use super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::Buffer;

/// The smallest sum that weights are divided by.
const SMALLEST_SUM: f32 = 6.103_515_6e-5;

/// [`Op::Route`](crate::program::Op::Route).
pub(super) struct Route {
    pub(super) logits: Buffer,
    pub(super) experts: usize,
    pub(super) used: usize,
    pub(super) renormalize: bool,
    pub(super) scale: f32,
    pub(super) output: Buffer,
}

impl Operation for Route {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let floats = limits.threads * self.experts;
        ScratchSize { floats, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let own = member.index() * self.experts..(member.index() + 1) * self.experts;
        // SAFETY: this part of scratch is this member's.
        let probabilities = unsafe { step.scratch.floats.part_mut(own) };
        for row in member.share(step.rows(self.output)) {
            // SAFETY: a row is one member's.
            self.row(step, row, probabilities, unsafe { step.row_mut(self.output, row) });
        }
    }
}

impl Route {
    /// Chooses the experts of a row; `probabilities` is space for as many as there are.
    pub(super) fn row(&self, step: &Step<'_>, row: usize, probabilities: &mut [f32], output: &mut [f32]) {
        // SAFETY: nobody writes the logits, which are not the output.
        let logits = unsafe { step.buffer(self.logits).row(row) };
        step.isa.run(Softmax { logits, probabilities: &mut *probabilities });
        self.choose(probabilities, output);
    }

    fn choose(&self, probabilities: &mut [f32], output: &mut [f32]) {
        let (experts, weights) = output.split_at_mut(self.used);
        let mut sum = 0.0;
        for (expert, weight) in experts.iter_mut().zip(&mut *weights) {
            let best = most_probable(probabilities);
            *expert = best as f32;
            *weight = std::mem::replace(&mut probabilities[best], TAKEN);
            sum += *weight;
        }
        let factor = if self.renormalize { self.scale / sum.max(SMALLEST_SUM) } else { self.scale };
        for weight in weights {
            *weight *= factor;
        }
    }
}

/// Marks an expert that is chosen already.
const TAKEN: f32 = -1.0;

/// The first of the most probable experts that are not taken.
fn most_probable(probabilities: &[f32]) -> usize {
    let mut best = None;
    for (expert, probability) in probabilities.iter().enumerate() {
        let better = best.is_none_or(|best: usize| *probability > probabilities[best]);
        if *probability != TAKEN && better {
            best = Some(expert);
        }
    }
    best.expect("fewer experts are used than there are")
}

/// Softmax; the sum runs in index order.
struct Softmax<'a> {
    logits: &'a [f32],
    probabilities: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let mut largest = f32::NEG_INFINITY;
        for logit in self.logits {
            largest = if *logit > largest { *logit } else { largest };
        }
        let mut sum = 0.0;
        for (logits, values) in self.logits.chunks(LANES).zip(self.probabilities.chunks_mut(LANES)) {
            let below = simd.sub(load(simd, logits), simd.splat(largest));
            store(simd, math::exp(simd, below), values);
            for value in values {
                sum += *value;
            }
        }
        for values in self.probabilities.chunks_mut(LANES) {
            store(simd, simd.div(load(simd, values), simd.splat(sum)), values);
        }
    }
}
