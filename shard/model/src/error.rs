//! What can be wrong with a model that an architecture records.

use std::ops::Range;

/// An error of recording a stage program.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting has a value that the architecture cannot have.
    #[error("{key} is {value}; {expected}")]
    BadSetting {
        /// Its key in the file, or the flag that overrides it.
        key: String,
        /// Its value.
        value: String,
        /// What it must be.
        expected: String,
    },
    /// A tensor of the stage's layers that the architecture does not know: without it the results would be wrong.
    #[error("architecture {architecture} does not use tensor {tensor:?}; the file needs a newer version")]
    UnusedTensor {
        /// The architecture.
        architecture: &'static str,
        /// The tensor's name.
        tensor: String,
    },
    /// A file without a block for multi-token prediction, or with more than one.
    #[error("the file has {blocks} blocks for multi-token prediction; drafts are made with exactly one")]
    MtpBlocks {
        /// How many it has.
        blocks: usize,
    },
    /// A model that was opened without a DFlash model that drafts for it.
    #[error("the model was opened without a DFlash draft model")]
    NoDraft,
    /// The stage asks for layers that the model does not have, or for an end that it does not hold.
    #[error("layers {layers:?} {problem}; the model has layers 0..{count}")]
    Layers {
        /// The stage's layers.
        layers: Range<usize>,
        /// What is wrong with them.
        problem: &'static str,
        /// How many layers the model has.
        count: usize,
    },
    /// The model file itself is wrong: an unknown architecture, missing keys or tensors, contradictions.
    #[error(transparent)]
    Model(#[from] paceline_gguf::Error),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
