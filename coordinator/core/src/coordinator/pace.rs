//! How fast the row is, learned from the times that come back with every step.

use std::time::Duration;

use paceline_proto::StageTime;

use crate::drafts::Widths;
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

/// What a step costs on the slowest stage, in microseconds, and how evenly the stages share it.
#[derive(Debug, Default)]
pub(super) struct Pace {
    prefill_row: Mean,
    decode_step: Mean,
    /// Of a step of decode: the time of all stages in times of the slowest.
    stages_busy: Mean,
    /// Of steps of decode alone, by rows: the time of the slowest stage, and of all together.
    slowest: Widths,
    row: Widths,
    /// What a step takes besides computing, from the result that it answers to its own: the way through the row and back.
    way: Mean,
    /// A step of decode alone was sent so that its time becomes known.
    asked: bool,
}

impl Pace {
    /// Learns from a step: decode alone tells what decoding costs, what a step with prefill takes beyond that is
    /// the prefill's.
    pub(super) fn observe(&mut self, prefill_rows: usize, decode_rows: usize, times: &[StageTime]) {
        let Some(slowest) = times.iter().map(|time| time.busy).max() else { return };
        let busy = slowest as f64;
        match (prefill_rows, decode_rows) {
            (0, 0) => {}
            (0, rows) => {
                self.decode_step.add(busy, 1.0);
                let all = together(times);
                self.stages_busy.add(all / busy.max(1.0), 1.0);
                self.slowest.learn(rows, busy);
                self.row.learn(rows, all);
            }
            (rows, 0) => self.prefill_row.add(busy, rows as f64),
            (rows, _) => {
                let decode = self.decode_step.get().unwrap_or(0.0);
                self.prefill_row.add((busy - decode).max(0.0), rows as f64);
            }
        }
    }

    /// Learns from a step of decode alone that no other step has held up since `since`.
    pub(super) fn observe_round(&mut self, since: Option<Duration>, now: Duration, times: &[StageTime]) {
        if let Some(since) = since.filter(|_| !times.is_empty()) {
            let round = now.saturating_sub(since).as_secs_f64() * 1e6;
            self.way.add((round - together(times)).max(0.0), 1.0);
        }
    }

    /// How long after a step of decode the next one of the same sessions can begin, if `groups` of sessions share the row;
    /// nothing while that is not known. Its way through the row is `hidden` where the next one need not wait for it.
    pub(super) fn period(&self, rows: usize, groups: usize, hidden: bool) -> Option<f64> {
        let way = if hidden { 0.0 } else { self.way.get().unwrap_or(0.0) };
        Some((self.row.time(rows)? + way).max(self.slowest.time(rows)? * groups as f64).max(1.0))
    }

    /// How long after a step of so many rows is sent its result is back, if it waits for no other; nothing while that is not
    /// known.
    pub(super) fn round(&self, rows: usize) -> Option<f64> {
        Some(self.row.time(rows)? + self.way.get()?)
    }

    /// How long a step of so many rows keeps the slowest stage busy; nothing while that is not known.
    pub(super) fn slowest(&self, rows: usize) -> Option<f64> {
        self.slowest.time(rows)
    }

    /// Rows of prefill with which a step takes about `percent` longer than decode alone; `most` while nothing is known,
    /// which is until the first tokens after the start.
    pub(super) fn prefill_rows(&self, percent: u32, most: usize) -> usize {
        let (Some(decode), Some(row)) = (self.decode_step.get(), self.prefill_row.get()) else { return most };
        let rows = decode * f64::from(percent) / 100.0 / row.max(f64::MIN_POSITIVE);
        (rows as usize).clamp(LEAST_PREFILL_ROWS, most)
    }

    /// Whether a step of decode should go without prefill, so that it becomes known what decode takes. Once is enough:
    /// while prompts wait there would never be such a step, and no measure for their share.
    pub(super) fn asks(&mut self) -> bool {
        self.decode_step.get().is_none() && !std::mem::replace(&mut self.asked, true)
    }

    /// How many steps keep the slowest of `stages` stages busy: as many as stages where all take the same time, fewer
    /// where one takes much longer than the others.
    pub(super) fn groups(&self, stages: usize) -> usize {
        // A stage that takes a twentieth of the slowest one's time is not worth a group of its own.
        let needed = self.stages_busy.get().map_or(stages, |busy| (busy - 0.05).ceil() as usize);
        needed.clamp(1, stages)
    }

    /// How long a step should take on the slowest stage; nothing while that is not known.
    pub(super) fn expected(&self, prefill_rows: usize, decode_rows: usize) -> Option<Duration> {
        let prefill = if prefill_rows > 0 { self.prefill_row.get()? * prefill_rows as f64 } else { 0.0 };
        let decode = if decode_rows > 0 { self.decode_step.get()? } else { 0.0 };
        Duration::try_from_secs_f64((prefill + decode) / 1e6).ok()
    }

    pub(super) fn micros_per_prefill_row(&self) -> Option<f64> {
        self.prefill_row.get()
    }

    pub(super) fn micros_per_decode_step(&self) -> Option<f64> {
        self.decode_step.get()
    }
}

/// What all stages took.
fn together(times: &[StageTime]) -> f64 {
    times.iter().map(|time| time.busy as f64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(busy: u64) -> [StageTime; 2] {
        [busy / 2, busy].map(|busy| StageTime { busy, ..StageTime::default() })
    }

    #[test]
    fn prefill_lengthens_a_step_by_its_share() {
        let mut pace = Pace::default();
        assert_eq!(pace.prefill_rows(100, 512), 512);
        for _ in 0..50 {
            pace.observe(0, 8, &times(20_000)); // 20 ms of decode
            pace.observe(40, 8, &times(30_000)); // and a quarter of a millisecond for each row of prefill
        }
        assert!((79..=80).contains(&pace.prefill_rows(100, 512)));
        assert!((39..=40).contains(&pace.prefill_rows(50, 512)));
        assert_eq!(pace.prefill_rows(100, 64), 64);
        assert_eq!(pace.prefill_rows(0, 512), LEAST_PREFILL_ROWS);
    }

    #[test]
    fn as_many_steps_follow_each_other_as_keep_the_slowest_stage_busy() {
        let groups = |busy: [u64; 4]| {
            let mut pace = Pace::default();
            assert_eq!(pace.groups(4), 4);
            pace.observe(0, 1, &busy.map(|busy| StageTime { busy, ..StageTime::default() }));
            pace.groups(4)
        };
        assert_eq!(groups([500, 500, 500, 500]), 4);
        assert_eq!(groups([500, 490, 510, 495]), 4);
        assert_eq!(groups([10_000, 2_000, 2_000, 2_000]), 2);
        assert_eq!(groups([10_000, 100, 100, 100]), 1);
        assert_eq!(groups([0, 0, 0, 0]), 1);
    }

    #[test]
    fn it_asks_once_what_decode_takes() {
        let mut pace = Pace::default();
        assert!(pace.asks());
        assert!(!pace.asks());
        let mut known = Pace::default();
        known.observe(0, 1, &times(100));
        assert!(!known.asks());
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
        pace.observe(0, 1, &times(1));
        pace.observe(16, 1, &times(0));
        assert_eq!(pace.prefill_rows(80, 512), 512);
        pace.observe(16, 0, &times(u64::MAX));
        assert_eq!(pace.prefill_rows(80, 512), LEAST_PREFILL_ROWS);
        pace.observe(0, 1, &times(u64::MAX));
        assert!(pace.prefill_rows(u32::MAX, 512) <= 512);
    }
}
