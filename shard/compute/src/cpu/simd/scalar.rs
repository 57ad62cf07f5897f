//! The definition of every operation, in plain code for any host.

#![expect(unsafe_code, reason = "fused multiply-add is a library call unless the compiler may use the instruction")]

use std::array::from_fn;

use half::f16;

use super::{Kernel, LANES, Simd};

/// Plain code over arrays of sixteen.
#[derive(Clone, Copy, Debug)]
pub struct Scalar(());

impl Scalar {
    /// Always there.
    pub fn new() -> Self {
        Self(())
    }
}

impl Default for Scalar {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "fma")]
fn run_with_fma<K: Kernel>(simd: Scalar, kernel: K) -> K::Output {
    kernel.run(simd)
}

#[inline(always)]
fn tree<T: Copy>(mut lanes: [T; LANES], combine: impl Fn(T, T) -> T) -> T {
    for distance in [8, 4, 2, 1] {
        for lane in 0..distance {
            lanes[lane] = combine(lanes[lane], lanes[lane + distance]);
        }
    }
    lanes[0]
}

fn greater(a: f32, b: f32) -> f32 {
    if a > b { a } else { b }
}

impl Simd for Scalar {
    const REGISTERS: usize = 1;

    type F = [f32; LANES];
    type I = [i32; LANES];
    type M = [bool; LANES];

    #[cfg(target_arch = "x86_64")]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        if std::arch::is_x86_feature_detected!("fma") {
            // SAFETY: the host has the one feature the function needs.
            return unsafe { run_with_fma(self, kernel) };
        }
        kernel.run(self)
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> Self::F {
        *from
    }

    #[inline(always)]
    fn store(self, x: Self::F, to: &mut [f32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn load_f16(self, from: &[f16; LANES]) -> Self::F {
        from_fn(|i| from[i].to_f32())
    }

    #[inline(always)]
    fn store_f16(self, x: Self::F, to: &mut [f16; LANES]) {
        *to = from_fn(|i| f16::from_f32(x[i]));
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] / b[i])
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // A loop, not a closure: it must be part of the function that may use the instruction.
        let mut result = c;
        for i in 0..LANES {
            result[i] = a[i].mul_add(b[i], c[i]);
        }
        result
    }

    #[inline(always)]
    fn sqrt(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i].sqrt())
    }

    #[inline(always)]
    fn round(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i].round_ties_even())
    }

    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| greater(a[i], b[i]))
    }

    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }

    #[inline(always)]
    fn swap_pairs(self, x: Self::F) -> Self::F {
        from_fn(|i| x[i ^ 1])
    }

    #[inline(always)]
    fn reduce_sum(self, x: Self::F) -> f32 {
        tree(x, |a, b| a + b)
    }

    #[inline(always)]
    fn reduce_max(self, x: Self::F) -> f32 {
        tree(x, greater)
    }

    #[inline(always)]
    fn lt(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| a[i] < b[i])
    }

    #[inline(always)]
    fn le(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| a[i] <= b[i])
    }

    #[inline(always)]
    fn eq(self, a: Self::F, b: Self::F) -> Self::M {
        from_fn(|i| a[i] == b[i])
    }

    #[inline(always)]
    fn first_lanes(self, count: usize) -> Self::M {
        from_fn(|i| i < count)
    }

    #[inline(always)]
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F {
        from_fn(|i| if mask[i] { yes[i] } else { no[i] })
    }

    #[inline(always)]
    fn to_i32(self, x: Self::F) -> Self::I {
        from_fn(|i| {
            let rounded = x[i].round_ties_even();
            let fits = (-2_147_483_648.0..2_147_483_648.0).contains(&rounded);
            if fits { rounded as i32 } else { i32::MIN }
        })
    }

    #[inline(always)]
    fn to_f32(self, x: Self::I) -> Self::F {
        from_fn(|i| x[i] as f32)
    }

    #[inline(always)]
    fn to_bits(self, x: Self::F) -> Self::I {
        from_fn(|i| x[i].to_bits().cast_signed())
    }

    #[inline(always)]
    fn with_bits(self, x: Self::I) -> Self::F {
        from_fn(|i| f32::from_bits(x[i].cast_unsigned()))
    }

    #[inline(always)]
    fn splat_i32(self, x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    fn load_i32(self, from: &[i32; LANES]) -> Self::I {
        *from
    }

    #[inline(always)]
    fn store_i32(self, x: Self::I, to: &mut [i32; LANES]) {
        *to = x;
    }

    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> Self::I {
        from_fn(|i| i32::from(from[i]))
    }

    #[inline(always)]
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]) {
        *to = from_fn(|i| x[i] as i8);
    }

    #[inline(always)]
    fn load_u16(self, from: &[u16; LANES]) -> Self::I {
        from_fn(|i| i32::from(from[i]))
    }

    #[inline(always)]
    fn store_u16(self, x: Self::I, to: &mut [u16; LANES]) {
        *to = from_fn(|i| x[i] as u16);
    }

    #[inline(always)]
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }

    #[inline(always)]
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }

    #[inline(always)]
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }

    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i] & b[i])
    }

    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i] | b[i])
    }

    #[inline(always)]
    fn xor(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i] ^ b[i])
    }

    #[inline(always)]
    fn shl<const BITS: u32>(self, x: Self::I) -> Self::I {
        from_fn(|i| x[i] << BITS)
    }

    #[inline(always)]
    fn shr<const BITS: u32>(self, x: Self::I) -> Self::I {
        from_fn(|i| (x[i].cast_unsigned() >> BITS).cast_signed())
    }

    #[inline(always)]
    fn reduce_sum_i32(self, x: Self::I) -> i32 {
        tree(x, i32::wrapping_add)
    }

    #[inline(always)]
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::I {
        let (groups, _) = from.as_chunks();
        from_fn(|i| i32::from_le_bytes(groups[i]))
    }

    #[inline(always)]
    fn store_bytes(self, x: Self::I, to: &mut [u8; 4 * LANES]) {
        let (groups, _) = to.as_chunks_mut();
        for (group, x) in groups.iter_mut().zip(x) {
            *group = x.to_le_bytes();
        }
    }

    #[inline(always)]
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| {
            let (a, b) = (a[i].to_le_bytes(), b[i].to_le_bytes());
            i32::from_le_bytes(from_fn(|j| a[j].wrapping_add(b[j])))
        })
    }

    #[inline(always)]
    fn table(self, bytes: &[u8; 16]) -> Self::I {
        let (groups, _) = bytes.as_chunks();
        from_fn(|i| i32::from_le_bytes(groups[i % 4]))
    }

    #[inline(always)]
    fn lookup(self, table: Self::I, indices: Self::I) -> Self::I {
        from_fn(|i| {
            let indices = indices[i].to_le_bytes();
            i32::from_le_bytes(from_fn(|j| {
                let index = usize::from(indices[j] & 15);
                table[index / 4].to_le_bytes()[index % 4]
            }))
        })
    }

    #[inline(always)]
    fn dot_u8(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        from_fn(|i| {
            let (a, b) = (unsigned[i].to_le_bytes(), signed[i].to_le_bytes());
            let products: [i32; 4] = from_fn(|j| i32::from(a[j]) * i32::from(b[j].cast_signed()));
            sum[i].wrapping_add(products.iter().sum())
        })
    }

    #[inline(always)]
    fn dot_u7(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I {
        debug_assert!(unsigned.iter().all(|group| group & i32::from_ne_bytes([0x80; 4]) == 0));
        self.dot_u8(sum, unsigned, signed)
    }

    #[inline(always)]
    fn prefetch(self, _address: *const u8) {}
}
