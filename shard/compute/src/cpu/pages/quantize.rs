//! Rounding of 32 values to the codes of a block.
//!
//! Scales are rounded to half precision first, and codes are the nearest for the rounded scale. The scale of values of
//! which one is not finite is NaN, so that whatever is computed from them is NaN too. Values too large for half
//! precision have an infinite scale, those too small for it are zero.

use half::f16;

use super::blocks::BLOCK;
use crate::blocks::NONLINEAR_INTEGERS;
use crate::cpu::simd::{Kernel, LANES, Simd};

/// The largest code of 8 bits; −128 is not used.
const LARGEST: f32 = 127.0;

/// The integer that is farthest from zero among those of four bits.
const FARTHEST: f32 = -8.0;

/// The largest code of four bits.
const LAST_CODE: f32 = 15.0;

/// Rounds 32 values to `scale · code`: the scale is the largest magnitude over 127, codes are nearest integers,
/// halves to even.
pub(crate) struct Quantize<'a> {
    pub(crate) values: &'a [f32; BLOCK],
    /// Rounds the scale to half precision first. Values too large for it have an infinite scale, and those too
    /// small are zero.
    pub(crate) scale_in_half: bool,
}

impl Kernel for Quantize<'_> {
    /// Codes of −127 to 127, and the scale.
    type Output = ([i8; BLOCK], f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let (halves, _) = self.values.as_chunks();
        let halves = [s.load(&halves[0]), s.load(&halves[1])];
        let largest = s.reduce_max(s.max(s.abs(halves[0]), s.abs(halves[1])));
        // Zero, or NaN if any value is not finite.
        let poison = s.reduce_sum(s.add(s.mul(halves[0], s.zero()), s.mul(halves[1], s.zero())));
        let exact = largest / LARGEST + poison;
        let scale = if self.scale_in_half { f16::from_f32(exact).to_f32() } else { exact };
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        let mut codes = [[0; LANES]; 2];
        for (codes, values) in codes.iter_mut().zip(halves) {
            let scaled = s.mul(values, s.splat(inverse));
            let limited = s.max(s.splat(-LARGEST), s.min(s.splat(LARGEST), scaled));
            s.store_i8(s.to_i32(limited), codes);
        }
        let mut all = [0; BLOCK];
        all.copy_from_slice(codes.as_flattened());
        (all, scale)
    }
}

/// Rounds 32 values to `scale · (code − 8)`, where the value of the largest magnitude is −8 times the scale, whatever
/// its sign (of two such values the negative one).
pub(super) struct QuantizeSymmetric<'a> {
    pub(super) values: &'a [f32; BLOCK],
}

impl Kernel for QuantizeSymmetric<'_> {
    /// Codes of 0 to 15, and the scale.
    type Output = ([u8; BLOCK], f16);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let halves = halves(s, self.values);
        let Range { lowest, highest, poison } = Range::of(s, halves);
        let scale = f16::from_f32(farthest(lowest, highest) / FARTHEST + poison);
        let inverse = inverse(scale.to_f32());
        let mut codes = [0; BLOCK];
        let (places, _) = codes.as_chunks_mut::<LANES>();
        for (codes, values) in places.iter_mut().zip(halves) {
            let scaled = s.add(s.mul(values, s.splat(inverse)), s.splat(-FARTHEST));
            store_codes(s, scaled, codes);
        }
        (codes, scale)
    }
}

/// Rounds 32 values to `scale · code + minimum`, from the smallest to the largest of them.
pub(super) struct QuantizeSpan<'a> {
    pub(super) values: &'a [f32; BLOCK],
}

impl Kernel for QuantizeSpan<'_> {
    /// Codes of 0 to 15, the scale and the minimum.
    type Output = ([u8; BLOCK], f16, f16);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let halves = halves(s, self.values);
        let Range { lowest, highest, poison } = Range::of(s, halves);
        let minimum = f16::from_f32(lowest);
        let scale = f16::from_f32((highest - lowest) / LAST_CODE + poison);
        let inverse = inverse(scale.to_f32());
        let mut codes = [0; BLOCK];
        let (places, _) = codes.as_chunks_mut::<LANES>();
        for (codes, values) in places.iter_mut().zip(halves) {
            let above = s.sub(values, s.splat(minimum.to_f32()));
            store_codes(s, s.mul(above, s.splat(inverse)), codes);
        }
        (codes, scale, minimum)
    }
}

/// Rounds 32 values to `scale · NONLINEAR_INTEGERS[code]`. The value of the largest magnitude is made the first of
/// the integers, and then the scale is fitted to the codes by least squares, large values counting more.
pub(super) struct QuantizeNonlinear<'a> {
    pub(super) values: &'a [f32; BLOCK],
}

