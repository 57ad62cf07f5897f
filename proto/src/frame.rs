//! Frames: what a link carries from stage to stage, and how it looks on a wire.
//!
//! A frame is a fixed header that is read in place ([`Header`], little endian), a description in `postcard`
//! (the [`Step`], or the tail's [`StepDone`]), and raw rows of `f32`. In one process frames move as values and
//! are never encoded; between processes [`Frame::encode`] and [`Frame::decode`] stand at both ends of a link.

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, Result};
use crate::step::{StageTime, Step, StepDone};

/// `PCLN` read as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"PCLN");
/// The version of everything in this crate.
pub const VERSION: u16 = 1;
/// The most bytes a frame may announce: 8,192 rows of 16,384 values and their description.
pub const LIMIT: u64 = 8192 * 16384 * 4 + (16 << 20);

/// A step on its way from one stage to the next.
#[derive(Debug, Clone, PartialEq)]
pub struct Frame {
    /// What to run.
    pub step: Step,
    /// Activations: the residual stream of all rows, or at the first stage those rows that came as vectors.
    pub payload: Payload,
    /// What the stages before took.
    pub times: Vec<StageTime>,
}

/// Where a frame's activations are.
#[derive(Debug, Clone, PartialEq)]
pub enum Payload {
    /// In host memory: `(rows, width)` `f32`, little endian.
    Host {
        /// Values per row; 0 when there are no rows.
        width: u32,
        /// The rows.
        rows: Bytes,
    },
}

impl Payload {
    /// No rows.
    pub fn empty() -> Self {
        Self::Host { width: 0, rows: Bytes::new() }
    }

    /// Rows from values, `(values.len() / width, width)`.
    pub fn from_rows(width: usize, values: &[f32]) -> Self {
        let width = u32::try_from(width).expect("a model's width fits 32 bits");
        let mut rows = BytesMut::with_capacity(values.len() * 4);
        for value in values {
            rows.extend_from_slice(&value.to_le_bytes());
        }
        Self::Host { width, rows: rows.freeze() }
    }

    /// Appends the rows' values to `values`.
    pub fn read_rows(&self, values: &mut Vec<f32>) {
        let Self::Host { rows, .. } = self;
        let quads = rows.chunks_exact(4);
        values.extend(quads.map(|quad| f32::from_le_bytes(quad.try_into().expect("chunks of four"))));
    }
}

/// What the tail sends back to the coordinator.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// A step's results.
    Done(StepDone),
    /// A stage could not run a step; nothing after it will run either.
    Failed {
        /// Which stage, counted from 0.
        stage: usize,
        /// What it says.
        reason: String,
    },
}

/// The first bytes of every frame.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    magic: U32,
    version: U16,
    kind: U16,
    epoch: U32,
    width: U32,
    step: U64,
    description_bytes: U64,
    payload_bytes: U64,
}

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = size_of::<Header>();

const KIND_STEP: u16 = 1;
const KIND_DONE: u16 = 2;

impl Header {
    /// Reads and checks a header; all later lengths come from it.
    ///
    /// # Errors
    /// Too few bytes, another protocol or version, an announced size over [`LIMIT`].
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let short = Error::Short { found: bytes.len(), header: HEADER_BYTES };
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| short)?;
        if header.magic.get() != MAGIC {
            return Err(Error::Magic { found: header.magic.get(), expected: MAGIC });
        }
        if header.version.get() != VERSION {
            return Err(Error::Version { found: header.version.get(), expected: VERSION });
        }
        let announced = header.description_bytes.get().saturating_add(header.payload_bytes.get());
        if announced > LIMIT {
            return Err(Error::TooLarge { announced, limit: LIMIT });
        }
        Ok(header)
    }

    /// Bytes that follow the header.
    pub fn body_bytes(&self) -> u64 {
        self.description_bytes.get() + self.payload_bytes.get()
    }
}

impl Frame {
    /// The frame as bytes.
    pub fn encode(&self) -> Bytes {
        let Payload::Host { width, rows } = &self.payload;
        let description = describe(&(&self.step, &self.times));
        let header = header(KIND_STEP, self.step.epoch.0, self.step.id.0, *width, description.len(), rows.len());
        assemble(&header, &description, rows)
    }

    /// Reads a frame; its rows share memory with `bytes`.
    ///
    /// # Errors
    /// Any [`Error`]; bytes from outside never panic.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let (header, description, rows) = take_apart(bytes, KIND_STEP)?;
        let (step, times): (Step, Vec<StageTime>) = understand(&description)?;
        let width = header.width.get();
        let row_bytes = width as usize * 4;
        let whole = if row_bytes == 0 { rows.is_empty() } else { rows.len() % row_bytes == 0 };
        if !whole {
            let count = u32::try_from(step.chunks.iter().map(|chunk| chunk.input.rows()).sum::<usize>());
            return Err(Error::Rows { bytes: rows.len(), rows: count.unwrap_or(u32::MAX), width });
        }
        Ok(Self { step, payload: Payload::Host { width, rows }, times })
    }
}

impl StepDone {
    /// The results as bytes.
    pub fn encode(&self) -> Bytes {
        let description = describe(self);
        let header = header(KIND_DONE, self.epoch.0, self.step.0, 0, description.len(), 0);
        assemble(&header, &description, &[])
    }

    /// Reads results.
    ///
    /// # Errors
    /// Any [`Error`]; bytes from outside never panic.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let (_, description, _) = take_apart(bytes, KIND_DONE)?;
        understand(&description)
    }
}

fn header(kind: u16, epoch: u32, step: u64, width: u32, description: usize, payload: usize) -> Header {
    Header {
        magic: MAGIC.into(),
        version: VERSION.into(),
        kind: kind.into(),
        epoch: epoch.into(),
        width: width.into(),
        step: step.into(),
        description_bytes: (description as u64).into(),
        payload_bytes: (payload as u64).into(),
    }
}

fn assemble(header: &Header, description: &[u8], payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + description.len() + payload.len());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(description);
    bytes.extend_from_slice(payload);
    bytes.freeze()
}

fn take_apart(bytes: &Bytes, kind: u16) -> Result<(Header, Bytes, Bytes)> {
    let header = Header::read(bytes)?;
    if header.kind.get() != kind {
        return Err(Error::Kind { found: header.kind.get() });
    }
    let found = (bytes.len() - HEADER_BYTES) as u64;
    if found != header.body_bytes() {
        return Err(Error::Length { announced: header.body_bytes(), found });
    }
    let middle = HEADER_BYTES + header.description_bytes.get() as usize;
    Ok((header, bytes.slice(HEADER_BYTES..middle), bytes.slice(middle..)))
}

fn describe(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("steps and results hold nothing that cannot be written")
}

fn understand<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    let describe_error = |error: postcard::Error| Error::Description { reason: error.to_string() };
    let (value, rest) = postcard::take_from_bytes(bytes).map_err(describe_error)?;
    if !rest.is_empty() {
        return Err(Error::Description { reason: format!("{} bytes are left over", rest.len()) });
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
