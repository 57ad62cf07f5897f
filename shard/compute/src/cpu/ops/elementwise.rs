//! Operations in which every value depends on values at the same place only.

#![expect(unsafe_code, reason = "members borrow their own rows")]

use std::ops::Range;

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::program::{Buffer, Weight};

/// [`Op::SwiGlu`](crate::program::Op::SwiGlu).
pub(super) struct SwiGlu {
    pub(super) gate: Buffer,
    pub(super) up: Buffer,
}

impl Operation for SwiGlu {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let (gate, up) = (step.buffer(self.gate), step.buffer(self.up));
        let part = share_of_vectors(member, step.rows(self.gate) * gate.width);
        // SAFETY: parts of the gate are disjoint; nobody writes the other factor, another buffer.
        let (gate, up) = unsafe { (gate.values().part_mut(part.clone()), up.values().part(part)) };
        step.isa.run(SwiGluPart { gate, up });
    }
}

impl SwiGlu {
    /// Some columns of a row, which no other member touches.
    pub(super) fn columns(&self, step: &Step<'_>, row: usize, columns: Range<usize>) {
        // SAFETY: these columns are this member's.
        let (gate, up) = unsafe {
            (step.buffer(self.gate).columns_mut(row, columns.clone()), step.buffer(self.up).columns(row, columns))
        };
        step.isa.run(SwiGluPart { gate, up });
    }
}

/// A member's share of `count` values, in whole vectors but for the last.
pub(super) fn share_of_vectors(member: &Member<'_>, count: usize) -> Range<usize> {
    let vectors = member.share(count.div_ceil(LANES));
    (vectors.start * LANES).min(count)..(vectors.end * LANES).min(count)
}

/// `gate = silu(gate) ⊙ up`.
pub(super) struct SwiGluPart<'a> {
    pub(super) gate: &'a mut [f32],
    pub(super) up: &'a [f32],
}

impl Kernel for SwiGluPart<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (gate, up) in self.gate.chunks_mut(LANES).zip(self.up.chunks(LANES)) {
            let active = math::silu(simd, load(simd, gate));
            store(simd, simd.mul(active, load(simd, up)), gate);
        }
    }
}

/// A function of one value.
#[derive(Debug, Clone, Copy)]
pub(super) enum Function {
    /// [`Op::Gelu`](crate::program::Op::Gelu).
    Gelu,
    /// [`Op::Tanh`](crate::program::Op::Tanh).
    Tanh,
}

/// Replaces every value by a function of it.
pub(super) struct Pointwise {
    pub(super) buffer: Buffer,
    pub(super) function: Function,
}

impl Operation for Pointwise {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let buffer = step.buffer(self.buffer);
        let part = share_of_vectors(member, step.rows(self.buffer) * buffer.width);
        // SAFETY: parts of the buffer are disjoint.
        let values = unsafe { buffer.values().part_mut(part) };
        step.isa.run(PointwisePart { values, function: self.function });
    }
}

struct PointwisePart<'a> {
    values: &'a mut [f32],
    function: Function,
}

impl Kernel for PointwisePart<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for values in self.values.chunks_mut(LANES) {
            let x = load(simd, values);
            let result = match self.function {
                Function::Gelu => math::gelu(simd, x),
                Function::Tanh => math::tanh(simd, x),
            };
            store(simd, result, values);
        }
    }
}

/// [`Op::Join`](crate::program::Op::Join).
pub(super) struct Join {
    pub(super) inputs: [Buffer; 2],
    pub(super) output: Buffer,
}

impl Operation for Join {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let [first, second] = self.inputs.map(|input| step.buffer(input));
        for row in member.share(step.rows(self.output)) {
            // SAFETY: a row is one member's; nobody writes the inputs, other buffers.
            let (output, first, second) = unsafe { (step.row_mut(self.output, row), first.row(row), second.row(row)) };
            let (left, right) = output.split_at_mut(first.len());
            left.copy_from_slice(first);
            right.copy_from_slice(second);
        }
    }
}

/// [`Op::Split`](crate::program::Op::Split).
pub(super) struct Split {
    pub(super) input: Buffer,
    pub(super) outputs: [Buffer; 2],
}

impl Operation for Split {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let [first, second] = self.outputs;
        for row in member.share(step.rows(self.input)) {
            // SAFETY: a row is one member's; nobody writes the input, another buffer.
            let (input, first, second) =
                unsafe { (step.buffer(self.input).row(row), step.row_mut(first, row), step.row_mut(second, row)) };
            let (left, right) = input.split_at(first.len());
            first.copy_from_slice(left);
            second.copy_from_slice(right);
        }
    }
}

/// [`Op::AddGated`](crate::program::Op::AddGated).
pub(super) struct AddGated {
    pub(super) input: Buffer,
    pub(super) gate: Buffer,
    pub(super) output: Buffer,
}

impl Operation for AddGated {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.rows(self.output)) {
            self.columns(step, row, 0..step.buffer(self.output).width);
        }
    }
}

impl AddGated {
    /// Some columns of a row, which no other member touches.
    pub(super) fn columns(&self, step: &Step<'_>, row: usize, columns: Range<usize>) {
        // SAFETY: these columns of input and output are this member's; nobody writes the gate.
        let (input, gate, output) = unsafe {
            (
                step.buffer(self.input).columns(row, columns.clone()),
                step.buffer(self.gate).row(row)[0],
                step.buffer(self.output).columns_mut(row, columns),
            )
        };
        step.isa.run(AddGatedRow { input, gate, output });
    }
}

struct AddGatedRow<'a> {
    input: &'a [f32],
    gate: f32,
    output: &'a mut [f32],
}

impl Kernel for AddGatedRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let gate = math::sigmoid(simd, simd.splat(self.gate));
        for (input, output) in self.input.chunks(LANES).zip(self.output.chunks_mut(LANES)) {
            let sum = simd.fma(gate, load(simd, input), load(simd, output));
            store(simd, sum, output);
        }
    }
}

/// [`Op::AddBias`](crate::program::Op::AddBias).
pub(super) struct AddBias {
    pub(super) buffer: Buffer,
    pub(super) bias: Weight,
}

impl Operation for AddBias {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.rows(self.buffer)) {
            // SAFETY: a row is one member's.
            let values = unsafe { step.row_mut(self.buffer, row) };
            for (value, bias) in values.iter_mut().zip(step.vector(self.bias)) {
                *value += bias;
            }
        }
    }
}

/// [`Op::Gather`](crate::program::Op::Gather).
pub(super) struct Gather {
    pub(super) input: Buffer,
    pub(super) output: Buffer,
}

impl Operation for Gather {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        for row in member.share(step.inputs.wanted.len()) {
            let from = step.inputs.wanted[row] as usize;
            // SAFETY: a row of the output is one member's; nobody writes the input, another buffer.
            let (input, output) = unsafe { (step.buffer(self.input).row(from), step.row_mut(self.output, row)) };
            output.copy_from_slice(input);
        }
    }
}
