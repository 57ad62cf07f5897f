//! The causal depthwise convolution of gated-delta-net layers.

#![expect(unsafe_code, reason = "members borrow their own channels")]

use std::ops::Range;

use super::vectors::{load, store};
use super::{Operation, Step};
use crate::cpu::math;
use crate::cpu::pool::Member;
use crate::cpu::simd::{Kernel, LANES, Simd};
use crate::cpu::states::Recurrent;
use crate::device::{ChunkLog, ChunkRows};
use crate::program::{Buffer, State};
use crate::shapes::MAX_TAPS;

/// [`Op::Convolve`](crate::program::Op::Convolve).
pub(super) struct Convolve {
    input: Buffer,
    /// `[tap][channel]`.
    taps: Vec<f32>,
    state: State,
    output: Buffer,
}

impl Convolve {
    /// `weight` is `(channels, taps)`, with at most [`MAX_TAPS`] taps.
    pub(super) fn new(input: Buffer, weight: &[f32], taps: usize, state: State, output: Buffer) -> Self {
        let channels = weight.len() / taps;
        let transposed = (0..weight.len()).map(|index| weight[(index % channels) * taps + index / channels]);
        Self { input, taps: transposed.collect(), state, output }
    }
}

impl Operation for Convolve {
    fn run(&self, step: &Step<'_>, member: &Member<'_>) {
        let channels = super::elementwise::share_of_vectors(member, step.state(self.state).spec.channels);
        for chunk in step.inputs.chunks {
            let strip = self.strip(step, chunk, channels.clone());
            for row in 0..chunk.replayed_and_rows() {
                strip.convolve(row);
            }
            strip.remember();
        }
    }
}

impl Convolve {
    /// Some channels of a chunk, which no other member touches.
    pub(super) fn strip<'a>(
        &'a self,
        step: &'a Step<'a>,
        chunk: &'a ChunkRows<'a>,
        channels: Range<usize>,
    ) -> Strip<'a> {
        Strip { operation: self, step, memory: step.state(self.state), chunk, channels }
    }
}

/// Some channels of a chunk: one member's, so that no other touches their window.
pub(super) struct Strip<'a> {
    operation: &'a Convolve,
    step: &'a Step<'a>,
    memory: &'a Recurrent,
    chunk: &'a ChunkRows<'a>,
    channels: Range<usize>,
}

impl Strip<'_> {
    /// Input `index` of the sequence that starts with what is remembered and goes on with what is logged and then the
    /// chunk.
    fn input(&self, index: usize) -> &[f32] {
        let ChunkLog { place, before, .. } = self.chunk.log;
        let Some(index) = index.checked_sub(self.memory.spec.taps - 1) else {
            // SAFETY: these channels of the window are this member's, and it writes them only in `remember`, when it
            // reads another tap.
            return unsafe { self.memory.window(self.chunk.slot, index, self.channels.clone()) };
        };
        // SAFETY: these channels of the log are this member's, and it writes them only in `remember`, after its last
        // reading of it; nobody writes the input buffer.
        unsafe {
            match index.checked_sub(before) {
                None => self.memory.logged(place, self.chunk.position(index), self.channels.clone()),
                Some(row) => {
                    let row = self.chunk.first_row + row;
                    self.step.buffer(self.operation.input).columns(row, self.channels.clone())
                }
            }
        }
    }

    /// Row `row` of the chunk, counted from the first one that is replayed before it.
    pub(super) fn convolve(&self, row: usize) {
        let taps = self.memory.spec.taps;
        let mut inputs: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
        let mut weights: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
        let strips = self.operation.taps.chunks_exact(self.memory.spec.channels);
        for (tap, strip) in strips.enumerate() {
            inputs[tap] = self.input(row + tap);
            weights[tap] = &strip[self.channels.clone()];
        }
        let output = self.step.buffer(self.operation.output);
        // SAFETY: these channels of the row are this member's.
        let output = unsafe { output.columns_mut(self.step.row_of(self.chunk, row), self.channels.clone()) };
        self.step.isa.run(ConvolveRow { inputs: &inputs[..taps], weights: &weights[..taps], output });
    }

    /// Keeps the last inputs that are certain, in order of age: none is overwritten before it is read. Then logs those
    /// that are not. To be called once, after all rows.
    pub(super) fn remember(&self) {
        let certain = self.chunk.certain();
        if certain > 0 {
            for tap in 0..self.memory.spec.taps - 1 {
                let newer = self.input(certain + tap);
                // SAFETY: these channels of the window are this member's; `newer` is another tap, a row, or logged.
                let window = unsafe { self.memory.window(self.chunk.slot, tap, self.channels.clone()) };
                window.copy_from_slice(newer);
            }
        }
        for row in self.chunk.newly_uncertain() {
            let position = self.chunk.position(row);
            // SAFETY: these channels of the log are this member's; the input is a row of the chunk.
            let logged = unsafe { self.memory.logged(self.chunk.log.place, position, self.channels.clone()) };
            logged.copy_from_slice(self.input(self.memory.spec.taps - 1 + row));
        }
    }
}

/// One row of some channels.
struct ConvolveRow<'a> {
    /// Per tap.
    inputs: &'a [&'a [f32]],
    /// Per tap.
    weights: &'a [&'a [f32]],
    output: &'a mut [f32],
}

impl Kernel for ConvolveRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (vector, output) in self.output.chunks_mut(LANES).enumerate() {
            let channels = vector * LANES..vector * LANES + output.len();
            let mut sum = simd.zero();
            for (input, weight) in self.inputs.iter().zip(self.weights) {
                let input = load(simd, &input[channels.clone()]);
                sum = simd.fma(load(simd, &weight[channels.clone()]), input, sum);
            }
            store(simd, math::silu(simd, sum), output);
        }
    }
}
