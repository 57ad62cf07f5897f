//! The mixture of experts.
//!
//! Every use of an expert by a row is an *assignment*, number `row · used + place in the router's order`.
//! Assignments are grouped by expert, so that each expert's weights are read once for all its rows; every
//! member takes a share of every expert's panels. The results are added per row in the router's order.

#![expect(unsafe_code, reason = "members borrow their own rows and columns")]

use std::ops::Range;

use super::elementwise::{SwiGluPart, share_of_vectors};
use super::linear::input_of;
use super::vectors::{load, store};
use super::{Limits, Operation, ScratchSize, Step};
use crate::cpu::linear::{INPUT_BLOCK, OutputRows, PackedWeight, RowPair, Rows, linear};
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, Weight};

/// [`Op::Experts`](crate::program::Op::Experts).
pub(super) struct Experts {
    pub(super) input: Buffer,
    pub(super) route: Buffer,
    pub(super) gate: Weight,
    pub(super) up: Weight,
    pub(super) down: Weight,
    pub(super) output: Buffer,
    pub(super) sizes: Sizes,
}

/// The sizes of a mixture.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) experts: usize,
    /// Experts of a row.
    pub(super) used: usize,
    /// Values of a row.
    pub(super) width: usize,
    /// Values of a row inside an expert.
    pub(super) hidden: usize,
}

impl Operation for Experts {
    fn scratch(&self, limits: &Limits) -> ScratchSize {
        let Sizes { experts, used, width, hidden } = self.sizes;
        let assignments = limits.rows * used;
        ScratchSize {
            floats: assignments * (2 * hidden + width),
            blocks: (limits.rows * width).max(assignments * hidden) / INPUT_BLOCK,
            pairs: 2 * assignments,
            groups: experts,
        }
    }

    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let rows = step.rows(self.input);
        // SAFETY: nobody writes the input now.
        let input = unsafe { step.buffer(self.input).rows(0..rows) };
        let places = Places::new(self.sizes, rows);
        let [gate, up, down] = [self.gate, self.up, self.down].map(|weight| step.packed(weight));
        if member.index() == 0 {
            self.group(step, &places);
        }
        if gate.needs_quantized_input() || up.needs_quantized_input() {
            step.quantize(member, input);
        }
        member.wait();
        self.multiply(step, member, gate, input, [&places.by_row, &places.gate]);
        self.multiply(step, member, up, input, [&places.by_row, &places.up]);
        member.wait();
        let hidden = share_of_vectors(member, places.gate.len());
        let up_part = places.up.start + hidden.start..places.up.start + hidden.end;
        // SAFETY: these values of scratch are this member's; all were computed before the barrier.
        let (own, factor) = unsafe { (step.scratch.floats.part_mut(hidden), step.scratch.floats.part(up_part)) };
        step.isa.run(SwiGluPart { gate: own, up: factor });
        member.wait();
        // SAFETY: nobody writes the hidden values any more.
        let hidden = unsafe { step.scratch.floats.part(places.gate.clone()) };
        if down.needs_quantized_input() {
            step.quantize(member, hidden);
            member.wait();
        }
        self.multiply(step, member, down, hidden, [&places.by_assignment, &places.results]);
        member.wait();
        self.add_results(step, member, &places);
    }
}

/// Where things lie in scratch, for the rows of a step.
pub(super) struct Places {
    rows: usize,
    /// Gate products, then active hidden values, `(assignments, hidden)`.
    pub(super) gate: Range<usize>,
    /// Up products, `(assignments, hidden)`.
    pub(super) up: Range<usize>,
    /// Results, `(assignments, width)`.
    pub(super) results: Range<usize>,
    /// Pairs of a row and an assignment, grouped by expert.
    by_row: Range<usize>,
    /// Pairs of an assignment with itself, grouped by expert.
    by_assignment: Range<usize>,
}

impl Places {
    pub(super) fn new(sizes: Sizes, rows: usize) -> Self {
        let assignments = rows * sizes.used;
        let hidden = assignments * sizes.hidden;
        Self {
            rows,
            gate: 0..hidden,
            up: hidden..2 * hidden,
            results: 2 * hidden..2 * hidden + assignments * sizes.width,
            by_row: 0..assignments,
            by_assignment: assignments..2 * assignments,
        }
    }
}

