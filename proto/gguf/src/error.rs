//! Everything that can be wrong with a model file.

use std::io;

use crate::{KvType, Shape};

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong with a model file: the file, the thing, and the number that matters.
///
/// Names that come from the file are printed quoted and escaped, so that a hostile one cannot write to a terminal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant says what its fields are")]
pub enum Error {
    // Opening.
    #[error("{file}: cannot be read")]
    Io { file: String, source: io::Error },
    #[error("{file}: is not a regular file")]
    NotAFile { file: String },
    #[error("{file}: not a GGUF file: {length} bytes long, starts with \"{found}\"")]
    NotGguf { file: String, length: u64, found: String },
    #[error("{file}: a big-endian GGUF file of version {version}; convert it to little-endian")]
    BigEndian { file: String, version: u32 },
    #[error("{file}: GGUF version {version}; versions 2 and 3 can be read, convert the model again")]
    UnsupportedVersion { file: String, version: u32 },

    // The header as bytes.
    #[error(
        "{file}: ends inside the {what} at byte {at}: {needed} bytes needed, the file has {length} in all; \
         is the download complete?"
    )]
    Truncated { file: String, what: &'static str, at: u64, needed: u64, length: u64 },
    #[error("{file}: the {what} at byte {at} would make the header longer than the limit of {limit} bytes")]
    HeaderTooLarge { file: String, what: &'static str, at: u64, limit: u64 },
    #[error("{file}: declares {count} {what}, the limit is {limit}")]
    TooMany { file: String, what: &'static str, count: u64, limit: u64 },
    #[error("{file}: the {what} at byte {at} is {length} bytes long, the limit is {limit}")]
    NameTooLong { file: String, what: &'static str, at: u64, length: u64, limit: u64 },
    #[error("{file}: the {what} at byte {at} is not valid UTF-8")]
    InvalidUtf8 { file: String, what: &'static str, at: u64 },
    #[error("{file}: key {key:?} has a value of unknown type {type_id}")]
    UnknownValueType { file: String, key: String, type_id: u32 },
    #[error("{file}: the bool at byte {at} is {value}, only 0 and 1 are bools")]
    InvalidBool { file: String, at: u64, value: u8 },
    #[error("{file}: key {key:?} has arrays nested deeper than {limit}")]
    NestedTooDeep { file: String, key: String, limit: u32 },
    #[error("{file}: key {key:?} appears twice")]
    DuplicateKey { file: String, key: String },
    #[error("{file}: general.alignment is {alignment}, it must be a power of two of at most {limit}")]
    Alignment { file: String, alignment: u64, limit: u64 },

    // Tensors.
    #[error("{file}: tensor {tensor:?} appears twice")]
    DuplicateTensor { file: String, tensor: String },
    #[error("{file}: tensor {tensor:?} has {count} dimensions, 1 to 4 are possible")]
    DimensionCount { file: String, tensor: String, count: u32 },
    #[error("{file}: dimension {dimension} of tensor {tensor:?} is zero")]
    ZeroDimension { file: String, tensor: String, dimension: usize },
    #[error("{file}: tensor {tensor:?} with dimensions {dims:?} has more elements than can be counted")]
    TensorTooLarge { file: String, tensor: String, dims: Vec<u64> },
    #[error("{file}: a row of tensor {tensor:?} has {columns} elements, {kind} needs a multiple of {block_len}")]
    RowNotWholeBlocks { file: String, tensor: String, columns: u64, kind: &'static str, block_len: u64 },
    #[error(
        "{file}: tensor {tensor:?} is of type {kind} (id {type_id}), which is not supported; use another quantization"
    )]
    UnsupportedTensorType { file: String, tensor: String, kind: &'static str, type_id: u32 },
    #[error("{file}: tensor {tensor:?} is at offset {offset}, which is not a multiple of the alignment {alignment}")]
    Misaligned { file: String, tensor: String, offset: u64, alignment: u64 },
    #[error(
        "{file}: tensor {tensor:?} needs {bytes} bytes at offset {offset} of the data, the file has {length} in all; \
         is the download complete?"
    )]
    TensorOutOfBounds { file: String, tensor: String, offset: u64, bytes: u64, length: u64 },
    #[error("{file}: tensors {first:?} and {second:?} overlap by {bytes} bytes")]
    Overlap { file: String, first: String, second: String, bytes: u64 },

    // Split models.
    #[error("{file}: part {number} of {count} of a split model; open the first part, the others are found from it")]
    NotFirstPart { file: String, number: u64, count: u64 },
    #[error(
        "{file}: the first of {count} parts must be named NAME-00001-of-{count:05}.gguf, for the others to be found"
    )]
    PartName { file: String, count: u64 },
    #[error("{file}: the model has {count} parts, but it was given as one piece of memory")]
    SplitInMemory { file: String, count: u64 },
    #[error("{file}: part {number} of {count} is missing")]
    PartMissing { file: String, number: u64, count: u64 },
    #[error("{file}: says it is part {found_number} of {found_count}, by its name it is part {number} of {count}")]
    PartMismatch { file: String, number: u64, count: u64, found_number: u64, found_count: u64 },
    #[error("{file}: all parts together have {found} tensors, split.tensors.count says {declared}")]
    SplitTensorCount { file: String, found: u64, declared: u64 },

    // Asking for what the file should have.
    #[error("{file}: key {key:?} is missing")]
    MissingKey { file: String, key: String },
    #[error("{file}: key {key:?} is {found}, {wanted} is needed")]
    WrongValue { file: String, key: String, found: String, wanted: &'static str },
    #[error("{file}: key {key:?} has {found} elements, {wanted} are needed")]
    ArrayLength { file: String, key: String, found: usize, wanted: usize },
    #[error("{file}: tensor {tensor:?} is missing")]
    MissingTensor { file: String, tensor: String },
    #[error("{file}: tensor {tensor:?} has shape {found}, {wanted} is needed")]
    WrongShape { file: Box<str>, tensor: Box<str>, found: Shape, wanted: Shape },
    #[error("{file}: architecture {architecture:?} is not known; known are {known}")]
    UnknownArchitecture { file: String, architecture: String, known: String },
    #[error("{file}: key {key:?} is {value}, {reason}")]
    Hyperparameter { file: String, key: String, value: u64, reason: &'static str },
    #[error("{file}: key {key:?} says {declared} blocks, the file has tensors of {found}, numbered up to {last}")]
    BlockCount { file: String, key: String, declared: usize, found: usize, last: usize },

    // Models that read texts and write none.
    #[error(
        "{file}: does not say how one vector is made of a text (its pooling type); say it with --pooling, or ask the model \
         for texts"
    )]
    NoPooling { file: String },
    #[error("{given:?} is no way to make one vector of a text; known are {known}")]
    UnknownPooling { given: String, known: String },
    #[error(
        "{file}: has no classifier (cls.output.weight) to rank with, or {architecture} models are not ranked with here"
    )]
    NoClassifier { file: String, architecture: String },
    #[error(
        "{file}: a model that makes vectors of texts and writes none; paceline serve answers /v1/embeddings with it"
    )]
    WritesNoText { file: String },

    // A model that drafts for another.
    #[error("{file}: a draft model {variant}, as {sign:?} says; only plain DFlash draft models can be used")]
    DraftVariant { file: String, variant: &'static str, sign: String },
    #[error("{file}: token {token} is {found:?}, in {model} it is {wanted:?}; drafts need the same vocabulary")]
    OtherToken { file: String, model: String, token: usize, found: String, wanted: String },
    #[error("{file}: has {found} tokens, {model} has {wanted}; drafts need the same vocabulary")]
    OtherTokenCount { file: String, model: String, found: usize, wanted: usize },

    // Key and value types.
    #[error("{given:?} is not a key or value type; known are {known}")]
    UnknownKvType { given: String, known: String },
    #[error("heads of {dim} values cannot be stored as {kind}, which needs a multiple of {block_len}")]
    HeadNotWholeBlocks { dim: usize, kind: KvType, block_len: usize },
}
