//! The arithmetic of attention with keys and values in blocks of 8-bit codes.
//!
//! Queries are rounded to such blocks as well, so that a score is an exact sum of integers per block, times both
//! scales, added up in the order of blocks. A value counts as its code times the product of its weight and its
//! scale.

use std::ops::Range;

use super::SEGMENT;
use crate::cpu::pages::blocks::{BLOCK, GROUP, Panels, Quantize};
use crate::cpu::simd::{Kernel, LANES, Simd};

/// A block of a query.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QueryBlock {
    /// Groups of four codes, the first in the low bits.
    groups: [i32; BLOCK / GROUP],
    /// What the 128 that keys are stored with add to a dot product, negated.
    correction: i32,
    scale: f32,
}

/// Bytes that memory delivers at once.
const CACHE_LINE: usize = 64;

/// Words of 32 bits in a block.
pub(super) const QUERY_BLOCK_WORDS: usize = size_of::<QueryBlock>() / size_of::<f32>();

/// Rounds a query to blocks.
pub(super) struct QuantizeQuery<'a> {
    pub(super) query: &'a [f32],
    pub(super) blocks: &'a mut [QueryBlock],
}

impl Kernel for QuantizeQuery<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (values, block) in self.query.as_chunks().0.iter().zip(self.blocks) {
            let (codes, scale) = Quantize { values, scale_in_half: false }.run(simd);
            let mut sum = 0;
            for (group, codes) in block.groups.iter_mut().zip(codes.as_chunks::<GROUP>().0) {
                *group = i32::from_le_bytes([codes[0] as u8, codes[1] as u8, codes[2] as u8, codes[3] as u8]);
                sum += i32::from(codes[0]) + i32::from(codes[1]) + i32::from(codes[2]) + i32::from(codes[3]);
            }
            block.correction = -128 * sum;
            block.scale = scale;
        }
    }
}

/// Scores of one to four queries with keys of one page.
pub(super) struct QuantizedScores<'a> {
    /// `(queries, blocks)`.
    pub(super) queries: &'a [QueryBlock],
    pub(super) keys: Panels<'a>,
    /// The keys that come next, fetched into caches meanwhile.
    pub(super) next: Panels<'a>,
    /// Which tokens of the page.
    pub(super) tokens: Range<usize>,
    pub(super) scale: f32,
    /// `(queries, SEGMENT)`.
    pub(super) scores: &'a mut [f32],
    /// Index of the first key in the segment.
    pub(super) first: usize,
}

impl Kernel for QuantizedScores<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.queries.len() / self.keys.blocks {
            1 => self.wide::<S, 1>(simd),
            2 => self.wide::<S, 2>(simd),
            3 => self.wide::<S, 3>(simd),
            4 => self.wide::<S, 4>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }
}

impl QuantizedScores<'_> {
    #[inline(always)]
    fn wide<S: Simd, const QUERIES: usize>(self, simd: S) {
        let scale = simd.splat(self.scale);
        for sixteen in self.tokens.start / LANES..self.tokens.end.div_ceil(LANES) {
            let sums = self.sixteen_keys::<S, QUERIES>(simd, sixteen);
            let lanes = lanes(&self.tokens, sixteen);
            let first = self.first + sixteen * LANES + lanes.start - self.tokens.start;
            for (sum, scores) in sums.into_iter().zip(self.scores.chunks_exact_mut(SEGMENT)) {
                let scores = &mut scores[first..first + lanes.len()];
                store_lanes(simd, simd.mul(sum, scale), lanes.clone(), scores);
            }
        }
    }

    /// Products of the queries with sixteen keys, one per lane.
    #[inline(always)]
    fn sixteen_keys<S: Simd, const QUERIES: usize>(&self, simd: S, sixteen: usize) -> [S::F; QUERIES] {
        let blocks = self.keys.blocks;
        let codes = &self.keys.codes[sixteen * blocks..(sixteen + 1) * blocks];
        let scales = &self.keys.scales[sixteen * blocks..(sixteen + 1) * blocks];
        let mut queries: [&[QueryBlock]; QUERIES] = [&[]; QUERIES];
        for (query, given) in queries.iter_mut().zip(self.queries.chunks_exact(blocks)) {
            *query = given;
        }
        let mut products = [simd.zero(); QUERIES];
        for (block, (codes, scales)) in codes.iter().zip(scales).enumerate() {
            let mut dots = [simd.zero_i32(); QUERIES];
            for (dot, query) in dots.iter_mut().zip(&queries) {
                *dot = simd.splat_i32(query[block].correction);
            }
            let next = &self.next.codes[sixteen * blocks + block].as_chunks::<CACHE_LINE>().0;
            for (group, codes) in codes.as_chunks().0.iter().enumerate() {
                simd.prefetch(next[group].as_ptr());
                let codes = simd.load_bytes(codes);
                for (dot, query) in dots.iter_mut().zip(&queries) {
                    *dot = simd.dot_u8(*dot, codes, simd.splat_i32(query[block].groups[group]));
                }
            }
            let scales = simd.load_f16(scales);
            for ((product, dot), query) in products.iter_mut().zip(dots).zip(&queries) {
                let factor = simd.mul(scales, simd.splat(query[block].scale));
                *product = simd.fma(simd.to_f32(dot), factor, *product);
            }
        }
        products
    }
}

