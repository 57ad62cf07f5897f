//! How the codes of each format are read from panels: for products with queries, and for sums of values.

use super::quantized::QueryBlock;
use crate::blocks::NONLINEAR_INTEGERS;
use crate::cpu::pages::Format;
use crate::cpu::simd::{LANES, Simd};

/// Bytes that memory delivers at once.
pub(super) const CACHE_LINE: usize = 64;

/// Integers of sixteen tokens, the first sixteen of each and then the others.
pub(super) type Unpacked = [[[u8; LANES]; LANES]; 2];

/// To begin with.
pub(super) const UNPACKED: Unpacked = [[[0; LANES]; LANES]; 2];

/// −8 in every byte.
const MINUS_EIGHT: i32 = i32::from_ne_bytes([0xf8; 4]);

/// What the stored codes of keys have more than the integers that they stand for.
pub(super) const fn key_offset(format: Format) -> i32 {
    match format {
        Format::Q8_0 => Signed::OFFSET,
        Format::Q4_0 => Symmetric::OFFSET,
        Format::Q4_1 => Span::OFFSET,
        Format::Iq4Nl => Nonlinear::OFFSET,
    }
}

/// A format's panels.
pub(super) trait Packing {
    /// Bytes of the codes of a panel.
    const PANEL: usize;
    /// What the bytes that [`dots`](Self::dots) multiplies have more than the integers.
    const OFFSET: i32;
    /// Whether values have a minimum.
    const MINIMUMS: bool;

    /// Adds the dot products of sixteen keys, one per lane, with the given block of each query. What comes `next` is
    /// fetched into caches meanwhile.
    fn dots<S: Simd, const QUERIES: usize>(
        simd: S,
        codes: &[u8],
        next: &[u8],
        queries: &[&[QueryBlock]; QUERIES],
        block: usize,
        dots: &mut [S::I; QUERIES],
    );

    /// Takes the values of a panel apart, if [`token`](Self::token) needs it.
    fn unpack<S: Simd>(simd: S, codes: &[u8], unpacked: &mut Unpacked);

    /// The integers of one token's values, as signed bytes.
    fn token<'a>(codes: &'a [u8], unpacked: &'a Unpacked, lane: usize) -> [&'a [u8; LANES]; 2];
}

/// `q8_0`: a byte a code.
pub(super) enum Signed {}

/// `q4_0`: the codes are 8 more than the integers.
pub(super) enum Symmetric {}

/// `q4_1`: the codes are the integers.
pub(super) enum Span {}

/// `iq4_nl`: the integers are looked up.
pub(super) enum Nonlinear {}

impl Packing for Signed {
    const PANEL: usize = 32 * LANES;
    const OFFSET: i32 = 128;
    const MINIMUMS: bool = false;

    #[inline(always)]
    fn dots<S: Simd, const QUERIES: usize>(
        simd: S,
        codes: &[u8],
        next: &[u8],
        queries: &[&[QueryBlock]; QUERIES],
        block: usize,
        dots: &mut [S::I; QUERIES],
    ) {
        let lines = codes.as_chunks::<CACHE_LINE>().0.iter().zip(next.as_chunks::<CACHE_LINE>().0);
        for (group, (codes, next)) in lines.enumerate() {
            simd.prefetch(next.as_ptr());
            let codes = simd.load_bytes(codes);
            for (dot, query) in dots.iter_mut().zip(queries) {
                *dot = simd.dot_u8(*dot, codes, simd.splat_i32(query[block].groups[group]));
            }
        }
    }

    #[inline(always)]
    fn unpack<S: Simd>(_simd: S, _codes: &[u8], _unpacked: &mut Unpacked) {}

    #[inline(always)]
    fn token<'a>(codes: &'a [u8], _unpacked: &'a Unpacked, lane: usize) -> [&'a [u8; LANES]; 2] {
        let (halves, _) = codes.as_chunks();
        [&halves[2 * lane], &halves[2 * lane + 1]]
    }
}

