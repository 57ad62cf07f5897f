//! The coordinator and session actors around the pure cores.
//!
//! Read [`Engine`] first: what the HTTP API and the command line use. Whoever places stages reads [`placement`] and
//! [`actor::Control`]. This crate must never import a shard: they meet through steps, replies and links only.

pub mod actor;
mod cache;
mod embedder;
pub mod engine;
mod error;
pub mod metrics;
pub mod placement;
mod session;
mod status;
mod switching;
pub mod testing;

pub use cache::{CacheChange, CacheChanged, CacheList, CachedPath};
pub use embedder::{Embedder, EmbedderCard, EncoderLoad, Encodes};
pub use engine::{
    Answer, DraftSettings, Engine, FinishReason, Finished, Generate, Generation, Missed, ModelCard, Reuse, StageStatus,
    Status, Tier, Timings, TokenUpdate, Update, Usage,
};
pub use error::{Error, Result};
pub use placement::{Health, LinkCard, Placed, PlacementError, Service, Shards, StageCard};
pub use status::{CacheStatus, DiskCacheStatus, DraftStatus};
pub use switching::Still;
