//! What is counted and timed while a simulation runs.

use std::time::Duration;

use paceline_core::Refusal;
use paceline_core::session::FinishReason;
use serde::Serialize;

use crate::histogram::Histogram;

/// How sessions ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Ends {
    /// That came.
    pub begun: u64,
    /// With all their tokens.
    pub finished: u64,
    /// By their client.
    pub cancelled: u64,
    /// Never let in.
    pub refused: u64,
    /// Of these, because too many waited or they waited too long.
    pub refused_queue: u64,
    /// Of these, while no placement was in force.
    pub refused_down: u64,
    /// Lost on the way.
    pub failed: u64,
}

/// A number of sessions that do something, and for how long anybody did.
#[derive(Debug, Default)]
pub(crate) struct Activity {
    sessions: u64,
    since: Duration,
    /// The time in which it was at least one.
    pub(crate) active: Duration,
    /// The time of each, summed.
    pub(crate) summed: Duration,
}

impl Activity {
    pub(crate) fn begin(&mut self, now: Duration) {
        self.pass(now);
        self.sessions += 1;
    }

    pub(crate) fn end(&mut self, now: Duration) {
        self.pass(now);
        self.sessions -= 1;
    }

    fn pass(&mut self, now: Duration) {
        if self.sessions > 0 {
            let passed = now - self.since;
            self.active += passed;
            self.summed += passed.saturating_mul(self.sessions as u32);
        }
        self.since = now;
    }

    /// How many at a time, on average while anybody did.
    pub(crate) fn mean(&self) -> f64 {
        if self.active.is_zero() { 0.0 } else { self.summed.as_secs_f64() / self.active.as_secs_f64() }
    }
}

/// Everything that is counted of sessions.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) ends: Ends,
    pub(crate) tokens: u64,
    /// Tokens that were not the first of their answer.
    pub(crate) later_tokens: u64,
    pub(crate) queue: Histogram,
    pub(crate) first_token: Histogram,
    pub(crate) gap: Histogram,
    pub(crate) prefilling: Activity,
    pub(crate) decoding: Activity,
    /// Of finished sessions: tokens before the middle of the answer, summed.
    pub(crate) depth: u64,
    pub(crate) last_end: Duration,
}

impl Tally {
    pub(crate) fn ended(&mut self, reason: &FinishReason, now: Duration) {
        self.last_end = now;
        let ends = &mut self.ends;
        match reason {
            FinishReason::Stop | FinishReason::Length => ends.finished += 1,
            FinishReason::Cancelled => ends.cancelled += 1,
            FinishReason::Refused(refusal) => {
                ends.refused += 1;
                match refusal {
                    Refusal::QueueFull { .. } | Refusal::QueueDeadline { .. } => ends.refused_queue += 1,
                    Refusal::Broken { .. } => ends.refused_down += 1,
                    _ => {}
                }
            }
            FinishReason::Lost(_) => ends.failed += 1,
        }
    }
}

impl Ends {
    /// Sessions that have ended.
    pub fn ended(&self) -> u64 {
        self.finished + self.cancelled + self.refused + self.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activity_is_timed_by_session_and_together() {
        let second = Duration::from_secs;
        let mut activity = Activity::default();
        activity.begin(second(1));
        activity.begin(second(3));
        activity.end(second(4));
        activity.end(second(5));
        activity.begin(second(10));
        activity.end(second(11));
        assert_eq!((activity.active, activity.summed), (second(5), second(6)));
        assert_eq!(activity.mean(), 1.2);
        assert_eq!(Activity::default().mean(), 0.0);
    }
}
