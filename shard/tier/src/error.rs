//! What can go wrong with a folder of entries. After each of these errors the folder is sound; the service goes on
//! without what could not be kept or read.

use std::io;
use std::path::{Path, PathBuf};

/// An error of this crate. It names the path and what was to be done with it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the message of each variant says what its fields are")]
pub enum Error {
    #[error("{}: cannot {action}: {problem}", path.display())]
    Io { action: &'static str, path: PathBuf, problem: io::Error },
    #[error("{} is in use by another process: give each process a folder of its own", folder.display())]
    InUse { folder: PathBuf },
    #[error("{}: the index cannot be read ({reason}); remove the folder, it holds nothing but a cache", folder.display())]
    Damaged { folder: PathBuf, reason: String },
    #[error("{}: the index cannot be written: {reason}", folder.display())]
    Index { folder: PathBuf, reason: String },
    #[error("this is no entry: {tokens} tokens behind {start}")]
    NoEntry { start: u32, tokens: usize },
}

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Turns the system's errors into ones that say what was done to which path.
pub(crate) fn failed<'a>(action: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + use<'a> {
    move |problem| Error::Io { action, path: path.to_owned(), problem }
}
