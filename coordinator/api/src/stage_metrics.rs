//! Metrics of the stages, in the text form of Prometheus.
//!
//! They are written from the state at this moment and not kept by the recorder: stages come and go, their totals begin
//! anew with every placement, and times are fractions of seconds, none of which the recorder's counters know.

use std::fmt::Write;

use paceline_coordinator::{StageStatus, Status};

/// What a kind of metric is called and where it comes from.
struct Family {
    name: &'static str,
    kind: &'static str,
    value: fn(&StageStatus) -> Option<f64>,
}

/// One value per stage, labelled by what the stage is.
const FAMILIES: [Family; 6] = [
    Family { name: "paceline_stage_busy_seconds_total", kind: "counter", value: |s| Some(seconds(s.busy_micros)) },
    Family { name: "paceline_stage_idle_seconds_total", kind: "counter", value: |s| Some(seconds(s.idle_micros)) },
    Family { name: "paceline_stage_sent_bytes_total", kind: "counter", value: |s| Some(s.sent_bytes as f64) },
    Family { name: "paceline_stage_steps_total", kind: "counter", value: |s| Some(s.steps as f64) },
    Family {
        name: "paceline_link_round_trip_seconds",
        kind: "gauge",
        value: |s| s.card.link.as_ref()?.round_trip_micros.map(seconds),
    },
    Family {
        name: "paceline_link_bytes_per_second",
        kind: "gauge",
        value: |s| s.card.link.as_ref()?.bytes_per_second.map(|bytes| bytes as f64),
    },
];

/// The text, to be put behind that of the recorder.
pub(crate) fn render(status: &Status) -> String {
    let mut text = String::new();
    head(&mut text, "paceline_credit_wait_seconds_total", "counter");
    let _ = writeln!(text, "paceline_credit_wait_seconds_total {}", status.credit_wait_seconds);
    for Family { name, kind, value } in FAMILIES {
        let known = status.stages.iter().filter_map(|stage| Some((stage, value(stage)?)));
        let lines: Vec<String> = known.map(|(stage, value)| format!("{name}{{{}}} {value}", labels(stage))).collect();
        if !lines.is_empty() {
            head(&mut text, name, kind);
            let _ = writeln!(text, "{}", lines.join("\n"));
        }
    }
    memory(&mut text, status);
    text
}

/// The bytes that each stage's device reserved, by what they are for.
fn memory(text: &mut String, status: &Status) {
    if status.stages.is_empty() {
        return;
    }
    let name = "paceline_stage_memory_bytes";
    head(text, name, "gauge");
    for stage in &status.stages {
        let actual = stage.card.memory.actual;
        let kinds = [
            ("weights", actual.weights),
            ("key_value", actual.key_value),
            ("states", actual.states),
            ("buffers", actual.buffers),
        ];
        for (kind, bytes) in kinds {
            let _ = writeln!(text, "{name}{{{},kind=\"{kind}\"}} {bytes}", labels(stage));
        }
    }
}

fn head(text: &mut String, name: &str, kind: &str) {
    let _ = writeln!(text, "# TYPE {name} {kind}");
}

fn labels(stage: &StageStatus) -> String {
    let card = &stage.card;
    format!("stage=\"{}\",host=\"{}\",device=\"{}\"", card.index, escaped(&card.host), escaped(&card.device))
}

/// Names come from other hosts: none may end its quotes or its line.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}
