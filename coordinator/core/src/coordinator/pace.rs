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

#[cfg(test)]
mod tests {
    use super::*;

    fn times(busy: u64) -> [StageTime; 2] {
        [StageTime { busy: busy / 2 }, StageTime { busy }]
    }

    #[test]
    fn prefill_takes_what_decode_leaves_of_the_target() {
        let mut pace = Pace::default();
        let target = Duration::from_millis(100);
        assert_eq!(pace.prefill_rows(target, 512), 512);
        for _ in 0..50 {
            pace.observe(0, 8, &times(20_000)); // 20 ms of decode
            pace.observe(40, 8, &times(60_000)); // and 1 ms for each row of prefill
        }
        assert!((79..=80).contains(&pace.prefill_rows(target, 512)));
        assert_eq!(pace.prefill_rows(target, 64), 64);
        assert_eq!(pace.prefill_rows(Duration::from_millis(30), 512), LEAST_PREFILL_ROWS);
        assert_eq!(pace.prefill_rows(Duration::ZERO, 512), LEAST_PREFILL_ROWS);
    }

    #[test]
    fn it_follows_a_change_and_weighs_by_rows() {
        let mut pace = Pace::default();
        pace.observe(1, 0, &times(20_000)); // one row pays for all weights
        pace.observe(512, 0, &times(512 * 50));
        assert!(pace.micros_per_prefill_row().is_some_and(|row| row < 100.0));
        for _ in 0..100 {
            pace.observe(512, 0, &times(512 * 80));
        }
        assert!(pace.micros_per_prefill_row().is_some_and(|row| (row - 80.0).abs() < 0.1));
    }

    #[test]
    fn absurd_times_are_survived() {
        let mut pace = Pace::default();
        pace.observe(16, 0, &[]);
        assert_eq!(pace.micros_per_prefill_row(), None);
        pace.observe(16, 1, &times(0));
        assert_eq!(pace.prefill_rows(Duration::from_millis(1), 512), 512);
        pace.observe(0, 1, &times(u64::MAX));
        pace.observe(16, 0, &times(u64::MAX));
        assert_eq!(pace.prefill_rows(Duration::from_millis(1), 512), LEAST_PREFILL_ROWS);
    }
}
