//! `paceline plan`: what a model needs and where its layers would go: here, on the nodes of a running coordinator, or on
//! described devices.

mod kernels;

use std::io::Write;

use anyhow::{Context, Result, ensure};
use paceline_api::NodeCard;
use paceline_core::planner::{self, Cluster, DeviceSpec, Note, Placement, Prefer, Speed, Wishes};
use paceline_gguf::{Gguf, ModelShape};

use crate::bench::tell;
use crate::cli::{LayoutArgs, PlanArgs, ServerArgs};
use crate::status::server::Server;
use crate::{layout, model};

/// Reads the model's header and prints the plan.
pub(crate) fn plan(arguments: &PlanArgs) -> Result<()> {
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    if arguments.kernels {
        return tell(&kernels::report(&gguf, arguments)?, arguments.json);
    }
    let placement = match &arguments.cluster {
        Some(url) => live(&gguf, arguments, url),
        None if arguments.device.is_empty() => here(&gguf, arguments),
        None => described(&gguf, arguments),
    }?;
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
    let mut cluster = Cluster::described(&arguments.device);
    cluster.between_hosts = arguments.network.unwrap_or(cluster.between_hosts);
    let mut placement = place(gguf, arguments, &cluster)?;
    for group in &arguments.device {
        let note =
            group.assumed.as_ref().map(|assumed| Note::Assumed { text: format!("{}: {assumed}", group.device.name) });
        placement.notes.extend(note.filter(|note| !placement.notes.contains(note)));
    }
    Ok(placement)
}

/// On the nodes of a running coordinator, as if they did nothing yet.
fn live(gguf: &Gguf, arguments: &PlanArgs, url: &str) -> Result<Placement> {
    let server = ServerArgs { url: url.to_owned(), api_key: arguments.api_key.clone() };
    let nodes = Server::new(&server)?.status()?.cluster.nodes;
    ensure!(!nodes.is_empty(), "no shards have joined the service at {url}");
    place(gguf, arguments, &Cluster::new(nodes.into_iter().map(device).collect()))
}

fn device(node: NodeCard) -> DeviceSpec {
    let speed = node.read.zip(node.products).map(|(read, products)| Speed::new(read, products));
    let NodeCard { device: name, host, memory_bytes, shares_memory, threads, .. } = node;
    DeviceSpec { name, host, memory_bytes, shares_memory, threads, speed }
}

fn place(gguf: &Gguf, arguments: &PlanArgs, cluster: &Cluster) -> Result<Placement> {
    let shape = ModelShape::read(gguf)?;
    let wishes = Wishes {
        shards: Some(arguments.layout.shards).filter(|shards| *shards > 0),
        prefer: if arguments.one_user { Prefer::OneUser } else { Prefer::Row },
        targets: arguments.target.unwrap_or_default(),
        ..layout::wishes(&shape, &arguments.model, &arguments.layout, None)?
    };
    let ram = arguments.layout.cache_ram.unwrap_or_default();
    let placed = planner::with_cache(&shape, &wishes, ram, |wishes| planner::place(&shape, wishes, cluster));
    placed.context("the model cannot be placed")
}

fn bytes(gibibytes: f64) -> Result<u64> {
    ensure!(gibibytes.is_finite() && gibibytes > 0.0, "--memory is {gibibytes} GiB, it must be more than 0");
    Ok((gibibytes * f64::from(1 << 30)) as u64)
}
