//! `paceline bench --verify`: what it costs to run several rows of one session at once, as when drafts are verified,
//! against one row.

use std::fmt;

use anyhow::{Result, ensure};
use serde::Serialize;

use super::samples::Spread;
use super::step::{Direct, Step, Wanted};
use crate::cli::BenchArgs;
use crate::row::{self, Plan};

/// The figures of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    threads: usize,
    verify: Vec<Verify>,
}

/// A chunk of several rows, all wanted, against one of a single row.
#[derive(Debug, Serialize)]
struct Verify {
    depth: usize,
    rows: usize,
    /// Milliseconds of a step of one row.
    one_ms: Spread,
    /// Milliseconds of a step of `rows` rows.
    rows_ms: Spread,
    /// Time of many rows over time of one, of neighbouring steps.
    ratio: Spread,
}

/// Two kinds of steps and their times so far, in seconds.
struct Pair {
    one: Step,
    many: Step,
    one_times: Vec<f64>,
    many_times: Vec<f64>,
    ratios: Vec<f64>,
}

/// Runs the steps that the arguments name.
pub(super) fn verify(mut plan: Plan, arguments: &BenchArgs) -> Result<Report> {
    let most = arguments.verify_rows.iter().copied().max().unwrap_or(0);
    ensure!(!arguments.verify_rows.contains(&0), "--verify-rows must be at least 1");
    plan.memory.wanted = plan.memory.wanted.max(most);
    plan.memory.rows = plan.memory.rows.max(most);
    let threads = plan.placement.stages[0].threads;
    let mut direct = Direct::load(&plan, &row::device(&plan, 0)?)?;
    let with_rows = |depth: usize| arguments.verify_rows.iter().map(move |rows| (depth, *rows));
    let kinds = arguments.depth.iter().flat_map(|depth| with_rows(*depth));
    let mut pairs: Vec<Pair> = kinds.map(|(depth, rows)| Pair::new(&direct, depth, rows)).collect();
    for _ in 0..arguments.repeat {
        for pair in &mut pairs {
            pair.slice(&mut direct, arguments.decode.div_ceil(4))?;
        }
    }
    let verify = pairs.into_iter().map(Pair::figures).collect();
    Ok(Report { model: plan.names[0].clone(), threads, verify })
}

impl Pair {
    fn new(direct: &Direct, depth: usize, rows: usize) -> Self {
        let (one, many) = (direct.step(1, depth, 1, Wanted::All), direct.step(1, depth, rows, Wanted::All));
        Self { one, many, one_times: Vec::new(), many_times: Vec::new(), ratios: Vec::new() }
    }

    /// Runs the two in the order one, many, many, one, so that a slow drift of the machine cancels out.
    fn slice(&mut self, direct: &mut Direct, turns: usize) -> Result<()> {
        let Self { one, many, one_times, many_times, ratios } = self;
        for step in [&*one, &*many] {
            step.run(direct.stage.as_mut())?;
        }
        for _ in 0..turns {
            let [a, b, c, d] = [&*one, &*many, &*many, &*one].map(|step| step.run(direct.stage.as_mut()));
            let [a, b, c, d] = [a?, b?, c?, d?].map(|time| time.as_secs_f64());
            one_times.extend([a, d]);
            many_times.extend([b, c]);
            ratios.push((b + c) / (a + d));
        }
        Ok(())
    }

    fn figures(self) -> Verify {
        let milliseconds = |times| Spread::of(times).map(|seconds| seconds * 1e3);
        Verify {
            depth: self.many.start,
            rows: self.many.rows,
            one_ms: milliseconds(self.one_times),
            rows_ms: milliseconds(self.many_times),
            ratio: Spread::of(self.ratios),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}, {} threads", self.model, self.threads)?;
        for Verify { depth, rows, one_ms, rows_ms, ratio } in &self.verify {
            write!(formatter, "{rows} rows at {depth}: {ratio:.2} times as long as one row")?;
            writeln!(formatter, " ({rows_ms:.2} ms against {one_ms:.2} ms)")?;
        }
        Ok(())
    }
}
