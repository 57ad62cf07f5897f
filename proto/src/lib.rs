//! What crosses a process boundary: ids, steps, results, and the frames that carry them.
//!
//! Read [`step::Step`] first: one micro-batch on its way down the row of stages. [`frame::Frame`] is a step
//! with its activations, and [`frame`] says how it looks on a wire. [`memories`] is what a stage tells another one that
//! takes its layers over. [`entries`] names by content what stages keep in lower tiers, and [`tiers`] is what they are
//! asked to keep. This crate does no I/O, reads no clock, and knows nothing of devices, schedulers or HTTP.

pub mod encoding;
pub mod entries;
mod error;
pub mod frame;
pub mod ids;
pub mod memories;
pub mod sampling;
pub mod step;
pub mod tiers;

pub use encoding::EncodeText;
pub use entries::{Entry, EntryKey};
pub use error::{Error, Result};
pub use frame::{Activations, Frame, Payload, Reply};
pub use ids::{Epoch, NodeId, PageId, SessionId, Slot, StepId};
pub use memories::{MemoryHead, MemoryRequest, OpenSession, SamplerMemory, SessionSampler};
pub use sampling::{ConstraintSettings, SamplingSettings, ThinkingSettings};
pub use step::{
    Chunk, ChunkInput, ChunkResult, Drafted, Logprobs, Operation, Outcome, Reused, SampledToken, StageTime, Step,
    StepDone, TokenLogprob, Verified, Verify, Wanted,
};
pub use tiers::{
    HeldEntry, HeldLayer, KeptEntry, Ticket, TierAnswer, TierCounts, TierOrder, TierOutcome, TierRefusal, TierTask,
};
