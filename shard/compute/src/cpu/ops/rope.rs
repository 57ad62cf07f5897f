//! Rotary positions: the table of a step, and the rotation of a head.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use std::f64::consts::TAU;

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, Rope, RopeStyle, Yarn};

/// [`Op::RopeTable`](crate::program::Op::RopeTable).
pub(super) struct RopeTable {
    pairs: Vec<Pair>,
    /// Factor on cosines and sines.
    magnitude: f64,
    output: Buffer,
}

/// What one pair of coordinates rotates by.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    /// Which component of a row's position.
    component: usize,
    /// Radians per position.
    frequency: f64,
}

impl RopeTable {
    /// Computes the frequencies, in double precision so that far positions stay exact; `divisors` are the
    /// values of the rope's weight.
    pub(super) fn new(rope: &Rope, divisors: Option<&[f32]>, output: Buffer) -> Self {
        let pairs = (0..rope.dimensions / 2).map(|pair| {
            let divisor = divisors.map_or(1.0, |divisors| f64::from(divisors[pair]));
            Pair { component: component(rope.sections, pair), frequency: frequency(rope, pair) / divisor }
        });
        Self { pairs: pairs.collect(), magnitude: magnitude(rope), output }
    }

    fn fill(&self, position: [u32; 4], row: &mut [f32]) {
        let (cosines, sines) = row.split_at_mut(self.pairs.len());
        for ((pair, cosine), sine) in self.pairs.iter().zip(cosines).zip(sines) {
            let angle = f64::from(position[pair.component]) * pair.frequency;
            *cosine = (libm::cos(angle) * self.magnitude) as f32;
            *sine = (libm::sin(angle) * self.magnitude) as f32;
        }
    }
}

impl Operation for RopeTable {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.rows(self.output)) {
            // SAFETY: a row is one member's.
            self.fill(step.inputs.positions[row], unsafe { step.row_mut(self.output, row) });
        }
    }
}

/// The component of the position that turns a pair: sections are interleaved, and what does not fit
/// into its section goes to the fourth.
fn component(sections: Option<[u32; 4]>, pair: usize) -> usize {
    let Some(sections) = sections else { return 0 };
    let all: u64 = sections.iter().map(|pairs| u64::from(*pairs)).sum();
    let place = pair as u64 % all.max(1);
    let axis = (place % 3) as usize;
    if place < 3 * u64::from(sections[axis]) { axis } else { 3 }
}

/// Radians per position, after linear scaling and YaRN.
fn frequency(rope: &Rope, pair: usize) -> f64 {
    let exponent = -2.0 * pair as f64 / rope.dimensions as f64;
    let extrapolated = libm::pow(f64::from(rope.base), exponent);
    let interpolated = extrapolated / f64::from(rope.factor);
    let Some(yarn) = &rope.yarn else { return interpolated };
    let mix = f64::from(yarn.extrapolation) * ramp(rope, yarn, pair);
    interpolated * (1.0 - mix) + extrapolated * mix
}

/// 1 for pairs that turn often within the trained context, 0 for pairs that hardly turn.
fn ramp(rope: &Rope, yarn: &Yarn, pair: usize) -> f64 {
    let dimensions = rope.dimensions as f64;
    let corrected = |rotations: f32| {
        let turns = f64::from(yarn.original_context) / (f64::from(rotations) * TAU);
        dimensions * libm::log(turns) / (2.0 * libm::log(f64::from(rope.base)))
    };
    let low = corrected(yarn.beta_fast).floor().max(0.0);
    let high = corrected(yarn.beta_slow).ceil().min(dimensions - 1.0);
    let along = (pair as f64 - low) / (high - low).max(0.001);
    1.0 - along.clamp(0.0, 1.0)
}

fn magnitude(rope: &Rope) -> f64 {
    let Some(yarn) = &rope.yarn else { return 1.0 };
    let stretch = if yarn.extrapolation == 0.0 { 0.0 } else { 0.1 * libm::log(f64::from(rope.factor)) };
    f64::from(yarn.attention_factor) * (1.0 + stretch)
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
