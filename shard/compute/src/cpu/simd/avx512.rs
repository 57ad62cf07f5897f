//! The operations in AVX-512 with VNNI: one instruction for nearly each.

#![expect(unsafe_code, reason = "vector instructions")]

use std::arch::x86_64::*;

use half::f16;

use super::{Kernel, LANES, Simd};

/// Proof that the host has AVX-512 F, BW, DQ, VL and VNNI, and AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// `None` where the host lacks an instruction.
    pub fn new() -> Option<Self> {
        let present = std::arch::is_x86_feature_detected!("avx512f")
            && std::arch::is_x86_feature_detected!("avx512bw")
            && std::arch::is_x86_feature_detected!("avx512dq")
            && std::arch::is_x86_feature_detected!("avx512vl")
            && std::arch::is_x86_feature_detected!("avx512vnni")
            && std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c");
        present.then_some(Self(()))
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
fn run<K: Kernel>(simd: Avx512, kernel: K) -> K::Output {
    kernel.run(simd)
}

/// An instruction without memory access.
macro_rules! instruction {
    ($call:expr) => {
        // SAFETY: a value of `Avx512` exists only where the host has the instruction.
        unsafe { $call }
    };
}

/// An instruction that reads or writes exactly one array, given by reference.
macro_rules! memory {
    ($call:expr) => {
        // SAFETY: a value of `Avx512` exists only where the host has the instruction, which accesses
        // no more than the array behind the reference and needs no alignment.
        unsafe { $call }
    };
}

const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;

impl Avx512 {
    #[inline(always)]
    fn halves(self, x: __m512) -> (__m256, __m256) {
        instruction!((_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x)))
    }

    /// Lane i + lane i + 8 of both, eight sums each.
    #[inline(always)]
    fn fold_halves(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(
            _mm512_shuffle_f32x4::<0b01_00_01_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_10_11_10>(a, b)
        ))
    }

    /// Lane i + lane i + 4 of every eight, four sums each.
    #[inline(always)]
    fn fold_quarters(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(
            _mm512_shuffle_f32x4::<0b10_00_10_00>(a, b),
            _mm512_shuffle_f32x4::<0b11_01_11_01>(a, b)
        ))
    }

    /// Lane i + lane i + 2 of every four, two sums each.
    #[inline(always)]
    fn fold_pairs(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(_mm512_shuffle_ps::<0b01_00_01_00>(a, b), _mm512_shuffle_ps::<0b11_10_11_10>(a, b)))
    }

    /// Lane i + lane i + 1 of every two.
    #[inline(always)]
    fn fold_lanes(self, a: __m512, b: __m512) -> __m512 {
        instruction!(_mm512_add_ps(_mm512_shuffle_ps::<0b10_00_10_00>(a, b), _mm512_shuffle_ps::<0b11_01_11_01>(a, b)))
    }
}

