//! Vector instructions behind one trait of sixteen lanes.
//!
//! Kernels are written once, generic over [`Simd`], and run by [`Isa::run`] on the widest instruction
//! set of the host. Every operation here has one exact result, so a kernel gives the same bits on all
//! of them (only the payload of a NaN is unspecified). [`Scalar`] is the definition; the others are
//! tested against it.
//!
//! A kernel's [`Kernel::run`] and everything it calls must be `#[inline(always)]` and must not go
//! through closures: the compiler may use the vector instructions only in code that is inlined into
//! [`Simd::vectorize`].

mod isa;
mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod tests;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use isa::Isa;
pub use scalar::Scalar;

/// Number of lanes of every vector, on every instruction set.
pub const LANES: usize = 16;

/// A computation generic over the instruction set.
pub trait Kernel {
    /// What the computation returns.
    type Output;

    /// Computes with the instructions of `simd`; implementations are `#[inline(always)]`.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// Operations on vectors of sixteen lanes; a value of an implementing type proves that the host has
/// the instructions.
///
/// `F` holds 16 `f32`. `I` holds 16 `i32`, which the byte operations see as 16 groups of 4 bytes,
/// the first byte of a group in the low bits. Integer arithmetic wraps.
pub trait Simd: Copy + Send + Sync + 'static {
    /// How many vectors fit in registers, to choose the size of tiles; results never depend on it.
    const REGISTERS: usize;

    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen `i32`, or sixty-four bytes.
    type I: Copy;
    /// Sixteen truth values.
    type M: Copy;

    /// Runs a kernel compiled for this instruction set.
    fn vectorize<K: Kernel>(self, kernel: K) -> K::Output;

    /// All lanes equal to `x`.
    fn splat(self, x: f32) -> Self::F;
    /// Loads sixteen values.
    fn load(self, from: &[f32; LANES]) -> Self::F;
    /// Stores sixteen values.
    fn store(self, x: Self::F, to: &mut [f32; LANES]);
    /// Loads and widens sixteen values, exactly.
    fn load_f16(self, from: &[f16; LANES]) -> Self::F;
    /// Rounds to nearest even and stores sixteen values.
    fn store_f16(self, x: Self::F, to: &mut [f16; LANES]);

    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a − b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`, correctly rounded.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a · b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// Square root, correctly rounded.
    fn sqrt(self, x: Self::F) -> Self::F;
    /// Nearest integer, halves to even.
    fn round(self, x: Self::F) -> Self::F;
    /// `a` where `a > b`, else `b` (so `b` where either is NaN).
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` where `a < b`, else `b` (so `b` where either is NaN).
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// Exchanges lanes 2i and 2i + 1.
    fn swap_pairs(self, x: Self::F) -> Self::F;
    /// Sum of all lanes: lane i + lane i + 8, then + 4, + 2, + 1.
    fn reduce_sum(self, x: Self::F) -> f32;
    /// [`reduce_sum`](Self::reduce_sum) of up to sixteen vectors; zero behind them.
    #[inline(always)]
    fn reduce_sums(self, vectors: &[Self::F], sums: &mut [f32; LANES]) {
        *sums = [0.0; LANES];
        for (sum, vector) in sums.iter_mut().zip(vectors) {
            *sum = self.reduce_sum(*vector);
        }
    }
    /// [`max`](Self::max) of all lanes in the same tree as [`reduce_sum`](Self::reduce_sum).
    fn reduce_max(self, x: Self::F) -> f32;

    /// `a < b`, false for NaN.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a ≤ b`, false for NaN.
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    /// `a = b`, false for NaN.
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// True in the lanes below `count`.
    fn first_lanes(self, count: usize) -> Self::M;
    /// `yes` where the mask is true, else `no`.
    fn select(self, mask: Self::M, yes: Self::F, no: Self::F) -> Self::F;

    /// Nearest integers, halves to even; `i32::MIN` for NaN and whatever does not fit.
    fn to_i32(self, x: Self::F) -> Self::I;
    /// Nearest floats.
    fn to_f32(self, x: Self::I) -> Self::F;
    /// The bits of the floats.
    fn to_bits(self, x: Self::F) -> Self::I;
    /// The floats with these bits.
    fn with_bits(self, x: Self::I) -> Self::F;

