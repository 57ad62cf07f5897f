//! Times as the planner's cost model predicts them.

use std::time::Duration;

use paceline_core::planner::{Speed, StageCost};

use super::{StageTimes, StepLoad, micros};

/// What each stage costs, and how fast its device is.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// In the order of the row.
    pub stages: Vec<(StageCost, Speed)>,
}

impl StageTimes for Planned {
    fn stages(&self) -> usize {
        self.stages.len()
    }

    fn time(&self, stage: usize, load: &StepLoad) -> Duration {
        let (cost, speed) = &self.stages[stage];
        micros(cost.seconds(speed, &load.shape()) * 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_the_cost_models() {
        let cost = StageCost { weights: 1_000_000, ..StageCost::default() };
        let planned = Planned { stages: vec![(cost.clone(), Speed::new(1e9, 1e12))] };
        let load = StepLoad::decode(3, 100);
        let seconds = cost.seconds(&Speed::new(1e9, 1e12), &load.shape());
        assert_eq!(planned.time(0, &load), Duration::from_nanos((seconds * 1e9) as u64));
        assert_eq!(planned.time(0, &StepLoad::default()), Duration::ZERO);
    }
}
