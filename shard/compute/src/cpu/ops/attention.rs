//! Attention over pages.
//!
//! The keys of a sequence are cut into segments of 256 by absolute position. A query meets each segment up to
//! its own position, or up to the end of its chunk where attention is not causal: scores, their maximum, exponentials, their sum, and the weighted sum of values. These
//! parts are then joined in the order of segments. So a query's result never depends on the rows that are
//! computed with it, nor on which members compute its segments.
//!
//! Two ways lead to the same bits: a member takes a few rows through all segments and joins as it goes (long
//! prompts), or members deal out the segments and join in a second pass (few rows, long contexts).

#![expect(unsafe_code, reason = "members borrow their own scratch")]

mod kernels;
mod packing;
mod quantized;
mod split;
mod tile;

use self::kernels::WIDE;
use self::quantized::{QUERY_BLOCK_WORDS, QueryBlock};
use self::tile::Tile;
use super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::pages::blocks::BLOCK;
use crate::cpu::pool::Member;
use crate::cpu::simd::LANES;
use crate::program::{Buffer, Cache, CacheSpec, Heads};

/// Keys per segment: part of the definition of the result.
const SEGMENT: usize = 256;

/// About how many queries visit a segment together.
const TILE_QUERIES: usize = 64;

/// Values of scratch for parts that wait to be joined, 8 MiB: one row of 24 heads of 256 values at 86,000
/// tokens, or 32 such rows at 2,700. Steps with more parts are not split.
const SPLIT_VALUES: usize = 2 << 20;

/// [`Op::Attention`](crate::program::Op::Attention).
pub(super) struct Attention {
    pub(super) query: Buffer,
    pub(super) query_heads: Heads,
    pub(super) gate_offset: Option<usize>,
    pub(super) scale: f32,
    pub(super) causal: bool,
    pub(super) cache: Cache,
    pub(super) output: Buffer,
    pub(super) spec: CacheSpec,
}

impl Operation for Attention {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let split = if limits.threads > 1 { SPLIT_VALUES } else { 0 };
        ScratchSize { floats: limits.threads * self.sizes().total() + split, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let sizes = self.sizes();
        let own = member.index() * sizes.total()..(member.index() + 1) * sizes.total();
        // SAFETY: this part of scratch is this member's.
        let mut scratch = sizes.split(unsafe { step.scratch.floats.part_mut(own) });
        if self.is_split(step, member) {
            self.run_split(step, member, &mut scratch);
        } else {
            self.run_whole(step, member, &mut scratch);
        }
    }
}

impl Attention {
    /// Takes each tile through all of its segments on one member.
    fn run_whole(&self, step: &Step<'_>, member: &Member<'_>, scratch: &mut Scratch<'_>) {
        for (task, tile) in self.tiles(step).enumerate() {
            // Later tiles see more keys: deal them out in turn.
            if task % member.threads() == member.index() {
                tile.attend(scratch);
            }
        }
    }

    /// All tiles of a step, in a fixed order.
    fn tiles<'a>(&'a self, step: &'a Step<'a>) -> impl Iterator<Item = Tile<'a>> {
        step.inputs.chunks.iter().flat_map(move |chunk| {
            (0..chunk.rows).step_by(self.tile_rows()).flat_map(move |first| {
                let rows = first..(first + self.tile_rows()).min(chunk.rows);
                let heads = 0..self.spec.key_value_heads;
                heads.map(move |head| Tile { operation: self, step, chunk, rows: rows.clone(), head })
            })
        })
    }

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
            query_blocks: self.spec.key_dim / BLOCK,
        }
    }
}

/// The sizes of a member's scratch.
struct Sizes {
    queries: usize,
    /// Values of a padded key.
    key: usize,
    /// Numbers of a padded value.
    value: usize,
    /// Blocks of a query.
    query_blocks: usize,
}

/// A member's scratch.
struct Scratch<'a> {
    /// Padded queries of the tile.
    queries: &'a mut [f32],
    /// The same in blocks, where keys are.
    query_blocks: &'a mut [QueryBlock],
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
        self.queries * (self.key + self.value + 2) + self.block_words() + WIDE * (SEGMENT + self.value)
    }

    fn block_words(&self) -> usize {
        self.queries * self.query_blocks * QUERY_BLOCK_WORDS
    }

    fn split<'a>(&self, all: &'a mut [f32]) -> Scratch<'a> {
        let (queries, rest) = all.split_at_mut(self.queries * self.key);
        let (blocks, rest) = rest.split_at_mut(self.block_words());
        let (scores, rest) = rest.split_at_mut(WIDE * SEGMENT);
        let (partial, rest) = rest.split_at_mut(WIDE * self.value);
        let (values, totals) = rest.split_at_mut(self.queries * self.value);
        let query_blocks = as_query_blocks(blocks);
        Scratch { queries, query_blocks, scores, partial, values, totals: totals.as_chunks_mut().0 }
    }
}

fn as_query_blocks(words: &mut [f32]) -> &mut [QueryBlock] {
    // SAFETY: a block is words of 32 bits, integers and a float, for which any bits are a value; so are those that
    // blocks leave behind for floats.
    let (before, blocks, after) = unsafe { words.align_to_mut::<QueryBlock>() };
    assert!(before.is_empty() && after.is_empty(), "a whole number of blocks");
    blocks
}
