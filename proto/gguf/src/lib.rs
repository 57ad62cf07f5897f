//! The GGUF file format and what a planner must know of a model.
//!
//! Read [`Gguf`] first: one model file, or all parts of a split one, mapped read-only. It hands out [`Metadata`]
//! (decoded when the file is opened) and [`Tensor`]s (names, shapes and the bytes in the map; never read at opening).
//! [`ModelShape`] is the summary that placement works with: layers, their weights, and the formulas for the memory
//! that a session costs.
//!
//! This is a leaf crate: it knows no architecture's mathematics, no device and no network. Files come from strangers,
//! so every count, length and offset is checked before it is used, and everything wrong is an [`Error`] that names
//! the file, the thing and the number.

mod cursor;
mod error;
mod gguf;
mod header;
mod kv_type;
mod map;
mod metadata;
mod shape;
mod split;
mod tensor;
mod tensor_type;
pub mod testing;
mod value;
mod vocabulary;

pub use error::{Error, Result};
pub use gguf::{DRAFT_PREFIX, Gguf, ModelFile};
pub use header::{MAX_ALIGNMENT, MAX_HEADER_BYTES, MAX_METADATA_ENTRIES, MAX_NAME_BYTES, MAX_TENSORS};
pub use kv_type::KvType;
pub use metadata::Metadata;
pub use shape::{Architecture, DflashShape, EncoderShape, Experts, Layer, LayerKind, ModelShape, Pooling, Weights};
pub use tensor::{Shape, Tensor};
pub use tensor_type::TensorType;
pub use value::{Array, MAX_ARRAY_DEPTH, StringArray, Value};
