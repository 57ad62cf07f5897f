//! The shard actor and its stage loop: one range of layers on one device.
//!
//! Read [`Stage`] first: a frame goes in, a frame for the next stage or the step's results come out. [`worker`]
//! runs it on its own thread between two links, and [`actor::ShardActor`] controls that thread. [`give`] and [`Taking`]
//! move what stages remember to stages that take their layers over; [`DiskTier`] keeps it on disk. [`Encoder`] is what makes
//! vectors of texts, beside all stages. A shard never schedules, never knows a prompt from
//! an answer, and never imports the coordinator.

pub mod actor;
mod checks;
mod drafts;
pub mod encoder;
mod error;
mod feedback;
mod open_sessions;
mod rows;
mod sessions;
mod stage;
mod stopwatch;
mod tail;
mod tiers;
pub mod worker;

pub use drafts::{Certain, DflashDrafter, Drafter, ModelDrafter, MtpDrafter};
pub use encoder::{Encoder, EncoderSettings};
pub use error::{Error, Result};
pub use feedback::{Feedback, feedback};
pub use open_sessions::OpenSessions;
pub use stage::memories::{Taking, give};
pub use stage::{Passed, Place, SharedStage, Stage};
pub use tiers::{DiskTier, StageTier, sharing};
