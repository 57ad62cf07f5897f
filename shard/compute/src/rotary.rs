//! Angles of rotary positions: the cosines and sines of a row, in double precision so that far positions stay exact.

use std::f64::consts::TAU;

use crate::program::{Rope, Yarn};

/// What a rotation does to each position.
#[derive(Debug, Clone)]
pub struct Rotary {
    pairs: Vec<Pair>,
    /// Factor on cosines and sines.
    magnitude: f64,
}

/// What one pair of coordinates rotates by.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Pair {
    /// Which component of a row's position.
    component: usize,
    /// Radians per position.
    frequency: f64,
}

impl Rotary {
    /// Computes the frequencies; `divisors` are the values of the rope's weight.
    pub fn new(rope: &Rope, divisors: Option<&[f32]>) -> Self {
        let pairs = (0..rope.dimensions / 2).map(|pair| {
            let divisor = divisors.map_or(1.0, |divisors| f64::from(divisors[pair]));
            Pair { component: component(rope.sections, pair), frequency: frequency(rope, pair) / divisor }
        });
        Self { pairs: pairs.collect(), magnitude: magnitude(rope) }
    }

    /// The cosines of all pairs at a position, and then the sines: `(dimensions)`.
    ///
    /// # Panics
    /// If `row` has another length.
    pub fn fill(&self, position: [u32; 4], row: &mut [f32]) {
        assert_eq!(row.len(), 2 * self.pairs.len(), "a cosine and a sine for each pair");
        let (cosines, sines) = row.split_at_mut(self.pairs.len());
        for ((pair, cosine), sine) in self.pairs.iter().zip(cosines).zip(sines) {
            let angle = f64::from(position[pair.component]) * pair.frequency;
            *cosine = (libm::cos(angle) * self.magnitude) as f32;
            *sine = (libm::sin(angle) * self.magnitude) as f32;
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
