//! What can be wrong with bytes that came from another process.

use crate::frame::Activations;

/// An error of reading a frame.
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
pub enum Error {
    /// Fewer bytes than a header.
    #[error("a frame of {found} bytes is shorter than its header of {header} bytes")]
    Short {
        /// Bytes there are.
        found: usize,
        /// Bytes of a header.
        header: usize,
    },
    /// Not one of our frames.
    #[error("the frame begins with {found:#010x}, not with {expected:#010x}")]
    Magic {
        /// What it begins with.
        found: u32,
        /// What it should begin with.
        expected: u32,
    },
    /// Another version of the protocol.
    #[error(
        "the frame has version {found}, this program speaks version {expected}: run the same release on every host"
    )]
    Version {
        /// The sender's.
        found: u16,
        /// Ours.
        expected: u16,
    },
    /// A kind of frame that does not exist.
    #[error("the frame has kind {found}, which does not exist")]
    Kind {
        /// The number.
        found: u16,
    },
    /// A form of activations that does not exist.
    #[error("the frame's activations have form {found}, which does not exist")]
    Activations {
        /// The number.
        found: u16,
    },
    /// A name that is no form of activations.
    #[error("`{found}` is no form of activations: f32, f16 or int8")]
    ActivationsName {
        /// The name.
        found: String,
    },
    /// The lengths in the header and the bytes there are disagree.
    #[error("the frame's header announces {announced} bytes, but {found} are there")]
    Length {
        /// By the header.
        announced: u64,
        /// Really.
        found: u64,
    },
    /// Larger than any frame may be.
    #[error("the frame announces {announced} bytes, the limit is {limit}")]
    TooLarge {
        /// By the header.
        announced: u64,
        /// The most allowed.
        limit: u64,
    },
    /// The description of the step cannot be read.
    #[error("the frame's description cannot be read: {reason}")]
    Description {
        /// What the decoder says.
        reason: String,
    },
    /// A request for a stage's memories, or what goes before them, cannot be read.
    #[error("what is said about memories cannot be read: {reason}")]
    Memories {
        /// What the decoder says.
        reason: String,
    },
    /// An order for a lower tier, or an answer of one, cannot be read.
    #[error("what is said about a lower tier cannot be read: {reason}")]
    Tier {
        /// What is wrong with it.
        reason: String,
    },
    /// Header and description name different steps.
    #[error("the frame's header names {header}, its description {description}")]
    Disagree {
        /// Epoch and step by the header.
        header: String,
        /// Epoch and step by the description.
        description: String,
    },
    /// Activations that are not whole rows.
    #[error("{bytes} bytes of activations are not whole rows of {width} {activations} values")]
    Rows {
        /// Bytes there are.
        bytes: usize,
        /// Values per row the header says.
        width: u32,
        /// Their form.
        activations: Activations,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