/// Formats of two codes a byte: `key` makes the unsigned side of `$dot` of codes, `value` the signed integers.
macro_rules! pairs {
    ($format:ty, offset: $offset:expr, minimums: $minimums:expr, $dot:ident,
     key: |$simd:ident, $nibbles:ident| $key:expr, value: |$simd_too:ident, $nibbles_too:ident| $value:expr) => {
        impl Packing for $format {
            const PANEL: usize = 16 * LANES;
            const OFFSET: i32 = $offset;
            const MINIMUMS: bool = $minimums;

            #[inline(always)]
            fn dots<S: Simd, const QUERIES: usize>(
                simd: S,
                codes: &[u8],
                next: &[u8],
                queries: &[&[QueryBlock]; QUERIES],
                block: usize,
                dots: &mut [S::I; QUERIES],
            ) {
                #[inline(always)]
                fn key<S: Simd>($simd: S, $nibbles: S::I) -> S::I {
                    $key
                }
                let lines = codes.as_chunks::<CACHE_LINE>().0.iter().zip(next.as_chunks::<CACHE_LINE>().0);
                for (group, (codes, next)) in lines.enumerate() {
                    simd.prefetch(next.as_ptr());
                    let codes = simd.load_bytes(codes);
                    let (low, high) = (key(simd, simd.low_nibbles(codes)), key(simd, simd.high_nibbles(codes)));
                    for (dot, query) in dots.iter_mut().zip(queries) {
                        let groups = &query[block].groups;
                        *dot = simd.$dot(*dot, low, simd.splat_i32(groups[group]));
                        *dot = simd.$dot(*dot, high, simd.splat_i32(groups[group + 4]));
                    }
                }
            }

            #[inline(always)]
            fn unpack<S: Simd>(simd: S, codes: &[u8], unpacked: &mut Unpacked) {
                #[inline(always)]
                fn value<S: Simd>($simd_too: S, $nibbles_too: S::I) -> S::I {
                    $value
                }
                let [low, high] = unpacked;
                let (low, _) = low.as_flattened_mut().as_chunks_mut();
                let (high, _) = high.as_flattened_mut().as_chunks_mut();
                for ((codes, low), high) in codes.as_chunks().0.iter().zip(low).zip(high) {
                    let codes = simd.load_bytes(codes);
                    simd.store_bytes(value(simd, simd.low_nibbles(codes)), low);
                    simd.store_bytes(value(simd, simd.high_nibbles(codes)), high);
                }
            }

            #[inline(always)]
            fn token<'a>(_codes: &'a [u8], unpacked: &'a Unpacked, lane: usize) -> [&'a [u8; LANES]; 2] {
                [&unpacked[0][lane], &unpacked[1][lane]]
            }
        }
    };
}

pairs!(Symmetric, offset: 8, minimums: false, dot_u7,
    key: |_simd, nibbles| nibbles,
    value: |simd, nibbles| simd.add_bytes(nibbles, simd.splat_i32(MINUS_EIGHT)));
pairs!(Span, offset: 0, minimums: true, dot_u7,
    key: |_simd, nibbles| nibbles,
    value: |_simd, nibbles| nibbles);
pairs!(Nonlinear, offset: 128, minimums: false, dot_u8,
    key: |simd, nibbles| simd.lookup(simd.table(&RAISED), nibbles),
    value: |simd, nibbles| simd.lookup(simd.table(&SIGNED), nibbles));

/// The integers of `iq4_nl` as signed bytes.
const SIGNED: [u8; 16] = {
    let mut bytes = [0; 16];
    let mut code = 0;
    while code < 16 {
        bytes[code] = NONLINEAR_INTEGERS[code].cast_unsigned();
        code += 1;
    }
    bytes
};

/// The same and 128 more, which none of them exceeds as an unsigned byte.
const RAISED: [u8; 16] = {
    let mut bytes = SIGNED;
    let mut code = 0;
    while code < 16 {
        bytes[code] ^= 0x80;
        code += 1;
    }
    bytes
};
