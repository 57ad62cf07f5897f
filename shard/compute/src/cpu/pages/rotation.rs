//! The rotation of rows before they are rounded to blocks.
//!
//! A few values of a head are often much larger than the others, and a scale that fits them leaves few codes to the
//! rest. A Hadamard matrix mixes all values of a row: each result is the sum of all values with signs, over the square
//! root of their number, so that none stands out. It is symmetric and orthogonal: products of rotated queries with
//! rotated keys are those of the rows themselves, and rotating a sum of rotated values gives the sum of the values.

use crate::cpu::simd::{Kernel, LANES, Simd};

/// The most values that are rotated together.
pub(crate) const MOST: usize = 256;

/// How many values of a row are rotated together: the largest power of two that divides the row, but not too many.
pub(crate) const fn width(dim: usize) -> usize {
    let power = 1 << dim.trailing_zeros();
    if power < MOST { power } else { MOST }
}

/// Signs of the matrix of sixteen rows: −1 where the two indices share an odd number of bits.
const SIGNS: [[f32; LANES]; LANES] = {
    let mut signs = [[1.0; LANES]; LANES];
    let mut row = 0;
    while row < LANES {
        let mut column = 0;
        while column < LANES {
            if (row & column).count_ones() % 2 == 1 {
                signs[row][column] = -1.0;
            }
            column += 1;
        }
        row += 1;
    }
    signs
};

/// Multiplies every `width` consecutive values by the Hadamard matrix of that many rows.
pub(crate) struct Rotate<'a> {
    /// A whole number of widths.
    pub(crate) values: &'a mut [f32],
    /// A power of two from 16 to [`MOST`].
    pub(crate) width: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let factor = simd.splat(1.0 / (self.width as f32).sqrt());
        for values in self.values.chunks_exact_mut(self.width) {
            let (vectors, _) = values.as_chunks_mut::<LANES>();
            for vector in vectors.iter_mut() {
                let mut sums = simd.splat(vector[0]);
                for (value, signs) in vector.iter().zip(&SIGNS).skip(1) {
                    sums = simd.fma(simd.splat(*value), simd.load(signs), sums);
                }
                simd.store(simd.mul(sums, factor), vector);
            }
            let mut distance = 1;
            while distance < vectors.len() {
                for pairs in vectors.chunks_exact_mut(2 * distance) {
                    let (first, second) = pairs.split_at_mut(distance);
                    for (first, second) in first.iter_mut().zip(second) {
                        let (a, b) = (simd.load(first), simd.load(second));
                        simd.store(simd.add(a, b), first);
                        simd.store(simd.sub(a, b), second);
                    }
                }
                distance *= 2;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::simd::Isa;

    /// The definition, in double precision.
    fn reference(values: &[f32], width: usize) -> Vec<f64> {
        let sign = |row: usize, column: usize| if (row & column).count_ones() % 2 == 1 { -1.0 } else { 1.0 };
        let one = |values: &[f32], row: usize| {
            let sum: f64 = values.iter().enumerate().map(|(column, value)| sign(row, column) * f64::from(*value)).sum();
            sum / (width as f64).sqrt()
        };
        values.chunks(width).flat_map(|values| (0..width).map(move |row| one(values, row))).collect()
    }

    fn rotated(isa: Isa, values: &[f32], width: usize) -> Vec<f32> {
        let mut values = values.to_vec();
        isa.run(Rotate { values: &mut values, width });
        values
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn as_the_definition_and_its_own_inverse(power in 4u32..9, seed in 1u64.., blocks in 1usize..4) {
            let width = 1 << power;
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 40) as f32 / (1 << 23) as f32 - 1.0
            };
            let values: Vec<f32> = (0..blocks * width).map(|_| next()).collect();
            let expected = rotated(Isa::Scalar, &values, width);
            for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
                prop_assert_eq!(&rotated(isa, &values, width), &expected, "{}", isa);
            }
            for (found, exact) in expected.iter().zip(reference(&values, width)) {
                prop_assert!((f64::from(*found) - exact).abs() < 1e-5, "{found} is not {exact}");
            }
            for (found, given) in rotated(Isa::detect(), &expected, width).iter().zip(&values) {
                prop_assert!((found - given).abs() < 1e-5, "{given} became {found}");
            }
        }
    }

    #[test]
    fn the_largest_power_of_two_that_divides() {
        assert_eq!([32, 64, 96, 128, 192, 256, 320, 512, 576].map(width), [32, 64, 32, 128, 64, 256, 64, 256, 64]);
    }
}