/// Adds values of one page, each times its weight, to the sums of one to four queries.
pub(super) struct QuantizedValues<'a> {
    /// `(queries, SEGMENT)`.
    pub(super) weights: &'a [f32],
    /// Index of the first value in the segment.
    pub(super) first: usize,
    pub(super) values: Panels<'a>,
    /// The values that come next, fetched into caches meanwhile.
    pub(super) next: Panels<'a>,
    /// Which tokens of the page.
    pub(super) tokens: Range<usize>,
    /// `(queries, dim)`.
    pub(super) sums: &'a mut [f32],
}

impl Kernel for QuantizedValues<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.sums.len() / (self.values.blocks * BLOCK) {
            1 => self.wide::<S, 1>(simd),
            2 => self.wide::<S, 2>(simd),
            3 => self.wide::<S, 3>(simd),
            4 => self.wide::<S, 4>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }
}

impl QuantizedValues<'_> {
    #[inline(always)]
    fn wide<S: Simd, const QUERIES: usize>(mut self, simd: S) {
        let blocks = self.values.blocks;
        let pairs = if S::REGISTERS >= 32 { blocks / 2 } else { 0 };
        for pair in 0..pairs {
            self.blocks::<S, QUERIES, 2>(simd, 2 * pair);
        }
        for block in 2 * pairs..blocks {
            self.blocks::<S, QUERIES, 1>(simd, block);
        }
    }

    /// Sums of the columns of a few blocks, in registers.
    #[inline(always)]
    fn blocks<S: Simd, const QUERIES: usize, const BLOCKS: usize>(&mut self, simd: S, block: usize) {
        let dim = self.values.blocks * BLOCK;
        let columns = block * BLOCK..(block + BLOCKS) * BLOCK;
        let mut sums = [[[simd.zero(); 2]; BLOCKS]; QUERIES];
        for (sums, stored) in sums.iter_mut().zip(self.sums.chunks_exact(dim)) {
            for (sum, stored) in sums.as_flattened_mut().iter_mut().zip(stored[columns.clone()].as_chunks().0) {
                *sum = simd.load(stored);
            }
        }
        for sixteen in self.tokens.start / LANES..self.tokens.end.div_ceil(LANES) {
            self.sixteen_values(simd, sixteen, block, &mut sums);
        }
        for (sums, stored) in sums.iter().zip(self.sums.chunks_exact_mut(dim)) {
            for (sum, stored) in sums.as_flattened().iter().zip(stored[columns.clone()].as_chunks_mut().0) {
                simd.store(*sum, stored);
            }
        }
    }

    /// Adds up to sixteen values, in order.
    #[inline(always)]
    fn sixteen_values<S: Simd, const QUERIES: usize, const BLOCKS: usize>(
        &self,
        simd: S,
        sixteen: usize,
        block: usize,
        sums: &mut [[[S::F; 2]; BLOCKS]; QUERIES],
    ) {
        let lanes = lanes(&self.tokens, sixteen);
        let first = self.first + sixteen * LANES + lanes.start - self.tokens.start;
        let mut codes: [&[[u8; BLOCK]]; BLOCKS] = [&[]; BLOCKS];
        let mut factors = [[[0.0; LANES]; BLOCKS]; QUERIES];
        for index in 0..BLOCKS {
            let panel = (block + index) * self.values.sixteens + sixteen;
            codes[index] = self.values.codes[panel].as_chunks().0;
            let scales = simd.load_f16(&self.values.scales[panel]);
            for next in self.next.codes[panel].as_chunks::<CACHE_LINE>().0 {
                simd.prefetch(next.as_ptr());
            }
            for (factors, weights) in factors.iter_mut().zip(self.weights.chunks_exact(SEGMENT)) {
                let weights = load_lanes(simd, &weights[first..first + lanes.len()], lanes.clone());
                simd.store(simd.mul(weights, scales), &mut factors[index]);
            }
        }
        for lane in lanes {
            for index in 0..BLOCKS {
                let (codes, _) = codes[index][lane].as_chunks();
                let values = [widen(simd, &codes[0]), widen(simd, &codes[1])];
                for (sums, factors) in sums.iter_mut().zip(&factors) {
                    let factor = simd.splat(factors[index][lane]);
                    sums[index][0] = simd.fma(factor, values[0], sums[index][0]);
                    sums[index][1] = simd.fma(factor, values[1], sums[index][1]);
                }
            }
        }
    }
}

/// The part of sixteen tokens of a page that is among `tokens`.
#[inline(always)]
fn lanes(tokens: &Range<usize>, sixteen: usize) -> Range<usize> {
    let first = sixteen * LANES;
    tokens.start.max(first) - first..tokens.end.min(first + LANES) - first
}

#[inline(always)]
fn store_lanes<S: Simd>(simd: S, x: S::F, lanes: Range<usize>, to: &mut [f32]) {
    match to.first_chunk_mut() {
        Some(vector) => simd.store(x, vector),
        None => to.copy_from_slice(&simd.to_array(x)[lanes]),
    }
}

#[inline(always)]
fn load_lanes<S: Simd>(simd: S, from: &[f32], lanes: Range<usize>) -> S::F {
    if let Some(vector) = from.first_chunk() {
        return simd.load(vector);
    }
    let mut all = [0.0; LANES];
    all[lanes].copy_from_slice(from);
    simd.load(&all)
}

/// Sixteen codes as floats.
#[inline(always)]
fn widen<S: Simd>(simd: S, codes: &[u8; LANES]) -> S::F {
    let mut signed = [0; LANES];
    for (signed, code) in signed.iter_mut().zip(codes) {
        *signed = code.cast_signed();
    }
    simd.to_f32(simd.load_i8(&signed))
}
