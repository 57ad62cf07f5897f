//! How the scales and minimums of sixteen weight rows lie in memory.
//!
//! Everything is kept as the file has it: `f16` (or a power of two, which fits a `bf16`) for a block,
//! integers for its parts. The products of the two are exact in `f32`.

#![expect(unsafe_code, reason = "promises that packed scales are plain bytes")]

use half::{bf16, f16};

use super::memory::Plain;
use crate::blocks::Block;
use crate::cpu::simd::{LANES, Simd};

/// A packing of scales and minimums.
pub(super) trait Scales: 'static {
    /// What a block of sixteen rows has once.
    type Head: Plain;
    /// What every 32 columns of it have.
    type Factors: Plain;
    /// One `T` for every 32 columns of a block.
    type Parts<T: Plain>: Plain + AsRef<[T]> + AsMut<[T]>;
    /// Every sixteen columns have their own scale (and minimum).
    const HALVES: bool;
    /// There are minimums.
    const MINIMUM: bool;

    /// Stores one row's block of scales.
    fn store_head(head: &mut Self::Head, lane: usize, block: &Block);

    /// Stores one row's factors for 32 columns.
    fn store_factors(factors: &mut Self::Factors, lane: usize, block: &Block, part: usize);

    /// Scales of the first and the last sixteen columns of a part.
    fn scales<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2];

    /// Minimums of the first and the last sixteen columns of a part.
    fn minimums<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2];
}

type HalfFloats = [f16; LANES];

/// A scale and a minimum of the file's blocks.
#[repr(C)]
pub(super) struct WithMinimum<T> {
    scales: T,
    minimums: T,
}

// SAFETY: two plain values.
unsafe impl<T: Plain> Plain for WithMinimum<T> {}

/// Nothing.
type Nothing = [u8; 0];

/// One `f16` per 32 values.
pub(super) struct Single;

impl Scales for Single {
    type Head = HalfFloats;
    type Factors = Nothing;
    type Parts<T: Plain> = [T; 1];
    const HALVES: bool = false;
    const MINIMUM: bool = false;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        head[lane] = f16::from_f32(block.scale);
    }

    fn store_factors(_: &mut Self::Factors, _: usize, _: &Block, _: usize) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.load_f16(head); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, _: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.zero(); 2]
    }
}

/// One power of two per 32 values.
pub(super) struct PowerOfTwo;

impl Scales for PowerOfTwo {
    type Head = [bf16; LANES];
    type Factors = Nothing;
    type Parts<T: Plain> = [T; 1];
    const HALVES: bool = false;
    const MINIMUM: bool = false;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        head[lane] = bf16::from_f32(block.scale);
    }

    fn store_factors(_: &mut Self::Factors, _: usize, _: &Block, _: usize) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.load_bf16(head); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, _: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.zero(); 2]
    }
}

/// Two `f16` per 32 values.
pub(super) struct Affine;

impl Scales for Affine {
    type Head = WithMinimum<HalfFloats>;
    type Factors = Nothing;
    type Parts<T: Plain> = [T; 1];
    const HALVES: bool = false;
    const MINIMUM: bool = true;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        head.scales[lane] = f16::from_f32(block.scale);
        head.minimums[lane] = f16::from_f32(block.minimum);
    }

    fn store_factors(_: &mut Self::Factors, _: usize, _: &Block, _: usize) {}

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.load_f16(&head.scales); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, head: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.load_f16(&head.minimums); 2]
    }
}

/// An `f16` per 256 values with an integer factor per 32.
pub(super) struct Nested;

impl Scales for Nested {
    type Head = HalfFloats;
    type Factors = [i8; LANES];
    type Parts<T: Plain> = [T; 8];
    const HALVES: bool = false;
    const MINIMUM: bool = false;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        Single::store_head(head, lane, block);
    }

    fn store_factors(factors: &mut Self::Factors, lane: usize, block: &Block, part: usize) {
        factors[lane] = block.scale_factors[2 * part];
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        [product(s, head, factors); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, _: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.zero(); 2]
    }
}

