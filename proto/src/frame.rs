//! Frames: what a link carries from stage to stage, and how it looks on a wire.
//!
//! A frame is a fixed header that is read in place ([`Header`], little endian), a description in `postcard`
//! (the [`Step`], or a [`Reply`]), and rows of activations in the form that the header names ([`Activations`]).
//! In one process frames move as values and are never encoded; between processes [`Frame::encode`] and
//! [`Frame::decode`] stand at both ends of a link. Decoding believes nothing: it refuses before it allocates, and
//! allocates no more than a small multiple of the bytes that are really there.

mod activations;

use bytes::{Bytes, BytesMut};
use serde::Serialize;
use serde::de::DeserializeOwned;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::{Error, Result};
use crate::ids::{Epoch, StepId};
use crate::step::{StageTime, Step, StepDone};

pub use activations::Activations;

/// `PCLN` read as a little-endian number.
pub const MAGIC: u32 = u32::from_le_bytes(*b"PCLN");
/// The version of everything in this crate.
pub const VERSION: u16 = 5;
/// The most bytes that any frame may announce: 8,192 rows of 16,384 values and their description.
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
    kind: u8,
    activations: u8,
    epoch: U32,
    width: U32,
    step: U64,
    description_bytes: U64,
    payload_bytes: U64,
}

/// Bytes of a [`Header`].
pub const HEADER_BYTES: usize = size_of::<Header>();

const KIND_STEP: u8 = 1;
const KIND_DONE: u8 = 2;
const KIND_FAILED: u8 = 3;

impl Header {
    /// Reads and checks a header; all later lengths come from it. `limit` is the most bytes that may follow.
    ///
    /// # Errors
    /// Too few bytes, another protocol or version, an announced size over `limit` or [`LIMIT`].
    pub fn read(bytes: &[u8], limit: u64) -> Result<Self> {
        let short = Error::Short { found: bytes.len(), header: HEADER_BYTES };
        let (header, _) = Self::read_from_prefix(bytes).map_err(|_| short)?;
        if header.magic.get() != MAGIC {
            return Err(Error::Magic { found: header.magic.get(), expected: MAGIC });
        }
        if header.version.get() != VERSION {
            return Err(Error::Version { found: header.version.get(), expected: VERSION });
        }
        let limit = limit.min(LIMIT);
        let announced = header.description_bytes.get().saturating_add(header.payload_bytes.get());
        if announced > limit {
            return Err(Error::TooLarge { announced, limit });
        }
        Ok(header)
    }

    /// Bytes that follow the header.
    pub fn body_bytes(&self) -> u64 {
        self.description_bytes.get() + self.payload_bytes.get()
    }

    /// The epoch that the frame belongs to; 0 for a failure.
    pub fn epoch(&self) -> Epoch {
        Epoch(self.epoch.get())
    }

    fn new(kind: u8, epoch: Epoch, step: StepId, description: usize) -> Self {
        Self {
            magic: MAGIC.into(),
            version: VERSION.into(),
            kind,
            activations: Activations::F32.code(),
            epoch: epoch.0.into(),
            width: 0.into(),
            step: step.0.into(),
            description_bytes: (description as u64).into(),
            payload_bytes: 0.into(),
        }
    }

    fn agrees(&self, epoch: Epoch, step: StepId) -> Result<()> {
        if (self.epoch.get(), self.step.get()) == (epoch.0, step.0) {
            return Ok(());
        }
        let name = |epoch: u32, step: u64| format!("epoch {epoch} step {step}");
        let header = name(self.epoch.get(), self.step.get());
        Err(Error::Disagree { header, description: name(epoch.0, step.0) })
    }
}

impl Frame {
    /// The frame as bytes, its activations exact.
    pub fn encode(&self) -> Bytes {
        self.encode_as(Activations::F32)
    }

    /// The frame as bytes, its activations in the given form.
    pub fn encode_as(&self, activations: Activations) -> Bytes {
        let Payload::Host { width, rows } = &self.payload;
        let (head, rows) = (self.encode_head(activations), activations.pack(*width, rows));
        let mut bytes = BytesMut::with_capacity(head.len() + rows.len());
        bytes.extend_from_slice(&head);
        bytes.extend_from_slice(&rows);
        bytes.freeze()
    }

    /// What goes before the rows: header and description. A link sends it and the packed rows one after the other.
    pub fn encode_head(&self, activations: Activations) -> Bytes {
        let Payload::Host { width, rows } = &self.payload;
        let description = describe(&(&self.step, &self.times));
        let mut header = Header::new(KIND_STEP, self.step.epoch, self.step.id, description.len());
        header.activations = activations.code();
        header.width = (*width).into();
        header.payload_bytes = (activations.packed_bytes(*width, rows.len()) as u64).into();
        assemble(&header, &description)
    }

    /// Reads a frame of any form; rows of `f32` share memory with `bytes`.
    ///
    /// # Errors
    /// Any [`Error`]; bytes from outside never panic.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let (header, description, rows) = take_apart(bytes)?;
        if header.kind != KIND_STEP {
            return Err(Error::Kind { found: header.kind.into() });
        }
        let (step, times): (Step, Vec<StageTime>) = understand(&description)?;
        header.agrees(step.epoch, step.id)?;
        let width = header.width.get();
        let rows = Activations::of_code(header.activations)?.unpack(width, rows)?;
        Ok(Self { step, payload: Payload::Host { width, rows }, times })
    }
}

impl Reply {
    /// The reply as bytes.
    pub fn encode(&self) -> Bytes {
        match self {
            Self::Done(done) => {
                let description = describe(done);
                assemble(&Header::new(KIND_DONE, done.epoch, done.step, description.len()), &description)
            }
            Self::Failed { stage, reason } => {
                let description = describe(&(*stage as u64, reason));
                assemble(&Header::new(KIND_FAILED, Epoch(0), StepId(0), description.len()), &description)
            }
        }
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// Any [`Error`]; bytes from outside never panic.
    pub fn decode(bytes: &Bytes) -> Result<Self> {
        let (header, description, rows) = take_apart(bytes)?;
        if !rows.is_empty() {
            return Err(Error::Rows { bytes: rows.len(), width: 0, activations: Activations::F32 });
        }
        match header.kind {
            KIND_DONE => {
                let done: StepDone = understand(&description)?;
                header.agrees(done.epoch, done.step)?;
                Ok(Self::Done(done))
            }
            KIND_FAILED => {
                let (stage, reason): (u64, String) = understand(&description)?;
                let absurd = |_| Error::Description { reason: format!("there is no stage {stage}") };
                Ok(Self::Failed { stage: usize::try_from(stage).map_err(absurd)?, reason })
            }
            found => Err(Error::Kind { found: found.into() }),
        }
    }
}

fn assemble(header: &Header, description: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + description.len());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(description);
    bytes.freeze()
}

/// Header, description and payload, whose lengths are those that the header announces.
fn take_apart(bytes: &Bytes) -> Result<(Header, Bytes, Bytes)> {
    let header = Header::read(bytes, LIMIT)?;
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