impl Kernel for QuantizeNonlinear<'_> {
    /// Codes of 0 to 15, and the scale.
    type Output = ([u8; BLOCK], f16);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Output {
        let halves = halves(s, self.values);
        let Range { lowest, highest, poison } = Range::of(s, halves);
        let rough = farthest(lowest, highest) / f32::from(NONLINEAR_INTEGERS[0]);
        let (mut products, mut squares) = (s.zero(), s.zero());
        for values in halves {
            let scaled = s.mul(values, s.splat(inverse(rough)));
            let (integers, _) = nearest(s, scaled);
            let weighted = s.mul(s.mul(scaled, scaled), integers);
            products = s.fma(weighted, scaled, products);
            squares = s.fma(weighted, integers, squares);
        }
        let (products, squares) = (s.reduce_sum(products), s.reduce_sum(squares));
        let fitted = if squares > 0.0 { rough * (products / squares) } else { 0.0 };
        let scale = f16::from_f32(fitted + poison);
        let inverse = inverse(scale.to_f32());
        let mut codes = [0; BLOCK];
        let (places, _) = codes.as_chunks_mut::<LANES>();
        for (codes, values) in places.iter_mut().zip(halves) {
            let (_, nearest) = nearest(s, s.mul(values, s.splat(inverse)));
            store_codes(s, nearest, codes);
        }
        (codes, scale)
    }
}

/// The smallest and largest of 32 values.
struct Range {
    lowest: f32,
    highest: f32,
    /// Zero, or NaN if any value is not finite.
    poison: f32,
}

impl Range {
    #[inline(always)]
    fn of<S: Simd>(s: S, halves: [S::F; 2]) -> Self {
        let highest = s.reduce_max(s.max(halves[0], halves[1]));
        let lowest = -s.reduce_max(s.max(s.neg(halves[0]), s.neg(halves[1])));
        let poison = s.reduce_sum(s.add(s.mul(halves[0], s.zero()), s.mul(halves[1], s.zero())));
        Self { lowest, highest, poison }
    }
}

#[inline(always)]
fn halves<S: Simd>(s: S, values: &[f32; BLOCK]) -> [S::F; 2] {
    let (halves, _) = values.as_chunks();
    [s.load(&halves[0]), s.load(&halves[1])]
}

/// The one of two values that is farther from zero, or the first.
#[inline(always)]
fn farthest(lowest: f32, highest: f32) -> f32 {
    if highest > -lowest { highest } else { lowest }
}

