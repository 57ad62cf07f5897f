//! `paceline plan`: what a model needs and where its layers would go, here or on described devices.

use std::io::Write;

use anyhow::{Context, Result, ensure};
use paceline_core::planner::{self, Cluster, Note, Placement, Prefer, Wishes};
use paceline_gguf::{Gguf, ModelShape};

use crate::cli::{LayoutArgs, PlanArgs};
use crate::{layout, model};

/// Reads the model's header and prints the plan.
pub(crate) fn plan(arguments: &PlanArgs) -> Result<()> {
    let gguf = model::open(&arguments.model)?;
    let placement = if arguments.device.is_empty() { here(&gguf, arguments) } else { described(&gguf, arguments) }?;
    let mut output = std::io::stdout();
    if arguments.json {
        serde_json::to_writer_pretty(&output, &placement)?;
        return Ok(writeln!(output)?);
    }
    Ok(output.write_all(planner::render(&placement).as_bytes())?)
}

/// On this host, in one stage unless more are wanted.
fn here(gguf: &Gguf, arguments: &PlanArgs) -> Result<Placement> {
    let memory = arguments.memory.map(bytes).transpose()?;
    let layout = LayoutArgs { shards: arguments.layout.shards.max(1), ..arguments.layout.clone() };
    layout::placement(gguf, &arguments.model, &layout, None, memory)
}

/// On the devices of the command line.
fn described(gguf: &Gguf, arguments: &PlanArgs) -> Result<Placement> {
    let shape = ModelShape::read(gguf)?;
    let wishes = Wishes {
        shards: Some(arguments.layout.shards).filter(|shards| *shards > 0),
        prefer: if arguments.one_user { Prefer::OneUser } else { Prefer::Row },
        targets: arguments.target.unwrap_or_default(),
        ..layout::wishes(&shape, &arguments.model, &arguments.layout, None)?
    };
    let mut cluster = Cluster::described(&arguments.device);
    cluster.between_hosts = arguments.network.unwrap_or(cluster.between_hosts);
    let mut placement = planner::place(&shape, &wishes, &cluster).context("the model cannot be placed")?;
    for group in &arguments.device {
        let note =
            group.assumed.as_ref().map(|assumed| Note::Assumed { text: format!("{}: {assumed}", group.device.name) });
        placement.notes.extend(note.filter(|note| !placement.notes.contains(note)));
    }
    Ok(placement)
}

fn bytes(gibibytes: f64) -> Result<u64> {
    ensure!(gibibytes.is_finite() && gibibytes > 0.0, "--memory is {gibibytes} GiB, it must be more than 0");
    Ok((gibibytes * f64::from(1 << 30)) as u64)
}
