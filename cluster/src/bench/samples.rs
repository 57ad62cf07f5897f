//! What is known of a figure that was measured many times: on a machine that others use too, no single time counts.

use std::fmt;

use serde::Serialize;

/// The median of some measurements, and the quartiles around it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Spread {
    /// A quarter of the measurements are lower.
    pub(super) low: f64,
    pub(super) median: f64,
    /// A quarter of the measurements are higher.
    pub(super) high: f64,
}

impl Spread {
    /// # Panics
    /// If nothing was measured.
    pub(super) fn of(mut samples: Vec<f64>) -> Self {
        assert!(!samples.is_empty(), "a spread needs a measurement");
        samples.sort_by(f64::total_cmp);
        let quantile = |share: f64| {
            let at = share * (samples.len() - 1) as f64;
            let (below, above) = (samples[at.floor() as usize], samples[at.ceil() as usize]);
            below + (above - below) * at.fract()
        };
        Self { low: quantile(0.25), median: quantile(0.5), high: quantile(0.75) }
    }

    /// The same in another unit, or upside down as a rate: the quartiles keep their order.
    pub(super) fn map(self, change: impl Fn(f64) -> f64) -> Self {
        let (one, other) = (change(self.low), change(self.high));
        Self { low: one.min(other), median: change(self.median), high: one.max(other) }
    }

    /// Of things that follow one another.
    pub(super) fn plus(self, other: Self) -> Self {
        Self { low: self.low + other.low, median: self.median + other.median, high: self.high + other.high }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = formatter.precision().unwrap_or(1);
        let Self { low, median, high } = self;
        write!(formatter, "{median:.digits$} ({low:.digits$}-{high:.digits$})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_the_sorted_samples() {
        for (samples, low, median, high) in [
            (vec![3.0], 3.0, 3.0, 3.0),
            (vec![4.0, 2.0], 2.5, 3.0, 3.5),
            (vec![5.0, 1.0, 4.0, 2.0, 3.0], 2.0, 3.0, 4.0),
        ] {
            assert_eq!(Spread::of(samples), Spread { low, median, high });
        }
    }

    #[test]
    fn a_rate_turns_the_quartiles_around() {
        let times = Spread { low: 1.0, median: 2.0, high: 4.0 };
        assert_eq!(times.map(|time| 1.0 / time), Spread { low: 0.25, median: 0.5, high: 1.0 });
        assert_eq!(format!("{times:.0}"), "2 (1-4)");
    }
}
