//! The arithmetic of attention; every sum has one fixed order.

use super::SEGMENT;
use crate::cpu::math;
use crate::cpu::ops::vectors::{load, store};
use crate::cpu::pages::Element;
use crate::cpu::simd::{Kernel, LANES, Simd};

/// How many queries are computed together at most, sharing every load of a key or value.
pub(super) const WIDE: usize = 4;

/// Bytes that memory delivers at once.
const CACHE_LINE: usize = 64;

/// Scores of up to [`WIDE`] queries with consecutive keys.
pub(super) struct Scores<'a, E> {
    /// `(queries, dim)`.
    pub(super) queries: &'a [f32],
    /// `(keys, dim)`.
    pub(super) keys: &'a [E],
    /// As many keys that come later, fetched into caches meanwhile.
    pub(super) next: &'a [E],
    /// Values per query and key, whole vectors.
    pub(super) dim: usize,
    pub(super) scale: f32,
    /// `(queries, SEGMENT)`.
    pub(super) scores: &'a mut [f32],
    /// Index of the first key in the segment.
    pub(super) first: usize,
}

impl<E: Element> Kernel for Scores<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let many = S::REGISTERS >= 32;
        match self.queries.len() / self.dim {
            1 if many => self.wide::<S, 1, 16>(simd),
            2 if many => self.wide::<S, 2, 8>(simd),
            3 if many => self.wide::<S, 3, 5>(simd),
            4 if many => self.wide::<S, 4, 4>(simd),
            1 => self.wide::<S, 1, 4>(simd),
            2 => self.wide::<S, 2, 2>(simd),
            3 => self.wide::<S, 3, 1>(simd),
            4 => self.wide::<S, 4, 1>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }
}

impl<E: Element> Scores<'_, E> {
    #[inline(always)]
    fn wide<S: Simd, const QUERIES: usize, const KEYS: usize>(mut self, simd: S) {
        let mut queries: [&[[f32; LANES]]; QUERIES] = [&[]; QUERIES];
        for (query, values) in queries.iter_mut().zip(self.queries.chunks_exact(self.dim)) {
            *query = values.as_chunks().0;
        }
        let count = self.keys.len() / self.dim;
        for index in (0..count - count % KEYS).step_by(KEYS) {
            self.tile::<S, QUERIES, KEYS>(simd, &queries, index);
        }
        for index in count - count % KEYS..count {
            self.tile::<S, QUERIES, 1>(simd, &queries, index);
        }
    }

    /// Scores with a few keys, in registers.
    #[inline(always)]
    fn tile<S: Simd, const QUERIES: usize, const KEYS: usize>(
        &mut self,
        simd: S,
        queries: &[&[[f32; LANES]]; QUERIES],
        index: usize,
    ) {
        // Slices of this very length need no checks in the loop.
        let vectors = self.dim / LANES;
        let mut keys: [&[[E; LANES]]; KEYS] = [&[]; KEYS];
        for (key, values) in keys.iter_mut().zip(self.keys[index * self.dim..].chunks_exact(self.dim)) {
            *key = &values.as_chunks().0[..vectors];
        }
        let queries = queries.map(|query| &query[..vectors]);
        let mut sums = [[simd.zero(); KEYS]; QUERIES];
        for vector in 0..vectors {
            for key in index..index + KEYS {
                prefetch(simd, self.next, key * self.dim + vector * LANES);
            }
            let mut loaded = [simd.zero(); KEYS];
            for (loaded, key) in loaded.iter_mut().zip(&keys) {
                *loaded = E::load(simd, &key[vector]);
            }
            for (sums, query) in sums.iter_mut().zip(queries) {
                let query = simd.load(&query[vector]);
                for (sum, key) in sums.iter_mut().zip(loaded) {
                    *sum = simd.fma(query, key, *sum);
                }
            }
        }
        let mut scores = [0.0; LANES];
        simd.reduce_sums(sums.as_flattened(), &mut scores);
        let first = self.first + index;
        for (query, scores) in scores.chunks_exact(KEYS).take(QUERIES).enumerate() {
            for (to, score) in self.scores[query * SEGMENT + first..][..KEYS].iter_mut().zip(scores) {
                *to = score * self.scale;
            }
        }
    }
}

/// Asks for the cache line that begins with the vector at `index`, if one does.
#[inline(always)]
fn prefetch<S: Simd, E>(simd: S, rows: &[E], index: usize) {
    if (index * size_of::<E>()).is_multiple_of(CACHE_LINE) {
        simd.prefetch(rows.as_ptr().wrapping_add(index).cast());
    }
}

/// Replaces scores by `exp(score − largest)`; gives the largest and the sum, which runs in 16 lanes.
pub(super) struct Softmax<'a> {
    /// At least one.
    pub(super) scores: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f32; 2] {
        let lowest = simd.splat(f32::NEG_INFINITY);
        let mut largest = lowest;
        for scores in self.scores.chunks(LANES) {
            let present = simd.first_lanes(scores.len());
            largest = simd.max(largest, simd.select(present, load(simd, scores), lowest));
        }
        let largest = simd.reduce_max(largest);
        let mut sum = simd.zero();
        for scores in self.scores.chunks_mut(LANES) {
            let present = simd.first_lanes(scores.len());
            let below = simd.sub(load(simd, scores), simd.splat(largest));
            let exponentials = simd.select(present, math::exp(simd, below), simd.zero());
            store(simd, exponentials, scores);
            sum = simd.add(sum, exponentials);
        }
        [largest, simd.reduce_sum(sum)]
    }
}

