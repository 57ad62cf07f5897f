//! A few rows of a chunk that visit segments of keys together.

#![expect(unsafe_code, reason = "members borrow their own heads")]

use std::ops::Range;

use super::kernels::{Finish, Join, Scores, Softmax, WIDE, WeightedValues};
use super::packing::key_offset;
use super::quantized::{QuantizeQuery, QuantizedScores, QuantizedValues, QueryBlock};
use super::{Attention, SEGMENT, Scratch};
use crate::cpu::ops::Step;
use crate::cpu::pages::blocks::BLOCK;
use crate::cpu::pages::rotation::Rotate;
use crate::cpu::pages::{Blocks, Element, Floats, PagedCache, Stored};
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

/// Keys or values of a segment that lie in one page.
struct Piece {
    page: u32,
    /// Which tokens of the page.
    tokens: Range<usize>,
    /// The first one's index in the segment.
    first: usize,
    /// The page that comes next, or this one: fetched into caches meanwhile.
    next_page: u32,
}

impl Tile<'_> {
    /// Takes the queries through all segments, joining as it goes.
    pub(super) fn attend(&self, scratch: &mut Scratch<'_>) {
        let padded = self.cache().values.padded;
        self.load_queries(scratch);
        for start in (0..self.segments()).map(|segment| segment * SEGMENT) {
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
            let values = &mut scratch.values[query * padded..(query + 1) * padded];
            self.finish(query, values, scratch.totals[query]);
        }
    }

    /// Segments that the last row sees.
    pub(super) fn segments(&self) -> usize {
        self.end(self.rows.end - 1).div_ceil(SEGMENT)
    }

    /// Where the keys end that a row of the chunk sees.
    pub(super) fn end(&self, row: usize) -> usize {
        let ChunkRows { start, rows, .. } = *self.chunk;
        if self.operation.causal { start + row + 1 } else { start + rows }
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
        let keys = &self.cache().keys;
        for (query, padded) in scratch.queries.chunks_exact_mut(keys.padded).take(self.queries()).enumerate() {
            let (row, head) = self.place(query);
            let row = self.chunk.first_row + row;
            let columns = head * stride..head * stride + dim;
            // SAFETY: nobody writes the queries now.
            let query = unsafe { self.step.buffer(self.operation.query).columns(row, columns) };
            padded[..dim].copy_from_slice(query);
            padded[dim..].fill(0.0);
        }
        if let Stored::Blocks(stored) = &keys.stored {
            let offset = key_offset(stored.format());
            let queries = scratch.queries.chunks_exact_mut(dim).take(self.queries());
            for (query, blocks) in queries.zip(scratch.query_blocks.chunks_exact_mut(dim / BLOCK)) {
                if let Some(width) = stored.rotation() {
                    self.step.isa.run(Rotate { values: query, width });
                }
                self.step.isa.run(QuantizeQuery { query, blocks, offset });
            }
        }
    }

    /// How many keys of the segment at `start` a query sees.
    fn visible(&self, query: usize, start: usize) -> usize {
        let (row, _) = self.place(query);
        self.end(row).saturating_sub(start).min(SEGMENT)
    }

    /// Takes up to [`WIDE`] queries from `first` on through one segment. Leaves their weighted values in
    /// `scratch.partial`; queries that see nothing of the segment have no part.
    pub(super) fn visit(&self, scratch: &mut Scratch<'_>, start: usize, first: usize) -> [Option<Part>; WIDE] {
        let count = WIDE.min(self.queries() - first);
        // Rows ascend, so no query sees fewer keys than the first: these are computed together.
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
        let queries = first + wide.start..first + wide.end;
        for piece in self.pieces(start, keys) {
            let Scratch { queries: floats, query_blocks, scores, .. } = &mut *scratch;
            let scores = &mut scores[wide.start * SEGMENT..wide.end * SEGMENT];
            let floats = || rows(floats, self.cache().keys.padded, &queries);
            match &self.cache().keys.stored {
                Stored::F32(keys) => self.float_scores(keys, piece, floats(), scores),
                Stored::F16(keys) => self.float_scores(keys, piece, floats(), scores),
                Stored::BF16(keys) => self.float_scores(keys, piece, floats(), scores),
                Stored::Blocks(keys) => {
                    let blocks = rows(query_blocks, self.cache().keys.dim / BLOCK, &queries);
                    self.quantized_scores(keys, piece, blocks, scores);
                }
            }
        }
    }

    fn float_scores<E: Element>(&self, keys: &Floats<E>, piece: Piece, queries: &[f32], scores: &mut [f32]) {
        let Piece { page, tokens, first, next_page } = piece;
        // SAFETY: keys are written before the barrier that precedes this operation.
        let [keys, next] = [page, next_page].map(|page| unsafe { keys.rows(page, self.head, tokens.clone()) });
        let (dim, scale) = (self.cache().keys.padded, self.operation.scale);
        self.step.isa.run(Scores { queries, keys, next, dim, scale, scores, first });
    }

    fn quantized_scores(&self, keys: &Blocks, piece: Piece, queries: &[QueryBlock], scores: &mut [f32]) {
        let Piece { page, tokens, first, next_page } = piece;
        // SAFETY: keys are written before the barrier that precedes this operation.
        let [keys, next] = [page, next_page].map(|page| unsafe { keys.panels(page, self.head) });
        self.step.isa.run(QuantizedScores { queries, keys, next, tokens, scale: self.operation.scale, scores, first });
    }

    /// Adds the given values of a segment to `scratch.partial`, by the weights of the queries in `wide`.
    fn weighted_values(&self, scratch: &mut Scratch<'_>, start: usize, keys: Range<usize>, wide: Range<usize>) {
        let weights = rows(scratch.scores, SEGMENT, &wide);
        let padded = self.cache().values.padded;
        let sums = &mut scratch.partial[wide.start * padded..wide.end * padded];
        for piece in self.pieces(start, keys) {
            match &self.cache().values.stored {
                Stored::F32(values) => self.weighted_floats(values, piece, weights, sums),
                Stored::F16(values) => self.weighted_floats(values, piece, weights, sums),
                Stored::BF16(values) => self.weighted_floats(values, piece, weights, sums),
                Stored::Blocks(values) => self.weighted_blocks(values, piece, weights, sums),
            }
        }
    }

    fn weighted_floats<E: Element>(&self, values: &Floats<E>, piece: Piece, weights: &[f32], sums: &mut [f32]) {
        let Piece { page, tokens, first, next_page } = piece;
        // SAFETY: values are written before the barrier that precedes this operation.
        let [values, next] = [page, next_page].map(|page| unsafe { values.rows(page, self.head, tokens.clone()) });
        self.step.isa.run(WeightedValues { weights, first, values, next, dim: self.cache().values.padded, sums });
    }

    fn weighted_blocks(&self, values: &Blocks, piece: Piece, weights: &[f32], sums: &mut [f32]) {
        let Piece { page, tokens, first, next_page } = piece;
        // SAFETY: values are written before the barrier that precedes this operation.
        let [values, next] = [page, next_page].map(|page| unsafe { values.panels(page, self.head) });
        self.step.isa.run(QuantizedValues { weights, first, values, next, tokens, sums });
    }

    /// The given keys of the segment at `start`, page by page.
    fn pieces(&self, start: usize, keys: Range<usize>) -> impl Iterator<Item = Piece> {
        let page_tokens = self.cache().page_tokens;
        let mut next = keys.start;
        std::iter::from_fn(move || {
            if next >= keys.end {
                return None;
            }
            let first = next;
            let token = (start + first) % page_tokens;
            let count = (keys.end - first).min(page_tokens - token);
            next += count;
            let index = (start + first) / page_tokens;
            let page = self.chunk.pages[index];
            let next_page = self.chunk.pages.get(index + 1).copied().unwrap_or(page);
            Some(Piece { page, tokens: token..token + count, first, next_page })
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

    /// Writes a query's result. Sums of rotated values are rotated back.
    pub(super) fn finish(&self, query: usize, values: &mut [f32], total: Part) {
        let operation = self.operation;
        let (row, head) = self.place(query);
        let row = self.chunk.first_row + row;
        let dim = operation.spec.value_dim;
        if let Some(width) = self.cache().values.rotation() {
            self.step.isa.run(Rotate { values: &mut values[..dim], width });
        }
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

/// Some rows of equal width.
fn rows<'a, T>(all: &'a [T], width: usize, rows: &Range<usize>) -> &'a [T] {
    &all[rows.start * width..rows.end * width]
}
