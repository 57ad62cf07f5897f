//! Why a GPU cannot be used.

/// An error of finding a card, its libraries, or its kernels.
#[derive(Debug, thiserror::Error)]
pub enum CudaError {
    /// A library that the system does not find.
    #[error("{library} ({purpose}) is not there: {advice}")]
    MissingLibrary {
        /// Its file.
        library: &'static str,
        /// What it is needed for.
        purpose: &'static str,
        /// What to install.
        advice: &'static str,
    },
    /// A library that lacks a function: too old, or a stub as build images have it.
    #[error("{library} lacks {function}: it is too old, or a stub; {advice}")]
    OldLibrary {
        /// Its file.
        library: String,
        /// The first function that it lacks.
        function: &'static str,
        /// What to install.
        advice: &'static str,
    },
    /// A card that does not exist.
    #[error("there is no card {index}; there are {count}")]
    NoCard {
        /// The one asked for.
        index: usize,
        /// How many there are, from 0.
        count: usize,
    },
    /// The driver refused something.
    #[error("the NVIDIA driver cannot {operation}: {reason}")]
    Driver {
        /// What was asked of it.
        operation: &'static str,
        /// What it says.
        reason: String,
    },
    /// The compiler of kernels refused something.
    #[error("NVRTC cannot {operation}: {reason}")]
    Compiler {
        /// What was asked of it, such as `compile linear.cu for 9.0`.
        operation: String,
        /// What it says.
        reason: String,
    },
}

/// A result with this crate's own error.
pub type CudaResult<T> = Result<T, CudaError>;
