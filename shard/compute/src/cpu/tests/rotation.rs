//! Rotary positions.

use super::*;
use crate::program::{Rope, Yarn};

fn rope(dimensions: usize) -> Rope {
    Rope {
        style: crate::program::RopeStyle::Neox,
        dimensions,
        base: 10_000.0,
        factor: 1.0,
        yarn: None,
        sections: None,
        divisors: None,
    }
}

/// Runs the table for these positions in all ways.
fn table(fixture: &mut Fixture, rope: Rope, positions: Vec<[u32; 4]>) -> Vec<f32> {
    let output = fixture.buffer("table", rope.dimensions);
    fixture.record(Op::RopeTable { rope, output });
    fixture.sessions.push(Session { rows: positions.len(), positions, ..Session::default() });
    fixture.run_in_all_ways(&[output]).remove(0).remove(0)
}

/// Checks against angles in radians, `(rows, pairs)`.
fn check(found: &[f32], pairs: usize, magnitude: f64, angles: impl Iterator<Item = Vec<f64>>) {
    for (found, angles) in found.chunks(2 * pairs).zip(angles) {
        let functions = [f64::cos, f64::sin];
        let expected = functions.iter().flat_map(|function| angles.iter().map(|angle| magnitude * function(*angle)));
        assert_close(found, &expected.collect::<Vec<_>>(), 1e-6);
    }
}

#[test]
fn plain_positions() {
    let positions: Vec<[u32; 4]> = [0, 1, 7, 1000, 262_143].map(|p| [p, 1, 2, 3]).to_vec();
    let found = table(&mut Fixture::new(), rope(20), positions.clone());
    let frequency = |pair: usize| 10_000f64.powf(-2.0 * pair as f64 / 20.0);
    let angles = positions.iter().map(|p| (0..10).map(|pair| f64::from(p[0]) * frequency(pair)).collect());
    check(&found, 10, 1.0, angles);
}

#[test]
fn sections_are_interleaved() {
    let sections = Some([3, 3, 2, 0]);
    let found = table(&mut Fixture::new(), Rope { sections, ..rope(16) }, vec![[10, 20, 30, 40]]);
    // Time, height, width, in turn; the published example with 11, 11, 10 sections continues so.
    let components = [10.0, 20.0, 30.0, 10.0, 20.0, 30.0, 10.0, 20.0];
    let angle = |(pair, position): (usize, &f64)| position * 10_000f64.powf(-2.0 * pair as f64 / 16.0);
    check(&found, 8, 1.0, std::iter::once(components.iter().enumerate().map(angle).collect()));
}

#[test]
fn what_no_section_covers_follows_the_fourth_component() {
    let sections = Some([1, 1, 1, 5]);
    let found = table(&mut Fixture::new(), Rope { sections, ..rope(16) }, vec![[1, 2, 3, 4]]);
    let components = [1.0, 2.0, 3.0, 4.0, 4.0, 4.0, 4.0, 4.0];
    let angle = |(pair, position): (usize, &f64)| position * 10_000f64.powf(-2.0 * pair as f64 / 16.0);
    check(&found, 8, 1.0, std::iter::once(components.iter().enumerate().map(angle).collect()));
}

#[test]
fn factors_and_divisors_slow_the_rotation() {
    let mut fixture = Fixture::new();
    let divisors = [1.0, 2.0, 4.0, 8.0];
    let weight = fixture.vector("rope_freqs.weight", &divisors);
    let found = table(&mut fixture, Rope { factor: 4.0, divisors: Some(weight), ..rope(8) }, vec![[900, 900, 900, 0]]);
    let frequency = |pair: usize| 10_000f64.powf(-2.0 * pair as f64 / 8.0) / f64::from(divisors[pair]) / 4.0;
    check(&found, 4, 1.0, std::iter::once((0..4).map(|pair| 900.0 * frequency(pair)).collect()));
}

/// The bounds of the ramp worked out by hand: a pair turns `context / (2π · rotations)` times at
/// `dimensions · ln(context / (2π · rotations)) / (2 · ln base)`.
#[test]
fn yarn_mixes_by_a_ramp_and_raises_the_magnitude() {
    let yarn =
        Yarn { original_context: 4096, extrapolation: 1.0, attention_factor: 1.0, beta_fast: 32.0, beta_slow: 1.0 };
    let found =
        table(&mut Fixture::new(), Rope { factor: 4.0, yarn: Some(yarn), ..rope(64) }, vec![[100, 100, 100, 0]]);
    // 64 · ln(4096 / (2π · 32)) / (2 · ln 10000) = 10.47, and with one rotation 22.51.
    let (low, high) = (10.0, 23.0);
    let angle = |pair: usize| {
        let plain = 100.0 * 10_000f64.powf(-2.0 * pair as f64 / 64.0);
        let mix = 1.0 - ((pair as f64 - low) / (high - low)).clamp(0.0, 1.0);
        plain / 4.0 * (1.0 - mix) + plain * mix
    };
    check(&found, 32, 1.0 + 0.1 * 4f64.ln(), std::iter::once((0..32).map(angle).collect()));
}
