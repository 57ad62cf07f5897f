//! Looking up the rows of tokens, and of what positions say.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use super::{Operation, Step};
use crate::cpu::pool::Member;
use crate::device::NO_TOKEN;
use crate::program::{Buffer, Weight};

/// [`Op::Embed`](crate::program::Op::Embed).
pub(super) struct Embed {
    pub(super) table: Weight,
    pub(super) output: Buffer,
}

impl Operation for Embed {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let rows = member.share(step.rows(self.output));
        let tokens = step.inputs.tokens;
        let earlier = tokens[..rows.start].iter().filter(|token| **token == NO_TOKEN).count();
        let width = step.buffer(self.output).width;
        let mut vectors = step.inputs.vectors.chunks_exact(width).skip(earlier);
        for row in rows {
            // SAFETY: a row is one member's.
            let output = unsafe { step.row_mut(self.output, row) };
            match tokens[row] {
                NO_TOKEN => output.copy_from_slice(vectors.next().expect("vectors are counted with the inputs")),
                token => step.table(self.table).read(token as usize, output),
            }
        }
    }
}

/// [`Op::AddEmbedding`](crate::program::Op::AddEmbedding).
pub(super) struct AddEmbedding {
    pub(super) table: Weight,
    pub(super) component: usize,
    pub(super) output: Buffer,
}

impl Operation for AddEmbedding {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let (table, width) = (step.vector(self.table), step.buffer(self.output).width);
        for row in member.share(step.rows(self.output)) {
            let entry = step.inputs.positions[row][self.component] as usize;
            // SAFETY: a row is one member's.
            let output = unsafe { step.row_mut(self.output, row) };
            for (value, added) in output.iter_mut().zip(&table[entry * width..(entry + 1) * width]) {
                *value += added;
            }
        }
    }
}
