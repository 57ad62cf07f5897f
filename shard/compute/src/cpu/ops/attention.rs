//! Causal attention over pages.
//!
//! The keys of a sequence are cut into segments of 256 by absolute position. A query meets each segment up to
//! its own position: scores, their maximum, exponentials, their sum, and the weighted sum of values. These
//! parts are then joined in the order of segments. So a query's result never depends on the rows that are
//! computed with it. Queries of a tile, a few rows by the heads that share a key head, visit a segment together.

#![expect(unsafe_code, reason = "members borrow their own heads and scratch")]

mod kernels;

use std::ops::Range;

use self::kernels::{Finish, Join, Scores, Softmax, WIDE, WeightedValues};
use super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::pages::{PagedCache, Plane, with_stored};
use crate::cpu::pool::Member;
use crate::cpu::simd::LANES;
use crate::device::ChunkRows;
use crate::program::{Buffer, Cache, CacheSpec, Heads};

/// Keys per segment: part of the definition of the result.
const SEGMENT: usize = 256;

/// About how many queries visit a segment together.
const TILE_QUERIES: usize = 64;

/// [`Op::Attention`](crate::program::Op::Attention).
pub(super) struct Attention {
    pub(super) query: Buffer,
    pub(super) query_heads: Heads,
    pub(super) gate_offset: Option<usize>,
    pub(super) scale: f32,
    pub(super) cache: Cache,
    pub(super) output: Buffer,
    pub(super) spec: CacheSpec,
}

impl Operation for Attention {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let floats = limits.threads * self.sizes().total();
        ScratchSize { floats, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let sizes = self.sizes();
        let own = member.index() * sizes.total()..(member.index() + 1) * sizes.total();
        // SAFETY: this part of scratch is this member's.
        let mut scratch = sizes.split(unsafe { step.scratch.floats.part_mut(own) });
        let mut task = 0;
        for chunk in step.inputs.chunks {
            for first in (0..chunk.rows).step_by(self.tile_rows()) {
                let rows = first..(first + self.tile_rows()).min(chunk.rows);
                for head in 0..self.spec.key_value_heads {
                    // Later tiles see more keys: deal them out in turn.
                    if task % member.threads() == member.index() {
                        let tile = Tile { operation: self, step, chunk, rows: rows.clone(), head };
                        tile.attend(&mut scratch);
                    }
                    task += 1;
                }
            }
        }
    }
}

impl Attention {
    /// Query heads that share a key head.
    fn group(&self) -> usize {
        self.query_heads.count / self.spec.key_value_heads
    }

    fn tile_rows(&self) -> usize {
        (TILE_QUERIES / self.group()).max(1)
    }

    fn sizes(&self) -> Sizes {
        Sizes {
            queries: self.tile_rows() * self.group(),
            key: self.spec.key_dim.next_multiple_of(LANES),
            value: self.spec.value_dim.next_multiple_of(LANES),
        }
    }
}

/// The sizes of a member's scratch.
struct Sizes {
    queries: usize,
    key: usize,
    value: usize,
}

/// A member's scratch.
struct Scratch<'a> {
    /// Padded queries of the tile.
    queries: &'a mut [f32],
    /// Scores, then their exponentials, of the queries that are computed together.
    scores: &'a mut [f32],
    /// Weighted values of one segment, of the queries that are computed together.
    partial: &'a mut [f32],
    /// Joined weighted values of the tile's queries.
    values: &'a mut [f32],
    /// Largest score and sum of exponentials of each query of the tile.
    totals: &'a mut [[f32; 2]],
}

impl Sizes {
    fn total(&self) -> usize {
        self.queries * (self.key + self.value + 2) + WIDE * (SEGMENT + self.value)
    }

    fn split<'a>(&self, all: &'a mut [f32]) -> Scratch<'a> {
        let (queries, rest) = all.split_at_mut(self.queries * self.key);
        let (scores, rest) = rest.split_at_mut(WIDE * SEGMENT);
        let (partial, rest) = rest.split_at_mut(WIDE * self.value);
        let (values, totals) = rest.split_at_mut(self.queries * self.value);
        Scratch { queries, scores, partial, values, totals: totals.as_chunks_mut().0 }
    }
}

/// Some rows of a chunk and the query heads of one key head. Query `i` of a tile is head `i mod group` of row
/// `i / group`.
struct Tile<'a> {
    operation: &'a Attention,
    step: &'a Step<'a>,
    chunk: &'a ChunkRows<'a>,
    rows: Range<usize>,
    head: usize,
}

