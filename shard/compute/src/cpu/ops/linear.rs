//! Matrix products.

#![expect(unsafe_code, reason = "members borrow their own blocks and columns")]

use super::{Limits, Operation, ScratchSize, Step, overlap};
use crate::cpu::linear::{INPUT_BLOCK, Input, OutputRows, PackedWeight, Rows, linear};
use crate::cpu::pool::Member;
use crate::program::{Buffer, Product};

/// [`Op::Linear`](crate::program::Op::Linear).
pub(super) struct Linear {
    pub(super) input: Buffer,
    /// Width of the input.
    pub(super) width: usize,
    pub(super) products: Vec<Product>,
}

impl Operation for Linear {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        ScratchSize { blocks: limits.rows * self.width / INPUT_BLOCK, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let rows = step.rows(self.input);
        // SAFETY: nobody writes the input now.
        let values = unsafe { step.buffer(self.input).rows(0..rows) };
        if self.products.iter().any(|product| step.packed(product.weight).needs_quantized_input()) {
            step.quantize(member, values);
            member.wait();
        }
        let panels = self.products.iter().map(|product| step.packed(product.weight).panels()).sum();
        let own = member.share(panels);
        let mut first = 0;
        for product in &self.products {
            let weight = step.packed(product.weight);
            let part = overlap(&own, first, weight.panels());
            first += weight.panels();
            if part.is_empty() {
                continue;
            }
            let output = step.buffer(product.output);
            // SAFETY: the pointer is to the rows of the output, of which this member alone touches
            // the columns of its panels.
            let mut output = unsafe {
                OutputRows::from_raw(output.values().pointer(), rows, output.width, output.width, product.add)
            };
            let input = step.input_of(weight, values);
            linear(step.isa, weight, 0, part, input, Rows::First(rows), &mut output);
        }
    }
}

impl Step<'_> {
    /// Quantizes this member's share of the blocks of `values` into scratch, where all members' blocks
    /// lie after the next barrier.
    pub(super) fn quantize(&self, member: &Member<'_>, values: &[f32]) {
        let own = member.share(values.len() / INPUT_BLOCK);
        let values = &values[own.start * INPUT_BLOCK..own.end * INPUT_BLOCK];
        // SAFETY: these blocks of scratch are this member's until the barrier.
        let blocks = unsafe { self.scratch.blocks.part_mut(own) };
        crate::cpu::linear::quantize(self.isa, values, blocks);
    }

    /// What `weight` is multiplied with: the values, or their quantized blocks in scratch.
    pub(super) fn input_of<'a>(&'a self, weight: &PackedWeight, values: &'a [f32]) -> Input<'a> {
        if !weight.needs_quantized_input() {
            return Input::Float(values);
        }
        // SAFETY: the blocks were written before the last barrier, and nobody writes them now.
        Input::Quantized(unsafe { self.scratch.blocks.part(0..values.len() / INPUT_BLOCK) })
    }
}
