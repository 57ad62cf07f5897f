//! A placement as people read it.

use std::fmt::Write as _;

use super::{Memory, Placement, StagePlan};

const COLUMNS: usize = 11;
const HEADINGS: [&str; COLUMNS] = [
    "stage",
    "layers",
    "attention",
    "weights",
    "KV",
    "states",
    "buffers",
    "reserve",
    "total",
    "reads/token",
    "threads",
];

/// A table of the stages, their sum, and what a token and a session cost.
pub fn render(placement: &Placement) -> String {
    let mut text = headline(placement);
    text.push_str("\n\n");
    text.push_str(&table(placement));
    let _ = writeln!(
        text,
        "\nKV per token {}, state per session {}, {} pages of {} tokens, {} state slots",
        human(placement.key_value_per_token),
        human(placement.state_per_session),
        placement.pages,
        placement.page_tokens,
        placement.slots,
    );
    let Memory { mapped, .. } = placement.memory();
    let _ = writeln!(text, "{} of embeddings stay in the model file, and in memory while it has room", human(mapped));
    let total = placement.memory().total();
    let free = placement.available.saturating_sub(total);
    let _ = writeln!(text, "{} of {} used, {} stay free", human(total), human(placement.available), human(free));
    for note in &placement.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

fn headline(placement: &Placement) -> String {
    let Placement { stages, sessions, context, key_type, value_type, .. } = placement;
    format!(
        "{}: {}, {} of {context} tokens, keys in {key_type}, values in {value_type}",
        placement.model.as_deref().map_or_else(|| "model".to_owned(), printable),
        counted(stages.len(), "stage"),
        counted(*sessions, "session"),
    )
}

/// A name from a file, without anything that could steer a terminal.
fn printable(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

fn table(placement: &Placement) -> String {
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(placement.stages.iter().enumerate().map(|(index, stage)| stage_row(index, stage)));
    rows.push(total_row(placement));
    let widths: Vec<usize> =
        (0..COLUMNS).map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0)).collect();
    rows.iter().map(|row| line(row, &widths)).collect()
}

fn line(row: &[String], widths: &[usize]) -> String {
    let cells: Vec<String> = row.iter().zip(widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
    format!("{}\n", cells.join("  "))
}

fn stage_row(index: usize, stage: &StagePlan) -> [String; COLUMNS] {
    let layers = format!("{}-{}", stage.layers.start, stage.layers.end.saturating_sub(1));
    row(index.to_string(), layers, stage.attention_layers, &stage.memory, stage.read_per_token, stage.threads)
}

fn total_row(placement: &Placement) -> [String; COLUMNS] {
    let stages = &placement.stages;
    let sum = |count: fn(&StagePlan) -> usize| stages.iter().map(count).sum::<usize>();
    let reads = stages.iter().map(|stage| stage.read_per_token).sum();
    let layers = sum(|stage| stage.layers.len()).to_string();
    let memory = placement.memory();
    row("all".to_owned(), layers, sum(|stage| stage.attention_layers), &memory, reads, sum(|stage| stage.threads))
}

fn row(
    name: String,
    layers: String,
    attention: usize,
    memory: &Memory,
    reads: u64,
    threads: usize,
) -> [String; COLUMNS] {
    [
        name,
        layers,
        attention.to_string(),
        human(memory.weights),
        human(memory.key_value),
        human(memory.states),
        human(memory.buffers),
        human(memory.reserve),
        human(memory.total()),
        human(reads),
        threads.to_string(),
    ]
}

/// Bytes in the unit that fits, with one decimal.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.into_iter().find(|&(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}
