//! Norm and rotation of query and key heads, and storing keys and values in pages.

#![expect(unsafe_code, reason = "members borrow their own heads and tokens")]

use super::norm::NormInPlace;
use super::rope::Rotate;
use super::{Operation, Step};
use crate::cpu::pages::PagedCache;
use crate::cpu::pool::Member;
use crate::program::{Buffer, Cache, Queries, Rotation, Weight};

/// [`Op::StoreKeysValues`](crate::program::Op::StoreKeysValues).
pub(super) struct StoreKeysValues {
    pub(super) queries: Option<Queries>,
    pub(super) key: Buffer,
    pub(super) value: Buffer,
    pub(super) key_norm: Option<Weight>,
    pub(super) epsilon: f32,
    pub(super) rotation: Option<Rotation>,
    pub(super) cache: Cache,
    pub(super) key_value_heads: usize,
}

impl Operation for StoreKeysValues {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let heads = self.key_value_heads + self.queries.map_or(0, |queries| queries.heads.count);
        for task in member.share(step.inputs.rows() * heads) {
            let (row, head) = (task / heads, task % heads);
            match (head.checked_sub(self.key_value_heads), &self.queries) {
                (Some(head), Some(queries)) => self.prepare_query(step, queries, row, head),
                _ => self.store(step, row, head),
            }
        }
    }
}

impl StoreKeysValues {
    fn prepare_query(&self, step: &Step<'_>, queries: &Queries, row: usize, head: usize) {
        let Queries { buffer, heads, norm } = *queries;
        let first = head * heads.stride;
        // SAFETY: a head of a row is one member's.
        let head = unsafe { step.buffer(buffer).columns_mut(row, first..first + heads.dim) };
        self.norm_and_rotate(step, row, head, norm);
    }

    fn store(&self, step: &Step<'_>, row: usize, head: usize) {
        let PagedCache { keys, values, page_tokens } = step.cache(self.cache);
        let chunk = step.chunk_of(row);
        let token = chunk.start + row - chunk.first_row;
        let (page, token) = (chunk.pages[token / page_tokens], token % page_tokens);
        // SAFETY: a head of a row is one member's.
        let key = unsafe { step.buffer(self.key).columns_mut(row, head * keys.dim..(head + 1) * keys.dim) };
        self.norm_and_rotate(step, row, key, self.key_norm);
        let value_columns = head * values.dim..(head + 1) * values.dim;
        // SAFETY: nobody writes the values' buffer now. A token of a page belongs to one row of the step
        // (checked with the inputs), and its head to this member; attention reads after a barrier.
        unsafe {
            let value = step.buffer(self.value).columns(row, value_columns);
            keys.store(step.isa, page, head, token, key);
            values.store(step.isa, page, head, token, value);
        }
    }

    fn norm_and_rotate(&self, step: &Step<'_>, row: usize, head: &mut [f32], norm: Option<Weight>) {
        if let Some(weight) = norm {
            let weight = step.vector(weight);
            step.isa.run(NormInPlace { values: head, weight, epsilon: self.epsilon });
        }
        if let Some(Rotation { style, table }) = self.rotation {
            // SAFETY: nobody writes the table now.
            let table = unsafe { step.buffer(table).row(row) };
            step.isa.run(Rotate { style, table, head });
        }
    }
}
