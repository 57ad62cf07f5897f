//! The row: placed on described devices by the planner, or measured.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use paceline_core::Limits;
use paceline_core::planner::{self, Cluster, DeviceGroup, LinkSpeed, MAX_DEVICES, Placement, StageCost, Wishes};
use paceline_gguf::ModelShape;
use paceline_simulation::{LOCAL, Measured, MeasuredStage, Planned, StageTimes};

use crate::cli::{HardwareArgs, PlacesArgs, SimulateArgs};
use crate::layout;

/// The context of a session if none is asked for, as in other commands.
const USUAL_CONTEXT: usize = 8192;
/// Stages that can be measured: rows are never that long.
const MOST_STAGES: usize = 4096;
/// The most rows of a prompt in a step, as in other commands.
const MOST_PREFILL_ROWS: usize = 8192;

/// A row to simulate.
pub(super) struct Hardware {
    /// Where the layers are; nothing if times were measured.
    pub(super) placement: Option<Placement>,
    pub(super) times: Box<dyn StageTimes>,
    /// To the head, between stages, and from the tail to the coordinator.
    pub(super) links: Vec<LinkSpeed>,
    pub(super) limits: Limits,
}

impl Hardware {
    /// The row that the arguments describe.
    pub(super) fn of(shape: &ModelShape, arguments: &SimulateArgs) -> Result<Self> {
        let rows = arguments.places.prefill_chunk;
        ensure!(
            (1..=MOST_PREFILL_ROWS).contains(&rows),
            "--prefill-chunk is {rows}, it must be between 1 and {MOST_PREFILL_ROWS}"
        );
        match &arguments.hardware.stage_micros {
            Some(given) => Self::measured(shape, given, &arguments.places),
            None => Self::placed(shape, arguments),
        }
    }

    fn measured(shape: &ModelShape, given: &str, places: &PlacesArgs) -> Result<Self> {
        let times = measured(given)?;
        times.check().context("--stage-micros")?;
        let stages = times.stages.len();
        ensure!(stages <= MOST_STAGES, "--stage-micros has {stages} stages, at most {MOST_STAGES} are possible");
        let hop = Duration::from_nanos((times.hop_micros * 1e3) as u64);
        let hop = LinkSpeed { round_trip: 2 * hop, bytes_per_second: f64::INFINITY };
        let mut links = vec![hop; stages + 1];
        (links[0], links[stages]) = (LOCAL, LOCAL);
        let limits = limits(stages, shape, places)?;
        Ok(Self { placement: None, times: Box::new(times), links, limits })
    }

    fn placed(shape: &ModelShape, arguments: &SimulateArgs) -> Result<Self> {
        let cluster = cluster(&arguments.hardware)?;
        if let Some(device) = cluster.devices.iter().find(|device| device.speed.is_none()) {
            bail!("--device: how fast is {}? Add its bandwidth, such as 1008GB/s", device.name);
        }
        let placement = planner::place(shape, &wishes(shape, arguments), &cluster)?;
        let times = Box::new(planned(shape, &placement, &cluster));
        let links = links(&placement, &cluster);
        let limits = layout::limits(&placement, Some(arguments.places.prefill_chunk));
        Ok(Self { times, links, limits, placement: Some(placement) })
    }
}

fn context(shape: &ModelShape, places: &PlacesArgs) -> usize {
    places.ctx.unwrap_or_else(|| shape.context_length.min(USUAL_CONTEXT))
}

/// The bounds of a row of which only the times are known: its memory holds all sessions.
fn limits(stages: usize, shape: &ModelShape, places: &PlacesArgs) -> Result<Limits> {
    let context = context(shape, places);
    let pages = context.div_ceil(planner::PAGE_TOKENS).checked_mul(places.sessions);
    let pages = pages.filter(|pages| u32::try_from(*pages).is_ok() && u32::try_from(places.sessions).is_ok());
    let pages = pages.with_context(|| format!("{} sessions of {context} tokens are too many", places.sessions))?;
    let usual = Limits::new(stages, places.sessions, pages, planner::PAGE_TOKENS, context);
    let prefill_rows = places.prefill_chunk;
    let limits = Limits { prefill_rows, step_rows: prefill_rows + places.sessions, ..usual };
    limits.check()?;
    Ok(limits)
}

