//! Why there is nothing to report.

use std::time::Duration;

use paceline_core::invariants::Broken;
use paceline_core::limits::InvalidLimit;

/// Why a simulation cannot begin, or what it found wrong with the cores.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A setting that makes no sense.
    #[error("{name} is {value}, it must be {must}")]
    Setting {
        /// Which.
        name: &'static str,
        /// What it is.
        value: String,
        /// What would do.
        must: &'static str,
    },
    /// Lengths that cannot be read.
    #[error("the length {text:?} is none of: N, LEAST-MOST, ~MEDIAN, with numbers from 1 to {most}")]
    Length {
        /// What was given.
        text: String,
        /// The most tokens.
        most: usize,
    },
    /// Measured times that cannot be used.
    #[error("the measured times of stage {stage}: {what}")]
    Measured {
        /// Counted from 0.
        stage: usize,
        /// What is wrong.
        what: String,
    },
    /// A limit with which nothing could run.
    #[error(transparent)]
    Limits(#[from] InvalidLimit),
    /// The coordinator broke one of its invariants: a fault of the core.
    #[error("with seed {seed} at {at:?}: {broken}")]
    Broken {
        /// Repeats it.
        seed: u64,
        /// When.
        at: Duration,
        /// What.
        broken: Broken,
    },
    /// Sessions wait and nothing will ever happen: a fault of the core.
    #[error("with seed {seed}: nothing happens after {at:?} while {sessions} sessions wait")]
    Stuck {
        /// Repeats it.
        seed: u64,
        /// When the last event was.
        at: Duration,
        /// How many have not ended.
        sessions: usize,
    },
    /// Everybody has gone, and the coordinator still holds something: a fault of the core.
    #[error("with seed {seed}: everybody has gone, but {what} are still held")]
    Leak {
        /// Repeats it.
        seed: u64,
        /// What is held.
        what: String,
    },
}
