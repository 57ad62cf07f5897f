//! The integer kernel: a panel of quantized weights times a few rows of quantized activations.

use std::ops::Range;

use super::PANEL_ROWS;
use super::activations::{INPUT_BLOCK, QuantizedBlock};
use super::codes::{COLUMN_GROUPS, Codes};
use super::formats::{Format, PackedBlock, Part, WithFormat};
use super::output::{OutputRows, Rows};
use super::packed::PackedWeight;
use super::scales::Scales;
use crate::cpu::simd::{Isa, Kernel, Simd};

/// Rows whose activations should stay in the second-level cache while all panels pass.
const ROWS_IN_CACHE: usize = 64;
/// How far ahead weights are fetched: the hardware does not see beyond a page.
const PREFETCH_BYTES: usize = 4096;

/// A loop over at most sixteen rows, unrolled: the compiler would keep the sums in memory otherwise.
macro_rules! for_each_row {
    ($row:ident in 0..$rows:ident $body:block) => {
        for_each_row!(@ $row $rows $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $row:ident $rows:ident $body:block $($index:literal)*) => {
        $(if $index < $rows {
            let $row: usize = $index;
            $body
        })*
    };
}

/// A product, as [`linear`](super::linear) got it.
pub(super) struct Job<'a, 'o> {
    pub(super) weight: &'a PackedWeight,
    pub(super) matrix: usize,
    pub(super) panels: Range<usize>,
    pub(super) blocks: &'a [QuantizedBlock],
    pub(super) rows: Rows<'a>,
    pub(super) output: &'a mut OutputRows<'o>,
}

/// Runs a product in the format of its weight.
pub(super) struct Multiply<'a, 'o> {
    pub(super) isa: Isa,
    pub(super) job: Job<'a, 'o>,
}

impl WithFormat for Multiply<'_, '_> {
    type Output = ();

    fn call<F: Format>(self) {
        self.isa.run(InFormat::<F> { job: self.job, format: std::marker::PhantomData });
    }
}

struct InFormat<'a, 'o, F> {
    job: Job<'a, 'o>,
    format: std::marker::PhantomData<F>,
}

impl<F: Format> Kernel for InFormat<'_, '_, F> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let count = self.job.rows.len();
        let mut first = 0;
        while first < count {
            let end = count.min(first + ROWS_IN_CACHE);
            for panel in self.job.panels.clone() {
                self.job.panel::<S, F>(s, panel, first..end);
            }
            first = end;
        }
    }
}

impl Job<'_, '_> {
    /// One panel times some rows, as many at once as there are registers for.
    #[inline(always)]
    fn panel<S: Simd, F: Format>(&mut self, s: S, panel: usize, rows: Range<usize>) {
        let blocks = self.weight.panel::<PackedBlock<F>>(self.matrix, panel);
        let mut row = rows.start;
        while S::REGISTERS >= 32 && F::Codes::LABORIOUS && row + 16 <= rows.end {
            self.tile::<S, F, 16>(s, blocks, panel, row);
            row += 16;
        }
        while S::REGISTERS >= 32 && row + 8 <= rows.end {
            self.tile::<S, F, 8>(s, blocks, panel, row);
            row += 8;
        }
        while S::REGISTERS >= 8 && row + 4 <= rows.end {
            self.tile::<S, F, 4>(s, blocks, panel, row);
            row += 4;
        }
        while S::REGISTERS >= 32 && row + 2 <= rows.end {
            self.tile::<S, F, 2>(s, blocks, panel, row);
            row += 2;
        }
        while row < rows.end {
            self.tile::<S, F, 1>(s, blocks, panel, row);
            row += 1;
        }
    }

    #[inline(always)]
    fn tile<S: Simd, F: Format, const ROWS: usize>(
        &mut self,
        s: S,
        weights: &[PackedBlock<F>],
        panel: usize,
        first: usize,
    ) {
        let row_blocks = self.weight.columns() / INPUT_BLOCK;
        let mut inputs: [&[QuantizedBlock]; ROWS] = [&[]; ROWS];
        for (i, input) in inputs.iter_mut().enumerate() {
            let start = self.rows.input(first + i) * row_blocks;
            *input = &self.blocks[start..start + row_blocks];
        }
        let sums = multiply::<S, F, ROWS>(s, weights, inputs);
        let (column, count) = (panel * PANEL_ROWS, self.weight.panel_rows(panel));
        for (i, sums) in sums.into_iter().enumerate() {
            let row = self.rows.output(first + i);
            self.output.put(s, row, column, count, sums);
        }
    }
}

