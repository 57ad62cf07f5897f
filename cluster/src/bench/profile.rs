//! `paceline bench --profile`: where the time of a decode step and of a prefill chunk goes, operation by operation,
//! and how far each is from the roof that bounds it.

use std::ops::Add;

use anyhow::Result;
use paceline_compute::device::OperationTime;
use serde::Serialize;

use super::cost::{Cost, Costs};
use super::names;
use super::roofs::{Measured, Roofs};
use super::samples::Spread;
use super::step::{Direct, Step, Wanted};
use crate::cli::BenchArgs;
use crate::row::{self, Plan};

/// Prefill chunks per slice.
const CHUNKS: usize = 3;

/// All profiles of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) model: String,
    pub(super) threads: usize,
    pub(super) roofs: Measured,
    pub(super) steps: Vec<Profile>,
}

/// Where the time of one kind of step goes.
#[derive(Debug, Serialize)]
pub(super) struct Profile {
    pub(super) phase: Phase,
    /// Tokens of each session before the step.
    pub(super) depth: usize,
    pub(super) sessions: usize,
    /// Rows of all sessions.
    pub(super) rows: usize,
    /// Milliseconds of the whole step.
    pub(super) step_ms: Spread,
    pub(super) operations: Vec<Line>,
    /// The sum of all operations.
    pub(super) sum: Line,
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Phase {
    Decode,
    Prefill,
}

/// Operations of one kind and name, of all layers together.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    pub(super) name: String,
    /// How many operations.
    pub(super) count: usize,
    pub(super) ms: Spread,
    /// Of the sum.
    pub(super) share: f64,
    pub(super) bytes: u64,
    pub(super) gb_s: f64,
    /// Only in decode: prefill finds in the cache what it touches again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_read_roof: Option<f64>,
    pub(super) macs: u64,
    pub(super) gmac_s: f64,
    /// Only where the integer dot product does the work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) of_dot_roof: Option<f64>,
}

/// One kind of step and the times of its operations so far.
struct Slices {
    phase: Phase,
    step: Step,
    /// Runs of the step in one slice.
    runs: usize,
    whole: Vec<f64>,
    operations: Vec<Timed>,
}

/// An operation, or some that are run as one, and its times in seconds.
struct Timed {
    operation: OperationTime,
    times: Vec<f64>,
}

/// Runs the steps that the arguments name, in turns with the roofs.
pub(super) fn profile(plan: &Plan, arguments: &BenchArgs) -> Result<Report> {
    let threads = plan.placement.stages[0].threads;
    let device = row::device(plan, 0)?;
    let mut roofs = Roofs::new(&device, plan.isa.map(row::kernels))?;
    let mut direct = Direct::load(plan, &device)?;
    let mut slices = steps(&direct, arguments);
    for _ in 0..arguments.repeat {
        roofs.sample()?;
        for slice in &mut slices {
            slice.run(&mut direct)?;
        }
    }
    let roofs = roofs.measured();
    let steps = slices.into_iter().map(|slice| slice.profile(plan, &direct, &roofs)).collect();
    Ok(Report { model: plan.names[0].clone(), threads, roofs, steps })
}

fn steps(direct: &Direct, arguments: &BenchArgs) -> Vec<Slices> {
    let mut slices = Vec::new();
    for &depth in &arguments.depth {
        for &users in &arguments.users {
            let step = direct.step(users, depth, 1, Wanted::Last);
            slices.push(Slices::new(Phase::Decode, step, arguments.decode));
        }
    }
    for &tokens in &arguments.prefill {
        // The last chunk of the prompt.
        let rows = tokens.clamp(1, arguments.compute.prefill_chunk);
        let step = direct.step(1, tokens.max(1) - rows, rows, Wanted::Last);
        slices.push(Slices::new(Phase::Prefill, step, CHUNKS));
    }
    slices
}

impl Slices {
    fn new(phase: Phase, step: Step, runs: usize) -> Self {
        Self { phase, step, runs, whole: Vec::new(), operations: Vec::new() }
    }

    /// One slice: a run to fill the caches, then runs that count.
    fn run(&mut self, direct: &mut Direct) -> Result<()> {
        self.step.run(direct.stage.as_mut())?;
        for _ in 0..self.runs {
            let (mut index, operations) = (0, &mut self.operations);
            let mut observe = |operation: OperationTime| {
                let time = operation.time.as_secs_f64();
                match operations.get_mut(index) {
                    Some(known) => known.times.push(time),
                    None => operations.push(Timed { operation, times: vec![time] }),
                }
                index += 1;
            };
            let whole = self.step.run_measured(direct.stage.as_mut(), &mut observe)?;
            self.whole.push(whole.as_secs_f64());
        }
        Ok(())
    }

    fn profile(self, plan: &Plan, direct: &Direct, roofs: &Measured) -> Profile {
        let costs =
            Costs { model: &plan.model, stage: direct.stage.as_ref(), memory: &direct.memory, step: &self.step };
        let program = direct.stage.program();
        let mut groups: Vec<Group> = Vec::new();
        for Timed { operation, times } in self.operations {
            let cost = program.ops[operation.operations.clone()].iter().map(|recorded| costs.of(&recorded.op));
            let one = Group {
                name: names::of(program, &operation, &costs),
                count: 1,
                cost: cost.fold(Cost::default(), Cost::add),
                time: Spread::of(times),
            };
            match groups.iter_mut().find(|group| group.name == one.name) {
                Some(group) => group.add(&one),
                None => groups.push(one),
            }
        }
        let mut sum = Group { name: "sum".to_owned(), count: 0, cost: Cost::default(), time: Spread::default() };
        groups.iter().for_each(|group| sum.add(group));
        groups.sort_by(|one, other| other.time.median.total_cmp(&one.time.median));
        let total = sum.time.median;
        Profile {
            phase: self.phase,
            depth: self.step.start,
            sessions: self.step.sessions(),
            rows: self.step.all_rows(),
            step_ms: Spread::of(self.whole).map(|seconds| seconds * 1e3),
            operations: groups.into_iter().map(|group| group.line(self.phase, total, roofs)).collect(),
            sum: sum.line(self.phase, total, roofs),
        }
    }
}

/// Operations of the same name. Their times are medians, added up: what disturbs one operation in one step does
/// not count.
struct Group {
    name: String,
    count: usize,
    cost: Cost,
    time: Spread,
}

impl Group {
    fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.cost = self.cost + other.cost;
        self.time = self.time.plus(other.time);
    }

    fn line(self, phase: Phase, total: f64, roofs: &Measured) -> Line {
        let Self { name, count, cost, time } = self;
        let per_second = |amount: u64| amount as f64 / time.median;
        let is_integer = cost.integer_macs * 2 > cost.macs;
        Line {
            name,
            count,
            ms: time.map(|seconds| seconds * 1e3),
            share: time.median / total,
            bytes: cost.bytes,
            gb_s: per_second(cost.bytes) / 1e9,
            of_read_roof: (phase == Phase::Decode).then(|| per_second(cost.bytes) / roofs.read.best),
            macs: cost.macs,
            gmac_s: per_second(cost.macs) / 1e9,
            of_dot_roof: is_integer.then(|| per_second(cost.integer_macs) / roofs.dot.best),
        }
    }
}
