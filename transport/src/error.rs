//! What can happen to a link.

/// An error of a link.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// The other end is gone; nothing more will come or go.
    #[error("the other end of the link is closed")]
    Closed,
    /// More frames are under way than the link was made for: the sender ignores its credits.
    #[error("the link holds {frames} frames, as many as it was made for")]
    Full {
        /// How many.
        frames: usize,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
