//! How the codes of sixteen weight rows lie in memory, for 32 columns.
//!
//! A vector has one group of four columns of each row. A field of `b` bits per code makes `b`
//! vectors of bytes out of the eight groups: group `g` lies in vector `g mod b`, at bit
//! `b · (g div b)` of each byte. Codes of 3 and 5 bits are two such fields; those of 6 bits lie as [`SixBits`] says.

#![expect(unsafe_code, reason = "promises that packed data are plain bytes")]

use super::memory::Plain;
use crate::blocks::{MXFP4_INTEGERS, NONLINEAR_INTEGERS};
use crate::cpu::simd::{LANES, Simd};

/// Groups of four columns in 32.
pub(super) const COLUMN_GROUPS: usize = 8;

/// Sixteen groups of four bytes.
type Vector = [u8; 4 * LANES];

/// A packing of codes.
pub(super) trait Codes: 'static {
    /// 32 columns of sixteen rows.
    type Data: Plain;
    /// The bytes given to the dot product are at most 127.
    const SMALL: bool;
    /// Loading them is so much work that more rows should share it, though they crowd the registers.
    const LABORIOUS: bool = false;

    /// Stores one row's codes.
    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]);

    /// The factors of the dot product, as unsigned bytes, by group of columns.
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS];
}

/// Stores the low `BITS` bits of one row's codes into a field.
fn store_field<const BITS: usize>(field: &mut [Vector; BITS], lane: usize, codes: [u8; 32]) {
    let (groups, _) = codes.as_chunks();
    let mask = u32::from_le_bytes([0xff >> (8 - BITS); 4]);
    for (index, vector) in field.iter_mut().enumerate() {
        let mut bytes = 0;
        for place in 0..8 / BITS {
            let group = u32::from_le_bytes(groups[index + BITS * place]);
            bytes |= (group & mask) << (BITS * place);
        }
        vector[4 * lane..][..4].copy_from_slice(&bytes.to_le_bytes());
    }
}

/// Whole bytes.
pub(super) struct EightBits;

impl Codes for EightBits {
    type Data = [Vector; 8];
    const SMALL: bool = false;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        store_field(data, lane, *codes);
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let mut groups = [s.zero_i32(); COLUMN_GROUPS];
        for (group, bytes) in groups.iter_mut().zip(data) {
            *group = s.load_bytes(bytes);
        }
        groups
    }
}

/// Nibbles.
pub(super) struct FourBits;

impl Codes for FourBits {
    type Data = [Vector; 4];
    const SMALL: bool = true;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        store_field(data, lane, *codes);
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let mut groups = [s.zero_i32(); COLUMN_GROUPS];
        for (i, bytes) in data.iter().enumerate() {
            let bytes = s.load_bytes(bytes);
            groups[i] = s.low_nibbles(bytes);
            groups[i + 4] = s.high_nibbles(bytes);
        }
        groups
    }
}

/// Pairs of bits.
pub(super) struct TwoBits;

impl Codes for TwoBits {
    type Data = [Vector; 2];
    const SMALL: bool = true;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        store_field(data, lane, *codes);
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let mut groups = [s.zero_i32(); COLUMN_GROUPS];
        let mask = s.splat_i32(0x0303_0303);
        for (i, bytes) in data.iter().enumerate() {
            let bytes = s.load_bytes(bytes);
            groups[i] = s.and(bytes, mask);
            groups[i + 2] = s.and(s.shr::<2>(bytes), mask);
            groups[i + 4] = s.and(s.shr::<4>(bytes), mask);
            groups[i + 6] = s.and(s.shr::<6>(bytes), mask);
        }
        groups
    }
}

/// Pairs of bits and a third bit.
pub(super) struct ThreeBits;

impl Codes for ThreeBits {
    type Data = [Vector; 3];
    const SMALL: bool = true;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        let [first, second, third] = data;
        let mut low = [*first, *second];
        store_field(&mut low, lane, *codes);
        [*first, *second] = low;
        store_field(std::array::from_mut(third), lane, codes.map(|code| code >> 2));
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let [first, second, third] = data;
        let mut groups = TwoBits::load(s, &[*first, *second]);
        let bits = s.load_bytes(third);
        let third_bits = [
            s.shl::<2>(bits),
            s.shl::<1>(bits),
            bits,
            s.shr::<1>(bits),
            s.shr::<2>(bits),
            s.shr::<3>(bits),
            s.shr::<4>(bits),
            s.shr::<5>(bits),
        ];
        join(s, &mut groups, third_bits, 0x0404_0404);
        groups
    }
}

/// Nibbles and a bit above each.
#[repr(C)]
pub(super) struct Joined {
    low: [Vector; 4],
    high: [Vector; 1],
}

// SAFETY: nothing but bytes.
unsafe impl Plain for Joined {}

