//! Types without blocks: every value is a float.

use half::{bf16, f16};

pub(super) fn from_f32(bytes: &[u8], values: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks();
    for (value, bytes) in values.iter_mut().zip(bytes) {
        *value = f32::from_le_bytes(*bytes);
    }
}

pub(super) fn from_f16(bytes: &[u8], values: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks();
    for (value, bytes) in values.iter_mut().zip(bytes) {
        *value = f16::from_le_bytes(*bytes).to_f32();
    }
}

pub(super) fn from_bf16(bytes: &[u8], values: &mut [f32]) {
    let (bytes, _) = bytes.as_chunks();
    for (value, bytes) in values.iter_mut().zip(bytes) {
        *value = bf16::from_le_bytes(*bytes).to_f32();
    }
}
