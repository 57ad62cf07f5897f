//! Rates, from two samples of totals.

use paceline_coordinator::{StageStatus, Status};
use serde::Serialize;

/// What happened between two samples, per second of the service's own clock.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Rates {
    /// Seconds between the samples.
    pub(crate) seconds: f64,
    /// Prompt tokens computed per second.
    pub(crate) prefill_tokens: f64,
    /// Tokens generated per second.
    pub(crate) decode_tokens: f64,
    /// Steps sent per second.
    pub(crate) steps: f64,
    /// The part of the time in which something was ready and no credit was free, from 0 to 1.
    pub(crate) credit_wait: f64,
    /// In row order; empty when another placement came between the samples.
    pub(crate) stages: Vec<StageRates>,
}

/// One stage between two samples.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct StageRates {
    /// The part of the time in which it computed, from 0 to 1.
    pub(crate) busy: f64,
    /// The part of the time in which it had nothing to do, from 0 to 1.
    pub(crate) idle: f64,
    /// Bytes of activations passed on per second.
    pub(crate) sent_bytes: f64,
}

impl Rates {
    /// `None` when no time passed, or when the service began anew between the samples.
    pub(crate) fn between(before: &Status, after: &Status) -> Option<Self> {
        let seconds = after.uptime_seconds - before.uptime_seconds;
        if seconds <= 0.0 || after.steps < before.steps {
            return None;
        }
        let rate = |before: u64, after: u64| after.saturating_sub(before) as f64 / seconds;
        let same_row = before.epoch == after.epoch && before.stages.len() == after.stages.len();
        let pairs = before.stages.iter().zip(&after.stages).filter(|_| same_row);
        Some(Self {
            seconds,
            prefill_tokens: rate(before.prefill_tokens, after.prefill_tokens),
            decode_tokens: rate(before.decode_tokens, after.decode_tokens),
            steps: rate(before.steps, after.steps),
            credit_wait: ((after.credit_wait_seconds - before.credit_wait_seconds) / seconds).clamp(0.0, 1.0),
            stages: pairs.map(|(before, after)| StageRates::between(before, after, seconds)).collect(),
        })
    }
}

impl StageRates {
    /// Totals come with the results of steps: without one a stage has waited all the time, and the first after a long
    /// wait brings all of that wait at once.
    fn between(before: &StageStatus, after: &StageStatus, seconds: f64) -> Self {
        let part = |before: u64, after: u64| after.saturating_sub(before) as f64 / 1e6 / seconds;
        let busy = part(before.busy_micros, after.busy_micros).min(1.0);
        let waited = part(before.idle_micros, after.idle_micros);
        let idle = if before.steps == after.steps { 1.0 } else { waited.min(1.0 - busy) };
        let sent_bytes = after.sent_bytes.saturating_sub(before.sent_bytes) as f64 / seconds;
        Self { busy, idle, sent_bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(uptime_seconds: f64, steps: u64, stage: StageStatus) -> Status {
        Status { uptime_seconds, steps, stages: vec![stage], ..Status::default() }
    }

    fn stage(steps: u64, busy_micros: u64, idle_micros: u64, sent_bytes: u64) -> StageStatus {
        StageStatus { steps, busy_micros, idle_micros, sent_bytes, ..StageStatus::default() }
    }

    #[test]
    fn rates_are_differences_over_the_services_own_time() {
        let before = Status { decode_tokens: 10, ..sample(100.0, 5, stage(5, 1_000_000, 500_000, 1000)) };
        let after = Status {
            decode_tokens: 50,
            prefill_tokens: 8,
            credit_wait_seconds: 0.5,
            ..sample(102.0, 9, stage(9, 2_500_000, 900_000, 5000))
        };
        let rates = Rates::between(&before, &after).expect("time passed");
        assert_eq!((rates.decode_tokens, rates.prefill_tokens, rates.steps), (20.0, 4.0, 2.0));
        assert_eq!(rates.credit_wait, 0.25);
        assert_eq!(rates.stages, [StageRates { busy: 0.75, idle: 0.2, sent_bytes: 2000.0 }]);
    }

    #[test]
    fn a_stage_without_a_step_has_waited_and_a_long_wait_is_no_more_than_all_the_time() {
        let quiet = stage(5, 10, 10, 0);
        let rates = Rates::between(&sample(0.0, 5, quiet.clone()), &sample(1.0, 5, quiet.clone())).expect("rates");
        assert_eq!((rates.stages[0].busy, rates.stages[0].idle), (0.0, 1.0));
        let woken = stage(6, 250_010, 900_000_000, 0);
        let rates = Rates::between(&sample(0.0, 5, quiet), &sample(1.0, 6, woken)).expect("rates");
        assert_eq!((rates.stages[0].busy, rates.stages[0].idle), (0.25, 0.75));
        let absurd = stage(7, u64::MAX, u64::MAX, u64::MAX);
        let rates = Rates::between(&sample(0.0, 5, stage(0, 0, 0, 0)), &sample(1.0, 7, absurd)).expect("rates");
        assert_eq!((rates.stages[0].busy, rates.stages[0].idle), (1.0, 0.0));
    }

    #[test]
    fn what_began_anew_has_no_rates() {
        let first = sample(10.0, 5, stage(5, 1, 1, 1));
        assert_eq!(Rates::between(&first, &first), None);
        assert_eq!(Rates::between(&first, &sample(3.0, 0, stage(0, 0, 0, 0))), None);
        assert_eq!(Rates::between(&first, &sample(11.0, 0, stage(0, 0, 0, 0))), None);
        let replaced = Status { epoch: 2, ..sample(11.0, 6, stage(0, 0, 0, 0)) };
        assert_eq!(Rates::between(&first, &replaced).map(|rates| rates.stages), Some(vec![]));
    }
}
