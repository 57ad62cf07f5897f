//! Every operation of every instruction set equals its scalar definition, bit for bit.

use half::{bf16, f16};
use proptest::prelude::*;

use super::*;

/// Inputs of all kinds, as bits: any float (also NaN, infinite, denormal) and any bytes.
#[derive(Clone, Debug)]
struct Inputs {
    a: [u32; LANES],
    b: [u32; LANES],
    c: [u32; LANES],
    count: usize,
}

/// Results as bits, with every NaN made the same.
#[derive(Debug, PartialEq, Default)]
struct Results(Vec<(&'static str, Vec<u32>)>);

impl Results {
    fn floats(&mut self, name: &'static str, values: [f32; LANES]) {
        let canonical = |x: f32| if x.is_nan() { f32::NAN } else { x };
        let bits = values.map(|x| canonical(x).to_bits());
        self.0.push((name, bits.to_vec()));
    }

    fn integers(&mut self, name: &'static str, values: [i32; LANES]) {
        self.0.push((name, values.map(i32::cast_unsigned).to_vec()));
    }
}

struct FloatOperations<'a>(&'a Inputs);

impl Kernel for FloatOperations<'_> {
    type Output = Results;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Results {
        let mut results = Results::default();
        let a = s.load(&self.0.a.map(f32::from_bits));
        let b = s.load(&self.0.b.map(f32::from_bits));
        let c = s.load(&self.0.c.map(f32::from_bits));
        results.floats("splat", s.to_array(s.splat(f32::from_bits(self.0.a[0]))));
        results.floats("add", s.to_array(s.add(a, b)));
        results.floats("sub", s.to_array(s.sub(a, b)));
        results.floats("mul", s.to_array(s.mul(a, b)));
        results.floats("div", s.to_array(s.div(a, b)));
        results.floats("fma", s.to_array(s.fma(a, b, c)));
        results.floats("negative_fma", s.to_array(s.negative_fma(a, b, c)));
        results.floats("sqrt", s.to_array(s.sqrt(a)));
        results.floats("round", s.to_array(s.round(a)));
        results.floats("max", s.to_array(s.max(a, b)));
        results.floats("min", s.to_array(s.min(a, b)));
        results.floats("abs", s.to_array(s.abs(a)));
        results.floats("swap_pairs", s.to_array(s.swap_pairs(a)));
        results.floats("reduce_sum", [s.reduce_sum(a); LANES]);
        for count in [LANES, 12, 1] {
            let (all, mut sums) = ([a, b, c, a, c, b, s.swap_pairs(a), b, b, a, c, c, s.neg(b), a, b, c], [1.0; LANES]);
            s.reduce_sums(&all[..count], &mut sums);
            results.floats("reduce_sums", sums);
        }
        results.floats("reduce_max", [s.reduce_max(a); LANES]);
        results.floats("lt", s.to_array(s.select(s.lt(a, b), a, c)));
        results.floats("le", s.to_array(s.select(s.le(a, b), a, c)));
        results.floats("eq", s.to_array(s.select(s.eq(a, b), a, c)));
        let first = s.first_lanes(self.0.count);
        results.floats("first_lanes", s.to_array(s.select(first, a, c)));
        let ordered = s.to_array(a);
        let mut lanes = [0.0; LANES];
        s.store_partial(s.load_partial(&ordered[..self.0.count]), &mut lanes[..self.0.count]);
        results.floats("partial", lanes);
        results
    }
}

struct Conversions<'a>(&'a Inputs);

impl Kernel for Conversions<'_> {
    type Output = Results;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Results {
        let mut results = Results::default();
        let floats = s.load(&self.0.a.map(f32::from_bits));
        let mut integers = [0; LANES];
        s.store_i32(s.to_i32(floats), &mut integers);
        results.integers("to_i32", integers);
        let any = s.load_i32(&self.0.b.map(u32::cast_signed));
        results.floats("to_f32", s.to_array(s.to_f32(any)));

        let mut halves = [f16::ZERO; LANES];
        s.store_f16(floats, &mut halves);
        results.floats("store_f16", halves.map(f16::to_f32));
        let halves = self.0.b.map(|x| f16::from_bits(x as u16));
        results.floats("load_f16", s.to_array(s.load_f16(&halves)));
        let mut halves = [bf16::ZERO; LANES];
        s.store_bf16(floats, &mut halves);
        results.floats("store_bf16", halves.map(bf16::to_f32));
        assert!(halves.iter().zip(self.0.a).all(|(half, bits)| {
            let expected = bf16::from_f32(f32::from_bits(bits));
            *half == expected || (half.is_nan() && expected.is_nan())
        }));
        let halves = self.0.b.map(|x| bf16::from_bits(x as u16));
        results.floats("load_bf16", s.to_array(s.load_bf16(&halves)));
        results
    }
}

struct IntegerOperations<'a>(&'a Inputs);

