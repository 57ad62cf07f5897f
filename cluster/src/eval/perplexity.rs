//! `paceline eval perplexity`: one figure of one text.

use std::fmt;
use std::time::Instant;

use anyhow::Result;
use paceline_evaluation::perplexity::measure;
use serde::Serialize;

use super::{Reading, Storage};
use crate::bench::tell;
use crate::cli::PerplexityArgs;

/// What was measured.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    keys: String,
    values: String,
    rotated: bool,
    /// Tokens of a window.
    context: usize,
    windows: usize,
    /// Tokens that were judged.
    tokens: usize,
    perplexity: f64,
    /// Its standard error.
    uncertainty: f64,
    /// Tokens read per second.
    tok_s: f64,
}

/// Measures and prints it.
pub(super) fn perplexity(arguments: &PerplexityArgs) -> Result<()> {
    let reading = Reading::open(&arguments.reading)?;
    let keys = arguments.kv_type_k.unwrap_or(arguments.kv_type);
    let values = arguments.kv_type_v.unwrap_or(arguments.kv_type);
    let rotated = !arguments.no_rotation && (keys.is_quantized() || values.is_quantized());
    let storage = Storage { key_value_types: [keys, values], rotated: !arguments.no_rotation };
    let context = reading.windows.context;
    let mut run = reading.load(storage, context, 1)?;
    let begun = Instant::now();
    let foreseen = measure(&mut run, &reading.tokens, &reading.windows)?;
    let report = Report {
        model: reading.name,
        keys: keys.to_string(),
        values: values.to_string(),
        rotated,
        context,
        windows: foreseen.windows,
        tokens: foreseen.tokens.len(),
        perplexity: foreseen.perplexity(),
        uncertainty: foreseen.uncertainty(),
        tok_s: (foreseen.windows * context) as f64 / begun.elapsed().as_secs_f64(),
    };
    tell(&report, arguments.reading.json)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, keys, values, rotated, context, windows, tokens, perplexity, uncertainty, tok_s } = self;
        let rotated = if *rotated { ", rotated" } else { "" };
        writeln!(f, "{model}, keys in {keys}, values in {values}{rotated}")?;
        writeln!(
            f,
            "perplexity {perplexity:.4} ± {uncertainty:.4} over {tokens} tokens: the second half of each of {windows} \
             windows of {context}; {tok_s:.0} tokens/s"
        )
    }
}
