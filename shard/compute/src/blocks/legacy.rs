//! Blocks of 32 values with one scale: Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0.
//!
//! Four bits of value `j` are the low nibble of byte `j` for the first sixteen values, and the high
//! nibble of byte `j − 16` for the others.

use super::{Block, f16_at};

/// `d, qs[16]`
pub(super) fn q4_0(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    read_nibbles(&bytes[2..18], &mut block.codes);
    block
}

/// `d, m, qs[16]`
pub(super) fn q4_1(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    block.minimum = -f16_at(bytes, 2);
    read_nibbles(&bytes[4..20], &mut block.codes);
    block
}

/// `d, qh[4], qs[16]`
pub(super) fn q5_0(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    read_nibbles(&bytes[6..22], &mut block.codes);
    add_fifth_bits(&bytes[2..6], &mut block.codes);
    block
}

/// `d, m, qh[4], qs[16]`
pub(super) fn q5_1(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    block.minimum = -f16_at(bytes, 2);
    read_nibbles(&bytes[8..24], &mut block.codes);
    add_fifth_bits(&bytes[4..8], &mut block.codes);
    block
}

/// `d, qs[32]`, where the file has signed values and a code is 128 more.
pub(super) fn q8_0(bytes: &[u8]) -> Block {
    let mut block = Block::with_scale(f16_at(bytes, 0));
    for (code, value) in block.codes.iter_mut().zip(&bytes[2..34]) {
        *code = value.wrapping_add(128);
    }
    block
}

/// Reads 32 values from 16 bytes.
pub(super) fn read_nibbles(bytes: &[u8], codes: &mut [u8]) {
    for (j, byte) in bytes.iter().enumerate() {
        codes[j] = byte & 15;
        codes[j + 16] = byte >> 4;
    }
}

/// Bit `j` of the four bytes belongs to value `j`.
fn add_fifth_bits(bytes: &[u8], codes: &mut [u8]) {
    for (j, code) in codes.iter_mut().take(32).enumerate() {
        *code |= ((bytes[j / 8] >> (j % 8)) & 1) << 4;
    }
}