impl Experts {
    /// Groups the assignments by expert: a counting sort, in which rows stay in order.
    fn group(&self, step: &Step<'_>, places: &Places) {
        let Sizes { experts, used, .. } = self.sizes;
        // SAFETY: one member groups while the others leave pairs and groups alone; nobody writes the routes.
        let (route, groups, by_row, by_assignment) = unsafe {
            (
                step.buffer(self.route).rows(0..places.rows),
                step.scratch.groups.part_mut(0..experts),
                step.scratch.pairs.part_mut(places.by_row.clone()),
                step.scratch.pairs.part_mut(places.by_assignment.clone()),
            )
        };
        groups.fill([0, 0]);
        let routes = route.chunks_exact(2 * used);
        for expert in routes.clone().flat_map(|route| &route[..used]) {
            groups[*expert as usize][1] += 1;
        }
        let mut start = 0;
        for group in groups.iter_mut() {
            let count = group[1];
            *group = [start, start];
            start += count;
        }
        for (row, route) in routes.enumerate() {
            for (place, expert) in route[..used].iter().enumerate() {
                let end = &mut groups[*expert as usize][1];
                let assignment = (row * used + place) as u32;
                by_row[*end as usize] = RowPair { input: row as u32, output: assignment };
                by_assignment[*end as usize] = RowPair { input: assignment, output: assignment };
                *end += 1;
            }
        }
    }

    /// Multiplies every expert's matrix with its rows, this member's panels of each.
    fn multiply(
        &self,
        step: &Step<'_>,
        member: &Member<'_>,
        weight: &PackedWeight,
        values: &[f32],
        [pairs, results]: [&Range<usize>; 2],
    ) {
        let own = member.share(weight.panels());
        if own.is_empty() || pairs.is_empty() {
            return;
        }
        let input = input_of(weight, values, step.quantized(values));
        // SAFETY: pairs and groups were written before a barrier and stay; in the results this member
        // alone touches the columns of its panels.
        let (groups, pairs, mut output) = unsafe {
            let start = step.scratch.floats.part_pointer(results.clone());
            (
                step.scratch.groups.part(0..self.sizes.experts),
                step.scratch.pairs.part(pairs.clone()),
                OutputRows::from_raw(start, pairs.len(), weight.rows(), weight.rows(), false),
            )
        };
        for (expert, [start, end]) in groups.iter().enumerate() {
            let rows = Rows::Listed(&pairs[*start as usize..*end as usize]);
            if !rows.is_empty() {
                linear(step.isa, weight, expert, own.clone(), input, rows, &mut output);
            }
        }
    }

    /// Adds the results to the output, some columns of every row.
    fn add_results(&self, step: &Step<'_>, member: &Member<'_>, places: &Places) {
        let Sizes { used, width, .. } = self.sizes;
        let columns = share_of_vectors(member, width);
        for row in 0..places.rows {
            let first = places.results.start + row * used * width;
            // SAFETY: nobody writes the routes.
            let route = unsafe { step.buffer(self.route).row(row) };
            for (place, weight) in route[used..].iter().enumerate() {
                self.add_result(step, row, first + place * width, columns.clone(), *weight);
            }
        }
    }

    /// Adds some columns of the result that begins at `first` in scratch to a row of the output. The columns are this
    /// member's.
    pub(super) fn add_result(&self, step: &Step<'_>, row: usize, first: usize, columns: Range<usize>, weight: f32) {
        // SAFETY: these columns of the result were computed by this member or before a barrier, and these columns
        // of the output are this member's.
        let (result, output) = unsafe {
            (
                step.scratch.floats.part(first + columns.start..first + columns.end),
                step.buffer(self.output).columns_mut(row, columns),
            )
        };
        step.isa.run(AddWeighted { result, weight, output });
    }
}

/// `output += weight · result`.
struct AddWeighted<'a> {
    result: &'a [f32],
    weight: f32,
    output: &'a mut [f32],
}

impl Kernel for AddWeighted<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let weight = simd.splat(self.weight);
        for (result, output) in self.result.chunks(LANES).zip(self.output.chunks_mut(LANES)) {
            store(simd, simd.fma(weight, load(simd, result), load(simd, output)), output);
        }
    }
}