/// One over a scale; 0 where there is none, and for NaN.
#[inline(always)]
fn inverse(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

/// The nearest codes of four bits.
#[inline(always)]
fn store_codes<S: Simd>(s: S, x: S::F, codes: &mut [u8; LANES]) {
    let limited = s.max(s.zero(), s.min(s.splat(LAST_CODE), x));
    let mut signed = [0; LANES];
    // What is no number becomes some code; the scale is NaN then.
    s.store_i8(s.and(s.to_i32(limited), s.splat_i32(0x0f)), &mut signed);
    *codes = signed.map(i8::cast_unsigned);
}

/// The nearest of the integers that codes of `iq4_nl` stand for (of two the larger), and their codes.
#[inline(always)]
fn nearest<S: Simd>(s: S, x: S::F) -> (S::F, S::F) {
    let (mut integers, mut codes) = (s.splat(f32::from(NONLINEAR_INTEGERS[0])), s.zero());
    for pair in NONLINEAR_INTEGERS.windows(2) {
        let (lower, upper) = (f32::from(pair[0]), f32::from(pair[1]));
        let passed = s.le(s.splat(f32::midpoint(lower, upper)), x);
        integers = s.select(passed, s.splat(upper), integers);
        codes = s.select(passed, s.add(codes, s.splat(1.0)), codes);
    }
    (integers, codes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::simd::Isa;

    fn quantized(values: &[f32; BLOCK], scale_in_half: bool) -> ([i8; BLOCK], f32) {
        let expected = Isa::Scalar.run(Quantize { values, scale_in_half });
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let (codes, scale) = isa.run(Quantize { values, scale_in_half });
            assert_eq!(codes, expected.0, "{isa}");
            assert!(scale.to_bits() == expected.1.to_bits() || scale.is_nan() && expected.1.is_nan(), "{isa}");
        }
        expected
    }

    proptest! {
        #[test]
        fn codes_are_within_half_a_step(values in prop::array::uniform32(-3f32..3.0), power in -20i32..15, half: bool) {
            let values = values.map(|value| value * 2f32.powi(power));
            let (codes, scale) = quantized(&values, half);
            for (value, code) in values.iter().zip(codes) {
                // Half a step, and what the last code may fall short of by the rounding of the scale.
                let error = (value - f32::from(code) * scale).abs();
                let lost = if half { 127.0 * (scale / 2048.0 + 3e-8) } else { 0.0 };
                prop_assert!(error <= scale * 0.50001 + lost, "{value} became {code} times {scale}");
            }
        }

        #[test]
        fn any_bits_give_the_same_everywhere(bits in prop::array::uniform32(any::<u32>()), half: bool) {
            let values = bits.map(f32::from_bits);
            let (_, scale) = quantized(&values, half);
            prop_assert!(values.iter().all(|value| value.is_finite()) || scale.is_nan());
        }
    }

    #[test]
    fn the_ends_of_the_range() {
        assert_eq!(quantized(&[0.0; BLOCK], true), ([0; BLOCK], 0.0));
        assert_eq!(quantized(&[1e-9; BLOCK], true), ([0; BLOCK], 0.0));
        assert_eq!(quantized(&[-127.0; BLOCK], true), ([-127; BLOCK], 1.0));
        assert_eq!(quantized(&[1e9; BLOCK], true), ([0; BLOCK], f32::INFINITY));
    }

    /// Four bits, as plain code reads them: the codes, and what they stand for.
    fn in_four_bits(values: &[f32; BLOCK]) -> [([u8; BLOCK], f32, [f32; BLOCK]); 3] {
        let run = |isa: Isa| {
            let (symmetric, span) = (isa.run(QuantizeSymmetric { values }), isa.run(QuantizeSpan { values }));
            (symmetric, span, isa.run(QuantizeNonlinear { values }))
        };
        let ((a, s), (b, t, m), (c, u)) = run(Isa::Scalar);
        let bits = |float: f16| if float.is_nan() { f16::NAN.to_bits() } else { float.to_bits() };
        let expected = [s, t, m, u].map(bits);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let ((codes, scale), (span_codes, step, least), (nonlinear_codes, nonlinear)) = run(isa);
            assert_eq!([codes, span_codes, nonlinear_codes], [a, b, c], "{isa}");
            assert_eq!([scale, step, least, nonlinear].map(bits), expected, "{isa}");
        }
        let [s, t, m, u] = [s, t, m, u].map(f16::to_f32);
        [
            (a, s, a.map(|code| s * (f32::from(code) - 8.0))),
            (b, t, b.map(|code| t * f32::from(code) + m)),
            (c, u, c.map(|code| u * f32::from(NONLINEAR_INTEGERS[usize::from(code)]))),
        ]
    }

    proptest! {
        #[test]
        fn four_bits_are_within_half_a_step(values in prop::array::uniform32(-3f32..3.0), power in -10i32..12) {
            let values = values.map(|value| value * 2f32.powi(power));
            let largest = values.iter().fold(0f32, |most, value| most.max(value.abs()));
            let [symmetric, span, nonlinear] = in_four_bits(&values);
            for (at, value) in values.into_iter().enumerate() {
                // The value of the largest magnitude but of the other sign is a whole step off the last code; what
                // lies beyond the rounded ends is lost as well.
                let lost = largest / 500.0 + 1e-6;
                prop_assert!((value - symmetric.2[at]).abs() <= symmetric.1.abs() * 1.0001 + lost);
                if value / symmetric.1 <= 7.0 {
                    prop_assert!((value - symmetric.2[at]).abs() <= symmetric.1.abs() * 0.5001 + lost);
                }
                prop_assert!((value - span.2[at]).abs() <= span.1 * 0.5001 + lost);
                // The nearest that there is.
                let error = |integer: i8| (value - nonlinear.1 * f32::from(integer)).abs();
                let least = NONLINEAR_INTEGERS.map(error).into_iter().fold(f32::INFINITY, f32::min);
                prop_assert!((value - nonlinear.2[at]).abs() <= least * 1.0001 + 1e-6);
            }
            // Fitted, the scale does not stray far from the one that keeps the largest.
            prop_assert!(nonlinear.1.abs() <= largest / 105.0 && nonlinear.1.abs() >= largest / 145.0);
        }

        #[test]
        fn any_bits_give_the_same_four_bits_everywhere(bits in prop::array::uniform32(any::<u32>())) {
            let values = bits.map(f32::from_bits);
            let finite = values.iter().all(|value| value.is_finite());
            for (codes, scale, _) in in_four_bits(&values) {
                prop_assert!(finite || scale.is_nan());
                prop_assert!(codes.iter().all(|code| *code < 16));
            }
        }
    }

    #[test]
    fn the_ends_of_four_bits() {
        for (_, scale, values) in in_four_bits(&[0.0; BLOCK]) {
            assert_eq!((scale, values), (0.0, [0.0; BLOCK]));
        }
        let mut ramp = [0.0; BLOCK];
        for (at, value) in ramp.iter_mut().enumerate() {
            *value = (at % 16) as f32 - 8.0;
        }
        let [symmetric, span, _] = in_four_bits(&ramp);
        assert_eq!((symmetric.1, symmetric.2), (1.0, ramp));
        assert_eq!((span.1, span.2), (1.0, ramp));
        let table = std::array::from_fn(|at| f32::from(NONLINEAR_INTEGERS[at % 16]));
        assert_eq!(in_four_bits(&table)[2].2, table);
        // The largest magnitude is kept exactly, whatever its sign.
        assert_eq!(in_four_bits(&ramp.map(|value| -value))[0].2, ramp.map(|value| -value));
        for (_, _, values) in in_four_bits(&[1e9; BLOCK]) {
            assert!(values.iter().all(|value| !value.is_finite()), "too large for half precision");
        }
    }
}
