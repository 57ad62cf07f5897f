//! Why a placement is as it is, in sentences.

use super::{
    Cluster, DeviceSpec, Placement, Prefer, Wishes, place::Found, place::called, render::human, render::seconds,
};

/// One user must gain so much by another row for it to be worth saying.
const WORTH_SAYING: f64 = 1.05;

/// Which stage is the slowest, and why no cut is better.
pub(super) fn reasons(placement: &Placement, cluster: &Cluster, found: &Found) -> Vec<String> {
    let mut reasons = Vec::new();
    let stages = &found.row.stages;
    let load = |index: usize| found.load(index);
    let Some(slowest) = (0..stages.len()).max_by(|&one, &other| load(one).total_cmp(&load(other))) else {
        return reasons;
    };
    if stages.len() > 1 {
        reasons.push(slowest_stage(placement, cluster, found, slowest));
        reasons.extend(neighbours(cluster, found, slowest));
    }
    let here = placement.prediction.map(|prediction| prediction.decode_one);
    if let Some((alone, here)) = found.alone.zip(here).filter(|(alone, here)| *alone > here * WORTH_SAYING) {
        reasons.push(format!(
            "one user alone would have {alone:.1} instead of {here:.1} tokens per second in a row made for one user"
        ));
    }
    reasons
}

fn slowest_stage(placement: &Placement, cluster: &Cluster, found: &Found, slowest: usize) -> String {
    let plan = &placement.stages[slowest];
    let name = called(cluster, plan.device);
    let link = found.slowest_link(cluster).filter(|(_, time)| *time > found.load(slowest));
    match (link, plan.timing) {
        (Some((stage, _)), _) => format!("the link behind stage {stage} sets the pace of the row"),
        (None, Some(timing)) => format!(
            "stage {slowest} ({name}) sets the pace of the row: {} for a decode step, {} for a chunk of prompt",
            seconds(timing.decode_all),
            seconds(timing.prefill_chunk)
        ),
        (None, None) => format!("stage {slowest} ({name}) sets the pace of the row"),
    }
}

/// What would happen if the slowest stage gave a block away.
fn neighbours(cluster: &Cluster, found: &Found, slowest: usize) -> Vec<String> {
    let stages = &found.row.stages;
    let (start, end) = stages[slowest].blocks;
    if end - start < 2 {
        return vec![format!("stage {slowest} has one block, which may not be cut")];
    }
    let before = slowest.checked_sub(1).map(|stage| (stage, (stages[stage].blocks.0, start + 1)));
    let behind = (slowest + 1 < stages.len()).then(|| (slowest + 1, (end - 1, stages[slowest + 1].blocks.1)));
    let say = |(stage, (start, end)): (usize, (usize, usize))| {
        let device = stages[stage].device;
        let needed = found.segments.memory(start, end);
        let DeviceSpec { memory_bytes, .. } = cluster.devices[device];
        if needed > memory_bytes {
            return format!(
                "stage {stage} has no memory for one block more: it would need {} of {}",
                human(needed),
                human(memory_bytes)
            );
        }
        let times = found.segments.load(start, end, &found.speeds[device]) / found.row.bottleneck;
        let than = if times >= 1.0 { "longer" } else { "less" };
        let percent = (times - 1.0).abs() * 100.0;
        format!("with one block more, stage {stage} would take {percent:.0}% {than} than stage {slowest} does")
    };
    [before, behind].into_iter().flatten().map(say).collect()
}

/// Why a device holds nothing.
pub(super) fn why_left_out(index: usize, device: &DeviceSpec, wishes: &Wishes, found: &Found) -> String {
    let blocks = found.segments.len();
    let memory = device.memory_bytes;
    let least = (0..blocks).map(|block| found.segments.memory(block, block + 1)).min().unwrap_or(0);
    if least > memory {
        return format!("it has {}, the smallest part of the model needs {}", human(memory), human(least));
    }
    let stages = found.row.stages.len();
    if wishes.shards == Some(stages) {
        return format!("{stages} stages are wanted, and others are better");
    }
    if wishes.prefer == Prefer::OneUser {
        return "one user would wait longer for each token with it".to_owned();
    }
    if stages == blocks {
        return format!("its blocks may not be cut ({blocks} in all), and other devices are better");
    }
    let speed = &found.speeds[index];
    let fitting = (0..blocks).filter(|&block| found.segments.memory(block, block + 1) <= memory);
    let quickest = fitting.map(|block| found.segments.load(block, block + 1, speed)).fold(f64::INFINITY, f64::min);
    let times = quickest / found.row.bottleneck;
    if times > 1.0 {
        return format!("even one block would take it {times:.1} times as long as the slowest stage takes");
    }
    "the slowest stage would be no faster with it, and every token would have one hop more".to_owned()
}
