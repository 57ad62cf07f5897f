//! Vectors at the end of a row, which may be shorter than sixteen values.

use crate::cpu::simd::Simd;

/// Loads up to sixteen values, with zeros behind them; fast for sixteen.
#[inline(always)]
pub(super) fn load<S: Simd>(simd: S, from: &[f32]) -> S::F {
    match from.first_chunk() {
        Some(vector) => simd.load(vector),
        None => simd.load_partial(from),
    }
}

/// Stores up to sixteen values, as many as `to` has places; fast for sixteen.
#[inline(always)]
pub(super) fn store<S: Simd>(simd: S, x: S::F, to: &mut [f32]) {
    match to.first_chunk_mut() {
        Some(vector) => simd.store(x, vector),
        None => simd.store_partial(x, to),
    }
}
