//! `paceline eval kv`: a table of what each type of keys and values costs.
//!
//! Perplexity is measured as by `paceline eval perplexity`; the share of tokens in whose place the same token is most
//! probable as with f16 shows differences that perplexity averages out. Recall counts facts of a text of growing length
//! that the model gives back exactly.

use std::fmt;

use anyhow::Result;
use paceline_evaluation::perplexity::{Foreseen, measure};
use paceline_gguf::{KvType, ModelShape};
use serde::Serialize;

use super::recall::Document;
use super::{Reading, Storage};
use crate::bench::tell;
use crate::cli::EvalKvArgs;

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    /// Tokens of a window.
    context: usize,
    windows: usize,
    /// Tokens that were judged.
    tokens: usize,
    /// Of the perplexity with f16: its standard error.
    uncertainty: f64,
    rows: Vec<Row>,
    /// Types whose blocks the model's heads do not fit.
    left_out: Vec<String>,
}

/// One way to store keys and values.
#[derive(Debug, Serialize)]
struct Row {
    #[serde(rename = "type")]
    kind: String,
    /// None where nothing is rounded to blocks.
    rotated: Option<bool>,
    bytes_per_token: u64,
    perplexity: f64,
    /// Against f16, as a share.
    change: f64,
    /// Tokens in whose place the same token is most probable as with f16, as a share.
    same_best: f64,
    recall: Vec<Recall>,
}

/// Facts that were found again.
#[derive(Debug, Serialize)]
struct Recall {
    /// Tokens of the text.
    length: u32,
    right: usize,
    asked: usize,
}

/// Measures every type and prints the table.
pub(super) fn kv(arguments: &EvalKvArgs) -> Result<()> {
    let reading = Reading::open(&arguments.reading)?;
    let shape = ModelShape::read(&reading.model)?;
    let lengths = arguments.recall.iter().copied().filter(|length| *length as usize <= shape.context_length);
    let documents = lengths.map(|length| Ok((length, Document::compose(&reading, length as usize)?)));
    let documents = documents.collect::<Result<Vec<_>>>()?;
    let wanted = |kind: &KvType| arguments.types.is_empty() || arguments.types.contains(kind);
    let (fit, left_out): (Vec<_>, Vec<_>) =
        KvType::ALL.into_iter().filter(wanted).partition(|kind| shape.check_key_value_types(*kind, *kind).is_ok());
    let reference = read(&reading, Storage { key_value_types: [KvType::F16; 2], rotated: true })?;
    let mut rows = Vec::new();
    for kind in fit {
        let ways: &[bool] = if kind.is_quantized() { &[true, false] } else { &[true] };
        for &rotated in ways {
            let storage = Storage { key_value_types: [kind; 2], rotated };
            let foreseen = if kind == KvType::F16 { reference.clone() } else { read(&reading, storage)? };
            rows.push(Row {
                kind: kind.to_string(),
                rotated: kind.is_quantized().then_some(rotated),
                bytes_per_token: shape.key_value_bytes_per_token(0..shape.layers.len(), kind, kind),
                perplexity: foreseen.perplexity(),
                change: foreseen.perplexity() / reference.perplexity() - 1.0,
                same_best: foreseen.agreement(&reference),
                recall: ask(&reading, storage, &documents)?,
            });
        }
    }
    let report = Report {
        model: reading.name,
        context: reading.windows.context,
        windows: reference.windows,
        tokens: reference.tokens.len(),
        uncertainty: reference.uncertainty(),
        rows,
        left_out: left_out.iter().map(ToString::to_string).collect(),
    };
    tell(&report, arguments.reading.json)
}

fn read(reading: &Reading, storage: Storage) -> Result<Foreseen> {
    let mut run = reading.load(storage, reading.windows.context, 1)?;
    Ok(measure(&mut run, &reading.tokens, &reading.windows)?)
}

fn ask(reading: &Reading, storage: Storage, documents: &[(u32, Document)]) -> Result<Vec<Recall>> {
    let Some(context) = documents.iter().map(|(_, document)| document.context()).max() else { return Ok(Vec::new()) };
    // One session that has read the text, and one copy of it that is asked.
    let mut run = reading.load(storage, context, 2)?;
    let mut recall = Vec::new();
    for (length, document) in documents {
        let right = document.ask(reading, &mut run)?;
        recall.push(Recall { length: *length, right, asked: document.asked() });
    }
    Ok(recall)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, context, windows, tokens, uncertainty, rows, left_out } = self;
        writeln!(f, "{model}: {tokens} tokens judged, the second half of each of {windows} windows of {context}")?;
        writeln!(
            f,
            "perplexity is uncertain by ±{uncertainty:.3}, changes against f16 by far less: the text is the same"
        )?;
        write!(
            f,
            "{:<8} {:<8} {:>11} {:>11} {:>8} {:>10}",
            "type", "rotated", "bytes/token", "perplexity", "change", "same best"
        )?;
        let lengths = rows.first().map_or(&[][..], |row| &row.recall);
        lengths.iter().try_for_each(|recall| write!(f, " {:>12}", format!("recall {}", recall.length)))?;
        writeln!(f)?;
        for row in rows {
            writeln!(f, "{row}")?;
        }
        if !left_out.is_empty() {
            writeln!(f, "not measured, as the model's heads are not whole blocks: {}", left_out.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, rotated, bytes_per_token, perplexity, change, same_best, recall } = self;
        let rotated = rotated.map_or("", |rotated| if rotated { "yes" } else { "no" });
        let (change, same_best) = (format!("{:+.2}%", change * 100.0), format!("{:.2}%", same_best * 100.0));
        write!(f, "{kind:<8} {rotated:<8} {bytes_per_token:>11} {perplexity:>11.4} {change:>8} {same_best:>10}")?;
        recall.iter().try_for_each(|Recall { right, asked, .. }| write!(f, " {:>12}", format!("{right}/{asked}")))
    }
}
