//! What can be wrong with a grammar.

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No text can look like this, or it cannot be told.
    #[error("{0}")]
    Grammar(String),
    /// Grammars may be so long.
    #[error("the grammar has {bytes} bytes, at most {limit} are possible")]
    TooLong {
        /// How long it is.
        bytes: usize,
        /// The most.
        limit: usize,
    },
    /// A token that the text cannot go on with.
    #[error("token {token} does not follow the grammar: {reason}")]
    Token {
        /// Which.
        token: u32,
        /// What is known of it.
        reason: String,
    },
    /// It costs too much to find out what may be next.
    #[error("the grammar cannot be followed: {0}")]
    Work(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
