//! Convolution, delta rule and gated norm of a gated-delta-net layer, by key head.

use std::ops::Range;

use super::super::convolve::Convolve;
use super::super::delta_rule::{DeltaRule, rows_in_cache};
use super::super::norm::GatedNorm;
use super::super::{Limits, Operation, ScratchSize, Step, overlap};
use crate::cpu::pool::Member;
use crate::device::ChunkRows;

/// A key head with its query head and the value heads that use it touch nothing of other key heads: one member takes
/// them through all three operations without waiting for anyone.
pub(in super::super) struct DeltaNet {
    pub(in super::super) convolve: Convolve,
    pub(in super::super) rule: DeltaRule,
    pub(in super::super) norm: GatedNorm,
}

impl Operation for DeltaNet {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        self.rule.scratch(limits)
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let heads = self.rule.key_heads;
        let tasks = step.inputs.chunks.len() * heads;
        if !is_even(tasks, member.threads()) {
            return self.run_apart(step, member);
        }
        let own = member.share(tasks);
        for (index, chunk) in step.inputs.chunks.iter().enumerate() {
            for key_head in overlap(&own, index * heads, heads) {
                self.head(step, member, chunk, key_head);
            }
        }
    }
}

/// Do members have about equally many tasks, if a task is not divided?
fn is_even(tasks: usize, threads: usize) -> bool {
    // At most a tenth of the time is lost.
    tasks.div_ceil(threads) * threads * 10 <= tasks * 11
}

impl DeltaNet {
    /// One operation after the other, each divided as finely as it goes.
    fn run_apart(&self, step: &Step<'_>, member: &Member<'_>) {
        self.convolve.run(step, member);
        member.wait();
        self.rule.run(step, member);
        member.wait();
        self.norm.run(step, member);
    }

    /// A key head and all that belongs to it through all rows of a chunk, a few rows at a time.
    fn head(&self, step: &Step<'_>, member: &Member<'_>, chunk: &ChunkRows<'_>, key_head: usize) {
        let DeltaRule { key_heads, spec, .. } = &self.rule;
        let value_heads = || (key_head..spec.value_heads).step_by(*key_heads);
        let parts = [key_head, key_heads + key_head].into_iter().chain(value_heads().map(|head| 2 * key_heads + head));
        let strips =
            parts.map(|part| self.convolve.strip(step, chunk, part * spec.head_dim..(part + 1) * spec.head_dim));
        let strips: Vec<_> = strips.collect();
        for rows in rows_in_cache(chunk) {
            for row in rows.clone() {
                strips.iter().for_each(|strip| strip.convolve(row));
                self.rule.normalize(step, step.row_of(chunk, row), key_head);
            }
            value_heads().for_each(|head| self.value_head(step, member, chunk, rows.clone(), head));
        }
        value_heads().for_each(|head| self.rule.log_gates(step, chunk, head));
        for strip in &strips {
            strip.remember();
        }
    }

    fn value_head(&self, step: &Step<'_>, member: &Member<'_>, chunk: &ChunkRows<'_>, rows: Range<usize>, head: usize) {
        for row in rows.clone() {
            self.rule.gates(step, chunk, row, head..head + 1);
        }
        let tiles = step.state(self.rule.state).tiles();
        for tile in head * tiles..(head + 1) * tiles {
            self.rule.run_tile(step, member, chunk, rows.clone(), tile);
        }
        for row in rows.start.max(chunk.log.before)..rows.end {
            self.norm.head(step, step.row_of(chunk, row), head);
        }
    }
}
