//! Elementary functions over vectors, of the same bits on every instruction set.

use super::simd::Simd;

/// Below this [`exp`] is zero: the result would come close to the smallest normal number.
const EXP_ZERO_BELOW: f32 = -86.6;
/// From here on [`exp`] is infinite.
const EXP_INFINITE_FROM: f32 = 89.0;

/// `ln 2` in two parts, the first with few enough bits that multiples of it are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// `exp(r) ≈ 1 + r + r² · (c0 + c1 r + …)` for `|r| ≤ ln 2 / 2`, to 2⁻²⁸ of the value.
const EXP_COEFFICIENTS: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_454];

/// Exponential to two units in the last place; zero below −86.6 (where exact results are under
/// 2.5e-38), infinity above the largest float, NaN for NaN.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // NaN passes both, as the operations give their second operand then.
    let capped = s.min(s.splat(EXP_INFINITE_FROM), x);
    let clamped = s.max(s.splat(EXP_ZERO_BELOW), capped);

    let power = s.round(s.mul(clamped, s.splat(std::f32::consts::LOG2_E)));
    let upper = s.negative_fma(power, s.splat(LN_2_HIGH), clamped);
    let rest = s.negative_fma(power, s.splat(LN_2_LOW), upper);

    let mut series = s.splat(EXP_COEFFICIENTS[4]);
    for coefficient in [3, 2, 1, 0] {
        series = s.fma(series, rest, s.splat(EXP_COEFFICIENTS[coefficient]));
    }
    let linear = s.add(rest, s.splat(1.0));
    let mantissa = s.fma(s.mul(rest, rest), series, linear);

    // 2^128 is no float, so half the power first and then twice.
    let exponent = s.add_i32(s.to_i32(power), s.splat_i32(126));
    let half_scale = s.with_bits(s.shl::<23>(exponent));
    let half = s.mul(mantissa, half_scale);
    let value = s.add(half, half);
    s.select(s.lt(x, s.splat(EXP_ZERO_BELOW)), s.zero(), value)
}

/// `1 / (1 + exp(−x))`.
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

/// `x · sigmoid(x)`; −0 for minus infinity.
#[inline(always)]
pub fn silu<S: Simd>(s: S, x: S::F) -> S::F {
    // The sigmoid is zero long before, but infinity times zero would be NaN.
    let finite_below = s.max(s.splat(-200.0), x);
    s.mul(finite_below, sigmoid(s, finite_below))
}

/// `1 / n!`
const INVERSE_FACTORIALS: [f64; 12] = [
    1.0,
    1.0,
    1.0 / 2.0,
    1.0 / 6.0,
    1.0 / 24.0,
    1.0 / 120.0,
    1.0 / 720.0,
    1.0 / 5_040.0,
    1.0 / 40_320.0,
    1.0 / 362_880.0,
    1.0 / 3_628_800.0,
    1.0 / 39_916_800.0,
];

/// `1 / (2 n + 1)`
const INVERSE_ODD: [f64; 13] = [
    1.0,
    1.0 / 3.0,
    1.0 / 5.0,
    1.0 / 7.0,
    1.0 / 9.0,
    1.0 / 11.0,
    1.0 / 13.0,
    1.0 / 15.0,
    1.0 / 17.0,
    1.0 / 19.0,
    1.0 / 21.0,
    1.0 / 23.0,
    1.0 / 25.0,
];

/// Of the error function (Abramowitz and Stegun 7.1.26), which is off by 1.5e-7 at most.
const ERF_SLOPE: f32 = 0.327_591_1;
const ERF_COEFFICIENTS: [f32; 5] = [0.254_829_6, -0.284_496_74, 1.421_413_7, -1.453_152, 1.061_405_4];

/// `x · Φ(x)`, Φ being the distribution function of the normal distribution: within 3e-7 of `max(|x|, 1)`.
#[inline(always)]
pub fn gelu<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    // Beyond, Φ is 0 or 1 in single precision, and squares of infinity are avoided; NaN passes.
    let distance = s.min(s.splat(20.0), s.mul(s.abs(x), s.splat(std::f32::consts::FRAC_1_SQRT_2)));
    let t = s.div(one, s.fma(s.splat(ERF_SLOPE), distance, one));
    let mut series = s.splat(ERF_COEFFICIENTS[4]);
    for coefficient in [3, 2, 1, 0] {
        series = s.fma(series, t, s.splat(ERF_COEFFICIENTS[coefficient]));
    }
    // 1 - erf(|x| / sqrt(2)), twice what lies beyond |x| on one side.
    let beyond = s.mul(s.mul(series, t), exp(s, s.neg(s.mul(distance, distance))));
    let half = s.mul(s.splat(0.5), beyond);
    let below = s.select(s.lt(x, s.zero()), half, s.sub(one, half));
    // Minus infinity times zero would be NaN.
    s.mul(s.max(s.splat(-200.0), x), below)
}

/// `tanh(x)`, within 3e-7.
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let two = s.splat(2.0);
    s.sub(s.mul(two, sigmoid(s, s.mul(two, x))), s.splat(1.0))
}

