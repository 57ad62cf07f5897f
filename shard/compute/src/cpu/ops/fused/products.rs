//! Matrix products with what goes before and after them.

#![expect(unsafe_code, reason = "members borrow scratch of their own, their own rows and columns")]

use std::ops::Range;

use super::super::elementwise::{AddGated, SwiGlu};
use super::super::linear::{Linear, input_of, multiply};
use super::super::norm::Norm;
use super::super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::linear::{INPUT_BLOCK, PANEL_ROWS, QuantizedBlock};
use crate::cpu::pool::Member;

/// The most values of an input that every member norms and quantizes for itself: about a microsecond's work, which
/// is what a barrier costs.
const PRIVATE_VALUES: usize = 8192;

/// A norm, the products of its result, and an operation on their columns.
pub(in super::super) struct Products {
    /// Makes the input.
    pub(in super::super) norm: Option<Norm>,
    pub(in super::super) linear: Linear,
    pub(in super::super) then: Then,
}

/// What follows on the same columns.
pub(in super::super) enum Then {
    Nothing,
    /// On two of the outputs.
    SwiGlu(SwiGlu),
    /// Of the only output.
    AddGated(AddGated),
}

impl Operation for Products {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let private = limits.threads * PRIVATE_VALUES;
        let blocks = (limits.rows * self.linear.width).max(private) / INPUT_BLOCK;
        ScratchSize { floats: if self.norm.is_some() { private } else { 0 }, blocks, ..ScratchSize::default() }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let rows = step.rows(self.linear.input);
        let (values, blocks) = match rows * self.linear.width <= PRIVATE_VALUES {
            true => self.prepare_alone(step, member, rows),
            false => self.prepare_together(step, member, rows),
        };
        match &self.then {
            Then::Nothing => self.linear.multiply(step, member, rows, values, blocks),
            Then::AddGated(add) => {
                self.linear.multiply(step, member, rows, values, blocks);
                let columns = columns_of(member, step.buffer(add.output).width);
                (0..rows).for_each(|row| add.columns(step, row, columns.clone()));
            }
            Then::SwiGlu(swiglu) => {
                // A share of every product, so that this member has the same panels of both factors.
                for product in &self.linear.products {
                    let weight = step.packed(product.weight);
                    let panels = member.share(weight.panels());
                    if !panels.is_empty() {
                        multiply(step, product, panels, rows, input_of(weight, values, blocks));
                    }
                }
                let columns = columns_of(member, step.buffer(swiglu.gate).width);
                (0..rows).for_each(|row| swiglu.columns(step, row, columns.clone()));
            }
        }
    }
}

impl Products {
    /// Every member norms and quantizes all rows, into scratch of its own.
    fn prepare_alone<'a>(
        &self,
        step: &'a Step<'_>,
        member: &Member<'_>,
        rows: usize,
    ) -> (&'a [f32], &'a [QuantizedBlock]) {
        let count = rows * self.linear.width;
        let first = member.index() * PRIVATE_VALUES;
        let buffer = step.buffer(self.linear.input);
        let values = match &self.norm {
            // SAFETY: nobody writes the input now.
            None => unsafe { buffer.rows(0..rows) },
            Some(norm) => {
                // SAFETY: this part of scratch is this member's.
                let values = unsafe { step.scratch.floats.part_mut(first..first + count) };
                for (row, values) in values.chunks_mut(self.linear.width).enumerate() {
                    norm.row(step, row, values);
                }
                if member.index() == 0 {
                    // SAFETY: all members read their own rows; later operations read these.
                    unsafe { buffer.rows_mut(0..rows) }.copy_from_slice(values);
                }
                values
            }
        };
        if !self.linear.needs_quantized_input(step) {
            return (values, &[]);
        }
        let first = first / INPUT_BLOCK;
        step.quantize_part(values, first);
        // SAFETY: this member has just written these blocks, and nobody writes them now.
        (values, unsafe { step.scratch.blocks.part(first..first + count / INPUT_BLOCK) })
    }

    /// Every member norms and quantizes its rows, or quantizes its blocks.
    fn prepare_together<'a>(
        &self,
        step: &'a Step<'_>,
        member: &Member<'_>,
        rows: usize,
    ) -> (&'a [f32], &'a [QuantizedBlock]) {
        let buffer = step.buffer(self.linear.input);
        let quantized = self.linear.needs_quantized_input(step);
        if let Some(norm) = &self.norm {
            for row in member.share(rows) {
                // SAFETY: a row is one member's.
                let values = unsafe { buffer.rows_mut(row..row + 1) };
                norm.row(step, row, values);
                if quantized {
                    step.quantize_part(values, row * self.linear.width / INPUT_BLOCK);
                }
            }
        } else if quantized {
            // SAFETY: nobody writes the input now.
            step.quantize(member, unsafe { buffer.rows(0..rows) });
        }
        if quantized || self.norm.is_some() {
            member.wait();
        }
        // SAFETY: all rows are in place, and nobody writes them now.
        let values = unsafe { buffer.rows(0..rows) };
        (values, if quantized { step.quantized(values) } else { &[] })
    }
}

/// The columns of a member's share of the panels of a product this wide.
fn columns_of(member: &Member<'_>, width: usize) -> Range<usize> {
    let panels = member.share(width.div_ceil(PANEL_ROWS));
    (panels.start * PANEL_ROWS).min(width)..(panels.end * PANEL_ROWS).min(width)
}
