//! Products of packed weights with rows of activations.
//!
//! A [`PackedWeight`] holds a matrix in panels of sixteen rows, one row per vector lane. A product
//! walks a panel's columns in order and adds into one accumulator per output, so that every output
//! is one fixed sequence of operations on its own row, whatever else is computed along with it:
//!
//! - quantized types: activations are quantized in blocks of 32 ([`quantize`]); for each block
//!   (or half a block, where the weights have a scale per sixteen values) in order,
//!   `sum = fma(weight scale · input scale, integer dot product, sum)`, then, for types with a
//!   minimum, `sum = fma(−minimum, input scale · Σ input integers, sum)`;
//! - float types: `sum = fma(weight, input, sum)` for each column in order.
//!
//! Threads share a product by taking ranges of panels.

mod activations;
mod codes;
mod floats;
mod formats;
mod memory;
mod output;
mod packed;
mod quantized;
mod scales;
#[cfg(test)]
mod tests;

use std::ops::Range;

use paceline_gguf::TensorType;

use super::simd::{Isa, LANES};

pub use activations::{INPUT_BLOCK, QuantizedBlock, quantize};
pub use output::{OutputRows, RowPair, Rows};
pub use packed::{PackedWeight, PanelsMut};

/// Rows of a panel.
pub const PANEL_ROWS: usize = LANES;

/// Rows of activations, `(rows, columns)`, one behind the other.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// For float weights.
    Float(&'a [f32]),
    /// For quantized weights: `columns / 32` blocks per row.
    Quantized(&'a [QuantizedBlock]),
}

/// Multiplies some panels of one matrix of `weight` with rows of `input` and writes (or adds) the
/// products to the panels' columns of `output`: weight row `r` makes column `r`.
///
/// # Panics
/// If a row, a panel or the matrix does not exist, or the input is of the wrong kind for the weight.
pub fn linear(
    isa: Isa,
    weight: &PackedWeight,
    matrix: usize,
    panels: Range<usize>,
    input: Input<'_>,
    rows: Rows<'_>,
    output: &mut OutputRows<'_>,
) {
    assert!(panels.end <= weight.panels(), "panels {panels:?} of {}", weight.panels());
    assert!(weight.rows() <= output.columns(), "{} columns of output", output.columns());
    if panels.is_empty() {
        return;
    }
    match (weight.kind(), input) {
        (TensorType::F32 | TensorType::F16 | TensorType::BF16, Input::Float(values)) => {
            rows.check(values.len(), weight.columns(), output.rows());
            let job = floats::Job { weight, matrix, panels, values, rows, output };
            floats::multiply(isa, job);
        }
        (kind, Input::Quantized(blocks)) if weight.needs_quantized_input() => {
            rows.check(blocks.len(), weight.columns() / INPUT_BLOCK, output.rows());
            let job = quantized::Job { weight, matrix, panels, blocks, rows, output };
            formats::with_format(kind, quantized::Multiply { isa, job });
        }
        (kind, _) => panic!("the input is not of the kind that {kind} weights need"),
    }
}
