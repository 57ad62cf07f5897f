//! Attention whose segments are dealt out among members, then joined.

#![expect(unsafe_code, reason = "members borrow their own parts")]

use std::ops::Range;

use super::kernels::WIDE;
use super::tile::{Part, Tile};
use super::{Attention, SEGMENT, SPLIT_VALUES, Scratch};
use crate::cpu::ops::{Step, overlap};
use crate::cpu::pool::Member;
use crate::device::ChunkRows;

impl Attention {
    /// Whether the segments of this step are worth dealing out, and their parts fit into scratch.
    pub(super) fn is_split(&self, step: &Step<'_>, member: &Member<'_>) -> bool {
        let chunks = step.inputs.chunks;
        let long = chunks.iter().any(|chunk| segments(chunk) > 1);
        let parts: usize = chunks.iter().map(|chunk| self.parts(chunk)).sum();
        member.threads() > 1 && long && parts.saturating_mul(self.part_values()) <= SPLIT_VALUES
    }

    pub(super) fn run_split(&self, step: &Step<'_>, member: &Member<'_>, scratch: &mut Scratch<'_>) {
        let tasks: usize = self.tiles(step).map(|tile| tile.segments()).sum();
        // A stretch of segments each, so that what is fetched ahead is this member's own.
        let own = member.share(tasks);
        let mut task = 0;
        for tile in self.tiles(step) {
            let segments = overlap(&own, task, tile.segments());
            task += tile.segments();
            if !segments.is_empty() {
                tile.load_queries(scratch);
            }
            for segment in segments {
                self.keep_parts(&tile, member, scratch, segment * SEGMENT);
            }
        }
        member.wait();
        let mut query = 0;
        for tile in self.tiles(step) {
            for index in 0..tile.queries() {
                if query % member.threads() == member.index() {
                    self.join_parts(&tile, member, scratch, index);
                }
                query += 1;
            }
        }
    }

    /// Takes a tile through one segment and keeps the parts of its queries.
    fn keep_parts(&self, tile: &Tile<'_>, member: &Member<'_>, scratch: &mut Scratch<'_>, start: usize) {
        let padded = tile.cache().values.padded;
        for first in (0..tile.queries()).step_by(WIDE) {
            let parts = tile.visit(scratch, start, first);
            for (index, part) in parts.into_iter().enumerate() {
                let Some(part) = part else { continue };
                let place = self.part_place(tile, member, first + index, start);
                // SAFETY: a segment of a query is one member's.
                let kept = unsafe { tile.step.scratch.floats.part_mut(place) };
                kept[..padded].copy_from_slice(&scratch.partial[index * padded..(index + 1) * padded]);
                kept[padded..].copy_from_slice(&part);
            }
        }
    }

    /// Joins all parts of a query, in order.
    fn join_parts(&self, tile: &Tile<'_>, member: &Member<'_>, scratch: &mut Scratch<'_>, query: usize) {
        let padded = tile.cache().values.padded;
        let values = &mut scratch.values[..padded];
        let mut total = [0.0; 2];
        let (row, _) = tile.place(query);
        for start in (0..tile.end(row)).step_by(SEGMENT) {
            let place = self.part_place(tile, member, query, start);
            // SAFETY: parts were kept before the barrier, and nobody writes them now.
            let (partial, part) = unsafe { tile.step.scratch.floats.part(place) }.split_at(padded);
            let part: Part = part.try_into().expect("two values follow the partial sums");
            tile.join(values, &mut total, partial, part, start);
        }
        tile.finish(query, values, total);
    }

    /// Where the part of a query in a segment is kept: behind the members' own scratch, by chunk, row,
    /// head and segment.
    fn part_place(&self, tile: &Tile<'_>, member: &Member<'_>, query: usize, start: usize) -> Range<usize> {
        let chunks = tile.step.inputs.chunks.iter();
        let earlier = chunks.take_while(|chunk| chunk.first_row < tile.chunk.first_row);
        let before: usize = earlier.map(|chunk| self.parts(chunk)).sum();
        let (row, head) = tile.place(query);
        let index = (row * self.query_heads.count + head) * segments(tile.chunk) + start / SEGMENT;
        let first = member.threads() * self.sizes().total() + (before + index) * self.part_values();
        first..first + self.part_values()
    }

    /// Parts of all queries of a chunk.
    fn parts(&self, chunk: &ChunkRows<'_>) -> usize {
        chunk.rows * self.query_heads.count * segments(chunk)
    }

    /// Values of one part.
    fn part_values(&self) -> usize {
        self.sizes().value + 2
    }
}

/// Segments that the last row of a chunk sees.
fn segments(chunk: &ChunkRows<'_>) -> usize {
    (chunk.start + chunk.rows).div_ceil(SEGMENT)
}
