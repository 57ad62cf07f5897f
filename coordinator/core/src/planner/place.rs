//! Places a model on devices that differ.

use paceline_gguf::ModelShape;

use super::{
    Cluster, DeviceSpec, Error, LeftOut, Memory, Note, Placement, Prefer, Result, Speed, StageCost, StepShape, Wishes,
    assign::{Parts, Row, least_bottleneck, quickest_row},
    check_wishes,
    device::place_name,
    explain,
    fit::{self, WouldFit},
    load::Steps,
    orders::orders,
    placement,
    predict::RowSpeed,
    reach::can_hold,
    segments::Segments,
    targets,
};

/// What is reckoned with where no device's speed is known; only how devices compare matters then.
const SOME_SPEED: Speed = Speed { read: 20e9, products: 400e9, step_overhead: super::STEP_OVERHEAD };

/// Places a model on the devices of a cluster: contiguous layers, cut only between blocks, each stage on a device of its
/// own and within its memory.
///
/// Of all such rows it is the one whose slowest stage or link takes the least time for the wished load; of several such
/// rows the one that serves one user fastest ([`Prefer`] turns this round). Devices that do not make the row faster are
/// left out. Devices of one host stay together; within that, their order is tried as they are given, by speed and by
/// memory, and in all other ways while there are few.
///
/// # Errors
/// Wishes and devices that cannot be, and wishes that do not fit, with what would; see [`Error`].
pub fn place(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster) -> Result<Placement> {
    check_wishes(shape, wishes)?;
    cluster.check()?;
    check_stages(shape, wishes, cluster)?;
    let found = find(shape, wishes, cluster)?.ok_or_else(|| no_placement(shape, wishes, cluster))?;
    let mut placement = describe(shape, wishes, cluster, &found);
    if let Some(prediction) = &placement.prediction {
        placement.targets = targets::judge(shape, wishes, cluster, &found.speed, prediction);
    }
    Ok(placement)
}

fn check_stages(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster) -> Result<()> {
    let Some(shards) = wishes.shards else { return Ok(()) };
    let (blocks, devices) = (shape.blocks().len(), cluster.devices.len());
    if shards > blocks {
        return Err(Error::TooManyShards { shards, blocks });
    }
    if shards > devices {
        return Err(Error::TooFewDevices { shards, devices });
    }
    Ok(())
}

/// A row that fits, and what was found out on the way.
pub(super) struct Found {
    pub(super) row: Row,
    pub(super) segments: Segments,
    pub(super) speeds: Vec<Speed>,
    /// Bytes that a stage sends to the next while a group of sessions does its load.
    load_bytes: f64,
    /// The row's stages and links.
    pub(super) speed: RowSpeed,
    /// One user's tokens per second in the row that is best for one user, if that is another.
    pub(super) alone: Option<f64>,
}

impl Found {
    /// Seconds that a stage works while a group of sessions does its load.
    pub(super) fn load(&self, stage: usize) -> f64 {
        let assigned = &self.row.stages[stage];
        self.segments.load(assigned.blocks.0, assigned.blocks.1, &self.speeds[assigned.device])
    }

    /// The link that is busy longest with that load, by the stage before it.
    pub(super) fn slowest_link(&self, cluster: &Cluster) -> Option<(usize, f64)> {
        let pairs = self.row.stages.windows(2).enumerate();
        let links =
            pairs.map(|(stage, pair)| (stage, cluster.link(pair[0].device, pair[1].device).transfer(self.load_bytes)));
        links.max_by(|(_, one), (_, other)| one.total_cmp(other))
    }
}

/// The best row, if any fits.
pub(super) fn find(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster) -> Result<Option<Found>> {
    let blocks = shape.blocks().len();
    // How the users are grouped depends on the stages, which are not known yet: as many as there can be.
    let stages = wishes.shards.unwrap_or(cluster.devices.len().min(blocks));
    let steps = Steps::of(&wishes.load(), wishes, stages);
    let segments = Segments::new(shape, wishes, &steps)?;
    let speeds = speeds(&cluster.devices);
    let row_bytes = shape.sent_row_bytes() as f64;
    let sent = |step: &StepShape| row_bytes * step.rows as f64;
    let load_bytes = steps.decode_steps * sent(&steps.decode) + steps.prefill_steps * sent(&steps.prefill);
    let parts = Parts { cluster, segments: &segments, speeds: &speeds, load_bytes, row_bytes, stages: wishes.shards };
    let orders = orders(cluster, blocks, wishes.shards);
    let Some(limit) = orders.iter().filter_map(|order| least_bottleneck(&parts, order)).min_by(f64::total_cmp) else {
        return Ok(None);
    };
    let of_limit = |limit| best_row(&parts, &orders, limit);
    let Some(row) = of_limit(if wishes.prefer == Prefer::Row { limit } else { f64::INFINITY }) else {
        return Ok(None);
    };
    let speed_of = |row: &Row| row_speed(shape, wishes, cluster, &segments, &speeds, row);
    let alone = match (wishes.prefer, wishes.shards) {
        (Prefer::Row, None) => {
            of_limit(f64::INFINITY).map(|row| speed_of(&row).predict(&wishes.load(), wishes).decode_one)
        }
        _ => None,
    };
    let speed = speed_of(&row);
    Ok(Some(Found { row, speed, speeds, segments, load_bytes, alone }))
}

