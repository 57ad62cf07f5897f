//! Whole runs: what must hold of every one, and figures that arithmetic knows beforehand.

mod exact;
mod faults;
mod refused;
mod schedule;
mod survival;

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::planner::LinkSpeed;
use paceline_simulation::{Arrivals, Error, Linear, LinearTimes, Report, Scenario, Simulation, StageTimes, Visit};

/// A link that takes no time at all.
const NOTHING: LinkSpeed = LinkSpeed { round_trip: Duration::ZERO, bytes_per_second: f64::INFINITY };

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

/// Stages that are all alike: microseconds of every step and of every row.
fn alike(stages: usize, step: u64, row: u64) -> Linear {
    Linear { stages: vec![LinearTimes { step: micros(step), row: micros(row) }; stages] }
}

fn limits(stages: usize) -> Limits {
    Limits::new(stages, 32, 4096, 64, 16_384)
}

/// A scenario in which nothing but computing takes time, and every step is checked.
fn quiet(limits: Limits, arrivals: Arrivals) -> Scenario {
    let links = vec![NOTHING; limits.stages + 1];
    Scenario { links, message: Duration::ZERO, check: true, ..Scenario::new(1, limits, arrivals) }
}

fn visit(arrives: u64, prompt: usize, answer: usize) -> Visit {
    Visit { arrives: micros(arrives), prompt, answer, leaves: None }
}

fn run(scenario: &Scenario, times: &dyn StageTimes) -> Result<Report, Error> {
    Simulation::new(scenario, times)?.run()
}

fn report(scenario: &Scenario, times: &dyn StageTimes) -> Report {
    run(scenario, times).unwrap_or_else(|error| panic!("{error}"))
}

fn near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1.0)
}
