//! The arithmetic of attention with keys and values in blocks of codes.
//!
//! Queries are rounded to blocks of 8-bit codes, so that a score is an exact sum of integers per block, times both
//! scales, added up in the order of blocks; where keys have minimums, each times the sum of its query's block follows
//! its block. A value counts as its integer times the product of its weight and its scale; where values have minimums,
//! as its weight times what its integer, scale and minimum stand for.

use std::ops::Range;

use super::SEGMENT;
use super::packing::{CACHE_LINE, Nonlinear, Packing, Signed, Span, Symmetric, UNPACKED, Unpacked};
use crate::cpu::pages::Format;
use crate::cpu::pages::blocks::{BLOCK, GROUP, Panels};
use crate::cpu::pages::quantize::Quantize;
use crate::cpu::simd::{Kernel, LANES, Simd};

/// A block of a query.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct QueryBlock {
    /// Groups of four codes, the first in the low bits.
    pub(super) groups: [i32; BLOCK / GROUP],
    /// What the offset that keys are stored with adds to a dot product, negated.
    correction: i32,
    scale: f32,
    /// The sum of the block's values as they are rounded, by which a key's minimum counts.
    sum: f32,
}

/// Words of 32 bits in a block.
pub(super) const QUERY_BLOCK_WORDS: usize = size_of::<QueryBlock>() / size_of::<f32>();

/// Rounds a query to blocks.
pub(super) struct QuantizeQuery<'a> {
    pub(super) query: &'a [f32],
    pub(super) blocks: &'a mut [QueryBlock],
    /// What stored codes of keys have more than the integers that they stand for.
    pub(super) offset: i32,
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
            block.correction = -self.offset * sum;
            block.scale = scale;
            block.sum = scale * sum as f32;
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
        match self.keys.format {
            Format::Q8_0 => self.packed::<S, Signed>(simd),
            Format::Q4_0 => self.packed::<S, Symmetric>(simd),
            Format::Q4_1 => self.packed::<S, Span>(simd),
            Format::Iq4Nl => self.packed::<S, Nonlinear>(simd),
        }
    }
}