fn best_row(parts: &Parts<'_>, orders: &[Vec<usize>], limit: f64) -> Option<Row> {
    let rows = orders.iter().filter_map(|order| quickest_row(parts, order, limit));
    rows.min_by(|one, other| one.latency.total_cmp(&other.latency).then(one.bottleneck.total_cmp(&other.bottleneck)))
}

/// The speed of every device; one that is not known counts as the slowest of the others.
pub(super) fn speeds(devices: &[DeviceSpec]) -> Vec<Speed> {
    let slower = |one: Speed, other: Speed| Speed {
        read: one.read.min(other.read),
        products: one.products.min(other.products),
        step_overhead: one.step_overhead.max(other.step_overhead),
    };
    let known = devices.iter().filter_map(|device| device.speed);
    let slowest = known.reduce(slower).unwrap_or(SOME_SPEED);
    devices.iter().map(|device| device.speed.unwrap_or(slowest)).collect()
}

fn row_speed(
    shape: &ModelShape,
    wishes: &Wishes,
    cluster: &Cluster,
    segments: &Segments,
    speeds: &[Speed],
    row: &Row,
) -> RowSpeed {
    let devices: Vec<usize> = row.stages.iter().map(|stage| stage.device).collect();
    let cost = |(start, end)| {
        let stage = segments.stage(start, end);
        StageCost::of(shape, stage.layers, stage.first, stage.last, wishes.key_type, wishes.value_type)
    };
    let ends = devices.first().zip(devices.last()).filter(|(first, last)| first != last);
    RowSpeed {
        costs: row.stages.iter().map(|stage| cost(stage.blocks)).collect(),
        speeds: devices.iter().map(|&device| speeds[device]).collect(),
        links: devices.windows(2).map(|pair| cluster.link(pair[0], pair[1])).collect(),
        back: ends.map(|(&first, &last)| cluster.link(last, first)),
    }
}

fn describe(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster, found: &Found) -> Placement {
    let stages: Vec<_> =
        found.row.stages.iter().map(|stage| found.segments.stage(stage.blocks.0, stage.blocks.1)).collect();
    let mut placement = placement::describe(shape, &stages, wishes, cluster.memory_bytes());
    let load = wishes.load();
    let is_known = found.row.stages.iter().all(|stage| cluster.devices[stage.device].speed.is_some());
    let timings = found.speed.timings(&load, wishes);
    for ((plan, assigned), timing) in placement.stages.iter_mut().zip(&found.row.stages).zip(timings) {
        let DeviceSpec { name, host, memory_bytes, threads, .. } = &cluster.devices[assigned.device];
        plan.threads = *threads;
        plan.device = assigned.device;
        plan.device_name.clone_from(name);
        plan.host.clone_from(host);
        plan.device_memory = *memory_bytes;
        plan.device_free = memory_bytes.saturating_sub(plan.memory.total());
        plan.timing = is_known.then_some(timing);
    }
    placement.prediction = is_known.then(|| found.speed.predict(&load, wishes));
    placement.reasons = explain::reasons(&placement, cluster, found);
    placement.left_out = left_out(cluster, wishes, found);
    let unknown = cluster.devices.iter().filter(|device| device.speed.is_none()).count();
    placement.notes.extend((unknown > 0).then_some(Note::UnknownSpeed { devices: unknown }));
    placement
}

fn left_out(cluster: &Cluster, wishes: &Wishes, found: &Found) -> Vec<LeftOut> {
    let is_used = |index: usize| found.row.stages.iter().any(|stage| stage.device == index);
    let unused = cluster.devices.iter().enumerate().filter(|(index, _)| !is_used(*index));
    let describe = |(index, device): (usize, &DeviceSpec)| LeftOut {
        device: index,
        device_name: device.name.clone(),
        host: device.host.clone(),
        reason: explain::why_left_out(index, device, wishes, found),
    };
    unused.map(describe).collect()
}

fn no_placement(shape: &ModelShape, wishes: &Wishes, cluster: &Cluster) -> Error {
    let blocks = shape.blocks().len();
    let holds = |wishes: &Wishes, cluster: &Cluster| {
        let Ok(segments) = Segments::needs(shape, wishes) else { return false };
        let orders = orders(cluster, blocks, wishes.shards);
        orders.iter().any(|order| can_hold(&segments, cluster, order, wishes.shards))
    };
    let mut would_fit = WouldFit::search(shape, wishes, |wishes| holds(wishes, cluster));
    would_fit.device = fit::one_more_device(|memory_bytes| holds(wishes, &with_one_more(cluster, memory_bytes)));
    let whole = super::cut::Stage { layers: 0..shape.layers.len(), first: true, last: true };
    Error::NoCutFits {
        needed: Box::new(Memory::of(shape, &whole, wishes)),
        devices: cluster.devices.len(),
        available: cluster.memory_bytes(),
        would_fit: Box::new(would_fit),
    }
}

/// The cluster with one device more, like its last but for its memory.
fn with_one_more(cluster: &Cluster, memory_bytes: u64) -> Cluster {
    let mut larger = cluster.clone();
    if let Some(last) = cluster.devices.last() {
        larger.devices.push(DeviceSpec { memory_bytes, ..last.clone() });
    }
    larger
}

/// What a device is called, of the cluster's devices.
pub(super) fn called(cluster: &Cluster, index: usize) -> String {
    let DeviceSpec { name, host, .. } = &cluster.devices[index];
    let one_host = cluster.devices.iter().all(|device| device.host == *host);
    place_name(name, if one_host { "" } else { host })
}