    /// All lanes equal to `x`; seen as bytes, sixteen times the same group of four.
    fn splat_i32(self, x: i32) -> Self::I;
    /// Loads sixteen integers.
    fn load_i32(self, from: &[i32; LANES]) -> Self::I;
    /// Stores sixteen integers.
    fn store_i32(self, x: Self::I, to: &mut [i32; LANES]);
    /// Loads sixteen bytes and extends their signs.
    fn load_i8(self, from: &[i8; LANES]) -> Self::I;
    /// Stores the low byte of every lane.
    fn store_i8(self, x: Self::I, to: &mut [i8; LANES]);
    /// Loads sixteen half-words, extended with zeros.
    fn load_u16(self, from: &[u16; LANES]) -> Self::I;
    /// Stores the low half of every lane.
    fn store_u16(self, x: Self::I, to: &mut [u16; LANES]);
    /// `a + b`.
    fn add_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a − b`.
    fn sub_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Low half of `a · b`.
    fn mul_i32(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise and.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise or.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bitwise exclusive or.
    fn xor(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts every 32-bit lane left.
    fn shl<const BITS: u32>(self, x: Self::I) -> Self::I;
    /// Shifts every 32-bit lane right, filling with zeros.
    fn shr<const BITS: u32>(self, x: Self::I) -> Self::I;
    /// Sum of all lanes.
    fn reduce_sum_i32(self, x: Self::I) -> i32;

    /// Loads sixty-four bytes.
    fn load_bytes(self, from: &[u8; 4 * LANES]) -> Self::I;
    /// Stores sixty-four bytes.
    fn store_bytes(self, x: Self::I, to: &mut [u8; 4 * LANES]);
    /// Byte by byte `a + b`.
    fn add_bytes(self, a: Self::I, b: Self::I) -> Self::I;
    /// A table of sixteen bytes for [`lookup`](Self::lookup).
    fn table(self, bytes: &[u8; 16]) -> Self::I;
    /// Replaces every byte of `indices`, all below 16, by its entry of the table.
    fn lookup(self, table: Self::I, indices: Self::I) -> Self::I;
    /// Adds to every lane the dot product of four unsigned bytes with four signed ones.
    fn dot_u8(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;
    /// [`dot_u8`](Self::dot_u8) for unsigned bytes of at most 127, which is faster on AVX2.
    fn dot_u7(self, sum: Self::I, unsigned: Self::I, signed: Self::I) -> Self::I;

    /// Asks for the cache line at `address`, which need not be valid.
    fn prefetch(self, address: *const u8);

    /// All lanes zero.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }

    /// All lanes zero.
    #[inline(always)]
    fn zero_i32(self) -> Self::I {
        self.splat_i32(0)
    }

    /// Loads up to sixteen values, with zeros behind them.
    #[inline(always)]
    fn load_partial(self, from: &[f32]) -> Self::F {
        let mut lanes = [0.0; LANES];
        lanes[..from.len()].copy_from_slice(from);
        self.load(&lanes)
    }

    /// Stores the first lanes, as many as `to` has places.
    #[inline(always)]
    fn store_partial(self, x: Self::F, to: &mut [f32]) {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        to.copy_from_slice(&lanes[..to.len()]);
    }

    /// The sixteen lanes as an array.
    #[inline(always)]
    fn to_array(self, x: Self::F) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        self.store(x, &mut lanes);
        lanes
    }

    /// `c − a · b`, rounded once.
    #[inline(always)]
    fn negative_fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        self.fma(self.neg(a), b, c)
    }

    /// `−x`, also for NaN: only the sign bit changes.
    #[inline(always)]
    fn neg(self, x: Self::F) -> Self::F {
        self.with_bits(self.xor(self.to_bits(x), self.splat_i32(i32::MIN)))
    }

    /// `|x|`, also for NaN: only the sign bit changes.
    #[inline(always)]
    fn abs(self, x: Self::F) -> Self::F {
        self.with_bits(self.and(self.to_bits(x), self.splat_i32(i32::MAX)))
    }

    /// Loads and widens sixteen values, exactly.
    #[inline(always)]
    fn load_bf16(self, from: &[bf16; LANES]) -> Self::F {
        let mut bits = [0; LANES];
        for (bits, value) in bits.iter_mut().zip(from) {
            *bits = value.to_bits();
        }
        self.with_bits(self.shl::<16>(self.load_u16(&bits)))
    }

    /// Rounds to nearest even and stores sixteen values; NaN stays NaN.
    #[inline(always)]
    fn store_bf16(self, x: Self::F, to: &mut [bf16; LANES]) {
        let bits = self.to_bits(x);
        let odd = self.and(self.shr::<16>(bits), self.splat_i32(1));
        let rounded = self.add_i32(self.add_i32(bits, odd), self.splat_i32(0x7fff));
        let quiet_nan = self.or(bits, self.splat_i32(0x0040_0000));
        let is_number = self.eq(x, x);
        let chosen = self.select(is_number, self.with_bits(rounded), self.with_bits(quiet_nan));
        let mut halves = [0; LANES];
        self.store_u16(self.shr::<16>(self.to_bits(chosen)), &mut halves);
        for (value, half) in to.iter_mut().zip(halves) {
            *value = bf16::from_bits(half);
        }
    }

    /// The low four bits of every byte.
    #[inline(always)]
    fn low_nibbles(self, x: Self::I) -> Self::I {
        self.and(x, self.splat_i32(0x0f0f_0f0f))
    }

    /// The high four bits of every byte.
    #[inline(always)]
    fn high_nibbles(self, x: Self::I) -> Self::I {
        self.and(self.shr::<4>(x), self.splat_i32(0x0f0f_0f0f))
    }
}
