//! A few rows of a chunk that visit segments of keys together.

#![expect(unsafe_code, reason = "members borrow their own heads")]

use std::ops::Range;

use super::kernels::{Finish, Join, Scores, Softmax, WIDE, WeightedValues};
use super::{Attention, SEGMENT, Scratch};
use crate::cpu::ops::Step;
use crate::cpu::pages::{PagedCache, Plane, with_stored};
use crate::device::ChunkRows;
use crate::program::Heads;

/// Some rows of a chunk and the query heads of one key head. Query `i` of a tile is head `i mod group` of row
/// `i / group`.
pub(super) struct Tile<'a> {
    pub(super) operation: &'a Attention,
    pub(super) step: &'a Step<'a>,
    pub(super) chunk: &'a ChunkRows<'a>,
    pub(super) rows: Range<usize>,
    /// The key head.
    pub(super) head: usize,
}

/// Largest score and sum of exponentials of a query in one segment.
pub(super) type Part = [f32; 2];

impl Tile<'_> {
    /// Takes the queries through all segments, joining as it goes.
    pub(super) fn attend(&self, scratch: &mut Scratch<'_>) {
        let padded = self.cache().values.padded;
        self.load_queries(scratch);
        for start in (0..self.chunk.start + self.rows.end).step_by(SEGMENT) {
            for first in (0..self.queries()).step_by(WIDE) {
                let parts = self.visit(scratch, start, first);
                for (index, part) in parts.into_iter().enumerate() {
                    let Some(part) = part else { continue };
                    let query = first + index;
                    let partial = &scratch.partial[index * padded..(index + 1) * padded];
                    let values = &mut scratch.values[query * padded..(query + 1) * padded];
                    self.join(values, &mut scratch.totals[query], partial, part, start);
                }
            }
        }
        for query in 0..self.queries() {
            let values = &scratch.values[query * padded..(query + 1) * padded];
            self.finish(query, values, scratch.totals[query]);
        }
    }

    pub(super) fn queries(&self) -> usize {
        self.rows.len() * self.operation.group()
    }

    /// Where a query lies: its row of the chunk and its head.
    pub(super) fn place(&self, query: usize) -> (usize, usize) {
        let group = self.operation.group();
        (self.rows.start + query / group, self.head * group + query % group)
    }

    pub(super) fn cache(&self) -> &PagedCache {
        self.step.cache(self.operation.cache)
    }

    pub(super) fn load_queries(&self, scratch: &mut Scratch<'_>) {
        let Heads { dim, stride, .. } = self.operation.query_heads;
        let padded = self.cache().keys.padded;
        for (query, padded) in scratch.queries.chunks_exact_mut(padded).take(self.queries()).enumerate() {
            let (row, head) = self.place(query);
            let row = self.chunk.first_row + row;
            let columns = head * stride..head * stride + dim;
            // SAFETY: nobody writes the queries now.
            let query = unsafe { self.step.buffer(self.operation.query).columns(row, columns) };
            padded[..dim].copy_from_slice(query);
            padded[dim..].fill(0.0);
        }
    }

    /// How many keys of the segment at `start` a query sees: those up to its own position.
    fn visible(&self, query: usize, start: usize) -> usize {
        let (row, _) = self.place(query);
        (self.chunk.start + row + 1).saturating_sub(start).min(SEGMENT)
    }

    /// Takes up to [`WIDE`] queries from `first` on through one segment. Leaves their weighted values in
    /// `scratch.partial`; queries that see nothing of the segment have no part.
    pub(super) fn visit(&self, scratch: &mut Scratch<'_>, start: usize, first: usize) -> [Option<Part>; WIDE] {
        let count = WIDE.min(self.queries() - first);
        // Rows ascend, so the first query sees the fewest keys: these are computed together.
        let common = self.visible(first, start);
        let visible = |index: usize| self.visible(first + index, start);
        self.scores(scratch, start, 0..common, first, 0..count);
        for index in 0..count {
            self.scores(scratch, start, common..visible(index), first, index..index + 1);
        }
        let mut parts = [None; WIDE];
        for (index, part) in parts.iter_mut().enumerate().take(count) {
            let scores = &mut scratch.scores[index * SEGMENT..index * SEGMENT + visible(index)];
            *part = (!scores.is_empty()).then(|| self.step.isa.run(Softmax { scores }));
        }
        scratch.partial.fill(0.0);
        self.weighted_values(scratch, start, 0..common, 0..count);
        for index in 0..count {
            self.weighted_values(scratch, start, common..visible(index), index..index + 1);
        }
        parts
    }

    /// Scores of queries `first + i`, for `i` in `wide`, with the given keys of a segment.
    fn scores(&self, scratch: &mut Scratch<'_>, start: usize, keys: Range<usize>, first: usize, wide: Range<usize>) {
        let plane = &self.cache().keys;
        let queries = (first + wide.start) * plane.padded..(first + wide.end) * plane.padded;
        for (place, key) in self.pieces(plane, start, keys) {
            with_stored!(plane, stored => {
                // SAFETY: keys are written before the barrier that precedes this operation.
                let keys = unsafe { stored.part(place) };
                self.step.isa.run(Scores {
                    queries: &scratch.queries[queries.clone()],
                    keys,
                    dim: plane.padded,
                    scale: self.operation.scale,
                    scores: &mut scratch.scores[wide.start * SEGMENT..wide.end * SEGMENT],
                    first: key,
                });
            });
        }
    }

    fn weighted_values(&self, scratch: &mut Scratch<'_>, start: usize, keys: Range<usize>, wide: Range<usize>) {
        let plane = &self.cache().values;
        for (place, key) in self.pieces(plane, start, keys) {
            with_stored!(plane, stored => {
                // SAFETY: values are written before the barrier that precedes this operation.
                let values = unsafe { stored.part(place) };
                self.step.isa.run(WeightedValues {
                    weights: &scratch.scores[wide.start * SEGMENT..wide.end * SEGMENT],
                    first: key,
                    values,
                    dim: plane.padded,
                    sums: &mut scratch.partial[wide.start * plane.padded..wide.end * plane.padded],
                });
            });
        }
    }

    /// The stored rows of some keys of a segment, cut at pages: where they lie, and the first one's
    /// index in the segment.
    fn pieces(&self, plane: &Plane, start: usize, keys: Range<usize>) -> impl Iterator<Item = (Range<usize>, usize)> {
        let page_tokens = self.cache().page_tokens;
        let mut next = keys.start;
        std::iter::from_fn(move || {
            if next >= keys.end {
                return None;
            }
            let key = next;
            let token = (start + key) % page_tokens;
            let count = (keys.end - key).min(page_tokens - token);
            next += count;
            let page = self.chunk.pages[(start + key) / page_tokens];
            Some((plane.place(page, self.head, token..token + count), key))
        })
    }

    /// Joins a query's part of the segment at `start` to what came before.
    pub(super) fn join(&self, values: &mut [f32], total: &mut Part, partial: &[f32], part: Part, start: usize) {
        if start == 0 {
            values.copy_from_slice(partial);
            *total = part;
            return;
        }
        *total = self.step.isa.run(Join { values, partial, total: *total, part });
    }

    /// Writes a query's result.
    pub(super) fn finish(&self, query: usize, values: &[f32], total: Part) {
        let operation = self.operation;
        let (row, head) = self.place(query);
        let row = self.chunk.first_row + row;
        let dim = operation.spec.value_dim;
        let gate = operation.gate_offset.map(|offset| {
            let first = head * operation.query_heads.stride + offset;
            // SAFETY: nobody writes the queries now.
            unsafe { self.step.buffer(operation.query).columns(row, first..first + dim) }
        });
        // SAFETY: a head of a row is one member's.
        let output = unsafe { self.step.buffer(operation.output).columns_mut(row, head * dim..(head + 1) * dim) };
        self.step.isa.run(Finish { values: &values[..dim], sum: total[1], gate, output });
    }
}
