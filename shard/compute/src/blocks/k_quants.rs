//! Blocks of 256 values with a scale that has its own factors: Q2_K to Q6_K.

use super::{Block, f16_at};

/// `scales[16], qs[64], d, dmin`: two bits; factors of scale and minimum share a byte.
pub(super) fn q2_k(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 80));
    block.minimum = f16_at(bytes, 82);
    for (group, byte) in bytes[..16].iter().enumerate() {
        block.scale_factors[group] = (byte & 15).cast_signed();
        block.minimum_factors[group] = byte >> 4;
    }
    read_two_bits(&bytes[16..80], &mut block.codes);
    block
}

/// `hmask[32], qs[64], scales[12], d`: three bits, the third from the masks.
pub(super) fn q3_k(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 108));
    let factors = &bytes[96..108];
    for group in 0..16 {
        let low_bits = (factors[group % 8] >> (4 * (group / 8))) & 15;
        let high_bits = (factors[8 + group % 4] >> (2 * (group / 4))) & 3;
        block.scale_factors[group] = (low_bits | (high_bits << 4)).cast_signed() - 32;
    }
    read_two_bits(&bytes[32..96], &mut block.codes);
    add_bit_planes(&bytes[..32], 2, &mut block.codes);
    block
}

/// `d, dmin, scales[12], qs[128]`: four bits.
pub(super) fn q4_k(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    block.minimum = f16_at(bytes, 2);
    read_six_bit_factors(&bytes[4..16], &mut block);
    read_nibble_pairs(&bytes[16..144], &mut block.codes);
    block
}

/// `d, dmin, scales[12], qh[32], qs[128]`: four bits and one.
pub(super) fn q5_k(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    block.minimum = f16_at(bytes, 2);
    read_six_bit_factors(&bytes[4..16], &mut block);
    read_nibble_pairs(&bytes[48..176], &mut block.codes);
    add_bit_planes(&bytes[16..48], 4, &mut block.codes);
    block
}

/// `ql[128], qh[64], scales[16], d`: four bits and two.
pub(super) fn q6_k(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 208));
    for (factor, byte) in block.scale_factors.iter_mut().zip(&bytes[192..208]) {
        *factor = byte.cast_signed();
    }
    for half in 0..2 {
        let low = &bytes[64 * half..][..64];
        let high = &bytes[128 + 32 * half..][..32];
        // Quarters of 32: low nibbles of both halves of `low`, then their high nibbles.
        for quarter in 0..4 {
            let low = &low[32 * (quarter % 2)..][..32];
            let codes = &mut block.codes[128 * half + 32 * quarter..][..32];
            for ((code, low), high) in codes.iter_mut().zip(low).zip(high) {
                let low_bits = (low >> (4 * (quarter / 2))) & 15;
                let high_bits = (high >> (2 * quarter)) & 3;
                *code = low_bits | (high_bits << 4);
            }
        }
    }
    block
}

/// In each half, 32 bytes hold 128 values: first the lowest two bits of every byte, then the next.
fn read_two_bits(bytes: &[u8], codes: &mut [u8]) {
    for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
        let (half, shift) = (part / 4, 2 * (part % 4));
        for (code, byte) in codes.iter_mut().zip(&bytes[32 * half..][..32]) {
            *code = (byte >> shift) & 3;
        }
    }
}

/// Every 32 bytes hold 64 values: first the low nibbles, then the high ones.
fn read_nibble_pairs(bytes: &[u8], codes: &mut [u8]) {
    for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
        let (pair, shift) = (part / 2, 4 * (part % 2));
        for (code, byte) in codes.iter_mut().zip(&bytes[32 * pair..][..32]) {
            *code = (byte >> shift) & 15;
        }
    }
}

/// Bit `i / 32` of byte `i % 32` is bit `position` of value `i`.
fn add_bit_planes(bytes: &[u8], position: u32, codes: &mut [u8]) {
    for (plane, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(bytes) {
            *code |= ((byte >> plane) & 1) << position;
        }
    }
}

/// Eight six-bit factors for the scale and eight for the minimum, each for 32 values.
fn read_six_bit_factors(bytes: &[u8], block: &mut Block) {
    for part in 0..8 {
        let (scale, minimum) = if part < 4 {
            (bytes[part] & 63, bytes[part + 4] & 63)
        } else {
            let low = bytes[part + 4];
            let scale_high = bytes[part - 4] >> 6;
            let minimum_high = bytes[part] >> 6;
            ((low & 15) | (scale_high << 4), (low >> 4) | (minimum_high << 4))
        };
        block.scale_factors[2 * part..][..2].fill(scale.cast_signed());
        block.minimum_factors[2 * part..][..2].fill(minimum);
    }
}
