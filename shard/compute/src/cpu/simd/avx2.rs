//! The operations in AVX2: two registers of eight lanes each.

#![expect(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

use half::f16;

use super::{Kernel, LANES, Simd};

/// Proof that the host has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// `None` where the host lacks an instruction.
    pub fn new() -> Option<Self> {
        let present = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        present.then_some(Self(()))
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn run<K: Kernel>(simd: Avx2, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// Instructions without memory access.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: a value of `Avx2` exists only where the host has the instruction.
        unsafe { $call }
    };
}

/// Instructions that read or write exactly one array, given by reference.
macro_rules! memory {
    ($call:expr) => {
        // SAFETY: a value of `Avx2` exists only where the host has the instruction, which accesses
        // no more than the array behind the reference and needs no alignment.
        unsafe { $call }
    };
}

/// The same instruction on both registers.
macro_rules! both {
    ($name:ident, $a:ident) => {
        instruction!([$name($a[0]), $name($a[1])])
    };
    ($name:ident, $a:ident, $b:ident) => {
        instruction!([$name($a[0], $b[0]), $name($a[1], $b[1])])
    };
    ($name:ident, $a:ident, $b:ident, $c:ident) => {
        instruction!([$name($a[0], $b[0], $c[0]), $name($a[1], $b[1], $c[1])])
    };
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Avx2 {
    #[inline(always)]
    fn dot_half(self, unsigned: __m256i, signed: __m256i) -> __m256i {
        instruction!({
            let low_bytes = _mm256_set1_epi16(0x00ff);
            let even = _mm256_madd_epi16(
                _mm256_and_si256(unsigned, low_bytes),
                _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(signed)),
            );
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(unsigned), _mm256_srai_epi16::<8>(signed));
            _mm256_add_epi32(even, odd)
        })
    }

    /// The low 16 bits of every lane, in order.
    #[inline(always)]
    fn narrow(self, x: [__m256i; 2]) -> __m256i {
        instruction!({
            let low_half = _mm256_set1_epi32(0xffff);
            let packed = _mm256_packus_epi32(_mm256_and_si256(x[0], low_half), _mm256_and_si256(x[1], low_half));
            _mm256_permute4x64_epi64::<0b11_01_10_00>(packed)
        })
    }
}

impl Simd for Avx2 {
    const REGISTERS: usize = 8;