impl Simd for Avx512 {
    const REGISTERS: usize = 32;

    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    #[inline(always)]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        instruction!(run(self, kernel))
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        instruction!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        memory!(_mm512_loadu_ps(from.as_ptr()))
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        memory!(_mm512_storeu_ps(to.as_mut_ptr(), x));
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        memory!(_mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_f16(self, x: Self::F, to: &mut [f16; LANES]) {
        memory!(_mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtps_ph::<NEAREST>(x)));
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        instruction!(_mm512_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn sqrt(self, x: Self::F) -> Self::F {
        instruction!(_mm512_sqrt_ps(x))
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        instruction!(_mm512_roundscale_ps::<NEAREST>(x))
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        instruction!(_mm512_min_ps(a, b))
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        instruction!(_mm512_permute_ps::<0b10_11_00_01>(x))
    }

    #[inline(always)]
    fn reduce_sum(self, x: Self::F) -> f32 {
        let (low, high) = self.halves(x);
        instruction!({
            let eight = _mm256_add_ps(low, high);
            let four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn reduce_sums(self, vectors: &[Self::F], sums: &mut [f32; LANES]) {
        let mut all = [self.zero(); LANES];
        for (one, vector) in all.iter_mut().zip(vectors) {
            *one = *vector;
        }
        // Vectors are folded together with their neighbours, so each level halves their number.
        let mut eights = [self.zero(); 8];
        for (eight, pair) in eights.iter_mut().zip(all.as_chunks::<2>().0) {
            *eight = self.fold_halves(pair[0], pair[1]);
        }
        let mut fours = [self.zero(); 4];
        for (four, pair) in fours.iter_mut().zip(eights.as_chunks::<2>().0) {
            *four = self.fold_quarters(pair[0], pair[1]);
        }
        let twos = [self.fold_pairs(fours[0], fours[1]), self.fold_pairs(fours[2], fours[3])];
        // Lane 4i + j is now the sum of vector 4j + i.
        let transposed = self.fold_lanes(twos[0], twos[1]);
        let order = instruction!(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        self.store(instruction!(_mm512_permutexvar_ps(order, transposed)), sums);
    }

    #[inline(always)]
    fn reduce_max(self, x: Self::F) -> f32 {
        let (low, high) = self.halves(x);
        instruction!({
            let eight = _mm256_max_ps(low, high);
            let four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        })
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b))
    }

    #[inline(always)]
    fn le(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!(_mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b))
    }

    #[inline(always)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        instruction!(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b))
    }

    #[inline(always)]
    fn first_lanes(self, count: usize) -> Self::M {
        ((1u32 << count.min(LANES)) - 1) as u16
    }

    #[inline(always)]
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F {
        instruction!(_mm512_mask_blend_ps(mask, no, yes))
    }

    #[inline(always)]
    fn to_i32(self, x: Self::F) -> Self::I {
        instruction!(_mm512_cvtps_epi32(x))
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        instruction!(_mm512_cvtepi32_ps(x))
    }

    #[inline(always)]
    fn to_bits(self, x: Self::F) -> Self::I {
        instruction!(_mm512_castps_si512(x))
    }

    #[inline(always)]
    fn with_bits(self, x: Self::I) -> Self::F {
        instruction!(_mm512_castsi512_ps(x))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        instruction!(_mm512_set1_epi32(x))
    }

    #[inline(always)]
    fn load_i32(self, from: &[i32; LANES]) -> Self::I {
        memory!(_mm512_loadu_si512(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn store_i32(self, x: Self::I, to: &mut [i32; LANES]) {
        memory!(_mm512_storeu_si512(to.as_mut_ptr().cast(), x));
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::I {
        memory!(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]) {
        memory!(_mm_storeu_si128(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(x)));
    }

    #[inline(always)]
    fn load_u16(self, from: &[u16; LANES]) -> Self::I {
        memory!(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast())))
    }

    #[inline(always)]
    fn store_u16(self, x: Self::I, to: &mut [u16; LANES]) {
        memory!(_mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(x)));
    }

    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_add_epi32(a, b))
    }

    #[inline(always)]
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_sub_epi32(a, b))
    }

    #[inline(always)]
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_mullo_epi32(a, b))
    }

    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_and_si512(a, b))
    }

    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_or_si512(a, b))
    }

    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_xor_si512(a, b))
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, x: Self::I) -> Self::I {
        instruction!(_mm512_slli_epi32::<BITS>(x))
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, x: Self::I) -> Self::I {
        instruction!(_mm512_srli_epi32::<BITS>(x))
    }

    #[inline(always)]
    fn reduce_sum_i32(self, x: Self::I) -> i32 {
        instruction!(_mm512_reduce_add_epi32(x))
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::I {
        memory!(_mm512_loadu_si512(from.as_ptr().cast()))
    }

    #[inline(always)]
    fn store_bytes(self, x: Self::I, to: &mut [u8; 4 * LANES]) {
        memory!(_mm512_storeu_si512(to.as_mut_ptr().cast(), x));
    }

    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        instruction!(_mm512_add_epi8(a, b))
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::I {
        memory!(_mm512_broadcast_i32x4(_mm_loadu_si128(bytes.as_ptr().cast())))
    }

    #[inline(always)]
    fn lookup(self, table: Self::I, indices: Self::I) -> Self::I {
        instruction!(_mm512_shuffle_epi8(table, indices))
    }

    #[inline(always)]
    fn dot_u8(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        instruction!(_mm512_dpbusd_epi32(sum, unsigned, signed))
    }

    #[inline(always)]
    fn dot_u7(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        self.dot_u8(sum, unsigned, signed)
    }

    #[inline(always)]
    fn prefetch(self, address: *const u8) {
        instruction!(_mm_prefetch::<_MM_HINT_T0>(address.cast()));
    }
}
