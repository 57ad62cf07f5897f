//! A placement as people read it.

mod devices;

use std::fmt::Write as _;

use super::{Cache, Logs, Memory, Placement, StagePlan, TailDrafter};

/// Columns of a line.
const LINE: usize = 100;
const HEADINGS: [&str; 10] =
    ["stage", "layers", "attn", "weights", "KV", "states", "buffers", "total", "reads/token", "threads"];

/// A table of the stages, their sum, and what a token and a session cost; for devices of their own also how fast each
/// is, what the whole should reach, and why it is placed so.
pub fn render(placement: &Placement) -> String {
    let mut text = headline(placement);
    text.push_str("\n\n");
    let has_devices = devices::are_told(placement);
    text.push_str(&if has_devices { devices::memory(placement) } else { table(&one_host(placement)) });
    let _ = writeln!(
        text,
        "\nKV per token {}, state per session {}, {} pages of {} tokens, {} state slots",
        human(placement.key_value_per_token),
        human(placement.state_per_session),
        placement.pages,
        placement.page_tokens,
        placement.slots,
    );
    text.push_str(&cache(placement));
    text.push_str(&logs(placement));
    text.push_str(&draft(placement));
    let Memory { mapped, .. } = placement.memory();
    let _ = writeln!(text, "{} of embeddings stay in the model file, and in memory while it has room", human(mapped));
    let total = placement.memory().total();
    let free = placement.available.saturating_sub(total);
    let _ = writeln!(text, "{} of {} used, {} stay free", human(total), human(placement.available), human(free));
    if has_devices {
        text.push_str(&devices::speeds(placement));
    }
    for note in &placement.notes {
        text.push_str(&wrapped(&format!("note: {note}")));
    }
    text
}

/// What of the pages and slots is there for the cache.
fn cache(placement: &Placement) -> String {
    let (Cache { snapshots, pages }, (snapshot_bytes, page_bytes)) = (placement.cache, placement.cache_bytes());
    if (snapshots, pages) == (0, 0) {
        return String::new();
    }
    let (snapshot_bytes, page_bytes) = (human(snapshot_bytes), human(page_bytes));
    format!("of these {pages} pages ({page_bytes}) and {snapshots} slots ({snapshot_bytes}) are for the cache\n")
}

/// What of the states is there for guesses.
fn logs(placement: &Placement) -> String {
    let Logs { sessions, tokens, .. } = placement.logs;
    if sessions == 0 {
        return String::new();
    }
    let bytes = human(placement.log_per_token.saturating_mul(placement.logs.rows() as u64));
    let who = match placement.drafter {
        None => "",
        Some(TailDrafter::Mtp) => "; the last stage has the block that makes some of them",
        Some(TailDrafter::Model { .. } | TailDrafter::Dflash { .. }) => {
            "; the last stage has the model that makes some of them"
        }
    };
    let sessions = counted(sessions, "session");
    wrapped(&format!("of the states {bytes} are logs: {tokens} drafts for each of {sessions}{who}"))
}

/// What of the last stage is there for a model in a file of its own.
fn draft(placement: &Placement) -> String {
    let Some(TailDrafter::Model { key_type, value_type } | TailDrafter::Dflash { key_type, value_type }) =
        placement.drafter
    else {
        return String::new();
    };
    let memory = &placement.drafter_memory;
    let [weights, key_value, states] = [memory.weights, memory.key_value, memory.states].map(human);
    wrapped(&format!(
        "of the last stage {} are for that model: weights {weights}, keys in {key_type} and values in {value_type} \
         {key_value}, states {states}, buffers {}",
        human(memory.total()),
        human(working(memory))
    ))
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

/// A name from a file or another host, without anything that could steer a terminal.
fn printable(name: &str) -> String {
    name.chars().map(|char| if char.is_control() { '\u{fffd}' } else { char }).collect()
}

fn counted(count: usize, what: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// A sentence as lines of at most 100 columns, where its words allow that; those behind the first are indented.
fn wrapped(sentence: &str) -> String {
    let (mut text, mut column) = (String::new(), 0);
    for word in sentence.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > LINE {
            text.push_str("\n    ");
            column = 4;
        } else if column > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
    text
}

/// Rows of cells, the first with headings, each column as wide as its widest cell and to the right.
fn table<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let line = |row: &[String; COLUMNS]| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:>width$}")).collect();
        format!("{}\n", cells.join("  "))
    };
    rows.iter().map(line).collect()
}

fn one_host(placement: &Placement) -> Vec<[String; 10]> {
    let stages = &placement.stages;
    let sum = |count: fn(&StagePlan) -> usize| stages.iter().map(count).sum::<usize>();
    let reads = |stage: &StagePlan| stage.read_per_token;
    let mut rows = vec![HEADINGS.map(str::to_owned)];
    rows.extend(stages.iter().enumerate().map(|(index, stage)| {
        one_host_row(
            index.to_string(),
            layers(stage),
            &stage.memory,
            [stage.attention_layers, stage.threads],
            reads(stage),
        )
    }));
    let all = sum(|stage| stage.layers.len()).to_string();
    let counts = [sum(|stage| stage.attention_layers), sum(|stage| stage.threads)];
    rows.push(one_host_row("all".to_owned(), all, &placement.memory(), counts, stages.iter().map(reads).sum()));
    rows
}

fn one_host_row(
    name: String,
    layers: String,
    memory: &Memory,
    [attention, threads]: [usize; 2],
    reads: u64,
) -> [String; 10] {
    [
        name,
        layers,
        attention.to_string(),
        human(memory.weights),
        human(memory.key_value),
        human(memory.states),
        human(working(memory)),
        human(memory.total()),
        human(reads),
        threads.to_string(),
    ]
}

/// What is neither weights nor memory of sessions.
fn working(memory: &Memory) -> u64 {
    memory.buffers.saturating_add(memory.reserve)
}

fn layers(stage: &StagePlan) -> String {
    format!("{}-{}", stage.layers.start, stage.layers.end.saturating_sub(1))
}

/// Bytes in the unit that fits, with one decimal.
pub(super) fn human(bytes: u64) -> String {
    const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match UNITS.into_iter().find(|&(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Seconds in the unit that fits, with three digits.
pub(super) fn seconds(seconds: f64) -> String {
    let (number, unit) = match seconds {
        _ if seconds >= 1.0 => (seconds, "s"),
        _ if seconds >= 1e-3 => (seconds * 1e3, "ms"),
        _ => (seconds * 1e6, "us"),
    };
    let decimals = if number >= 100.0 {
        0
    } else if number >= 10.0 {
        1
    } else {
        2
    };
    format!("{number:.decimals$} {unit}")
}