    type F = [__m256; 2];
    type I = [__m256i; 2];
    type M = [__m256; 2];

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        instruction!(run(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [instruction!(_mm256_set1_ps(x)); 2]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        memory!([_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))])
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        memory!({
            _mm256_storeu_ps(to.as_mut_ptr(), x[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), x[1]);
        });
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        memory!([
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(from.as_ptr().add(8).cast()))
        ])
    }

    #[inline(always)]
    fn store_f16(self, x: Self::F, to: &mut [f16; LANES]) {
        memory!({
            let halves = [
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[0]),
                _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(x[1]),
            ];
            _mm_storeu_si128(to.as_mut_ptr().cast(), halves[0]);
            _mm_storeu_si128(to.as_mut_ptr().add(8).cast(), halves[1]);
        });
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_add_ps, a, b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_sub_ps, a, b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_mul_ps, a, b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_div_ps, a, b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        both!(_mm256_fmadd_ps, a, b, c)
    }

    #[inline(always)]
    fn sqrt(self, x: Self::F) -> Self::F {
        both!(_mm256_sqrt_ps, x)
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        instruction!([_mm256_round_ps::<NEAREST>(x[0]), _mm256_round_ps::<NEAREST>(x[1])])
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_max_ps, a, b)
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        both!(_mm256_min_ps, a, b)
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        instruction!([_mm256_permute_ps::<0b10_11_00_01>(x[0]), _mm256_permute_ps::<0b10_11_00_01>(x[1])])
    }

    #[inline(always)]
    fn reduce_sum(self, x: Self::F) -> f32 {
        instruction!({
            let eight = _mm256_add_ps(x[0], x[1]);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn reduce_max(self, x: Self::F) -> f32 {
        instruction!({
            let eight = _mm256_max_ps(x[0], x[1]);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!([_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1])])
    }

    #[inline(always)]
    fn le(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!([_mm256_cmp_ps::<_CMP_LE_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LE_OQ>(a[1], b[1])])
    }

    #[inline(always)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!([_mm256_cmp_ps::<_CMP_EQ_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_EQ_OQ>(a[1], b[1])])
    }

    #[inline(always)]
    fn first_lanes(self, count: usize) -> Self::M {
        instruction!({
            let count = _mm256_set1_epi32(count.min(LANES) as i32);
            let low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let high = _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15);
            [_mm256_castsi256_ps(_mm256_cmpgt_epi32(count, low)), _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, high))]
        })
    }

    #[inline(always)]
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F {
        both!(_mm256_blendv_ps, no, yes, mask)
    }

    #[inline(always)]
    fn to_i32(self, x: Self::F) -> Self::I {
        both!(_mm256_cvtps_epi32, x)
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        both!(_mm256_cvtepi32_ps, x)
    }

    #[inline(always)]
    fn to_bits(self, x: Self::F) -> Self::I {
        both!(_mm256_castps_si256, x)
    }

    #[inline(always)]
    fn with_bits(self, x: Self::I) -> Self::F {
        both!(_mm256_castsi256_ps, x)
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [instruction!(_mm256_set1_epi32(x)); 2]
    }

    #[inline(always)]
    fn load_i32(self, from: &[i32; LANES]) -> Self::I {
        memory!([_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(8).cast())])
    }

    #[inline(always)]
    fn store_i32(self, x: Self::I, to: &mut [i32; LANES]) {
        memory!({
            _mm256_storeu_si256(to.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(8).cast(), x[1]);
        });
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::I {
        memory!({
            let bytes = _mm_loadu_si128(from.as_ptr().cast());
            [_mm256_cvtepi8_epi32(bytes), _mm256_cvtepi8_epi32(_mm_srli_si128::<8>(bytes))]
        })
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]) {
        memory!({
            let low_byte = _mm256_set1_epi16(0xff);
            let halves = _mm256_and_si256(self.narrow(x), low_byte);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(halves), _mm256_extracti128_si256::<1>(halves));
            _mm_storeu_si128(to.as_mut_ptr().cast(), bytes);
        });
    }

    #[inline(always)]
    fn load_u16(self, from: &[u16; LANES]) -> Self::I {
        memory!([
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().cast())),
            _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8).cast()))
        ])
    }

    #[inline(always)]
    fn store_u16(self, x: Self::I, to: &mut [u16; LANES]) {
        memory!(_mm256_storeu_si256(to.as_mut_ptr().cast(), self.narrow(x)));
    }

    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi32, a, b)
    }

    #[inline(always)]
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_sub_epi32, a, b)
    }

    #[inline(always)]
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_mullo_epi32, a, b)
    }

    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_and_si256, a, b)
    }

    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_or_si256, a, b)
    }

    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_xor_si256, a, b)
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, x: Self::I) -> Self::I {
        let count = instruction!(_mm_cvtsi32_si128(BITS as i32));
        instruction!([_mm256_sll_epi32(x[0], count), _mm256_sll_epi32(x[1], count)])
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, x: Self::I) -> Self::I {
        let count = instruction!(_mm_cvtsi32_si128(BITS as i32));
        instruction!([_mm256_srl_epi32(x[0], count), _mm256_srl_epi32(x[1], count)])
    }

    #[inline(always)]
    fn reduce_sum_i32(self, x: Self::I) -> i32 {
        let mut lanes = [0i32; LANES];
        self.store_i32(x, &mut lanes);
        lanes.iter().fold(0, |sum, &lane| sum.wrapping_add(lane))
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::I {
        memory!([_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(32).cast())])
    }

    #[inline(always)]
    fn store_bytes(self, x: Self::I, to: &mut [u8; 4 * LANES]) {
        memory!({
            _mm256_storeu_si256(to.as_mut_ptr().cast(), x[0]);
            _mm256_storeu_si256(to.as_mut_ptr().add(32).cast(), x[1]);
        });
    }

    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        both!(_mm256_add_epi8, a, b)
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::I {
        let table = memory!(_mm256_broadcastsi128_si256(_mm_loadu_si128(bytes.as_ptr().cast())));
        [table; 2]
    }

    #[inline(always)]
    fn lookup(self, table: Self::I, indices: Self::I) -> Self::I {
        both!(_mm256_shuffle_epi8, table, indices)
    }

    #[inline(always)]
    fn dot_u8(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        let dots = [self.dot_half(unsigned[0], signed[0]), self.dot_half(unsigned[1], signed[1])];
        self.add_i32(sum, dots)
    }

    #[inline(always)]
    fn dot_u7(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        // Two products of at most 127 · 128 fit in 16 bits, so nothing saturates.
        let pairs = both!(_mm256_maddubs_epi16, unsigned, signed);
        let ones = [instruction!(_mm256_set1_epi16(1)); 2];
        self.add_i32(sum, both!(_mm256_madd_epi16, pairs, ones))
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        instruction!(_mm_prefetch::<_MM_HINT_T0>(address.cast()));
    }
}
