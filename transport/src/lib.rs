//! Links that carry frames from stage to stage, and the tail's replies back to the coordinator.
//!
//! Read [`link`] first: the traits that a stage thread works with. [`local`] is the link inside one process: frames
//! move through bounded channels as values, nothing is encoded. [`Endpoint`] makes links between processes: QUIC with
//! certificates on both sides between hosts, a Unix socket within one. [`identity`] says who is who: the cluster's
//! authority, join tokens, and TLS for the control plane. This crate knows frames, not what is computed with them.

mod complaints;
mod endpoint;
mod error;
pub mod hello;
pub mod identity;
pub mod link;
pub mod local;
mod memories;
mod pieces;
mod remote;
mod settings;

pub use endpoint::{Endpoint, Pending, SOCKET_BYTES};
pub use error::{Error, Result};
pub use link::{FrameReceiver, FrameSender, ReplySender};
pub use memories::{Giving, MemoryReader, MemorySource, MemoryWriter, MoveKey, pipe};
pub use pieces::{PIECE_LIMIT, PieceClient, PieceRequest, PieceSource};
pub use remote::{LinkCloser, LinkReceiver, LinkSender};
pub use settings::{Carrier, Expected, FRAMES_LIMIT, LinkCounters, LinkKey, LinkReport, LinkSettings, Route, Target};