/// Two `f16` per 256 values with an integer factor for each per 32.
pub(super) struct NestedAffine;

impl Scales for NestedAffine {
    type Head = WithMinimum<HalfFloats>;
    type Factors = WithMinimum<[i8; LANES]>;
    type Parts<T: Plain> = [T; 8];
    const HALVES: bool = false;
    const MINIMUM: bool = true;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        Affine::store_head(head, lane, block);
    }

    fn store_factors(factors: &mut Self::Factors, lane: usize, block: &Block, part: usize) {
        factors.scales[lane] = block.scale_factors[2 * part];
        factors.minimums[lane] = block.minimum_factors[2 * part].cast_signed();
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        [product(s, &head.scales, &factors.scales); 2]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        [product(s, &head.minimums, &factors.minimums); 2]
    }
}

/// An `f16` per 256 values with an integer factor per sixteen.
pub(super) struct Halved;

impl Scales for Halved {
    type Head = HalfFloats;
    type Factors = [[i8; LANES]; 2];
    type Parts<T: Plain> = [T; 8];
    const HALVES: bool = true;
    const MINIMUM: bool = false;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        Single::store_head(head, lane, block);
    }

    fn store_factors(factors: &mut Self::Factors, lane: usize, block: &Block, part: usize) {
        factors[0][lane] = block.scale_factors[2 * part];
        factors[1][lane] = block.scale_factors[2 * part + 1];
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        [product(s, head, &factors[0]), product(s, head, &factors[1])]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, _: &Self::Head, _: &Self::Factors) -> [S::F; 2] {
        [s.zero(); 2]
    }
}

/// Two `f16` per 256 values with four-bit factors for each per sixteen: the scale's in the low nibble.
pub(super) struct HalvedAffine;

impl Scales for HalvedAffine {
    type Head = WithMinimum<HalfFloats>;
    type Factors = [[i8; LANES]; 2];
    type Parts<T: Plain> = [T; 8];
    const HALVES: bool = true;
    const MINIMUM: bool = true;

    fn store_head(head: &mut Self::Head, lane: usize, block: &Block) {
        Affine::store_head(head, lane, block);
    }

    fn store_factors(factors: &mut Self::Factors, lane: usize, block: &Block, part: usize) {
        for (half, factors) in factors.iter_mut().enumerate() {
            let group = 2 * part + half;
            let scale = block.scale_factors[group].cast_unsigned();
            factors[lane] = (scale | (block.minimum_factors[group] << 4)).cast_signed();
        }
    }

    #[inline(always)]
    fn scales<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        let scale = s.load_f16(&head.scales);
        let first = s.low_nibbles(s.load_i8(&factors[0]));
        let last = s.low_nibbles(s.load_i8(&factors[1]));
        let low_byte = s.splat_i32(0xff);
        [s.mul(scale, s.to_f32(s.and(first, low_byte))), s.mul(scale, s.to_f32(s.and(last, low_byte)))]
    }

    #[inline(always)]
    fn minimums<S: Simd>(s: S, head: &Self::Head, factors: &Self::Factors) -> [S::F; 2] {
        let minimum = s.load_f16(&head.minimums);
        let first = s.high_nibbles(s.load_i8(&factors[0]));
        let last = s.high_nibbles(s.load_i8(&factors[1]));
        let low_byte = s.splat_i32(0xff);
        [s.mul(minimum, s.to_f32(s.and(first, low_byte))), s.mul(minimum, s.to_f32(s.and(last, low_byte)))]
    }
}

/// Exact: eleven bits times eight.
#[inline(always)]
fn product<S: Simd>(s: S, floats: &HalfFloats, factors: &[i8; LANES]) -> S::F {
    s.mul(s.load_f16(floats), s.to_f32(s.load_i8(factors)))
}
