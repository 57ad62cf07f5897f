//! Why there is no placement.

use super::{Memory, WouldFit, render::human};

/// The result of planning.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model cannot be placed as wished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A wish that must not be zero.
    #[error("{what} is 0, at least 1 is needed")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// A host without threads, or with more than can be.
    #[error("the host has {threads} threads, 1 to {limit} are possible")]
    Threads {
        /// How many.
        threads: usize,
        /// The most.
        limit: usize,
    },
    /// More shards than there are places to cut.
    #[error(
        "{shards} shards are wanted, but the model has {blocks} blocks, which may not be cut: use at most {blocks} shards"
    )]
    TooManyShards {
        /// How many were wished for.
        shards: usize,
        /// How many are possible.
        blocks: usize,
    },
    /// A context that the model was not trained for.
    #[error("a context of {context} tokens is wanted, but the model was trained for {trained}: use at most {trained}")]
    ContextTooLong {
        /// Tokens wished for.
        context: usize,
        /// Tokens trained for.
        trained: usize,
    },
    /// More of something than can be numbered.
    #[error("{count} {what} would be needed, at most {limit} can be numbered: use a smaller context or fewer sessions")]
    TooMany {
        /// Of what.
        what: &'static str,
        /// How many.
        count: usize,
        /// The most.
        limit: u32,
    },
    /// Keys or values that cannot be cached in the type wished for.
    #[error(transparent)]
    KeyValueType(#[from] paceline_gguf::Error),
    /// More memory needed than there is.
    #[error(
        "{} are needed (weights {}, keys and values {}, states {}, buffers {}, reserve {}), but {} are available: \
         {would_fit}",
        human(needed.total()), human(needed.weights), human(needed.key_value), human(needed.states),
        human(needed.buffers), human(needed.reserve), human(*available)
    )]
    DoesNotFit {
        /// Bytes of all stages together.
        needed: Box<Memory>,
        /// Bytes the host has.
        available: u64,
        /// What would fit instead.
        would_fit: Box<WouldFit>,
    },
}
