//! How fast a row should be.
//!
//! A token of one session passes all stages and links, one after the other. Sessions travel in as many groups as there
//! are stages: then the slowest stage, once per group, or the way of one group through the row sets the pace,
//! whichever takes longer. Chunks of prompts follow each other as closely as the slowest stage or link lets them.

use serde::{Deserialize, Serialize};

use super::{
    LinkSpeed, Speed, StageCost, StepShape, Wishes,
    load::{Load, Steps},
};

/// What one stage takes for the usual steps.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StageTiming {
    /// Seconds of a decode step of one session.
    pub decode_one: f64,
    /// Seconds of a decode step of a group of sessions: all sessions travel the row in as many groups as there are
    /// stages, where there are enough.
    pub decode_all: f64,
    /// Seconds of a chunk of prompt.
    pub prefill_chunk: f64,
    /// Its share of the time that it computes while the row is as full as its slowest part allows.
    pub busy: f64,
}

/// How fast a whole row should be, if every device reaches its speed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Prediction {
    /// Tokens before the ones that are decoded.
    pub depth: usize,
    /// Tokens of the prompt that is read.
    pub prompt: usize,
    /// Sessions that are at work together.
    pub users: usize,
    /// Rows of a chunk of prompt.
    pub chunk: usize,
    /// Tokens per second of one session alone.
    pub decode_one: f64,
    /// Tokens per second of all sessions together.
    pub decode_all: f64,
    /// Tokens per second of prompts, one chunk behind the other.
    pub prefill: f64,
    /// Seconds until the first token of the prompt's answer, if nothing else runs.
    pub first_token: f64,
    /// The same if all sessions bring such a prompt at once, for the last of them.
    pub first_token_all: f64,
}

/// A row as far as its speed depends on it.
pub(super) struct RowSpeed {
    pub(super) costs: Vec<StageCost>,
    /// Of each stage's device.
    pub(super) speeds: Vec<Speed>,
    /// From each stage to the next.
    pub(super) links: Vec<LinkSpeed>,
    /// From the last stage to the first, if they are two.
    pub(super) back: Option<LinkSpeed>,
}

impl RowSpeed {
    /// Predicts what a load sees.
    pub(super) fn predict(&self, load: &Load, wishes: &Wishes) -> Prediction {
        let steps = Steps::of(load, wishes, self.costs.len());
        let chunk = steps.prefill.rows;
        let pace = self.slowest(&steps.prefill);
        let first = self.way(&steps.first_token);
        let behind = |chunks: usize| first + pace * chunks.saturating_sub(1) as f64;
        Prediction {
            depth: load.depth,
            prompt: load.prompt,
            users: load.users,
            chunk,
            decode_one: 1.0 / self.way(&steps.alone),
            decode_all: load.users as f64 / self.cycle(&steps.decode, load.groups(self.costs.len())),
            prefill: chunk as f64 / pace,
            first_token: behind(steps.chunks),
            first_token_all: behind(steps.chunks.saturating_mul(load.users)),
        }
    }

    /// What each stage takes.
    pub(super) fn timings(&self, load: &Load, wishes: &Wishes) -> Vec<StageTiming> {
        let steps = Steps::of(load, wishes, self.costs.len());
        let seconds = |step: &StepShape| self.stages(step);
        let (alone, decode, prefill) = (seconds(&steps.alone), seconds(&steps.decode), seconds(&steps.prefill));
        let work = |index: usize| steps.decode_steps * decode[index] + steps.prefill_steps * prefill[index];
        let links = self.links.iter().map(|link| {
            let bytes = steps.decode_steps * self.costs[0].sent_bytes(&steps.decode)
                + steps.prefill_steps * self.costs[0].sent_bytes(&steps.prefill);
            link.transfer(bytes)
        });
        let slowest = (0..alone.len()).map(work).chain(links).fold(0.0, f64::max);
        let timing = |index: usize| StageTiming {
            decode_one: alone[index],
            decode_all: decode[index],
            prefill_chunk: prefill[index],
            busy: if slowest > 0.0 { work(index) / slowest } else { 0.0 },
        };
        (0..alone.len()).map(timing).collect()
    }

    fn stages(&self, step: &StepShape) -> Vec<f64> {
        self.costs.iter().zip(&self.speeds).map(|(cost, speed)| cost.seconds(speed, step)).collect()
    }

    /// Seconds that a step takes through the row and, as a token, back to its head.
    fn way(&self, step: &StepShape) -> f64 {
        let stages: f64 = self.stages(step).iter().sum();
        let links: f64 =
            self.links.iter().zip(&self.costs).map(|(link, cost)| link.seconds(cost.sent_bytes(step))).sum();
        let back = self.back.zip(self.costs.last()).map_or(0.0, |(link, cost)| link.seconds(cost.sent_bytes(step)));
        stages + links + back
    }

    /// Seconds between two steps that follow each other.
    fn slowest(&self, step: &StepShape) -> f64 {
        let links = self.links.iter().zip(&self.costs).map(|(link, cost)| link.transfer(cost.sent_bytes(step)));
        self.stages(step).into_iter().chain(links).fold(0.0, f64::max)
    }

    /// Seconds in which each of so many groups makes a step.
    fn cycle(&self, step: &StepShape, groups: usize) -> f64 {
        self.way(step).max(groups as f64 * self.slowest(step))
    }
}
