//! Where a shard gets its layers from: its own copy of the model, its cache, or another node.
//!
//! Read [`Manifest`] first: the files of a model in pieces of 4 MiB, each with its hash. [`HashCache`] makes the
//! manifest of a model file and remembers it; [`Cache`] keeps sparse copies of models and takes in the pieces that
//! [`stage_pieces`] names; [`PieceReader`] hands pieces to others. Nothing is used or handed out that does not have
//! the hash that the manifest says. This crate does no networking, and must never know who asks for a piece or where
//! a missing one comes from.

mod cache;
mod cached_model;
mod error;
mod files;
mod hash;
mod hash_cache;
mod hashing;
mod manifest;
mod needs;
mod reader;
#[cfg(test)]
mod tests;

pub use cache::Cache;
pub use cached_model::CachedModel;
pub use error::{Error, Result};
pub use hash::ModelHash;
pub use hash_cache::HashCache;
pub use hashing::Progress;
pub use manifest::{FileEntry, MAX_FILES, MAX_MANIFEST_BYTES, MAX_NAME_BYTES, Manifest, PIECE_BYTES, PieceRange};
pub use needs::{StageParts, header_pieces, layers_of, model_files, stage_pieces};
pub use reader::PieceReader;
