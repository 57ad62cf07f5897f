//! `paceline bench`: how fast this machine runs a model, and how far that is from what the machine could do.
//!
//! [`service`] measures what users get: prefill and decode through the whole service but HTTP. [`profile`], [`verify`]
//! and [`tune`] run one stage directly, step by step. Everything is measured in short slices that take turns, so
//! that a busy neighbour disturbs all alike, and told as a median with quartiles. [`roofs`] measures the roofs in
//! the same turns. [`drafted`] says what drafts would bring. [`remote`] measures a service that runs already, whatever program it is.

mod cost;
mod drafted;
mod names;
mod profile;
mod remote;
mod roofs;
mod samples;
mod service;
mod step;
mod table;
#[cfg(test)]
mod tests;
mod tune;
mod verify;

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;

use anyhow::{Result, ensure};
use paceline_gguf::Gguf;
use serde::Serialize;

use crate::cli::{BenchArgs, DeviceChoice};
use crate::row::Plan;
use crate::{layout, model};

/// Measures what the arguments ask for and prints it.
pub(crate) fn bench(arguments: &BenchArgs) -> Result<()> {
    ensure!(arguments.repeat > 0, "--repeat must be at least 1");
    ensure!(arguments.decode > 1, "--decode must be at least 2: the first token belongs to prefill");
    if let Some(url) = &arguments.url {
        return tell(&remote::measure(url, arguments)?, arguments.json);
    }
    let direct = arguments.tune || arguments.profile || arguments.verify;
    let device = arguments.compute.device;
    ensure!(!direct || device == DeviceChoice::Cpu, "--tune, --profile and --verify measure this host's cores alone");
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    if arguments.tune {
        return tell(&tune::tune(&gguf, arguments)?, arguments.json);
    }
    if let Some(accept) = arguments.draft_accept {
        return tell(&drafted::measure(|| plan(&gguf, arguments), arguments, accept)?, arguments.json);
    }
    let plan = plan(&gguf, arguments)?;
    if arguments.profile {
        return tell(&profile::profile(&plan, arguments)?, arguments.json);
    }
    if arguments.verify {
        return tell(&verify::verify(plan, arguments)?, arguments.json);
    }
    tell(&service::measure(plan, arguments)?, arguments.json)
}

/// A plan with room for the longest measurement.
fn plan(gguf: &Arc<Gguf>, arguments: &BenchArgs) -> Result<Plan> {
    let mut wanted = arguments.layout.clone();
    wanted.sessions = arguments.users.iter().copied().max().unwrap_or(1);
    wanted.ctx = Some(arguments.layout.ctx.unwrap_or_else(|| longest(arguments)));
    let mut plan = layout::plan(gguf, &arguments.model, &wanted, Some(&arguments.compute))?;
    plan.progress = !arguments.json;
    Ok(plan)
}

/// The context that the longest measurement needs.
fn longest(arguments: &BenchArgs) -> usize {
    let most = |lengths: &[usize]| lengths.iter().copied().max().unwrap_or(0);
    let after = arguments.decode.max(most(&arguments.verify_rows));
    most(&arguments.prefill).max(most(&arguments.depth).saturating_add(after)).saturating_add(1)
}

/// Prints a report as JSON for programs or as text for people.
pub(crate) fn tell(report: &(impl Serialize + Display), json: bool) -> Result<()> {
    let mut output = std::io::stdout().lock();
    if !json {
        return Ok(write!(output, "{report}")?);
    }
    serde_json::to_writer(&mut output, report)?;
    Ok(writeln!(output)?)
}