/// Products of sixteen weight rows with `ROWS` rows of activations.
#[inline(always)]
fn multiply<S: Simd, F: Format, const ROWS: usize>(
    s: S,
    weights: &[PackedBlock<F>],
    inputs: [&[QuantizedBlock]; ROWS],
) -> [S::F; ROWS] {
    let mut sums = [s.zero(); ROWS];
    let mut column_block = 0;
    for block in weights {
        for part in block.parts.as_ref() {
            prefetch(s, part);
            let weights = Weights::load::<F>(s, &block.head, part);
            for_each_row!(row in 0..ROWS {
                sums[row] = weights.add::<F>(s, &inputs[row][column_block], sums[row]);
            });
            column_block += 1;
        }
    }
    sums
}

/// Asks for the part that will be needed some time later.
#[inline(always)]
fn prefetch<S: Simd, F: Format>(s: S, part: &Part<F>) {
    let ahead = std::ptr::from_ref(part).cast::<u8>().wrapping_add(PREFETCH_BYTES);
    for line in 0..size_of::<Part<F>>().div_ceil(64) {
        s.prefetch(ahead.wrapping_add(64 * line));
    }
}

/// 32 columns of sixteen weight rows in registers.
struct Weights<S: Simd> {
    codes: [S::I; COLUMN_GROUPS],
    scales: [S::F; 2],
    minimums: [S::F; 2],
}

impl<S: Simd> Weights<S> {
    #[inline(always)]
    fn load<F: Format>(s: S, head: &<F::Scales as Scales>::Head, part: &Part<F>) -> Self {
        Self {
            codes: F::Codes::load(s, &part.codes),
            scales: F::Scales::scales(s, head, &part.factors),
            minimums: F::Scales::minimums(s, head, &part.factors),
        }
    }

    /// Adds the products with one block of activations, in the order that defines the result.
    #[inline(always)]
    fn add<F: Format>(&self, s: S, input: &QuantizedBlock, sum: S::F) -> S::F {
        if F::Scales::HALVES {
            let sum = self.add_half::<F>(s, input, 0, sum);
            return self.add_half::<F>(s, input, 1, sum);
        }
        let dot = self.dot::<F>(s, input, 0, COLUMN_GROUPS, input.sums[0] + input.sums[1]);
        let scale = s.mul(self.scales[0], s.splat(input.scale));
        let sum = s.fma(scale, s.to_f32(dot), sum);
        if F::Scales::MINIMUM {
            return s.negative_fma(self.minimums[0], s.splat(input.scaled_sum), sum);
        }
        sum
    }

    #[inline(always)]
    fn add_half<F: Format>(&self, s: S, input: &QuantizedBlock, half: usize, sum: S::F) -> S::F {
        let groups = COLUMN_GROUPS / 2;
        let dot = self.dot::<F>(s, input, half * groups, groups, input.sums[half]);
        let scale = s.mul(self.scales[half], s.splat(input.scale));
        let sum = s.fma(scale, s.to_f32(dot), sum);
        if F::Scales::MINIMUM {
            let scaled_sum = input.scale * input.sums[half] as f32;
            return s.negative_fma(self.minimums[half], s.splat(scaled_sum), sum);
        }
        sum
    }

    /// The exact dot product over some groups of columns, whose activations sum to `input_sum`.
    #[inline(always)]
    fn dot<F: Format>(&self, s: S, input: &QuantizedBlock, first: usize, count: usize, input_sum: i32) -> S::I {
        let mut dot = s.splat_i32(-F::OFFSET * input_sum);
        for group in first..first + count {
            let values = s.splat_i32(i32::from_le_bytes(input.values[group].map(i8::cast_unsigned)));
            dot = if F::Codes::SMALL {
                s.dot_u7(dot, self.codes[group], values)
            } else {
                s.dot_u8(dot, self.codes[group], values)
            };
        }
        dot
    }
}