/// Nibbles and a fifth bit.
pub(super) struct FiveBits;

impl Codes for FiveBits {
    type Data = Joined;
    const SMALL: bool = true;

    fn store(Joined { low, high }: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        store_field(low, lane, *codes);
        store_field(high, lane, codes.map(|code| code >> 4));
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, Joined { low, high }: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let mut groups = FourBits::load(s, low);
        let bits = s.load_bytes(&high[0]);
        let fifth_bits = [
            s.shl::<4>(bits),
            s.shl::<3>(bits),
            s.shl::<2>(bits),
            s.shl::<1>(bits),
            bits,
            s.shr::<1>(bits),
            s.shr::<2>(bits),
            s.shr::<3>(bits),
        ];
        join(s, &mut groups, fifth_bits, 0x1010_1010);
        groups
    }
}

/// Whole codes of three groups in the low bits of three vectors, and a fourth group's pairs of bits above them: so
/// three of four need nothing but a mask. Groups 0 to 3 lie in the first three vectors, the others in the last.
pub(super) struct SixBits;

impl Codes for SixBits {
    type Data = [[Vector; 3]; 2];
    const SMALL: bool = true;
    const LABORIOUS: bool = true;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        for (vectors, codes) in data.iter_mut().zip(codes.as_chunks::<16>().0) {
            let (groups, _) = codes.as_chunks::<4>();
            for (index, vector) in vectors.iter_mut().enumerate() {
                for (place, byte) in vector[4 * lane..][..4].iter_mut().enumerate() {
                    *byte = groups[index][place] | ((groups[3][place] >> (2 * index)) << 6);
                }
            }
        }
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let mut groups = [s.zero_i32(); COLUMN_GROUPS];
        let (whole, low) = (s.splat_i32(0x3f3f_3f3f), s.splat_i32(0x0303_0303));
        let (middle, high) = (s.splat_i32(0x0c0c_0c0c), s.splat_i32(0x3030_3030));
        for (groups, [first, second, third]) in groups.as_chunks_mut::<4>().0.iter_mut().zip(data) {
            let (first, second, third) = (s.load_bytes(first), s.load_bytes(second), s.load_bytes(third));
            let pairs = s.or(s.and(s.shr::<6>(first), low), s.and(s.shr::<4>(second), middle));
            groups[0] = s.and(first, whole);
            groups[1] = s.and(second, whole);
            groups[2] = s.and(third, whole);
            groups[3] = s.or(pairs, s.and(s.shr::<2>(third), high));
        }
        groups
    }
}

/// Adds the bits of `high` under the mask, which are zero in `groups`.
#[inline(always)]
fn join<S: Simd>(s: S, groups: &mut [S::I; COLUMN_GROUPS], high: [S::I; COLUMN_GROUPS], mask: i32) {
    let mask = s.splat_i32(mask);
    for (group, high) in groups.iter_mut().zip(high) {
        *group = s.or(*group, s.and(high, mask));
    }
}

/// The integers of four-bit codes, all with the same offset that makes them unsigned.
pub(super) trait Table: 'static {
    const BYTES: [u8; 16];
    const SMALL: bool;
}

/// The table of IQ4_NL and IQ4_XS.
pub(super) struct Nonlinear;

impl Nonlinear {
    pub(super) const OFFSET: i32 = 127;
}

impl Table for Nonlinear {
    const BYTES: [u8; 16] = raised(NONLINEAR_INTEGERS, Self::OFFSET);
    const SMALL: bool = false;
}

/// The table of MXFP4.
pub(super) struct Mxfp4;

impl Mxfp4 {
    pub(super) const OFFSET: i32 = 12;
}

impl Table for Mxfp4 {
    const BYTES: [u8; 16] = raised(MXFP4_INTEGERS, Self::OFFSET);
    const SMALL: bool = true;
}

const fn raised(integers: [i8; 16], offset: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut i = 0;
    while i < 16 {
        let raised = integers[i] as i32 + offset;
        assert!(0 <= raised && raised <= 255, "the offset makes every integer a byte");
        bytes[i] = raised as u8;
        i += 1;
    }
    bytes
}

/// Nibbles that are looked up.
pub(super) struct Lookup<T>(std::marker::PhantomData<T>);

impl<T: Table> Codes for Lookup<T> {
    type Data = [Vector; 4];
    const SMALL: bool = T::SMALL;

    fn store(data: &mut Self::Data, lane: usize, codes: &[u8; 32]) {
        FourBits::store(data, lane, codes);
    }

    #[inline(always)]
    fn load<S: Simd>(s: S, data: &Self::Data) -> [S::I; COLUMN_GROUPS] {
        let table = s.table(&T::BYTES);
        let mut groups = FourBits::load(s, data);
        for group in &mut groups {
            *group = s.lookup(table, *group);
        }
        groups
    }
}
