//! Rotary positions: the table of a step, and the rotation of a head.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, RopeStyle};
use crate::rotary::Rotary;

/// [`Op::RopeTable`](crate::program::Op::RopeTable).
pub(super) struct RopeTable {
    pub(super) rotary: Rotary,
    pub(super) output: Buffer,
}

impl Operation for RopeTable {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.rows(self.output)) {
            // SAFETY: a row is one member's.
            self.rotary.fill(step.inputs.positions[row], unsafe { step.row_mut(self.output, row) });
        }
    }
}

/// Rotates the first coordinates of a head: `a cos − b sin` and `a sin + b cos`.
pub(super) struct Rotate<'a> {
    pub(super) style: RopeStyle,
    /// The cosines of all pairs, then the sines.
    pub(super) table: &'a [f32],
    pub(super) head: &'a mut [f32],
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (rotating, _) = self.head.split_at_mut(self.table.len());
        let (cosines, sines) = self.table.split_at(self.table.len() / 2);
        let angles = cosines.chunks(LANES).zip(sines.chunks(LANES));
        match self.style {
            RopeStyle::Neox => {
                let (first, second) = rotating.split_at_mut(cosines.len());
                let pairs = first.chunks_mut(LANES).zip(second.chunks_mut(LANES));
                for ((a, b), (cosine, sine)) in pairs.zip(angles) {
                    rotate(simd, a, b, cosine, sine);
                }
            }
            RopeStyle::Adjacent => {
                for (values, (cosine, sine)) in rotating.chunks_mut(2 * LANES).zip(angles) {
                    rotate_adjacent(simd, values, cosine, sine);
                }
            }
        }
    }
}

#[inline(always)]
fn rotate<S: Simd>(simd: S, a: &mut [f32], b: &mut [f32], cosine: &[f32], sine: &[f32]) {
    let (cosine, sine) = (load(simd, cosine), load(simd, sine));
    let (x, y) = (load(simd, a), load(simd, b));
    store(simd, simd.negative_fma(y, sine, simd.mul(x, cosine)), a);
    store(simd, simd.fma(x, sine, simd.mul(y, cosine)), b);
}

#[inline(always)]
fn rotate_adjacent<S: Simd>(simd: S, values: &mut [f32], cosine: &[f32], sine: &[f32]) {
    let (mut a, mut b) = ([0.0; LANES], [0.0; LANES]);
    let pairs = values.as_chunks_mut::<2>().0;
    for (index, pair) in pairs.iter().enumerate() {
        [a[index], b[index]] = *pair;
    }
    let used = pairs.len();
    rotate(simd, &mut a[..used], &mut b[..used], cosine, sine);
    for (index, pair) in pairs.iter_mut().enumerate() {
        *pair = [a[index], b[index]];
    }
}
