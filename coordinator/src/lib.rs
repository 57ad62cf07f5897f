//! The coordinator and session actors around the pure cores.
//!
//! Read [`Engine`] first: what the HTTP API and the command line use. This crate must never import a shard:
//! they meet through steps, replies and links only.

pub mod actor;
pub mod engine;
mod error;
pub mod metrics;
mod session;
pub mod testing;

pub use engine::{
    Engine, FinishReason, Finished, Generate, Generation, ModelCard, Status, Timings, TokenUpdate, Update, Usage,
};
pub use error::{Error, Result};
