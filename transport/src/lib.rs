//! Links that carry frames from stage to stage, and the tail's replies back to the coordinator.
//!
//! Read [`link`] first: the two traits a stage thread works with. [`local`] is the link inside one process:
//! frames move through bounded channels as values, nothing is encoded. This crate knows frames, not what is
//! computed with them, and never reads a clock.

mod error;
pub mod link;
pub mod local;

pub use error::{Error, Result};
pub use link::{FrameReceiver, FrameSender, ReplySender};
