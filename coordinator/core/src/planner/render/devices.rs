//! Stages that have devices of their own.

use std::fmt::Write as _;

use super::super::{LeftOut, Placement, Prediction, StagePlan, StageTiming, Verdict};
use super::{counted, human, layers, printable, seconds, table, working, wrapped};

const MEMORY: [&str; 10] = ["stage", "device", "layers", "attn", "weights", "KV", "states", "buffers", "total", "free"];
/// Longer names of devices are shortened.
const NAME: usize = 18;

/// Whether it was made for devices that each hold one stage.
pub(super) fn are_told(placement: &Placement) -> bool {
    let mut devices: Vec<usize> = placement.stages.iter().map(|stage| stage.device).collect();
    devices.dedup();
    devices.len() > 1 || placement.prediction.is_some() || !placement.left_out.is_empty()
}

/// A table of what stages reserve and what their devices keep free.
pub(super) fn memory(placement: &Placement) -> String {
    let mut rows = vec![MEMORY.map(str::to_owned)];
    rows.extend(placement.stages.iter().enumerate().map(|(index, stage)| memory_row(index, stage)));
    let memory = placement.memory();
    let stages = &placement.stages;
    rows.push([
        "all".to_owned(),
        String::new(),
        stages.iter().map(|stage| stage.layers.len()).sum::<usize>().to_string(),
        stages.iter().map(|stage| stage.attention_layers).sum::<usize>().to_string(),
        human(memory.weights),
        human(memory.key_value),
        human(memory.states),
        human(working(&memory)),
        human(memory.total()),
        human(stages.iter().fold(0, |sum, stage| stage.device_free.saturating_add(sum))),
    ]);
    table(&rows)
}

fn memory_row(index: usize, stage: &StagePlan) -> [String; 10] {
    [
        index.to_string(),
        device(&stage.device_name, &stage.host),
        layers(stage),
        stage.attention_layers.to_string(),
        human(stage.memory.weights),
        human(stage.memory.key_value),
        human(stage.memory.states),
        human(working(&stage.memory)),
        human(stage.memory.total()),
        human(stage.device_free),
    ]
}

/// A device and its host, in few characters.
fn device(name: &str, host: &str) -> String {
    let full = if host.is_empty() { printable(name) } else { format!("{}@{}", printable(name), printable(host)) };
    if full.chars().count() <= NAME {
        return full;
    }
    let kept: String = full.chars().take(NAME - 1).collect();
    format!("{kept}…")
}

/// How fast the stages and the row should be, and why it is placed so.
pub(super) fn speeds(placement: &Placement) -> String {
    let mut text = String::new();
    if let Some(prediction) = &placement.prediction {
        let _ = write!(text, "\n{}\n{}", stage_times(placement, prediction), row_speed(prediction));
    }
    for verdict in &placement.targets {
        text.push_str(&wrapped(&judged(verdict)));
    }
    if !placement.reasons.is_empty() || !placement.left_out.is_empty() {
        text.push('\n');
    }
    for reason in &placement.reasons {
        text.push_str(&wrapped(&format!("why: {}", printable(reason))));
    }
    for LeftOut { device_name, host, reason, .. } in &placement.left_out {
        text.push_str(&wrapped(&format!("left out: {}: {reason}", device(device_name, host))));
    }
    text
}

fn stage_times(placement: &Placement, prediction: &Prediction) -> String {
    let Prediction { depth, chunk, users, .. } = prediction;
    let groups = placement.stages.len().min(*users).max(1);
    let (group, chunks) = (format!("decode of {}", users.div_ceil(groups)), format!("chunk of {chunk}"));
    let headings = ["stage".to_owned(), "one alone".to_owned(), group, chunks, "busy".to_owned()];
    let timing = |(index, stage): (usize, &StagePlan)| {
        let StageTiming { decode_one, decode_all, prefill_chunk, busy } = stage.timing?;
        let times = [decode_one, decode_all, prefill_chunk].map(seconds);
        let [one, all, chunk] = times;
        Some([index.to_string(), one, all, chunk, format!("{:.0}%", busy * 100.0)])
    };
    let mut rows = vec![headings];
    rows.extend(placement.stages.iter().enumerate().filter_map(timing));
    let (users, groups) = (counted(*users, "user"), counted(groups, "group"));
    format!("Predicted for {users} in {groups}, {depth} tokens deep:\n\n{}", table(&rows))
}

fn row_speed(prediction: &Prediction) -> String {
    let Prediction { prompt, users, decode_one, decode_all, prefill, first_token, first_token_all, .. } = prediction;
    let mut text = format!("decode {decode_one:.1} tok/s for one user alone");
    if *users > 1 {
        let each = decode_all / *users as f64;
        let _ = write!(text, ", {decode_all:.1} tok/s for {users} together, {each:.1} each");
    }
    let first = seconds(*first_token);
    let _ = write!(text, "\nprefill {prefill:.0} tok/s, first token of a prompt of {prompt} after {first}");
    if *users > 1 {
        let _ = write!(text, ", of {users} at once after {}", seconds(*first_token_all));
    }
    text.push('\n');
    text
}

fn judged(Verdict { target, predicted, met, would_meet }: &Verdict) -> String {
    let met = if *met { "met" } else { "not met" };
    let mut text = format!("target {target}: {met}, {predicted} predicted");
    if !would_meet.is_empty() {
        let _ = write!(text, "; it would be met with {}", would_meet.join(", or with "));
    }
    text
}
