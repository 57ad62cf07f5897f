//! The disk tier of one process: what its stages remember of prefixes, kept by content in a folder.
//!
//! Read [`Store`] first: an entry's layers go in, and come out again with the same bytes or not at all, whatever
//! happened to the process or to the files meanwhile. Data lies in `data/`, one file for what a stage keeps of an entry
//! at a time; `index.redb` says what is in them, and is all that is read when the folder is opened. A file is on the disk
//! before the index speaks of it, and the index has forgotten it before it is removed, so a process that is killed loses
//! at most what it was about to keep. Every layer's bytes have a checksum over what they are and are checked whenever
//! they are read.
//!
//! This crate is plain blocking file I/O. It must never know sessions, devices, or who wants an entry and why.

mod error;
mod files;
mod index;
mod ledger;
mod store;

pub use error::{Error, Result};
pub use store::{Counts, Part, Put, Span, Store};
