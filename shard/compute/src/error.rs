//! What can go wrong on a device.

use paceline_gguf::TensorType;

/// An error of loading or running a stage.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The program needs a tensor that the file does not have.
    #[error("tensor {tensor} is missing from the model file")]
    MissingTensor {
        /// Its name.
        tensor: String,
    },
    /// A tensor has another shape than the architecture says.
    #[error("tensor {tensor} is {found}, but the model's settings need {expected}")]
    WrongShape {
        /// Its name.
        tensor: String,
        /// What the file holds.
        found: String,
        /// What it should be.
        expected: String,
    },
    /// Rows must be whole blocks.
    #[error("{columns} values per row are not a multiple of the {block} values of a {kind} block")]
    PartialBlock {
        /// The type.
        kind: TensorType,
        /// Values per row.
        columns: usize,
        /// Values per block.
        block: usize,
    },
    /// Fewer or more bytes than the shape needs.
    #[error("{rows} rows of {columns} {kind} values are {expected} bytes, not {found}")]
    WrongLength {
        /// The type.
        kind: TensorType,
        /// Rows.
        rows: usize,
        /// Values per row.
        columns: usize,
        /// Bytes that the shape needs.
        expected: usize,
        /// Bytes given.
        found: usize,
    },
    /// A step asks for more than was reserved at load.
    #[error("the step has {found} {what}, but {limit} were reserved")]
    OverLimit {
        /// What there is too much of.
        what: &'static str,
        /// How much the step has.
        found: usize,
        /// How much was reserved.
        limit: usize,
    },
    /// A step's parts contradict one another.
    #[error("the step's {what} are {found}, expected {expected}")]
    Inconsistent {
        /// Which part.
        what: &'static str,
        /// Its size or value.
        found: usize,
        /// What the other parts imply.
        expected: usize,
    },
    /// A token, page, slot or row that does not exist.
    #[error("{what} {id} does not exist; there are {count}")]
    Unknown {
        /// What kind of thing.
        what: &'static str,
        /// The one asked for.
        id: usize,
        /// How many there are, from 0.
        count: usize,
    },
    /// Two chunks of a step would write the same memory.
    #[error("{what} {id} is written twice in one step; each chunk needs its own")]
    WrittenTwice {
        /// A page or a state slot.
        what: &'static str,
        /// Its id.
        id: usize,
    },
    /// Memory could not be had.
    #[error("{bytes} bytes for {what} could not be reserved")]
    OutOfMemory {
        /// What for.
        what: &'static str,
        /// How much.
        bytes: u64,
    },
    /// The machine lacks what a kernel set needs.
    #[error("this processor has no {isa}; it has {available}")]
    MissingInstructions {
        /// What was asked for.
        isa: String,
        /// What there is.
        available: String,
    },
    /// A device other than the processor failed, or lacks something.
    #[error("{device} cannot {operation}: {reason}")]
    Device {
        /// Its name.
        device: String,
        /// What was asked of it, as in "cannot launch linear_q4_k".
        operation: String,
        /// What it says.
        reason: String,
    },
    /// The threads of a device could not be started, or one of them died.
    #[error("the compute threads are gone: {reason}")]
    Threads {
        /// Why.
        reason: String,
    },
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;
