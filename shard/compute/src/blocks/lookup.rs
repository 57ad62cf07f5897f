//! Types whose four-bit codes are looked up in a table: IQ4_NL, IQ4_XS and MXFP4.

use super::legacy::read_nibbles;
use super::{Block, f16_at};

/// What the codes of IQ4_NL and IQ4_XS stand for.
pub const NONLINEAR_INTEGERS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// What the codes of MXFP4 stand for: twice the values of the E2M1 float.
pub const MXFP4_INTEGERS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// `d, qs[16]`
pub(super) fn iq4_nl(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    read_nibbles(&bytes[2..18], &mut block.codes);
    block
}

/// `d, scales_h (16 bits), scales_l[4], qs[128]`
pub(super) fn iq4_xs(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    let high = u16::from_le_bytes([bytes[2], bytes[3]]);
    for part in 0..8 {
        let low_bits = (bytes[4 + part / 2] >> (4 * (part % 2))) & 15;
        let high_bits = ((high >> (2 * part)) & 3) as u8;
        let factor = (low_bits | (high_bits << 4)).cast_signed() - 32;
        block.scale_factors[2 * part..][..2].fill(factor);
        read_nibbles(&bytes[8 + 16 * part..][..16], &mut block.codes[32 * part..]);
    }
    block
}

/// `e, qs[16]`
pub(super) fn mxfp4(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(half_power_of_two(bytes[0]));
    read_nibbles(&bytes[1..17], &mut block.codes);
    block
}

/// `2^(exponent − 128)`: half of what an E8M0 exponent means, as the integers are doubled.
fn half_power_of_two(exponent: u8) -> f32 {
    let exponent = u32::from(exponent);
    f32::from_bits(match exponent {
        // These two are too small to be normal.
        0 | 1 => 0x0020_0000 << exponent,
        _ => (exponent - 1) << 23,
    })
}
