//! Durations in bounded memory: mean and maximum are exact, percentiles are at most 1/64 too high.

use std::time::Duration;

use serde::Serialize;

/// Values below this many microseconds have a bucket each; above, every doubling has [`PARTS`].
const EXACT: u64 = 2 * PARTS;
const PARTS: u64 = 64;
const PART_BITS: u32 = PARTS.ilog2();

/// Counts of durations by size.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// By bucket; grows to the largest seen, and to fewer than 4,000 however large that is.
    counts: Vec<u64>,
    count: u64,
    sum: Duration,
    max: Duration,
}

/// What is told of many durations, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize)]
pub struct Summary {
    /// How many.
    pub count: u64,
    /// Exact.
    pub mean: f64,
    /// Half of them are no longer; at most 1/64 too high, as the other percentiles.
    pub p50: f64,
    /// 95 of 100 are no longer.
    pub p95: f64,
    /// 99 of 100 are no longer.
    pub p99: f64,
    /// Exact.
    pub max: f64,
}

impl Histogram {
    /// Counts a duration.
    pub fn add(&mut self, duration: Duration) {
        let bucket = bucket(duration.as_micros().try_into().unwrap_or(u64::MAX));
        if bucket >= self.counts.len() {
            self.counts.resize(bucket + 1, 0);
        }
        self.counts[bucket] += 1;
        self.count += 1;
        self.sum = self.sum.saturating_add(duration);
        self.max = self.max.max(duration);
    }

    /// The least duration that a `share` of all do not exceed, or a little more. 0 of none.
    pub fn percentile(&self, share: f64) -> Duration {
        let rank = ((self.count as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_micros(last_of(bucket)).min(self.max);
            }
        }
        self.max
    }

    /// What is told of it.
    pub fn summary(&self) -> Summary {
        let at = |share| millis(self.percentile(share));
        let mean = if self.count == 0 { 0.0 } else { millis(self.sum) / self.count as f64 };
        Summary { count: self.count, mean, p50: at(0.5), p95: at(0.95), p99: at(0.99), max: millis(self.max) }
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn bucket(micros: u64) -> usize {
    if micros < EXACT {
        return micros as usize;
    }
    let doubling = micros.ilog2() - PART_BITS;
    (u64::from(doubling) * PARTS + (micros >> doubling)) as usize
}

/// The largest value of a bucket.
fn last_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let doubling = bucket / PARTS - 1;
    let part = bucket % PARTS + PARTS;
    (part << doubling) | ((1 << doubling) - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_bucket_is_narrow_and_holds_its_values(micros in any::<u64>()) {
            let last = last_of(bucket(micros));
            prop_assert!(last >= micros);
            prop_assert!(last - micros <= micros / PARTS);
            prop_assert!(bucket(micros) < 4_000);
        }

        #[test]
        fn percentiles_are_near_the_exact_ones(mut micros in prop::collection::vec(0u64..10_000_000, 1..200)) {
            let mut histogram = Histogram::default();
            micros.iter().for_each(|micros| histogram.add(Duration::from_micros(*micros)));
            micros.sort_unstable();
            for share in [0.01, 0.5, 0.95, 0.99, 1.0] {
                let rank = ((micros.len() as f64 * share).ceil() as usize).max(1);
                let exact = micros[rank - 1];
                let found = histogram.percentile(share).as_micros() as u64;
                prop_assert!(found >= exact && found - exact <= exact / PARTS, "{found} {exact}");
            }
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        assert_eq!(Histogram::default().summary(), Summary::default());
    }

    #[test]
    fn mean_and_maximum_are_exact() {
        let mut histogram = Histogram::default();
        [1001, 3003].iter().for_each(|micros| histogram.add(Duration::from_micros(*micros)));
        let summary = histogram.summary();
        assert_eq!((summary.count, summary.mean, summary.max), (2, 2.002, 3.003));
        assert_eq!(summary.p99, 3.003);
    }
}
