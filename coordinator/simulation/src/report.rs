//! What a simulation found.

use std::time::Duration;

use paceline_core::planner::Prediction;
use serde::Serialize;

use crate::histogram::Summary;
use crate::ideal::Ideal;
use crate::link::Link;
use crate::outages::Outage;
use crate::row::Stage;
use crate::tally::Ends;
use crate::world::Simulation;

/// What a simulation found. Of durations the mean and the maximum are exact; percentiles come from a histogram and are
/// at most 1/64 too high.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Repeats the run.
    pub seed: u64,
    /// Until the last session had ended.
    pub seconds: f64,
    /// How many events that took.
    pub events: u64,
    /// How sessions ended.
    pub sessions: Ends,
    /// How much was done.
    pub throughput: Throughput,
    /// From a session's arrival to its first token.
    pub first_token_ms: Summary,
    /// From each token of a session to its next.
    pub gap_ms: Summary,
    /// From a session's arrival to its place in the row; of those who got one.
    pub queue_ms: Summary,
    /// In the order of the row.
    pub stages: Vec<StageReport>,
    /// The first leads to the head, the last from the tail to the coordinator.
    pub links: Vec<LinkReport>,
    /// The share of the time in which all credits were out.
    pub credits_out: f64,
    /// What the best schedule of the same row could do with as many sessions as were decoded at a time.
    pub ideal: Ideal,
    /// What the planner expects; nothing if times were measured.
    pub prediction: Option<Prediction>,
    /// What went wrong, and what it cost.
    pub faults: Vec<Outage>,
}

/// How much was done in how much time.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Throughput {
    /// Tokens of prompts that were sent into the row.
    pub prefill_tokens: u64,
    /// Tokens that clients got.
    pub tokens: u64,
    /// Tokens of prompts a second, over the whole run.
    pub prefill_tok_s: f64,
    /// Tokens that clients got a second, over the whole run.
    pub tok_s: f64,
    /// Tokens of prompts a second, while anybody waited for the first token.
    pub prefill_tok_s_busy: f64,
    /// Tokens after the first a second, while anybody waited for one.
    pub decode_tok_s_busy: f64,
    /// How many sessions were decoded at a time, while any was.
    pub decoding_sessions: f64,
}

/// What a stage did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StageReport {
    /// The share of the time in which it computed.
    pub busy: f64,
    /// The share in which it was idle while all credits were out.
    pub credit_wait: f64,
    /// Steps with rows that it computed.
    pub steps: u64,
    /// Rows of a step, on average.
    pub rows_per_step: f64,
    /// Milliseconds of a step, on average.
    pub step_ms: f64,
    /// Milliseconds that a frame waited for it, on average.
    pub wait_ms: f64,
}

/// What a link did.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LinkReport {
    /// The share of the time in which it sent.
    pub busy: f64,
    /// Frames that it sent.
    pub frames: u64,
    /// Bytes that it sent.
    pub bytes: u64,
}

impl Report {
    pub(crate) fn of(simulation: &Simulation) -> Self {
        let Simulation { scenario, tally, row, .. } = simulation;
        let elapsed = tally.last_end;
        let depth = (tally.depth / tally.ends.finished.max(1)) as usize;
        let sessions = tally.decoding.mean().round() as usize;
        Self {
            seed: scenario.seed,
            seconds: elapsed.as_secs_f64(),
            events: simulation.events.posted(),
            sessions: tally.ends,
            throughput: throughput(simulation, elapsed),
            first_token_ms: tally.first_token.summary(),
            gap_ms: tally.gap.summary(),
            queue_ms: tally.queue.summary(),
            stages: row.stages.iter().map(|stage| StageReport::of(stage, elapsed)).collect(),
            links: row.links.iter().map(|link| LinkReport::of(link, elapsed)).collect(),
            credits_out: share(row.credits_out.until(simulation.events.now()), elapsed),
            ideal: Ideal::of(scenario, simulation.times, sessions.max(1), depth),
            prediction: None,
            faults: simulation.outages.all.clone(),
        }
    }
}

fn throughput(simulation: &Simulation, elapsed: Duration) -> Throughput {
    let tally = &simulation.tally;
    let prefill_tokens = simulation.status().prefill_tokens;
    Throughput {
        prefill_tokens,
        tokens: tally.tokens,
        prefill_tok_s: per_second(prefill_tokens, elapsed),
        tok_s: per_second(tally.tokens, elapsed),
        prefill_tok_s_busy: per_second(prefill_tokens, tally.prefilling.active),
        decode_tok_s_busy: per_second(tally.later_tokens, tally.decoding.active),
        decoding_sessions: tally.decoding.mean(),
    }
}

impl StageReport {
    fn of(stage: &Stage, elapsed: Duration) -> Self {
        let per_step = |of: f64| if stage.steps == 0 { 0.0 } else { of / stage.steps as f64 };
        Self {
            busy: share(stage.busy, elapsed),
            credit_wait: share(stage.starved, elapsed),
            steps: stage.steps,
            rows_per_step: per_step(stage.rows as f64),
            step_ms: per_step(stage.busy.as_secs_f64() * 1e3),
            wait_ms: per_step(stage.waited.as_secs_f64() * 1e3),
        }
    }
}

impl LinkReport {
    fn of(link: &Link, elapsed: Duration) -> Self {
        Self { busy: share(link.busy, elapsed), frames: link.frames, bytes: link.bytes }
    }
}

fn share(part: Duration, of: Duration) -> f64 {
    if of.is_zero() { 0.0 } else { part.as_secs_f64() / of.as_secs_f64() }
}

fn per_second(count: u64, time: Duration) -> f64 {
    if time.is_zero() { 0.0 } else { count as f64 / time.as_secs_f64() }
}
