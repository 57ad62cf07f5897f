//! Models run step by step without the service around them, to say how well and how exactly they run.
//!
//! [`ModelRun`] runs a model on any split of its layers. [`perplexity`] says how surprised a model is by a text, for
//! comparing how keys and values are stored. [`exactness`] runs one text in many ways that must give the same bits.
//! This crate must never know of the coordinator, of links or of sockets.

mod error;
pub mod exactness;
pub mod model_run;
pub mod perplexity;

pub use error::{Error, Result};
pub use model_run::{Chunk, Layout, ModelRun};
