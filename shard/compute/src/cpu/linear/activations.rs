//! Activations in 8-bit blocks, as the integer kernels take them.

use crate::cpu::simd::{Isa, Kernel, LANES, Simd};

/// Activations that share a scale.
pub const INPUT_BLOCK: usize = 2 * LANES;

/// 32 activations, each `scale · integer` with integers of −127 to 127.
///
/// A block with a NaN or an infinity has the scale NaN, and so makes every product NaN.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct QuantizedBlock {
    pub(super) values: [[i8; 4]; INPUT_BLOCK / 4],
    pub(super) scale: f32,
    /// `scale` times the sum of all values.
    pub(super) scaled_sum: f32,
    /// Sums of the first and the last sixteen values.
    pub(super) sums: [i32; 2],
}

/// Quantizes rows whose length is a multiple of 32: the scale is the largest magnitude over 127, and
/// values are rounded to the nearest integer, halves to even.
///
/// # Panics
/// If `values` does not fill `blocks` exactly.
pub fn quantize(isa: Isa, values: &[f32], blocks: &mut [QuantizedBlock]) {
    let (values, rest) = values.as_chunks();
    assert!(rest.is_empty(), "activations come in blocks of {INPUT_BLOCK}");
    assert_eq!(values.len(), blocks.len(), "blocks of activations");
    isa.run(Quantize { values, blocks });
}

struct Quantize<'a> {
    values: &'a [[f32; INPUT_BLOCK]],
    blocks: &'a mut [QuantizedBlock],
}

impl Kernel for Quantize<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (values, block) in self.values.iter().zip(self.blocks) {
            quantize_block(s, values, block);
        }
    }
}

#[inline(always)]
fn quantize_block<S: Simd>(s: S, values: &[f32; INPUT_BLOCK], block: &mut QuantizedBlock) {
    let (halves, _) = values.as_chunks();
    let (first, last) = (s.load(&halves[0]), s.load(&halves[1]));
    let largest = s.reduce_max(s.max(s.abs(first), s.abs(last)));
    // Zero, or NaN if any value is not finite.
    let poison = s.reduce_sum(s.add(s.mul(first, s.zero()), s.mul(last, s.zero())));
    let inverse = if largest > 0.0 { s.splat(127.0 / largest) } else { s.zero() };

    let integers = [s.to_i32(s.mul(first, inverse)), s.to_i32(s.mul(last, inverse))];
    let mut bytes = [[0; LANES]; 2];
    for half in 0..2 {
        s.store_i8(integers[half], &mut bytes[half]);
        block.sums[half] = s.reduce_sum_i32(s.load_i8(&bytes[half]));
    }
    for (group, values) in block.values.iter_mut().zip(bytes.as_flattened().as_chunks().0) {
        *group = *values;
    }
    block.scale = largest / 127.0 + poison;
    block.scaled_sum = block.scale * (block.sums[0] + block.sums[1]) as f32;
}
