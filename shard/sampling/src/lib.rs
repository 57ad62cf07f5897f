//! Sampling at the tail: penalties, filters, what must follow, random numbers, logprobs.
//!
//! Read [`Sampler`]: one per session. It is told the session's tokens by position, and makes a token of each row of
//! logits. It is a function of its inputs alone: no clock, no shared random state, no I/O, and every sum runs in
//! one order with portable arithmetic, so that the same settings, tokens and logits give the same token on every host.
//! This crate knows nothing of models, devices, sessions' lives or the network.

mod error;
mod guide;
mod history;
mod logprobs;
mod random;
mod rank;
mod sampler;
mod settings;
mod thinking;
mod vocabulary;
mod weight;

pub use error::{Error, Result};
pub use logprobs::most_probable_token;
pub use sampler::Sampler;
pub use settings::MAX_LOGPROBS;
pub use vocabulary::Vocabulary;
