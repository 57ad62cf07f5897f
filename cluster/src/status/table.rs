//! The figures as words and columns.

use std::fmt::Write;

use paceline_api::{ClusterCard, ModelReport, ModelState};
use paceline_coordinator::{DraftStatus, LinkCard, StageStatus, Status};

use super::View;
use super::rates::StageRates;
use crate::text::{bytes, printable};

/// What the columns of [`row`] are.
pub(crate) const COLUMNS: [&str; 9] = ["stage", "host", "device", "layers", "memory", "busy", "idle", "sent/s", "link"];

/// What is not known, or not yet.
const UNKNOWN: &str = "-";

/// The whole view as text.
pub(crate) fn text(view: &View) -> String {
    let mut text = summary(view).join("\n");
    text.push_str("\n\n");
    text.push_str(&in_columns(COLUMNS, rows(view)));
    text.push_str(&nodes(view));
    text.push_str(&models(view));
    text
}

/// Rows under their heads, a line each; every column as wide as its widest cell.
fn in_columns<const COUNT: usize>(heads: [&str; COUNT], rows: impl IntoIterator<Item = [String; COUNT]>) -> String {
    let rows: Vec<_> = std::iter::once(heads.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COUNT).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        let _ = writeln!(text, "  {}", cells.join("  ").trim_end());
    }
    text
}

/// The models of a service of several.
fn models(view: &View) -> String {
    let models = &view.report.models;
    if models.len() < 2 {
        return String::new();
    }
    let row = |ModelReport { id, kind, state, memory_bytes, running, waiting, .. }: &ModelReport| {
        let state = match state {
            ModelState::Unloaded => "unloaded",
            ModelState::Loading => "loading",
            ModelState::Loaded => "loaded",
            ModelState::Unloading => "unloading",
        };
        let requests = format!("{running}, {waiting} waiting");
        [printable(id).to_string(), kind.to_string(), state.to_owned(), bytes(*memory_bytes), requests]
    };
    let table = in_columns(["model", "makes", "is", "memory", "requests"], models.iter().map(row));
    format!("\n{table}")
}

/// The nodes of a cluster as they are named to `paceline scale`, and the change of the row that is under way.
fn nodes(view: &View) -> String {
    let ClusterCard { nodes, moving } = &view.report.cluster;
    let mut text = String::new();
    if !nodes.is_empty() {
        text.push_str("\n  node      is\n");
    }
    for node in nodes {
        let stage = view.report.status.stages.iter().find(|stage| stage.card.node == node.node);
        let duty = match stage {
            Some(stage) => format!("stage {}", stage.card.index),
            None if node.drained => "drained".to_owned(),
            None if node.standby => "on standby".to_owned(),
            None => "free".to_owned(),
        };
        let id: String = node.node.chars().take(8).collect();
        let _ = writeln!(text, "  {}  {duty} on {}", printable(&id), printable(&node.host));
    }
    if let Some(moving) = moving {
        let _ = writeln!(text, "\nchanging the row: {}", printable(moving));
    }
    text
}

/// One row for each stage.
pub(crate) fn rows(view: &View) -> impl Iterator<Item = [String; 9]> {
    let rates = view.rates.as_ref().map_or(&[][..], |rates| &rates.stages);
    let rates = rates.iter().map(Some).chain(std::iter::repeat(None));
    view.report.status.stages.iter().zip(rates).map(|(stage, rates)| row(stage, rates))
}

fn row(stage: &StageStatus, rates: Option<&StageRates>) -> [String; 9] {
    let card = &stage.card;
    let memory = if card.memory.actual.total() > 0 { card.memory.actual } else { card.memory.planned };
    let of = |show: fn(&StageRates) -> String| rates.map_or_else(|| UNKNOWN.to_owned(), show);
    [
        card.index.to_string(),
        printable(&card.host),
        printable(&card.device),
        format!("{}..{}", card.layers.start, card.layers.end),
        bytes(memory.total()),
        of(|rates| percent(rates.busy)),
        of(|rates| percent(rates.idle)),
        of(|rates| bytes(rates.sent_bytes as u64)),
        card.link.as_ref().map_or_else(|| UNKNOWN.to_owned(), link),
    ]
}

/// Three lines about the service as a whole.
pub(crate) fn summary(view: &View) -> [String; 3] {
    let report = &view.report;
    let status = &report.status;
    let rate = |value: Option<f64>| value.map_or_else(|| UNKNOWN.to_owned(), |value| format!("{value:.1}"));
    let rates = view.rates.as_ref();
    [
        format!(
            "{} · {} · epoch {} · up {} · {}",
            printable(&report.model),
            printable(&report.architecture),
            status.epoch,
            duration(status.uptime_seconds),
            state(status)
        ),
        format!(
            "sessions {}/{}, {} waiting · pages {}/{}, {} promised · steps in flight {}/{}",
            status.running,
            status.slots,
            status.waiting,
            status.pages_used,
            status.pages,
            status.pages_reserved,
            status.steps_in_flight,
            status.credits
        ),
        format!(
            "tokens/s: answers {}, prompts {} · steps/s {} · waiting for a credit {} · drafts right {}",
            rate(rates.map(|rates| rates.decode_tokens)),
            rate(rates.map(|rates| rates.prefill_tokens)),
            rate(rates.map(|rates| rates.steps)),
            rates.map_or_else(|| UNKNOWN.to_owned(), |rates| percent(rates.credit_wait)),
            accepted(status)
        ),
    ]
}