impl IntegerOperations<'_> {
    #[inline(always)]
    fn bytes<S: Simd>(&self, s: S, mut push: impl FnMut(&'static str, S::I)) {
        let a = s.load_i32(&self.0.a.map(u32::cast_signed));
        let b = s.load_i32(&self.0.b.map(u32::cast_signed));
        let c = s.load_i32(&self.0.c.map(u32::cast_signed));
        push("add_bytes", s.add_bytes(a, b));
        push("low_nibbles", s.low_nibbles(a));
        push("high_nibbles", s.high_nibbles(a));
        let table = std::array::from_fn(|i| (self.0.c[i] >> 8) as u8);
        push("lookup", s.lookup(s.table(&table), s.low_nibbles(a)));
        push("dot_u8", s.dot_u8(c, a, b));
        let small = s.and(a, s.splat_i32(0x7f7f_7f7f));
        push("dot_u7", s.dot_u7(c, small, b));
        let bytes = std::array::from_fn(|i| self.0.b[i / 4].to_le_bytes()[i % 4]);
        push("load_bytes", s.load_bytes(&bytes));
        let mut stored = [0; 4 * LANES];
        s.store_bytes(b, &mut stored);
        assert_eq!(stored, bytes);
    }
}

impl Kernel for IntegerOperations<'_> {
    type Output = Results;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Results {
        let mut results = Results::default();
        let a = s.load_i32(&self.0.a.map(u32::cast_signed));
        let b = s.load_i32(&self.0.b.map(u32::cast_signed));
        let mut push = |name, x| {
            let mut lanes = [0; LANES];
            s.store_i32(x, &mut lanes);
            results.integers(name, lanes);
        };
        push("splat_i32", s.splat_i32(self.0.a[0].cast_signed()));
        push("add_i32", s.add_i32(a, b));
        push("sub_i32", s.sub_i32(a, b));
        push("mul_i32", s.mul_i32(a, b));
        push("and", s.and(a, b));
        push("or", s.or(a, b));
        push("xor", s.xor(a, b));
        push("shl", s.shl::<7>(a));
        push("shr", s.shr::<7>(a));
        push("reduce_sum_i32", s.splat_i32(s.reduce_sum_i32(a)));
        let signed = self.0.a.map(|x| x as i8);
        push("load_i8", s.load_i8(&signed));
        let halves = self.0.a.map(|x| x as u16);
        push("load_u16", s.load_u16(&halves));
        self.bytes(s, &mut push);
        let (mut low_bytes, mut low_halves) = ([0; LANES], [0; LANES]);
        s.store_i8(a, &mut low_bytes);
        s.store_u16(a, &mut low_halves);
        assert_eq!((low_bytes, low_halves), (signed, halves));
        results
    }
}

/// Random bits, with many of the values where rounding and comparing are delicate.
fn bits() -> impl Strategy<Value = u32> {
    let delicate = [
        0.0,
        -0.0,
        1.0,
        -1.0,
        0.5,
        1.5,
        2.5,
        -2.5,
        127.5,
        2_147_483_500.0,
        2_147_483_648.0,
        -2_147_483_648.0,
        -2_147_483_904.0,
        65504.0,
        65519.0,
        65520.0,
        5.96e-8,
        2.98e-8,
        1e-40,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];
    prop_oneof![
        4 => any::<u32>(),
        4 => (-300.0f32..300.0).prop_map(f32::to_bits),
        1 => proptest::sample::select(delicate.to_vec()).prop_map(f32::to_bits),
        1 => Just(0x8080_8080), 1 => Just(0x7f7f_7f7f), 1 => Just(0xffff_ffff),
    ]
}

fn inputs() -> impl Strategy<Value = Inputs> {
    let lanes = || proptest::array::uniform16(bits());
    (lanes(), lanes(), lanes(), 0..=LANES).prop_map(|(a, b, c, count)| Inputs { a, b, c, count })
}

macro_rules! equals_scalar {
    ($isa:expr, $name:ident) => {
        proptest! {
            #![proptest_config(ProptestConfig::with_cases(2000))]

            #[test]
            fn $name(inputs in inputs()) {
                let isa = $isa;
                if !isa.is_available() {
                    eprintln!("skipped: no {isa}");
                    return Ok(());
                }
                prop_assert_eq!(
                    isa.run(FloatOperations(&inputs)),
                    Isa::Scalar.run(FloatOperations(&inputs))
                );
                prop_assert_eq!(
                    isa.run(Conversions(&inputs)),
                    Isa::Scalar.run(Conversions(&inputs))
                );
                prop_assert_eq!(
                    isa.run(IntegerOperations(&inputs)),
                    Isa::Scalar.run(IntegerOperations(&inputs))
                );
            }
        }
    };
}

equals_scalar!(Isa::Avx2, avx2_equals_scalar);
equals_scalar!(Isa::Avx512, avx512_equals_scalar);

#[test]
fn names_are_read_as_written() {
    for isa in Isa::ALL {
        assert_eq!(Isa::parse(&isa.to_string()), Some(isa));
    }
    assert_eq!(Isa::parse("sse2"), None);
    assert!(Isa::detect().is_available());
}
