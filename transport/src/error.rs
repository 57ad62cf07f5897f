//! What can happen to a link, to the endpoint at its end, and to those who want in.

use std::fmt::Display;
use std::time::Duration;

/// An error of a link, an endpoint or an identity.
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
    /// A frame that cannot be sent, or bytes that are none.
    #[error(transparent)]
    Frame(#[from] paceline_proto::Error),
    /// A frame of another placement than the link's.
    #[error("a frame of epoch {found} came over a link of epoch {expected}")]
    Epoch {
        /// The frame's.
        found: u32,
        /// The link's.
        expected: u32,
    },
    /// Numbers that no link can have.
    #[error("a link cannot have {what} {found}; it is from 1 to {most}")]
    Settings {
        /// Which number.
        what: &'static str,
        /// What it is.
        found: u64,
        /// The most it may be.
        most: u64,
    },
    /// Nothing happened for too long.
    #[error("{what} took longer than {} s", after.as_secs_f64())]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
    },
    /// The other end is there, but does not want this.
    #[error("{by} refused: {reason}")]
    Refused {
        /// Who.
        by: String,
        /// Why.
        reason: String,
    },
    /// A greeting that is none of ours.
    #[error("the greeting cannot be read: {reason}")]
    Greeting {
        /// What is wrong with it.
        reason: String,
    },
    /// No connection, or one that broke while it was made.
    #[error("no connection to {to}: {reason}")]
    Connection {
        /// Where to.
        to: String,
        /// What the network, or the handshake, says.
        reason: String,
    },
    /// The system refused a socket, a file or a thread.
    #[error("{what}: {reason}")]
    System {
        /// What was tried.
        what: String,
        /// What the system says.
        reason: String,
    },
    /// A key or a certificate that is not what it should be.
    #[error("certificate: {reason}")]
    Certificate {
        /// What is wrong.
        reason: String,
    },
    /// Text that is no join token.
    #[error("this is no join token: {reason}")]
    Token {
        /// What is wrong.
        reason: String,
    },
    /// Text that is not the digits it should be.
    #[error("{what} is written as {digits} hexadecimal digits in lower case")]
    Digits {
        /// Of what.
        what: &'static str,
        /// How many there should be.
        digits: usize,
    },
    /// A piece of a model that the other end does not give.
    #[error("piece {piece}: {reason}")]
    Piece {
        /// Which.
        piece: u32,
        /// Why not.
        reason: String,
    },
}

impl Error {
    pub(crate) fn certificate(reason: impl Display) -> Self {
        Self::Certificate { reason: reason.to_string() }
    }

    pub(crate) fn greeting(reason: impl Display) -> Self {
        Self::Greeting { reason: reason.to_string() }
    }

    pub(crate) fn system(what: impl Display, reason: impl Display) -> Self {
        Self::System { what: what.to_string(), reason: reason.to_string() }
    }

    pub(crate) fn connection(to: impl Display, reason: impl Display) -> Self {
        Self::Connection { to: to.to_string(), reason: reason.to_string() }
    }
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
