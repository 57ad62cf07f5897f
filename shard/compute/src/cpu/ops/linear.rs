//! Matrix products.

#![expect(unsafe_code, reason = "members borrow their own blocks and columns")]

use std::ops::Range;

use super::{Limits, Operation, ScratchSize, Step, overlap};
use crate::cpu::linear::{INPUT_BLOCK, Input, OutputRows, PackedWeight, QuantizedBlock, Rows, linear};
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
        if self.needs_quantized_input(step) {
            step.quantize(member, values);
            member.wait();
        }
        self.multiply(step, member, rows, values, step.quantized(values));
    }
}

impl Linear {
    /// Does any weight need quantized blocks?
    pub(super) fn needs_quantized_input(&self, step: &Step<'_>) -> bool {
        self.products.iter().any(|product| step.packed(product.weight).needs_quantized_input())
    }

    /// Multiplies this member's share of all panels with the input's values or their quantized blocks.
    pub(super) fn multiply(
        &self,
        step: &Step<'_>,
        member: &Member<'_>,
        rows: usize,
        values: &[f32],
        blocks: &[QuantizedBlock],
    ) {
        let own = self.share(step, member, rows);
        let mut first = 0;
        for product in &self.products {
            let weight = step.packed(product.weight);
            let part = overlap(&own, first, weight.panels());
            first += weight.panels();
            if !part.is_empty() {
                multiply(step, product, part, rows, input_of(weight, values, blocks));
            }
        }
    }
}

impl Linear {
    /// This member's panels, counted through all products: as much work as any other member has.
    fn share(&self, step: &Step<'_>, member: &Member<'_>, rows: usize) -> Range<usize> {
        if let [product] = &self.products[..] {
            // Of equal panels; what follows on the same columns counts on these.
            return member.share(step.packed(product.weight).panels());
        }
        let work = self.products.iter().map(|product| {
            let weight = step.packed(product.weight);
            (weight.panels(), panel_work(weight, rows))
        });
        let total: usize = work.clone().map(|(panels, each)| panels * each).sum();
        let border = |member_index: usize| panels_within(work.clone(), total * member_index / member.threads());
        border(member.index())..border(member.index() + 1)
    }
}

/// How long a panel takes, in the time that a byte takes from memory while all threads read: either the bytes or
/// the arithmetic, of which a value of input times sixteen weights takes as long as two bytes, or five for floats.
fn panel_work(weight: &PackedWeight, rows: usize) -> usize {
    let per_value = if weight.needs_quantized_input() { 2 } else { 5 };
    let bytes = weight.bytes() / (weight.matrices() * weight.panels()).max(1);
    bytes.max(rows * weight.columns() * per_value).max(1)
}

/// How many panels, one after the other, make up so much work; `work` has the panels of each product and the work
/// of one of them.
fn panels_within(work: impl Iterator<Item = (usize, usize)>, mut target: usize) -> usize {
    let mut before = 0;
    for (panels, each) in work {
        if target < panels * each {
            return before + (target + each / 2) / each;
        }
        target -= panels * each;
        before += panels;
    }
    before
}

/// Multiplies some panels of a product, which no other member touches, with all rows.
pub(super) fn multiply(step: &Step<'_>, product: &Product, panels: Range<usize>, rows: usize, input: Input<'_>) {
    let output = step.buffer(product.output);
    // SAFETY: the pointer is to the rows of the output, of which this member alone touches the columns of
    // its panels.
    let mut output =
        unsafe { OutputRows::from_raw(output.values().pointer(), rows, output.width, output.width, product.add) };
    linear(step.isa, step.packed(product.weight), 0, panels, input, Rows::First(rows), &mut output);
}

impl Step<'_> {
    /// Quantizes this member's share of the blocks of `values` into scratch, where all members' blocks
    /// lie after the next barrier.
    pub(super) fn quantize(&self, member: &Member<'_>, values: &[f32]) {
        let own = member.share(values.len() / INPUT_BLOCK);
        self.quantize_part(&values[own.start * INPUT_BLOCK..own.end * INPUT_BLOCK], own.start);
    }

    /// Quantizes values into the blocks of scratch from `first` on, which are this member's.
    pub(super) fn quantize_part(&self, values: &[f32], first: usize) {
        // SAFETY: these blocks of scratch are this member's until the barrier.
        let blocks = unsafe { self.scratch.blocks.part_mut(first..first + values.len() / INPUT_BLOCK) };
        crate::cpu::linear::quantize(self.isa, values, blocks);
    }

    /// The quantized blocks of `values` in scratch, if they were written there before the last barrier.
    pub(super) fn quantized(&self, values: &[f32]) -> &[QuantizedBlock] {
        // SAFETY: nobody writes the blocks now.
        unsafe { self.scratch.blocks.part(0..values.len() / INPUT_BLOCK) }
    }
}

/// What `weight` is multiplied with: the values, or their quantized blocks.
pub(super) fn input_of<'a>(weight: &PackedWeight, values: &'a [f32], blocks: &'a [QuantizedBlock]) -> Input<'a> {
    if weight.needs_quantized_input() { Input::Quantized(blocks) } else { Input::Float(values) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::panels_within;

    proptest! {
        /// Members together have all panels once, and nobody has more than an even share and one panel.
        #[test]
        fn work_is_even(work in prop::collection::vec((0..400usize, 1..5000usize), 1..6), threads in 1..9usize) {
            let total: usize = work.iter().map(|(panels, each)| panels * each).sum();
            let panels: usize = work.iter().map(|(panels, _)| panels).sum();
            let largest = work.iter().map(|(_, each)| *each).max().unwrap();
            let costs: Vec<usize> = work.iter().flat_map(|&(panels, each)| vec![each; panels]).collect();
            let borders: Vec<usize> =
                (0..=threads).map(|index| panels_within(work.iter().copied(), total * index / threads)).collect();
            prop_assert_eq!((borders[0], borders[threads]), (0, panels));
            for border in borders.windows(2) {
                let own: usize = costs[border[0]..border[1]].iter().sum();
                prop_assert!(own <= total / threads + 1 + largest, "{} of {}", own, total);
            }
        }
    }
}
