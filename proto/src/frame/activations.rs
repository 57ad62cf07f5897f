//! How activations travel: exact, halved, or as small integers.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use bytes::{BufMut, Bytes, BytesMut};
use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::error::{Error, Result};

/// The form of the rows in a frame on a wire. Stages always compute with `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Activations {
    /// `f32`, little endian: exact.
    #[default]
    F32,
    /// `f16`, little endian: half the bytes, values beyond 65,504 become infinite.
    F16,
    /// Blocks of up to 32 values of a row: one `f32` scale, then one signed byte per value. A block that holds a
    /// value that is not finite becomes not-a-number as a whole.
    Int8,
}

/// Values that share a scale.
const BLOCK: usize = 32;
const SCALE_BYTES: usize = size_of::<f32>();

impl Activations {
    /// The number in a frame's header.
    pub fn code(self) -> u8 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Int8 => 2,
        }
    }

    /// The form with this number.
    ///
    /// # Errors
    /// [`Error::Activations`] when there is none.
    pub fn of_code(code: u8) -> Result<Self> {
        match code {
            0 => Ok(Self::F32),
            1 => Ok(Self::F16),
            2 => Ok(Self::Int8),
            _ => Err(Error::Activations { found: code.into() }),
        }
    }

    /// Bytes of a row of `width` values on the wire.
    pub fn row_bytes(self, width: u32) -> usize {
        let width = width as usize;
        match self {
            Self::F32 => width * 4,
            Self::F16 => width * 2,
            Self::Int8 => width + width.div_ceil(BLOCK) * SCALE_BYTES,
        }
    }

    /// Bytes on the wire of rows that occupy `bytes` as `f32`.
    pub fn packed_bytes(self, width: u32, bytes: usize) -> usize {
        match width {
            0 => bytes,
            _ => bytes / Self::F32.row_bytes(width) * self.row_bytes(width),
        }
    }

    /// Rows of `f32` in this form; those that travel exact are shared, not copied.
    pub fn pack(self, width: u32, rows: &Bytes) -> Bytes {
        if self == Self::F32 || width == 0 {
            return rows.clone();
        }
        let mut packed = BytesMut::with_capacity(self.packed_bytes(width, rows.len()));
        for row in rows.chunks_exact(Self::F32.row_bytes(width)) {
            for block in row.chunks(BLOCK * size_of::<f32>()) {
                self.pack_block(block, &mut packed);
            }
        }
        packed.freeze()
    }

    /// Rows of this form as `f32`.
    pub(super) fn unpack(self, width: u32, packed: Bytes) -> Result<Bytes> {
        let row_bytes = self.row_bytes(width);
        let whole = if row_bytes == 0 { packed.is_empty() } else { packed.len().is_multiple_of(row_bytes) };
        if !whole {
            return Err(Error::Rows { bytes: packed.len(), width, activations: self });
        }
        if self == Self::F32 || packed.is_empty() {
            return Ok(packed);
        }
        let mut rows = BytesMut::with_capacity(packed.len() / row_bytes * Self::F32.row_bytes(width));
        for row in packed.chunks_exact(row_bytes) {
            for block in row.chunks(self.row_bytes(BLOCK as u32)) {
                self.unpack_block(block, &mut rows);
            }
        }
        Ok(rows.freeze())
    }

    fn pack_block(self, block: &[u8], packed: &mut BytesMut) {
        let mut values = [0.0; BLOCK];
        let count = read_values(block, &mut values);
        match self {
            Self::F32 => packed.extend_from_slice(block),
            Self::F16 => pack_halves(&values, count, packed),
            Self::Int8 => pack_integers(&values, count, packed),
        }
    }

    fn unpack_block(self, block: &[u8], rows: &mut BytesMut) {
        match self {
            Self::F32 => rows.extend_from_slice(block),
            Self::F16 => unpack_halves(block, rows),
            Self::Int8 => unpack_integers(block, rows),
        }
    }
}

fn read_values(block: &[u8], values: &mut [f32; BLOCK]) -> usize {
    for (value, quad) in values.iter_mut().zip(block.as_chunks().0) {
        *value = f32::from_le_bytes(*quad);
    }
    block.len() / size_of::<f32>()
}

fn write_values(values: &[f32], rows: &mut BytesMut) {
    let mut quads = [[0; 4]; BLOCK];
    for (quad, value) in quads.iter_mut().zip(values) {
        *quad = value.to_le_bytes();
    }
    rows.extend_from_slice(quads[..values.len()].as_flattened());
}

fn pack_halves(values: &[f32; BLOCK], count: usize, packed: &mut BytesMut) {
    let mut halves = [f16::ZERO; BLOCK];
    halves.convert_from_f32_slice(values);
    let mut pairs = [[0; 2]; BLOCK];
    for (pair, half) in pairs.iter_mut().zip(&halves) {
        *pair = half.to_le_bytes();
    }
    packed.extend_from_slice(pairs[..count].as_flattened());
}

fn unpack_halves(block: &[u8], rows: &mut BytesMut) {
    let (mut halves, mut values) = ([f16::ZERO; BLOCK], [0.0; BLOCK]);
    for (half, pair) in halves.iter_mut().zip(block.as_chunks().0) {
        *half = f16::from_le_bytes(*pair);
    }
    halves.convert_to_f32_slice(&mut values);
    write_values(&values[..block.len() / size_of::<f16>()], rows);
}

fn pack_integers(values: &[f32; BLOCK], count: usize, packed: &mut BytesMut) {
    let finite = values.iter().all(|value| value.is_finite());
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    let scale = if finite { largest / 127.0 } else { f32::NAN };
    let inverse = if scale > 0.0 { 127.0 / largest } else { 0.0 };
    let mut integers = [0; BLOCK];
    for (integer, value) in integers.iter_mut().zip(values) {
        *integer = (value * inverse).round_ties_even() as i8 as u8;
    }
    packed.put_f32_le(scale);
    packed.extend_from_slice(&integers[..count]);
}

fn unpack_integers(block: &[u8], rows: &mut BytesMut) {
    let Some((scale, integers)) = block.split_first_chunk() else { return };
    let (scale, mut values) = (f32::from_le_bytes(*scale), [0.0; BLOCK]);
    for (value, integer) in values.iter_mut().zip(integers) {
        *value = f32::from(*integer as i8) * scale;
    }
    write_values(&values[..integers.len()], rows);
}

impl Display for Activations {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for Activations {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "f32" => Ok(Self::F32),
            "f16" => Ok(Self::F16),
            "int8" => Ok(Self::Int8),
            _ => Err(Error::ActivationsName { found: name.to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests;
