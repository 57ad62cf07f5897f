//! The kernel of float weights: panels times rows of `f32` activations.

use std::marker::PhantomData;
use std::ops::Range;

use half::{bf16, f16};
use paceline_gguf::TensorType;

use super::PANEL_ROWS;
use super::memory::Plain;
use super::output::{OutputRows, Rows};
use super::packed::PackedWeight;
use crate::cpu::simd::{Isa, Kernel, Simd};

/// Panels that are multiplied at once, so that their additions do not wait for one another.
const PANELS: usize = 4;
/// Rows that share the loads of the weights.
const ROWS: usize = 4;

/// A product, as [`linear`](super::linear) got it.
pub(super) struct Job<'a, 'o> {
    pub(super) weight: &'a PackedWeight,
    pub(super) matrix: usize,
    pub(super) panels: Range<usize>,
    pub(super) values: &'a [f32],
    pub(super) rows: Rows<'a>,
    pub(super) output: &'a mut OutputRows<'o>,
}

/// Runs a product in the type of its weight.
///
/// # Panics
/// If the weight is quantized.
pub(super) fn multiply(isa: Isa, job: Job<'_, '_>) {
    match job.weight.kind() {
        TensorType::F32 => isa.run(OfType::<f32> { job, element: PhantomData }),
        TensorType::F16 => isa.run(OfType::<f16> { job, element: PhantomData }),
        TensorType::BF16 => isa.run(OfType::<bf16> { job, element: PhantomData }),
        kind => panic!("{kind} is not a float type"),
    }
}

/// A float type of weights.
trait Element: Plain {
    fn load<S: Simd>(s: S, from: &[Self; PANEL_ROWS]) -> S::F;
}

impl Element for f32 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f32; PANEL_ROWS]) -> S::F {
        s.load(from)
    }
}

impl Element for f16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[f16; PANEL_ROWS]) -> S::F {
        s.load_f16(from)
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn load<S: Simd>(s: S, from: &[bf16; PANEL_ROWS]) -> S::F {
        s.load_bf16(from)
    }
}

struct OfType<'a, 'o, T> {
    job: Job<'a, 'o>,
    element: PhantomData<T>,
}

impl<T: Element> Kernel for OfType<'_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let mut panel = self.job.panels.start;
        while panel + PANELS <= self.job.panels.end {
            self.job.all_rows::<S, T, PANELS>(s, panel);
            panel += PANELS;
        }
        for panel in panel..self.job.panels.end {
            self.job.all_rows::<S, T, 1>(s, panel);
        }
    }
}

impl Job<'_, '_> {
    #[inline(always)]
    fn all_rows<S: Simd, T: Element, const PANELS: usize>(&mut self, s: S, panel: usize) {
        let mut row = 0;
        while row + ROWS <= self.rows.len() {
            self.tile::<S, T, PANELS, ROWS>(s, panel, row);
            row += ROWS;
        }
        for row in row..self.rows.len() {
            self.tile::<S, T, PANELS, 1>(s, panel, row);
        }
    }

    #[inline(always)]
    fn tile<S: Simd, T: Element, const PANELS: usize, const ROWS: usize>(
        &mut self,
        s: S,
        first_panel: usize,
        first_row: usize,
    ) {
        let columns = self.weight.columns();
        let mut weights: [&[[T; PANEL_ROWS]]; PANELS] = [&[]; PANELS];
        for (i, weights) in weights.iter_mut().enumerate() {
            *weights = &self.weight.panel(self.matrix, first_panel + i)[..columns];
        }
        let mut inputs: [&[f32]; ROWS] = [&[]; ROWS];
        for (i, input) in inputs.iter_mut().enumerate() {
            let start = self.rows.input(first_row + i) * columns;
            *input = &self.values[start..start + columns];
        }
        let sums = products::<S, T, PANELS, ROWS>(s, columns, weights, inputs);
        for (i, sums) in sums.into_iter().enumerate() {
            let panel = first_panel + i;
            let count = self.weight.panel_rows(panel);
            for (j, sums) in sums.into_iter().enumerate() {
                let row = self.rows.output(first_row + j);
                self.output.put(s, row, panel * PANEL_ROWS, count, sums);
            }
        }
    }
}

#[inline(always)]
fn products<S: Simd, T: Element, const PANELS: usize, const ROWS: usize>(
    s: S,
    columns: usize,
    weights: [&[[T; PANEL_ROWS]]; PANELS],
    inputs: [&[f32]; ROWS],
) -> [[S::F; ROWS]; PANELS] {
    let mut sums = [[s.zero(); ROWS]; PANELS];
    for column in 0..columns {
        for (sums, weights) in sums.iter_mut().zip(&weights) {
            let weight = T::load(s, &weights[column]);
            for (sum, input) in sums.iter_mut().zip(&inputs) {
                *sum = s.fma(weight, s.splat(input[column]), *sum);
            }
        }
    }
    sums
}