/// Adds consecutive values, each times its weight, to the sums of up to [`WIDE`] queries.
pub(super) struct WeightedValues<'a, E> {
    /// `(queries, SEGMENT)`.
    pub(super) weights: &'a [f32],
    /// Index of the first value in the segment.
    pub(super) first: usize,
    /// `(values, dim)`.
    pub(super) values: &'a [E],
    /// As many values that come later, fetched into caches meanwhile.
    pub(super) next: &'a [E],
    /// Numbers per value, whole vectors.
    pub(super) dim: usize,
    /// `(queries, dim)`.
    pub(super) sums: &'a mut [f32],
}

impl<E: Element> Kernel for WeightedValues<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        match self.sums.len() / self.dim {
            1 => self.wide::<S, 1>(simd),
            2 => self.wide::<S, 2>(simd),
            3 => self.wide::<S, 3>(simd),
            4 => self.wide::<S, 4>(simd),
            count => unreachable!("{count} queries at once"),
        }
    }
}

impl<E: Element> WeightedValues<'_, E> {
    #[inline(always)]
    fn wide<S: Simd, const QUERIES: usize>(mut self, simd: S) {
        let vectors = self.dim / LANES;
        let mut vector = 0;
        while S::REGISTERS >= 32 && vector + 4 <= vectors {
            self.columns::<S, QUERIES, 4>(simd, vector);
            vector += 4;
        }
        while vector + 2 <= vectors {
            self.columns::<S, QUERIES, 2>(simd, vector);
            vector += 2;
        }
        if vector < vectors {
            self.columns::<S, QUERIES, 1>(simd, vector);
        }
    }

    /// Sums of a few vectors of the columns, in registers.
    #[inline(always)]
    fn columns<S: Simd, const QUERIES: usize, const VECTORS: usize>(&mut self, simd: S, vector: usize) {
        let columns = vector * LANES..(vector + VECTORS) * LANES;
        let mut sums = [[simd.zero(); VECTORS]; QUERIES];
        for (sums, stored) in sums.iter_mut().zip(self.sums.chunks_exact(self.dim)) {
            for (sum, stored) in sums.iter_mut().zip(stored[columns.clone()].as_chunks().0) {
                *sum = simd.load(stored);
            }
        }
        for (index, value) in self.values.chunks_exact(self.dim).enumerate() {
            let value: &[[E; LANES]] = value[columns.clone()].as_chunks().0;
            for column in 0..VECTORS {
                prefetch(simd, self.next, index * self.dim + (vector + column) * LANES);
                let value = E::load(simd, &value[column]);
                for (query, sums) in sums.iter_mut().enumerate() {
                    let weight = simd.splat(self.weights[query * SEGMENT + self.first + index]);
                    sums[column] = simd.fma(weight, value, sums[column]);
                }
            }
        }
        for (sums, stored) in sums.into_iter().zip(self.sums.chunks_exact_mut(self.dim)) {
            for (sum, stored) in sums.into_iter().zip(stored[columns.clone()].as_chunks_mut().0) {
                simd.store(sum, stored);
            }
        }
    }
}

/// Joins the next segment's part: both are scaled to the larger of their maxima, then added.
pub(super) struct Join<'a> {
    pub(super) values: &'a mut [f32],
    pub(super) partial: &'a [f32],
    /// Largest score and sum of what came before.
    pub(super) total: [f32; 2],
    /// Largest score and sum of the segment.
    pub(super) part: [f32; 2],
}

impl Kernel for Join<'_> {
    type Output = [f32; 2];

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) -> [f32; 2] {
        let (total, part) = (simd.splat(self.total[0]), simd.splat(self.part[0]));
        let largest = simd.max(total, part);
        let old = math::exp(simd, simd.sub(total, largest));
        let new = math::exp(simd, simd.sub(part, largest));
        for (value, partial) in self.values.chunks_mut(LANES).zip(self.partial.chunks(LANES)) {
            let added = simd.mul(load(simd, partial), new);
            store(simd, simd.fma(load(simd, value), old, added), value);
        }
        let added = simd.mul(simd.splat(self.part[1]), new);
        let sum = simd.fma(simd.splat(self.total[1]), old, added);
        [simd.to_array(largest)[0], simd.to_array(sum)[0]]
    }
}

/// Divides by the sum of exponentials and applies the gate.
pub(super) struct Finish<'a> {
    pub(super) values: &'a [f32],
    pub(super) sum: f32,
    pub(super) gate: Option<&'a [f32]>,
    pub(super) output: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let sum = simd.splat(self.sum);
        for (index, (values, output)) in self.values.chunks(LANES).zip(self.output.chunks_mut(LANES)).enumerate() {
            let mut result = simd.div(load(simd, values), sum);
            if let Some(gate) = self.gate {
                let gate = load(simd, &gate[index * LANES..index * LANES + output.len()]);
                result = simd.mul(result, math::sigmoid(simd, gate));
            }
            store(simd, result, output);
        }
    }
}
