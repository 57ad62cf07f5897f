//! Times measured on a real row.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::{MOST_MICROS, StageTimes, StepLoad, micros};
use crate::Error;

/// Times measured on a real row, and what lies between them on straight lines. As JSON:
///
/// ```json
/// {"stages": [{"decode_micros": {"1": 850, "4": 1100}, "prefill_micros_per_row": 95.5, "overhead_micros": 20}],
///  "hop_micros": 14}
/// ```
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// In the order of the row.
    pub stages: Vec<MeasuredStage>,
    /// From the end of a stage's work to the moment when the next one has the frame.
    pub hop_micros: f64,
}

/// One stage's measurements, in microseconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredStage {
    /// By sessions that decode together: what the step took. Straight lines between the points and beyond the last;
    /// below the first the first.
    pub decode_micros: BTreeMap<usize, f64>,
    /// What a row of a prompt adds to a step.
    pub prefill_micros_per_row: f64,
    /// What every step takes besides.
    #[serde(default)]
    pub overhead_micros: f64,
}

impl Measured {
    /// Says what is wrong with the figures.
    ///
    /// # Errors
    /// Without stages or points, and with figures that are no times.
    pub fn check(&self) -> Result<(), Error> {
        let wrong = |stage: usize, what: String| Err(Error::Measured { stage, what });
        if self.stages.is_empty() {
            return wrong(0, "there are no stages".into());
        }
        for (index, stage) in self.stages.iter().enumerate() {
            if stage.decode_micros.is_empty() || stage.decode_micros.contains_key(&0) {
                return wrong(index, "decode_micros needs points of 1 session and more".into());
            }
            let others = [stage.prefill_micros_per_row, stage.overhead_micros, self.hop_micros];
            let figures = stage.decode_micros.values().copied().chain(others);
            if let Some(figure) = figures.into_iter().find(|figure| !(0.0..MOST_MICROS).contains(figure)) {
                return wrong(index, format!("{figure} µs is no time, 0 to 10^12 are"));
            }
        }
        Ok(())
    }
}

impl MeasuredStage {
    fn decode(&self, sessions: usize) -> f64 {
        let below = self.decode_micros.range(..=sessions).next_back();
        let above = self.decode_micros.range(sessions..).next();
        match (below, above) {
            (Some(low), Some(high)) => on_line(low, high, sessions),
            (None, Some((_, micros))) => *micros,
            (Some(last), None) => match self.decode_micros.range(..last.0).next_back() {
                Some(before) => on_line(before, last, sessions).max(*last.1),
                None => *last.1,
            },
            (None, None) => 0.0,
        }
    }
}

fn on_line(low: (&usize, &f64), high: (&usize, &f64), at: usize) -> f64 {
    if low.0 == high.0 {
        return *low.1;
    }
    low.1 + (high.1 - low.1) * (at - low.0) as f64 / (high.0 - low.0) as f64
}

impl StageTimes for Measured {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn time(&self, stage: usize, load: &StepLoad) -> Duration {
        let stage = &self.stages[stage];
        if load.rows() == 0 {
            return Duration::ZERO;
        }
        let decode = if load.decode_rows > 0 { stage.decode(load.decode_rows) } else { 0.0 };
        let prefill = stage.prefill_micros_per_row * load.prefill_rows as f64;
        micros(stage.overhead_micros + decode + prefill)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn measured(json: &str) -> Result<Measured, String> {
        let measured: Measured = serde_json::from_str(json).map_err(|error| error.to_string())?;
        measured.check().map_err(|error| error.to_string())?;
        Ok(measured)
    }

    fn decode(sessions: usize) -> StepLoad {
        StepLoad::decode(sessions, 0)
    }

    #[test]
    fn between_points_lie_lines() {
        let times = measured(
            r#"{"stages":[{"decode_micros":{"2":100,"4":200},"prefill_micros_per_row":3,"overhead_micros":7}],
                "hop_micros":14}"#,
        );
        let times = times.expect("good figures");
        let at = |load: &StepLoad| times.time(0, load).as_micros();
        let all: Vec<_> = [1, 2, 3, 4, 6].map(|sessions| at(&decode(sessions))).to_vec();
        assert_eq!(all, [107, 107, 157, 207, 307]);
        assert_eq!(at(&StepLoad { prefill_rows: 10, ..decode(3) }), 187);
        assert_eq!(at(&StepLoad { prefill_rows: 10, ..StepLoad::default() }), 37);
        assert_eq!(at(&StepLoad::default()), 0);
    }

    #[test]
    fn bad_files_are_refused_with_what_is_wrong() {
        let stage = |decode: &str, row: &str| {
            format!(r#"{{"stages":[{{"decode_micros":{decode},"prefill_micros_per_row":{row}}}],"hop_micros":1}}"#)
        };
        for (json, says) in [
            (r#"{"stages":[],"hop_micros":1}"#.to_owned(), "no stages"),
            (r#"{"hop_micros":1}"#.to_owned(), "stages"),
            (stage("{}", "1"), "points"),
            (stage(r#"{"0":5}"#, "1"), "points"),
            (stage(r#"{"1":-5}"#, "1"), "-5 µs is no time"),
            (stage(r#"{"1":5}"#, "1e300"), "is no time"),
            (stage(r#"{"one":5}"#, "1"), "to be a number"),
            (stage(r#"{"1":5},"speed":3"#, "1"), "speed"),
        ] {
            let error = measured(&json).expect_err(&json);
            assert!(error.contains(says), "{json}: {error}");
        }
    }

    proptest! {
        #[test]
        fn measured_points_are_met_and_more_sessions_take_no_less(
            points in prop::collection::btree_map(1usize..64, 0.0f64..1e6, 1..6),
        ) {
            let mut last = 0.0f64;
            let rising = points.into_iter().map(|(sessions, micros)| { last += micros; (sessions, last) }).collect();
            let stage = MeasuredStage { decode_micros: rising, prefill_micros_per_row: 0.0, overhead_micros: 0.0 };
            for (sessions, micros) in &stage.decode_micros {
                prop_assert!((stage.decode(*sessions) - micros).abs() < 1e-6);
            }
            prop_assert!((1..200).all(|sessions| stage.decode(sessions + 1) + 1e-6 >= stage.decode(sessions)));
        }
    }
}
