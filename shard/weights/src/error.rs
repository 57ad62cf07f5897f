//! What can go wrong with manifests, pieces and the cache.

use std::io;
use std::path::{Path, PathBuf};

use crate::ModelHash;

/// An error of this crate. It names the file, the piece and the number that matters.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant says what its fields are")]
pub enum Error {
    // Files.
    #[error(transparent)]
    Gguf(#[from] paceline_gguf::Error),
    #[error("{}: cannot {action}: {problem}", path.display())]
    Io { action: &'static str, path: PathBuf, problem: io::Error },
    #[error("{}: cannot {action} {bytes} bytes at {offset}: {problem}", path.display())]
    Transfer { action: &'static str, path: PathBuf, bytes: usize, offset: u64, problem: io::Error },
    #[error("{}: changed while it was read; try again when nobody writes to it", path.display())]
    ChangedMeanwhile { path: PathBuf },
    #[error("{}: the model has {found} files, {given} were given", path.display())]
    OtherFiles { path: PathBuf, found: usize, given: usize },

    // Manifests.
    #[error("a manifest of {bytes} bytes; the limit is {limit}")]
    ManifestTooLarge { bytes: usize, limit: usize },
    #[error("the manifest cannot be read: {reason}")]
    Unreadable { reason: String },
    #[error("the manifest has version {found}, this program knows version {expected}: run the same release everywhere")]
    Version { found: u8, expected: u8 },
    #[error("a manifest of {count} files; 1 to {limit} are possible")]
    FileCount { count: usize, limit: usize },
    #[error("{name:?} is no name for a model's file: {reason}")]
    Name { name: String, reason: &'static str },
    #[error("the manifest has two files called {name:?}")]
    DuplicateName { name: String },
    #[error("{name:?}: a header of {header_bytes} bytes in a file of {bytes}")]
    HeaderBytes { name: String, header_bytes: u64, bytes: u64 },
    #[error("{name:?}: {found} pieces for a file of {bytes} bytes, {expected} are needed")]
    PieceCount { name: String, bytes: u64, found: u64, expected: u64 },
    #[error("{given:?} is no hash of a model: 64 hexadecimal digits are needed")]
    HashText { given: String },

    // Pieces.
    #[error("piece {piece} does not exist, the model has {count}")]
    UnknownPiece { piece: u32, count: u32 },
    #[error("piece {piece} has {expected} bytes, {found} were given")]
    PieceLength { piece: u32, found: usize, expected: usize },
    #[error("the bytes given for piece {piece} of model {model} are not that piece: their hash is another")]
    WrongBytes { model: ModelHash, piece: u32 },
    #[error("{}: piece {piece} is not what it was when the file was hashed; has the file been changed?", file.display())]
    Changed { file: PathBuf, piece: u32 },
    #[error("piece {piece} of model {model} is not here")]
    NotHere { model: ModelHash, piece: u32 },
    #[error("model {model} is not here")]
    UnknownModel { model: ModelHash },
    #[error("{file:?} is not the file of the manifest: {reason}")]
    OtherModel { file: String, reason: &'static str },
    #[error("the model has {count} layers, layers {first} to {end} were asked for")]
    Layers { first: usize, end: usize, count: usize },

    // The cache.
    #[error(
        "{}: {needed} more bytes would pass the cache's budget of {budget}: {used} are used by models that are in use; \
         raise the budget or free them", folder.display()
    )]
    OverBudget { folder: PathBuf, needed: u64, used: u64, budget: u64 },
    #[error("{}: was removed again and again while it was opened", folder.display())]
    Contended { folder: PathBuf },
}

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Turns the system's errors into ones that say what was done to which path.
pub(crate) fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |problem| Error::Io { action, path: path.to_owned(), problem }
}