/// Times from a file, or the same time for every step of a stage.
fn measured(given: &str) -> Result<Measured> {
    let micros: Result<Vec<f64>, _> = given.split(',').map(|part| part.trim().parse()).collect();
    if let Ok(micros) = micros {
        let stage = |micros| MeasuredStage {
            decode_micros: [(1, 0.0)].into(),
            prefill_micros_per_row: 0.0,
            overhead_micros: micros,
        };
        return Ok(Measured { stages: micros.into_iter().map(stage).collect(), hop_micros: 0.0 });
    }
    let path = Path::new(given);
    let text = std::fs::read(path).with_context(|| format!("--stage-micros: cannot read {given}"))?;
    serde_json::from_slice(&text).with_context(|| format!("--stage-micros: {given} is no list of times"))
}

fn cluster(hardware: &HardwareArgs) -> Result<Cluster> {
    let hosts = hardware.hosts.map_or(1, usize::from);
    let factor = hardware.devices_per_host.map_or(1, usize::from);
    let count: usize = hardware.device.iter().map(|group| group.count.saturating_mul(factor)).sum();
    let all = count.saturating_mul(hosts);
    ensure!(all <= MAX_DEVICES, "{all} devices are described, at most {MAX_DEVICES} are possible");
    let mut groups = Vec::new();
    for host in 0..hosts {
        for group in &hardware.device {
            groups.push(on_host(group, host, factor, hardware.hosts.is_some())?);
        }
    }
    let mut cluster = Cluster::described(&groups);
    cluster.between_hosts = hardware.network.unwrap_or(cluster.between_hosts);
    Ok(cluster)
}

fn on_host(group: &DeviceGroup, host: usize, factor: usize, numbered: bool) -> Result<DeviceGroup> {
    let mut group = group.clone();
    group.count *= factor;
    if numbered {
        let given = &group.device.host;
        ensure!(given.is_empty(), "--hosts names the hosts: leave @{given} out of --device");
        group.device.host = format!("host{host}");
    }
    Ok(group)
}

fn wishes(shape: &ModelShape, arguments: &SimulateArgs) -> Wishes {
    let (places, model) = (&arguments.places, &arguments.model);
    let usual = Wishes::of(context(shape, places), places.sessions);
    Wishes {
        shards: places.shards,
        key_type: places.kv_type,
        value_type: places.kv_type,
        step_rows: places.prefill_chunk.saturating_add(places.sessions),
        scaled_rope: model.yarn_factor.is_some() || model.rope_freq_base.is_some(),
        ..usual
    }
}

fn planned(shape: &ModelShape, placement: &Placement, cluster: &Cluster) -> Planned {
    let stage = |stage: &planner::StagePlan| {
        let (key, value) = (placement.key_type, placement.value_type);
        let cost = StageCost::of(shape, stage.layers.clone(), stage.first, stage.last, key, value);
        (cost, cluster.devices[stage.device].speed.expect("all devices have speeds"))
    };
    Planned { stages: placement.stages.iter().map(stage).collect() }
}

/// The coordinator is on the host of the head.
fn links(placement: &Placement, cluster: &Cluster) -> Vec<LinkSpeed> {
    let devices: Vec<usize> = placement.stages.iter().map(|stage| stage.device).collect();
    let (head, tail) = (devices[0], devices[devices.len() - 1]);
    let back = if tail == head { cluster.within_host } else { cluster.link(tail, head) };
    let between = devices.windows(2).map(|pair| cluster.link(pair[0], pair[1]));
    std::iter::once(cluster.within_host).chain(between).chain([back]).collect()
}
