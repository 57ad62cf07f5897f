//! `paceline simulate`: a service on hardware that need not be there, under a virtual clock.

mod hardware;
mod output;

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use paceline_core::Limits;
use paceline_gguf::ModelShape;
use paceline_simulation::{Arrivals, Fault, Report, Scenario, Simulation};

use crate::cli::SimulateArgs;
use crate::model;
use hardware::Hardware;
use output::Output;

/// Simulates and prints the report.
pub(crate) fn simulate(arguments: &SimulateArgs) -> Result<()> {
    let gguf = model::open(&arguments.model)?;
    let shape = ModelShape::read(&gguf)?;
    let hardware = Hardware::of(&shape, arguments)?;
    let scenario = scenario(&shape, &hardware, arguments);
    let mut report = run(&scenario, &hardware)?;
    report.prediction = hardware.placement.as_ref().and_then(|placement| placement.prediction);
    let quiet = Scenario { faults: Vec::new(), ..scenario.clone() };
    let without = (!scenario.faults.is_empty()).then(|| run(&quiet, &hardware)).transpose()?;
    let output = Output { placement: hardware.placement.as_ref(), report: &report, without_faults: without.as_ref() };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &output)?;
        return Ok(writeln!(out)?);
    }
    Ok(write!(out, "{output}")?)
}

fn run(scenario: &Scenario, hardware: &Hardware) -> Result<Report> {
    let simulation = Simulation::new(scenario, hardware.times.as_ref()).context("nothing can be simulated")?;
    simulation.run().context("the simulation found a fault of the scheduler")
}

fn scenario(shape: &ModelShape, hardware: &Hardware, arguments: &SimulateArgs) -> Scenario {
    let SimulateArgs { places, load, trouble, seed, check, .. } = arguments;
    let limits = Limits { queue: places.queue, ..hardware.limits.clone() };
    let arrivals = match load.rate {
        Some(rate) => Arrivals::Rate(rate),
        None => Arrivals::Users { users: load.users.unwrap_or(places.sessions), think: seconds(load.think) },
    };
    Scenario {
        width: shape.sent_width(),
        links: hardware.links.clone(),
        noise: trouble.noise,
        sessions: load.requests,
        prompt: load.prompt,
        answer: load.answer,
        leavers: load.leavers,
        patience: seconds(load.patience),
        faults: Fault::draw(*seed, usize::from(trouble.faults), load.requests, limits.stages),
        restore: seconds(trouble.restore),
        check: *check,
        ..Scenario::new(*seed, limits, arrivals)
    }
}

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}
