//! The two halves of a service: the model's text side, which stays, and the placement in force, which may be
//! replaced. Every replacement is a new epoch.

pub(crate) mod actor;

use std::ops::Range;
use std::sync::Arc;

use paceline_core::limits::InvalidLimit;
use paceline_core::{Limits, Loss};
use paceline_proto::{Epoch, Reply, SessionId, TierAnswer, TierOrder};
use paceline_text::{ChatTemplate, Tokenizer};
use paceline_transport::FrameSender;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::engine::ModelCard;

/// What stays whatever the stages are: the model as clients see it, and its text side.
pub struct Service {
    /// What clients may know of the model. Its context and its stages are taken from the placement in force.
    pub model: ModelCard,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template, where it has one.
    pub template: Option<Arc<ChatTemplate>>,
}

/// A row of loaded stages, linked and ready for its first step: step 0, or the one after the last step of the row that
/// it takes over from.
pub struct Placed {
    /// Greater than that of every placement before it.
    pub epoch: Epoch,
    /// Every bound.
    pub limits: Limits,
    /// The link to the head. Dropping it tells the row to end.
    pub head: Box<dyn FrameSender>,
    /// What the stages answer. Its end means that every stage is gone.
    pub replies: mpsc::Receiver<Reply>,
    /// The shards.
    pub shards: Box<dyn Shards>,
    /// What the stages' disk tiers answer, each with the stage, counted from 0: room for
    /// [`ORDERS`](paceline_core::disk::ORDERS) of each.
    pub tiers: mpsc::Receiver<(usize, TierAnswer)>,
    /// One card per stage, in row order.
    pub stages: Vec<StageCard>,
}

/// The shards, as far as the coordinator controls them besides the steps.
pub trait Shards: Send {
    /// Voids a session's chunks on every stage, ahead of the frames under way.
    fn cancel(&self, session: SessionId);

    /// Gives an order to the disk tier of a stage, counted from 0; false if it cannot be given, and will not be answered.
    fn order(&self, stage: usize, order: TierOrder) -> bool;
}

/// Whether the row runs; to be watched by whoever places it anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// Requests are served.
    Serving {
        /// By this placement.
        epoch: Epoch,
    },
    /// Nothing can run until the row is replaced.
    Broken {
        /// The placement that broke; 0 before the first.
        epoch: Epoch,
        /// What happened.
        reason: String,
        /// A step does not come back: a stage hangs.
        hangs: bool,
    },
}

impl Health {
    pub(crate) fn of(epoch: Epoch, broken: Option<&Loss>) -> Self {
        let hangs = |loss: &Loss| matches!(loss, Loss::Overdue { .. });
        broken.map_or(Self::Serving { epoch }, |loss| Self::Broken {
            epoch,
            reason: loss.to_string(),
            hangs: hangs(loss),
        })
    }

    /// The placement that it speaks of.
    pub fn epoch(&self) -> Epoch {
        match self {
            Self::Serving { epoch } | Self::Broken { epoch, .. } => *epoch,
        }
    }

    /// Whether requests are served.
    pub fn is_serving(&self) -> bool {
        matches!(self, Self::Serving { .. })
    }
}

/// Why a placement is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    /// Limits with which nothing could run.
    #[error("the placement of epoch {epoch} cannot run: {limit}")]
    Limits {
        /// The placement's.
        epoch: Epoch,
        /// Which is wrong.
        limit: InvalidLimit,
    },
    /// Fewer or more cards than the limits say there are stages.
    #[error("the placement of epoch {epoch} has limits for {limits} stages, but describes {cards}")]
    Stages {
        /// The placement's.
        epoch: Epoch,
        /// By its limits.
        limits: usize,
        /// Described.
        cards: usize,
    },
    /// Frames could not be told apart from those of the placement before.
    #[error("the placement has epoch {epoch}, but epoch {newest} was placed already: take a greater number")]
    Epoch {
        /// The placement's.
        epoch: Epoch,
        /// The greatest so far.
        newest: Epoch,
    },
    /// Only a row that is still can be taken over.
    #[error("the row of epoch {epoch} is not still: it is not in force, held already, resumed, or has failed")]
    NotStill {
        /// The row's.
        epoch: Epoch,
    },
    /// Pages and slots of sessions would not be valid in it.
    #[error("the placement of epoch {epoch} has other pages, slots or contexts than the one in force: replace that")]
    OtherMemory {
        /// The placement's.
        epoch: Epoch,
    },
    /// The coordinator has stopped.
    #[error("the service has stopped")]
    Stopped,
}

impl Placed {
    /// What clients may know of the model while this placement is in force.
    pub(crate) fn card(&self, model: &ModelCard) -> ModelCard {
        ModelCard { context: self.limits.context, stages: self.stages.len(), ..model.clone() }
    }

    /// Checks that it can be the next after a placement of epoch `newest`.
    pub(crate) fn check(&self, newest: Option<Epoch>) -> Result<(), PlacementError> {
        let epoch = self.epoch;
        self.limits.check().map_err(|limit| PlacementError::Limits { epoch, limit })?;
        let (limits, cards) = (self.limits.stages, self.stages.len());
        if limits != cards {
            return Err(PlacementError::Stages { epoch, limits, cards });
        }
        match newest {
            Some(newest) if epoch <= newest => Err(PlacementError::Epoch { epoch, newest }),
            _ => Ok(()),
        }
    }
}

/// What is known of one stage of the row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageCard {
    /// Its place in the row, from 0.
    pub index: usize,
    /// The node that runs it, as the cluster names it.
    pub node: String,
    /// The host of that node.
    pub host: String,
    /// Its device: `cpu (avx512, 2 threads)`.
    pub device: String,
    /// Its layers.
    pub layers: Range<usize>,
    /// What it occupies.
    pub memory: StageMemory,
    /// The link to the stage behind it; the tail has none.
    pub link: Option<LinkCard>,
}

/// Memory of a stage, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// What the planner reckoned with.
    pub planned: MemoryBytes,
    /// What the device reserved.
    pub actual: MemoryBytes,
}

/// Bytes by what they are for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryBytes {
    /// Weights, as the device stores them.
    pub weights: u64,
    /// Pages of keys and values.
    pub key_value: u64,
    /// Recurrent states.
    pub states: u64,
    /// Buffers of a step and scratch space.
    pub buffers: u64,
    /// Kept for what the device may need in addition; the planner's alone.
    pub reserve: u64,
}

impl MemoryBytes {
    /// All of them; what is too large for 64 bits stops at the largest number.
    pub fn total(&self) -> u64 {
        [self.key_value, self.states, self.buffers, self.reserve].into_iter().fold(self.weights, u64::saturating_add)
    }
}

/// What is known of a link between two stages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkCard {
    /// What carries the frames: `local`, `quic`.
    pub carrier: String,
    /// Microseconds there and back, where it was measured.
    pub round_trip_micros: Option<u64>,
    /// What it can carry, where it was measured.
    pub bytes_per_second: Option<u64>,
}
