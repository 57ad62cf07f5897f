//! Layouts of the tensor types of a model file, read plainly.
//!
//! Every quantized type is the same thing in another packing: unsigned codes that stand for small
//! integers ([`integer`]), a scale and perhaps a minimum, and often a factor on each for every
//! sixteen values. [`Block::read`] takes a block apart into these; nothing is rounded on the way.
//! The kernels pack weights from it, and [`dequantize_row`] is the reference that they are tested
//! against.

mod floats;
mod k_quants;
mod legacy;
mod lookup;
#[cfg(test)]
mod tests;

use half::f16;
use paceline_gguf::TensorType;

pub use lookup::{MXFP4_INTEGERS, NONLINEAR_INTEGERS};

/// Most values of a block.
pub const BLOCK_VALUES: usize = 256;
/// Values that share their factors.
pub const GROUP_VALUES: usize = 16;
/// Most groups of a block.
pub const GROUPS: usize = BLOCK_VALUES / GROUP_VALUES;

/// A block of a quantized type, taken apart. Value `i` is
/// `scale · scale_factors[i / 16] · integer(kind, codes[i]) − minimum · minimum_factors[i / 16]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Block {
    /// One code per value; those behind the type's block length are zero.
    pub codes: [u8; BLOCK_VALUES],
    /// Scale of the block: an `f16` of the file, or a power of two.
    pub scale: f32,
    /// Minimum of the block, an `f16` of the file; zero for types without.
    pub minimum: f32,
    /// Integer factors on the scale.
    pub scale_factors: [i8; GROUPS],
    /// Integer factors on the minimum.
    pub minimum_factors: [u8; GROUPS],
}

impl Block {
    /// Reads one block of a quantized type.
    ///
    /// # Panics
    /// If `bytes` is not one block, or `kind` is a float type.
    pub fn read(kind: TensorType, bytes: &[u8]) -> Block {
        assert_eq!(bytes.len(), kind.block_bytes(), "bytes of a {kind} block");
        match kind {
            TensorType::Q4_0 => legacy::q4_0(bytes),
            TensorType::Q4_1 => legacy::q4_1(bytes),
            TensorType::Q5_0 => legacy::q5_0(bytes),
            TensorType::Q5_1 => legacy::q5_1(bytes),
            TensorType::Q8_0 => legacy::q8_0(bytes),
            TensorType::Q2K => k_quants::q2_k(bytes),
            TensorType::Q3K => k_quants::q3_k(bytes),
            TensorType::Q4K => k_quants::q4_k(bytes),
            TensorType::Q5K => k_quants::q5_k(bytes),
            TensorType::Q6K => k_quants::q6_k(bytes),
            TensorType::Iq4Nl => lookup::iq4_nl(bytes),
            TensorType::Iq4Xs => lookup::iq4_xs(bytes),
            TensorType::Mxfp4 => lookup::mxfp4(bytes),
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                panic!("{kind} has no codes")
            }
        }
    }

    fn with_scale(scale: f32) -> Block {
        Block {
            codes: [0; BLOCK_VALUES],
            scale,
            minimum: 0.0,
            scale_factors: [1; GROUPS],
            minimum_factors: [1; GROUPS],
        }
    }
}

/// Whether values of the type are codes with scales.
pub const fn is_quantized(kind: TensorType) -> bool {
    !matches!(kind, TensorType::F32 | TensorType::F16 | TensorType::BF16)
}

/// The integer that a code of a quantized type stands for.
pub fn integer(kind: TensorType, code: u8) -> i32 {
    match kind {
        TensorType::Iq4Nl | TensorType::Iq4Xs => i32::from(NONLINEAR_INTEGERS[usize::from(code)]),
        TensorType::Mxfp4 => i32::from(MXFP4_INTEGERS[usize::from(code)]),
        _ => i32::from(code) - code_offset(kind),
    }
}

/// What is subtracted from the codes of the types that have no table.
const fn code_offset(kind: TensorType) -> i32 {
    match kind {
        TensorType::Q3K => 4,
        TensorType::Q4_0 => 8,
        TensorType::Q5_0 => 16,
        TensorType::Q6K => 32,
        TensorType::Q8_0 => 128,
        _ => 0,
    }
}

/// Converts whole blocks of a row, or of several rows that follow one another, to `f32`.
///
/// # Panics
/// If `values` is not a whole number of blocks, or `bytes` has another number of blocks.
pub fn dequantize_row(kind: TensorType, bytes: &[u8], values: &mut [f32]) {
    assert_eq!(values.len() % kind.block_len(), 0, "values in whole {kind} blocks");
    assert_eq!(bytes.len(), kind.bytes_for(values.len()), "bytes of {kind} values");
    match kind {
        TensorType::F32 => floats::from_f32(bytes, values),
        TensorType::F16 => floats::from_f16(bytes, values),
        TensorType::BF16 => floats::from_bf16(bytes, values),
        _ => dequantize_blocks(kind, bytes, values),
    }
}

fn dequantize_blocks(kind: TensorType, bytes: &[u8], values: &mut [f32]) {
    let blocks = bytes.chunks_exact(kind.block_bytes());
    for (bytes, values) in blocks.zip(values.chunks_exact_mut(kind.block_len())) {
        let block = Block::read(kind, bytes);
        for (i, value) in values.iter_mut().enumerate() {
            let group = i / GROUP_VALUES;
            let scale = block.scale * f32::from(block.scale_factors[group]);
            let minimum = block.minimum * f32::from(block.minimum_factors[group]);
            *value = scale * integer(kind, block.codes[i]) as f32 - minimum;
        }
    }
}

/// The `f16` that begins at `offset`.
fn f16_at(bytes: &[u8], offset: usize) -> f32 {
    f16::from_le_bytes([bytes[offset], bytes[offset + 1]]).to_f32()
}
