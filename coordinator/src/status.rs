//! How the service is doing right now: figures that rates can be made of.

use paceline_core::coordinator;
use serde::{Deserialize, Serialize};

use crate::placement::StageCard;

/// How the service is doing right now. Totals run from the start, those of stages from the start of their placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the start: two of these give the time between two samples.
    pub uptime_seconds: f64,
    /// Whether requests are admitted.
    pub ready: bool,
    /// Whether the service is about to end: what runs may finish.
    #[serde(default)]
    pub draining: bool,
    /// Why nothing can run, when it cannot.
    pub broken: Option<String>,
    /// The placement in force.
    pub epoch: u32,
    /// Sessions that run.
    pub running: usize,
    /// Sessions that may run at once.
    pub slots: usize,
    /// Sessions that wait to be admitted, or interrupted ones to be restored.
    pub waiting: usize,
    /// Of these, sessions that were interrupted.
    #[serde(default)]
    pub interrupted: usize,
    /// Sessions admitted.
    pub admitted: u64,
    /// How often one was paused because there was no page for one before it.
    #[serde(default)]
    pub pauses: u64,
    /// Pages that running sessions hold.
    pub pages_used: usize,
    /// Pages promised to them beyond those.
    pub pages_reserved: usize,
    /// Pages there are.
    pub pages: usize,
    /// Steps in the row.
    pub steps_in_flight: usize,
    /// The most there may be: one for each credit.
    pub credits: usize,
    /// Seconds in which something was ready to run and no credit was free.
    pub credit_wait_seconds: f64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Tokens generated.
    pub decode_tokens: u64,
    /// Steps sent.
    pub steps: u64,
    /// The stages, in row order.
    pub stages: Vec<StageStatus>,
}

/// A stage, and what it did since its placement began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageStatus {
    /// What it is.
    #[serde(flatten)]
    pub card: StageCard,
    /// Steps that it ran.
    pub steps: u64,
    /// Microseconds of computing.
    pub busy_micros: u64,
    /// Microseconds between steps.
    pub idle_micros: u64,
    /// Bytes of activations passed on.
    pub sent_bytes: u64,
}

impl Status {
    /// The core's figures and the stages' cards together.
    pub(crate) fn new(core: coordinator::Status, cards: &[StageCard]) -> Self {
        let totals = core.stages.iter().copied().chain(std::iter::repeat(Default::default()));
        let stages = cards.iter().cloned().zip(totals).map(|(card, totals)| StageStatus {
            card,
            steps: totals.steps,
            busy_micros: totals.busy,
            idle_micros: totals.idle,
            sent_bytes: totals.sent,
        });
        Self {
            uptime_seconds: 0.0,
            ready: core.broken.is_none(),
            draining: false,
            broken: core.broken,
            epoch: 0,
            running: core.running,
            slots: core.slots,
            waiting: core.waiting,
            interrupted: core.interrupted,
            admitted: core.admitted,
            pauses: core.pauses,
            pages_used: core.pages_used,
            pages_reserved: core.pages_reserved,
            pages: core.pages_used + core.pages_free,
            steps_in_flight: core.steps_in_flight,
            credits: core.credits,
            credit_wait_seconds: core.credit_wait.as_secs_f64(),
            prefill_tokens: core.prefill_tokens,
            decode_tokens: core.decode_tokens,
            steps: core.steps,
            stages: stages.collect(),
        }
    }
}
