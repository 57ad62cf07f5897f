//! The router and the experts of one row.

#![expect(unsafe_code, reason = "members borrow scratch of their own and their own columns")]

use std::ops::Range;

use super::super::elementwise::{SwiGluPart, share_of_vectors};
use super::super::experts::{Experts, Places, Sizes};
use super::super::linear::input_of;
use super::super::route::Route;
use super::super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::linear::{INPUT_BLOCK, Input, OutputRows, PackedWeight, QuantizedBlock, RowPair, Rows, linear};
use crate::cpu::pool::Member;
use crate::cpu::simd::LANES;

/// A router and its experts. With one row every member routes, quantizes and lists for itself, and then computes its
/// panels of every expert; with more rows, grouping them by expert is worth its barriers.
pub(in super::super) struct RoutedExperts {
    pub(in super::super) route: Route,
    pub(in super::super) experts: Experts,
}

impl Operation for RoutedExperts {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let apart = self.route.scratch(limits).max(self.experts.scratch(limits));
        let one_row = Places::new(self.experts.sizes, 1).results.end + limits.threads * self.private_values();
        let alone =
            ScratchSize { floats: one_row, blocks: limits.threads * self.private_blocks(), ..ScratchSize::default() };
        apart.max(alone)
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        if step.rows(self.experts.input) == 1 {
            return self.run_one(step, member);
        }
        self.route.run(step, member);
        member.wait();
        self.experts.run(step, member);
    }
}

impl RoutedExperts {
    /// Values of scratch for one member: probabilities and a route.
    fn private_values(&self) -> usize {
        let Sizes { experts, used, .. } = self.experts.sizes;
        (experts + 2 * used).next_multiple_of(LANES)
    }

    /// Blocks of scratch for one member: of the input or of all hidden values.
    fn private_blocks(&self) -> usize {
        let Sizes { used, width, hidden, .. } = self.experts.sizes;
        width.max(used * hidden).div_ceil(INPUT_BLOCK)
    }

    fn run_one(&self, step: &Step<'_>, member: &Member<'_>) {
        let Experts { sizes, gate, up, down, .. } = &self.experts;
        let places = Places::new(*sizes, 1);
        let (chosen, weights) = self.choose(step, member, &places).split_at(sizes.used);
        let [gate, up, down] = [*gate, *up, *down].map(|weight| step.packed(weight));
        // SAFETY: nobody writes the input now.
        let input = unsafe { step.buffer(self.experts.input).row(0) };
        let blocks = self.quantize(step, member, &[gate, up], input);
        for (weight, results) in [(gate, &places.gate), (up, &places.up)] {
            multiply(step, member, weight, chosen, input_of(weight, input, blocks), |_| 0, results);
        }
        for place in 0..sizes.used {
            swiglu(step, &places, place * sizes.hidden, share_of_vectors(member, sizes.hidden));
        }
        member.wait();
        // SAFETY: all hidden values were computed before the barrier.
        let hidden = unsafe { step.scratch.floats.part(places.gate.clone()) };
        let blocks = self.quantize(step, member, &[down], hidden);
        multiply(step, member, down, chosen, input_of(down, hidden, blocks), |place| place, &places.results);
        let columns = share_of_vectors(member, sizes.width);
        for (place, weight) in weights.iter().enumerate() {
            let first = places.results.start + place * sizes.width;
            self.experts.add_result(step, 0, first, columns.clone(), *weight);
        }
    }

    /// The row's experts and their weights; the first member also writes them where observers look.
    fn choose<'a>(&self, step: &'a Step<'_>, member: &Member<'_>, places: &Places) -> &'a [f32] {
        let first = places.results.end + member.index() * self.private_values();
        // SAFETY: this part of scratch is this member's.
        let private = unsafe { step.scratch.floats.part_mut(first..first + self.private_values()) };
        let (probabilities, route) = private.split_at_mut(self.experts.sizes.experts);
        let route = &mut route[..2 * self.experts.sizes.used];
        self.route.row(step, 0, probabilities, route);
        if member.index() == 0 {
            // SAFETY: the other members have routes of their own.
            unsafe { step.row_mut(self.route.output, 0) }.copy_from_slice(route);
        }
        route
    }

    /// Quantizes values into blocks of this member's own, if one of the weights needs that.
    fn quantize<'a>(
        &self,
        step: &'a Step<'_>,
        member: &Member<'_>,
        weights: &[&PackedWeight],
        values: &[f32],
    ) -> &'a [QuantizedBlock] {
        if !weights.iter().any(|weight| weight.needs_quantized_input()) {
            return &[];
        }
        let first = member.index() * self.private_blocks();
        step.quantize_part(values, first);
        // SAFETY: this member has just written these blocks, and nobody else writes them.
        unsafe { step.scratch.blocks.part(first..first + values.len() / INPUT_BLOCK) }
    }
}

/// This member's panels of the chosen experts' matrices; place `i` is multiplied with row `input_row(i)`.
fn multiply(
    step: &Step<'_>,
    member: &Member<'_>,
    weight: &PackedWeight,
    chosen: &[f32],
    input: Input<'_>,
    input_row: fn(usize) -> usize,
    results: &Range<usize>,
) {
    let own = member.share(weight.panels());
    // SAFETY: in the results this member alone touches the columns of its panels.
    let mut output = unsafe {
        let start = step.scratch.floats.part_pointer(results.clone());
        OutputRows::from_raw(start, chosen.len(), weight.rows(), weight.rows(), false)
    };
    for (place, expert) in chosen.iter().enumerate() {
        let pair = RowPair { input: input_row(place) as u32, output: place as u32 };
        linear(step.isa, weight, *expert as usize, own.clone(), input, Rows::Listed(&[pair]), &mut output);
    }
}

/// Makes some columns of the hidden values that begin `first` behind the start of gate and up products.
fn swiglu(step: &Step<'_>, places: &Places, first: usize, columns: Range<usize>) {
    let part = |start: usize| start + first + columns.start..start + first + columns.end;
    // SAFETY: this member has computed these columns of both, and nobody else touches them.
    let (gate, up) = unsafe {
        (step.scratch.floats.part_mut(part(places.gate.start)), step.scratch.floats.part(part(places.up.start)))
    };
    step.isa.run(SwiGluPart { gate, up });
}