impl Tile<'_> {
    fn attend(&self, scratch: &mut Scratch<'_>) {
        let group = self.operation.group();
        let queries = self.rows.len() * group;
        self.load_queries(scratch, queries);
        for start in (0..self.chunk.start + self.rows.end).step_by(SEGMENT) {
            for first in (0..queries).step_by(WIDE) {
                let count = WIDE.min(queries - first);
                self.visit(scratch, start, first, count);
            }
        }
        for query in 0..queries {
            self.finish(scratch, query);
        }
    }

    /// Where a query lies: its row of the step and the start of its head.
    fn place(&self, query: usize) -> (usize, usize) {
        let group = self.operation.group();
        let row = self.chunk.first_row + self.rows.start + query / group;
        (row, self.head * group + query % group)
    }

    fn load_queries(&self, scratch: &mut Scratch<'_>, queries: usize) {
        let Heads { dim, stride, .. } = self.operation.query_heads;
        for (query, padded) in scratch.queries.chunks_exact_mut(self.cache().keys.padded).take(queries).enumerate() {
            let (row, head) = self.place(query);
            // SAFETY: nobody writes the queries now.
            let head =
                unsafe { self.step.buffer(self.operation.query).columns(row, head * stride..head * stride + dim) };
            padded[..dim].copy_from_slice(head);
            padded[dim..].fill(0.0);
        }
    }

    fn cache(&self) -> &PagedCache {
        self.step.cache(self.operation.cache)
    }

    /// How many keys of the segment at `start` a query sees.
    fn visible(&self, query: usize, start: usize) -> usize {
        let keys = self.chunk.start + self.rows.start + query / self.operation.group() + 1;
        keys.saturating_sub(start).min(SEGMENT)
    }

    /// Takes a few queries through one segment.
    fn visit(&self, scratch: &mut Scratch<'_>, start: usize, first: usize, count: usize) {
        // Rows ascend, so the first query sees the fewest keys and the others at least as many.
        let common = self.visible(first, start);
        self.scores(scratch, start, 0..common, first, 0..count);
        for index in 0..count {
            let visible = self.visible(first + index, start);
            self.scores(scratch, start, common..visible, first, index..index + 1);
        }
        let mut parts = [[0.0; 2]; WIDE];
        for (index, part) in parts.iter_mut().enumerate().take(count) {
            let scores = &mut scratch.scores[index * SEGMENT..(index + 1) * SEGMENT];
            let scores = &mut scores[..self.visible(first + index, start)];
            if !scores.is_empty() {
                *part = self.step.isa.run(Softmax { scores });
            }
        }
        scratch.partial.fill(0.0);
        self.weighted_values(scratch, start, 0..common, 0..count);
        for index in 0..count {
            let visible = self.visible(first + index, start);
            self.weighted_values(scratch, start, common..visible, index..index + 1);
            if visible > 0 {
                self.join(scratch, start, first + index, index, parts[index]);
            }
        }
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
    fn join(&self, scratch: &mut Scratch<'_>, start: usize, query: usize, index: usize, part: [f32; 2]) {
        let dim = self.cache().values.padded;
        let partial = &scratch.partial[index * dim..(index + 1) * dim];
        let values = &mut scratch.values[query * dim..(query + 1) * dim];
        let total = &mut scratch.totals[query];
        if start == 0 {
            values.copy_from_slice(partial);
            *total = part;
            return;
        }
        *total = self.step.isa.run(Join { values, partial, total: *total, part });
    }

    fn finish(&self, scratch: &Scratch<'_>, query: usize) {
        let (row, head) = self.place(query);
        let operation = self.operation;
        let dim = operation.spec.value_dim;
        let padded = self.cache().values.padded;
        let gate = operation.gate_offset.map(|offset| {
            let first = head * operation.query_heads.stride + offset;
            // SAFETY: nobody writes the queries now.
            unsafe { self.step.buffer(operation.query).columns(row, first..first + dim) }
        });
        // SAFETY: a head of a row is one member's.
        let output = unsafe { self.step.buffer(operation.output).columns_mut(row, head * dim..(head + 1) * dim) };
        let values = &scratch.values[query * padded..query * padded + dim];
        self.step.isa.run(Finish { values, sum: scratch.totals[query][1], gate, output });
    }
}
