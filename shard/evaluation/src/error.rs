//! What can go wrong.

/// Why a model could not be evaluated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file is not a model that can be read.
    #[error(transparent)]
    Model(#[from] paceline_gguf::Error),
    /// The model's architecture or settings cannot be recorded.
    #[error(transparent)]
    Record(#[from] paceline_model::Error),
    /// The device cannot load a stage, or refuses a step.
    #[error(transparent)]
    Device(#[from] paceline_compute::Error),
    /// More blocks are wanted than there are.
    #[error("{blocks} blocks cannot be cut into {stages} stages")]
    TooFewBlocks {
        /// The model's.
        blocks: usize,
        /// Those wanted.
        stages: usize,
    },
    /// More sessions or tokens than the layout has room for.
    #[error("there is no room for {what}: {limit} were laid out")]
    NoRoom {
        /// What for.
        what: &'static str,
        /// How many fit.
        limit: usize,
    },
    /// A session that was never begun, or has ended.
    #[error("session {session} is not running")]
    UnknownSession {
        /// The one asked for.
        session: u32,
    },
    /// Tokens are taken back that are certain.
    #[error("the last {count} tokens of session {session} are not all uncertain")]
    Certain {
        /// Whose.
        session: u32,
        /// How many should be taken back.
        count: usize,
    },
    /// A session goes on from one whose state lacks tokens that are uncertain.
    #[error(
        "{count} tokens of session {session} are uncertain: run one that is certain before another goes on from there"
    )]
    Uncertain {
        /// Whose.
        session: u32,
        /// How many.
        count: usize,
    },
    /// A text that is too short to measure.
    #[error(
        "the text has {tokens} tokens; windows of {context} need at least {needed}: give a longer text or a smaller --ctx"
    )]
    TooShort {
        /// How long it is.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
        /// How long it must be.
        needed: usize,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