/// The part of the drafts that was right since the program's start, and how many there were.
fn accepted(status: &Status) -> String {
    let DraftStatus { run, accepted, .. } = status.drafts;
    if run == 0 { UNKNOWN.to_owned() } else { format!("{} of {run}", percent(accepted as f64 / run as f64)) }
}

/// Whether requests are served.
pub(crate) fn state(status: &Status) -> String {
    match &status.broken {
        Some(reason) => format!("NOT SERVING: {}", printable(reason)),
        None if status.ready => "serving".to_owned(),
        None => "shutting down".to_owned(),
    }
}

fn link(link: &LinkCard) -> String {
    let carrier = printable(&link.carrier);
    link.round_trip_micros.map_or(carrier.clone(), |micros| format!("{carrier} {:.2} ms", micros as f64 / 1e3))
}

fn percent(part: f64) -> String {
    format!("{:.0}%", part * 100.0)
}

/// `3 h 02 min`.
fn duration(seconds: f64) -> String {
    let seconds = seconds as u64;
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {:02} h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use paceline_api::{NodeCard, StatusReport};
    use paceline_coordinator::StageCard;
    use paceline_coordinator::placement::{MemoryBytes, StageMemory};

    use super::super::rates::Rates;
    use super::*;

    /// Two stages, one of them busy.
    pub(crate) fn view() -> View {
        let weights = MemoryBytes { weights: 3 << 30, ..MemoryBytes::default() };
        let head = StageCard {
            index: 0,
            node: "n0".to_owned(),
            host: "attic".to_owned(),
            device: "cuda:0 (H200)".to_owned(),
            layers: 0..20,
            memory: StageMemory { planned: weights, actual: weights },
            link: Some(LinkCard {
                carrier: "quic".to_owned(),
                round_trip_micros: Some(250),
                bytes_per_second: Some(1 << 30),
            }),
        };
        let tail = StageCard {
            index: 1,
            host: "cellar\u{1b}[2J".to_owned(),
            device: "cpu (avx2, 8 threads)".to_owned(),
            layers: 20..36,
            memory: StageMemory { planned: weights, ..StageMemory::default() },
            ..StageCard::default()
        };
        let stages = [head, tail].map(|card| StageStatus { card, ..StageStatus::default() });
        let status = Status {
            uptime_seconds: 7384.0,
            ready: true,
            epoch: 3,
            running: 2,
            slots: 8,
            waiting: 1,
            pages: 128,
            pages_used: 12,
            pages_reserved: 4,
            steps_in_flight: 3,
            credits: 4,
            stages: stages.to_vec(),
            ..Status::default()
        };
        let report =
            StatusReport { model: "tiny".to_owned(), architecture: "qwen35".to_owned(), status, ..Default::default() };
        let stages = vec![
            StageRates { busy: 0.874, idle: 0.1, sent_bytes: 2_097_152.0 },
            StageRates { busy: 0.25, idle: 0.75, sent_bytes: 0.0 },
        ];
        let rates =
            Rates { seconds: 1.0, prefill_tokens: 512.0, decode_tokens: 41.5, steps: 22.0, credit_wait: 0.031, stages };
        View { report, rates: Some(rates) }
    }

    #[test]
    fn the_text_says_everything_in_columns() {
        let text = text(&view());
        let expected = "\
tiny · qwen35 · epoch 3 · up 2 h 03 min · serving
sessions 2/8, 1 waiting · pages 12/128, 4 promised · steps in flight 3/4
tokens/s: answers 41.5, prompts 512.0 · steps/s 22.0 · waiting for a credit 3% · drafts right -

  stage  host        device                 layers  memory   busy  idle  sent/s   link
  0      attic       cuda:0 (H200)          0..20   3.0 GiB  87%   10%   2.0 MiB  quic 0.25 ms
  1      cellar?[2J  cpu (avx2, 8 threads)  20..36  3.0 GiB  25%   75%   0 B      -
";
        assert_eq!(text, expected);
    }

    #[test]
    fn nodes_are_listed_with_what_they_do_and_a_change_under_way() {
        let mut view = view();
        let node = |node: &str, drained, standby| NodeCard {
            node: node.to_owned(),
            host: "att\nic".to_owned(),
            drained,
            standby,
            ..NodeCard::default()
        };
        view.report.status.stages[0].card.node = "0123456789".to_owned();
        view.report.cluster = ClusterCard {
            nodes: vec![
                node("0123456789", false, false),
                node("a", true, false),
                node("b", false, true),
                node("c", false, false),
            ],
            moving: Some("drain: moving memories".to_owned()),
        };
        let expected = "
  node      is
  01234567  stage 0 on att?ic
  a  drained on att?ic
  b  on standby on att?ic
  c  free on att?ic

changing the row: drain: moving memories
";
        let text = text(&view);
        assert!(text.ends_with(expected), "{text}");
    }

    #[test]
    fn what_is_not_known_is_a_dash_and_what_does_not_serve_says_why() {
        let mut view = view();
        view.rates = None;
        view.report.status.broken = Some("stage 1 failed: its host\nis gone".to_owned());
        let text = text(&view);
        assert!(text.contains("NOT SERVING: stage 1 failed: its host?is gone"), "{text}");
        assert!(text.contains("answers -, prompts -"), "{text}");
        assert!(text.contains("3.0 GiB  -     -     -       quic"), "{text}");
        view.report.status.stages.clear();
        assert!(super::text(&view).ends_with("link\n"), "only the head of the table is left");
    }

    #[test]
    fn durations_read_well() {
        for (seconds, text) in [(5.9, "5 s"), (61.0, "1 min 01 s"), (90_000.0, "1 d 01 h"), (-1.0, "0 s")] {
            assert_eq!(duration(seconds), text);
        }
    }
}