/// `ln(1 + exp(x))`, nearly to half a unit in the last place, and `x` itself above 20, where they are the same. In double
/// precision, with nothing but additions, products and a quotient, so that it has the same bits on every device.
pub fn softplus(x: f32) -> f32 {
    if !(-110.0..=20.0).contains(&x) {
        return if x < -110.0 { 0.0 } else { x };
    }
    // exp(−|x|) = 2^power · exp(rest).
    let below = -f64::from(x).abs();
    let power = (below * std::f64::consts::LOG2_E + 0.5).floor();
    let rest = below - power * std::f64::consts::LN_2;
    let series = INVERSE_FACTORIALS.iter().rev().fold(0.0, |sum, term| sum * rest + term);
    let small = series * f64::from_bits(((power + 1023.0) as u64) << 52);
    // ln(1 + t) = 2 artanh(t / (2 + t)).
    let argument = small / (2.0 + small);
    let square = argument * argument;
    let sum = INVERSE_ODD.iter().rev().fold(0.0, |sum, term| sum * square + term);
    let logarithm = 2.0 * argument * sum;
    (if x > 0.0 { f64::from(x) + logarithm } else { logarithm }) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::simd::{Isa, Kernel, LANES};
    use super::*;

    #[derive(Clone, Copy, Debug)]
    enum Function {
        Exp,
        Sigmoid,
        Silu,
        Gelu,
        Tanh,
    }

    struct Apply(Function, [f32; LANES]);

    impl Kernel for Apply {
        type Output = [f32; LANES];

        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> [f32; LANES] {
            let x = s.load(&self.1);
            s.to_array(match self.0 {
                Function::Exp => exp(s, x),
                Function::Sigmoid => sigmoid(s, x),
                Function::Silu => silu(s, x),
                Function::Gelu => gelu(s, x),
                Function::Tanh => tanh(s, x),
            })
        }
    }

    impl Function {
        const ALL: [Function; 5] = [Function::Exp, Function::Sigmoid, Function::Silu, Function::Gelu, Function::Tanh];

        /// Those that are exact to a few units in the last place.
        const PRECISE: [Function; 3] = [Function::Exp, Function::Sigmoid, Function::Silu];

        fn exact(self, x: f64) -> f64 {
            match self {
                Function::Exp => x.exp(),
                Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Function::Silu => x / (1.0 + (-x).exp()),
                Function::Gelu => 0.5 * x * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
                Function::Tanh => x.tanh(),
            }
        }

        fn one(self, isa: Isa, x: f32) -> f32 {
            isa.run(Apply(self, [x; LANES]))[0]
        }
    }

    /// Relative to the value, or absolute where it is too small to be normal.
    fn error(found: f32, exact: f64) -> f64 {
        (f64::from(found) - exact).abs() / exact.abs().max(2.5e-38)
    }

    fn assert_same_on_all(function: Function, lanes: [f32; LANES]) {
        let expected = Isa::Scalar.run(Apply(function, lanes));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let found = isa.run(Apply(function, lanes));
            for (found, expected) in found.into_iter().zip(expected) {
                let same_nan = found.is_nan() && expected.is_nan();
                assert!(same_nan || found.to_bits() == expected.to_bits(), "{function:?} on {isa}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5000))]

        #[test]
        fn same_bits_on_all(bits in proptest::array::uniform16(any::<u32>())) {
            for function in Function::ALL {
                assert_same_on_all(function, bits.map(f32::from_bits));
            }
        }

        #[test]
        fn same_bits_on_all_in_the_usual_range(lanes in proptest::array::uniform16(-100f32..100.0)) {
            for function in Function::ALL {
                assert_same_on_all(function, lanes);
            }
        }

        #[test]
        fn accurate(x in -86.5f32..88.7) {
            for (function, units) in Function::PRECISE.into_iter().zip([1.5, 3.0, 4.0]) {
                let found = function.one(Isa::detect(), x);
                let exact = function.exact(f64::from(x));
                let epsilon = f64::from(f32::EPSILON);
                prop_assert!(error(found, exact) <= units * epsilon, "{function:?} of {x}: {found}");
            }
        }

        #[test]
        fn gelu_and_tanh_are_accurate(x in -30f32..30.0) {
            let bound = 3e-7 * f64::from(x.abs().max(1.0));
            for (function, bound) in [(Function::Gelu, bound), (Function::Tanh, 3e-7)] {
                let found = f64::from(function.one(Isa::detect(), x));
                prop_assert!((found - function.exact(f64::from(x))).abs() <= bound, "{function:?} of {x}: {found}");
            }
        }

        #[test]
        fn softplus_is_accurate(x in -80f32..100.0) {
            let exact = f64::from(x).exp().ln_1p();
            prop_assert!(error(softplus(x), exact) <= 2.0 * f64::from(f32::EPSILON));
        }
    }

    #[test]
    fn limits() {
        let (infinity, nan) = (f32::INFINITY, f32::NAN);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            assert_eq!(Function::Exp.one(isa, 0.0), 1.0);
            assert_eq!(Function::Exp.one(isa, -infinity), 0.0);
            assert_eq!(Function::Exp.one(isa, infinity), infinity);
            assert_eq!(Function::Exp.one(isa, 88.8), infinity);
            assert!(Function::Exp.one(isa, 88.7).is_finite());
            assert_eq!(Function::Sigmoid.one(isa, -infinity), 0.0);
            assert_eq!(Function::Sigmoid.one(isa, infinity), 1.0);
            assert_eq!(Function::Silu.one(isa, -infinity), 0.0);
            assert_eq!(Function::Silu.one(isa, infinity), infinity);
            assert_eq!(Function::Gelu.one(isa, -infinity), 0.0);
            assert_eq!(Function::Gelu.one(isa, infinity), infinity);
            assert_eq!(Function::Tanh.one(isa, -infinity), -1.0);
            assert_eq!(Function::Tanh.one(isa, infinity), 1.0);
            for function in Function::ALL {
                assert!(function.one(isa, nan).is_nan());
            }
        }
        assert_eq!(softplus(-infinity), 0.0);
        assert_eq!(softplus(infinity), infinity);
        assert!(softplus(nan).is_nan());
    }
}