impl QuantizedScores<'_> {
    #[inline(always)]
    fn packed<S: Simd, P: Packing>(self, simd: S) {
        match self.queries.len() / self.keys.blocks {
            1 => self.wide::<S, P, 1>(simd),
            2 => self.wide::<S, P, 2>(simd),
            3 => self.wide::<S, P, 3>(simd),
            4 => self.wide::<S, P, 4>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }

    #[inline(always)]
    fn wide<S: Simd, P: Packing, const QUERIES: usize>(self, simd: S) {
        let scale = simd.splat(self.scale);
        for sixteen in self.tokens.start / LANES..self.tokens.end.div_ceil(LANES) {
            let sums = self.sixteen_keys::<S, P, QUERIES>(simd, sixteen);
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
    fn sixteen_keys<S: Simd, P: Packing, const QUERIES: usize>(&self, simd: S, sixteen: usize) -> [S::F; QUERIES] {
        let blocks = self.keys.blocks;
        let panels = sixteen * blocks..(sixteen + 1) * blocks;
        let bytes = panels.start * P::PANEL..panels.end * P::PANEL;
        let codes = self.keys.codes[bytes.clone()].chunks_exact(P::PANEL);
        let next = self.next.codes[bytes].chunks_exact(P::PANEL);
        let scales = &self.keys.scales[panels.clone()];
        let minimums = if P::MINIMUMS { &self.keys.minimums[panels] } else { &[] };
        let mut queries: [&[QueryBlock]; QUERIES] = [&[]; QUERIES];
        for (query, given) in queries.iter_mut().zip(self.queries.chunks_exact(blocks)) {
            *query = given;
        }
        let mut products = [simd.zero(); QUERIES];
        for (block, ((codes, next), scales)) in codes.zip(next).zip(scales).enumerate() {
            let mut dots = [simd.zero_i32(); QUERIES];
            for (dot, query) in dots.iter_mut().zip(&queries) {
                *dot = simd.splat_i32(query[block].correction);
            }
            P::dots(simd, codes, next, &queries, block, &mut dots);
            let scales = simd.load_f16(scales);
            for ((product, dot), query) in products.iter_mut().zip(dots).zip(&queries) {
                let factor = simd.mul(scales, simd.splat(query[block].scale));
                *product = simd.fma(simd.to_f32(dot), factor, *product);
            }
            if P::MINIMUMS {
                let minimums = simd.load_f16(&minimums[block]);
                for (product, query) in products.iter_mut().zip(&queries) {
                    *product = simd.fma(minimums, simd.splat(query[block].sum), *product);
                }
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
        match self.values.format {
            Format::Q8_0 => self.packed::<S, Signed>(simd),
            Format::Q4_0 => self.packed::<S, Symmetric>(simd),
            Format::Q4_1 => self.packed::<S, Span>(simd),
            Format::Iq4Nl => self.packed::<S, Nonlinear>(simd),
        }
    }
}

/// What the values of one block of sixteen tokens count, a number for each token.
#[derive(Clone, Copy)]
struct Counts<const QUERIES: usize> {
    /// By query: weights, times scales where there are no minimums.
    factors: [[f32; LANES]; QUERIES],
    /// Where there are minimums.
    scales: [f32; LANES],
    minimums: [f32; LANES],
}

impl QuantizedValues<'_> {
    #[inline(always)]
    fn packed<S: Simd, P: Packing>(self, simd: S) {
        match self.sums.len() / (self.values.blocks * BLOCK) {
            1 => self.wide::<S, P, 1>(simd),
            2 => self.wide::<S, P, 2>(simd),
            3 => self.wide::<S, P, 3>(simd),
            4 => self.wide::<S, P, 4>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }

    #[inline(always)]
    fn wide<S: Simd, P: Packing, const QUERIES: usize>(mut self, simd: S) {
        let blocks = self.values.blocks;
        let pairs = if S::REGISTERS >= 32 { blocks / 2 } else { 0 };
        for pair in 0..pairs {
            self.blocks::<S, P, QUERIES, 2>(simd, 2 * pair);
        }
        for block in 2 * pairs..blocks {
            self.blocks::<S, P, QUERIES, 1>(simd, block);
        }
    }

    /// Sums of the columns of a few blocks, in registers.
    #[inline(always)]
    fn blocks<S: Simd, P: Packing, const QUERIES: usize, const BLOCKS: usize>(&mut self, simd: S, block: usize) {
        let dim = self.values.blocks * BLOCK;
        let columns = block * BLOCK..(block + BLOCKS) * BLOCK;
        let mut sums = [[[simd.zero(); 2]; BLOCKS]; QUERIES];
        for (sums, stored) in sums.iter_mut().zip(self.sums.chunks_exact(dim)) {
            for (sum, stored) in sums.as_flattened_mut().iter_mut().zip(stored[columns.clone()].as_chunks().0) {
                *sum = simd.load(stored);
            }
        }
        let mut unpacked = [UNPACKED; BLOCKS];
        for sixteen in self.tokens.start / LANES..self.tokens.end.div_ceil(LANES) {
            self.sixteen_values::<S, P, QUERIES, BLOCKS>(simd, sixteen, block, &mut unpacked, &mut sums);
        }
        for (sums, stored) in sums.iter().zip(self.sums.chunks_exact_mut(dim)) {
            for (sum, stored) in sums.as_flattened().iter().zip(stored[columns.clone()].as_chunks_mut().0) {
                simd.store(*sum, stored);
            }
        }
    }

    /// Adds up to sixteen values, in order.
    #[inline(always)]
    fn sixteen_values<S: Simd, P: Packing, const QUERIES: usize, const BLOCKS: usize>(
        &self,
        simd: S,
        sixteen: usize,
        block: usize,
        unpacked: &mut [Unpacked; BLOCKS],
        sums: &mut [[[S::F; 2]; BLOCKS]; QUERIES],
    ) {
        let lanes = lanes(&self.tokens, sixteen);
        let mut codes: [&[u8]; BLOCKS] = [&[]; BLOCKS];
        let mut counts =
            [Counts { factors: [[0.0; LANES]; QUERIES], scales: [0.0; LANES], minimums: [0.0; LANES] }; BLOCKS];
        for index in 0..BLOCKS {
            let panel = (block + index) * self.values.sixteens + sixteen;
            codes[index] = &self.values.codes[panel * P::PANEL..(panel + 1) * P::PANEL];
            P::unpack(simd, codes[index], &mut unpacked[index]);
            for next in self.next.codes[panel * P::PANEL..(panel + 1) * P::PANEL].as_chunks::<CACHE_LINE>().0 {
                simd.prefetch(next.as_ptr());
            }
            self.count::<S, P, QUERIES>(simd, panel, &lanes, sixteen, &mut counts[index]);
        }
        for lane in lanes {
            for index in 0..BLOCKS {
                let halves = P::token(codes[index], &unpacked[index], lane);
                let mut values = [widen(simd, halves[0]), widen(simd, halves[1])];
                if P::MINIMUMS {
                    let (scale, minimum) = (counts[index].scales[lane], counts[index].minimums[lane]);
                    for value in &mut values {
                        *value = simd.fma(*value, simd.splat(scale), simd.splat(minimum));
                    }
                }
                for (sums, factors) in sums.iter_mut().zip(&counts[index].factors) {
                    let factor = simd.splat(factors[lane]);
                    sums[index][0] = simd.fma(factor, values[0], sums[index][0]);
                    sums[index][1] = simd.fma(factor, values[1], sums[index][1]);
                }
            }
        }
    }

    /// What the values of a panel count.
    #[inline(always)]
    fn count<S: Simd, P: Packing, const QUERIES: usize>(
        &self,
        simd: S,
        panel: usize,
        lanes: &Range<usize>,
        sixteen: usize,
        counts: &mut Counts<QUERIES>,
    ) {
        let first = self.first + sixteen * LANES + lanes.start - self.tokens.start;
        let scales = simd.load_f16(&self.values.scales[panel]);
        if P::MINIMUMS {
            simd.store(scales, &mut counts.scales);
            simd.store(simd.load_f16(&self.values.minimums[panel]), &mut counts.minimums);
        }
        for (factors, weights) in counts.factors.iter_mut().zip(self.weights.chunks_exact(SEGMENT)) {
            let weights = load_lanes(simd, &weights[first..first + lanes.len()], lanes.clone());
            simd.store(if P::MINIMUMS { weights } else { simd.mul(weights, scales) }, factors);
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
