//! How fast the row is, learned from the times that come back with every step.

use std::time::Duration;

use paceline_proto::StageTime;

use crate::limits::LEAST_PREFILL_ROWS;

/// How much of what was learned remains at the next observation: the last ten or so count.
const KEEP: f64 = 0.9;

/// A mean in which older observations count less. Weights make a large step count more than a small one.
#[derive(Debug, Default)]
struct Mean {
    sum: f64,
    weight: f64,
}

impl Mean {
    fn add(&mut self, sum: f64, weight: f64) {
        self.sum = self.sum * KEEP + sum;
        self.weight = self.weight * KEEP + weight;
    }

    fn get(&self) -> Option<f64> {
        (self.weight > 0.0).then(|| self.sum / self.weight)
    }
}

/// What a step costs on the slowest stage, in microseconds.
#[derive(Debug, Default)]
pub(super) struct Pace {
    prefill_row: Mean,
    decode_step: Mean,
}

impl Pace {
    /// Learns from a step: decode alone tells what decoding costs, what a step with prefill takes beyond that is
    /// the prefill's.
    pub(super) fn observe(&mut self, prefill_rows: usize, decode_rows: usize, times: &[StageTime]) {
        let Some(slowest) = times.iter().map(|time| time.busy).max() else { return };
        let busy = slowest as f64;
        match (prefill_rows, decode_rows) {
            (0, 0) => {}
            (0, _) => self.decode_step.add(busy, 1.0),
            (rows, 0) => self.prefill_row.add(busy, rows as f64),
            (rows, _) => {
                let decode = self.decode_step.get().unwrap_or(0.0);
                self.prefill_row.add((busy - decode).max(0.0), rows as f64);
            }
        }
    }

    /// Rows of prefill beside which a step with decode takes about `target`; `most` while nothing is known.
    pub(super) fn prefill_rows(&self, target: Duration, most: usize) -> usize {
        let Some(row) = self.prefill_row.get() else { return most };
        let left = target.as_secs_f64() * 1e6 - self.decode_step.get().unwrap_or(0.0);
        let rows = (left / row.max(f64::MIN_POSITIVE)).max(0.0);
        (rows as usize).clamp(LEAST_PREFILL_ROWS, most)
    }

    pub(super) fn micros_per_prefill_row(&self) -> Option<f64> {
        self.prefill_row.get()
    }

    pub(super) fn micros_per_decode_step(&self) -> Option<f64> {
        self.decode_step.get()
    }
}
