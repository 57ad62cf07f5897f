//! `paceline plan --kernels`: what a token costs on a card, from the model's header alone. Nothing is loaded, and no card is
//! looked for.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::sync::Arc;

use anyhow::Result;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_cuda::budget::{self, Cost};
use paceline_gguf::{Gguf, ModelShape};
use paceline_model::StageLayers;
use serde::Serialize;

use crate::cli::PlanArgs;
use crate::{layout, model};

/// Cards, and the bytes per second that their data sheets promise.
const CARDS: [(&str, f64); 5] =
    [("V100", 0.90e12), ("RTX 4090", 1.008e12), ("A100", 2.04e12), ("H100", 3.35e12), ("H200", 4.8e12)];
/// Tokens before the one that is reckoned with.
const DEPTHS: [usize; 3] = [1_000, 10_000, 100_000];
/// Seconds from the start of one kernel to that of the next that waits for it, each launched on its own; about half as
/// much in a graph.
const LAUNCH_SECONDS: f64 = 5e-6;
/// What plain kernels may reach of a card's bandwidth.
const READ_SHARE: f64 = 0.6;

/// What a decode step of one row costs.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    operations: Vec<Line>,
    tokens: Vec<Tokens>,
}

/// Operations of one kind, at the first depth.
#[derive(Debug, Clone, Serialize)]
struct Line {
    operation: String,
    count: usize,
    launches: usize,
    bytes: u64,
}

/// A token at some depth.
#[derive(Debug, Serialize)]
struct Tokens {
    depth: usize,
    launches: usize,
    bytes: u64,
    cards: Vec<Rate>,
}

/// Tokens per second of one user on a card.
#[derive(Debug, Serialize)]
struct Rate {
    card: &'static str,
    /// If nothing but bytes took time, at the full bandwidth.
    limit: f64,
    /// With plain kernels that are launched one by one.
    predicted: f64,
}

/// Reckons with the whole model on one card.
pub(super) fn report(gguf: &Arc<Gguf>, arguments: &PlanArgs) -> Result<Report> {
    let shape = ModelShape::read(gguf)?;
    let wishes = layout::wishes(&shape, &arguments.model, &arguments.layout, None)?;
    let logs = LogSpec { sessions: usize::from(arguments.layout.draft.settings()?.most > 0), tokens: 1 };
    let memory = MemorySpec {
        page_tokens: wishes.page_tokens,
        pages: 1,
        slots: 1,
        key_type: wishes.key_type,
        value_type: wishes.value_type,
        rows: 1,
        wanted: 1,
        logs,
    };
    let layers = shape.layers.len();
    let overrides = model::overrides(&arguments.model);
    let program = paceline_model::record_with(gguf, &StageLayers::of(0..layers, layers), &overrides)?;
    let depths = DEPTHS.into_iter().filter(|depth| *depth < shape.context_length);
    let costs = depths.map(|depth| Ok((depth, budget::decode(&program, gguf, &memory, depth)?)));
    let costs = costs.collect::<Result<Vec<_>>>()?;
    Ok(Report {
        model: model::name(&arguments.model),
        operations: costs.first().map(|(_, costs)| lines(costs)).unwrap_or_default(),
        tokens: costs.iter().map(|(depth, costs)| tokens(*depth, costs)).collect(),
    })
}

fn lines(costs: &[Cost]) -> Vec<Line> {
    let mut kinds: BTreeMap<&str, Line> = BTreeMap::new();
    for Cost { operation, launches, bytes } in costs {
        let none = || Line { operation: (*operation).to_owned(), count: 0, launches: 0, bytes: 0 };
        let line = kinds.entry(operation).or_insert_with(none);
        *line = Line {
            count: line.count + 1,
            launches: line.launches + launches,
            bytes: line.bytes + bytes,
            ..line.clone()
        };
    }
    let mut lines: Vec<Line> = kinds.into_values().collect();
    lines.sort_by_key(|line| std::cmp::Reverse((line.bytes, line.launches)));
    lines
}

fn tokens(depth: usize, costs: &[Cost]) -> Tokens {
    let launches = costs.iter().map(|cost| cost.launches).sum();
    let bytes = costs.iter().map(|cost| cost.bytes).sum();
    let rate = |(card, bandwidth): (&'static str, f64)| {
        let seconds = bytes as f64 / bandwidth;
        let predicted = seconds / READ_SHARE + launches as f64 * LAUNCH_SECONDS;
        Rate { card, limit: 1.0 / seconds, predicted: 1.0 / predicted }
    };
    Tokens { depth, launches, bytes, cards: CARDS.map(rate).into() }
}

impl Display for Report {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        writeln!(formatter, "{}: a token of one user on one card, from the model's header", self.model)?;
        let width = self.operations.iter().map(|line| line.operation.len()).max().unwrap_or(0).max(9);
        writeln!(formatter, "\n{:<width$} {:>6} {:>9} {:>10}", "operation", "count", "launches", "MB")?;
        for Line { operation, count, launches, bytes } in &self.operations {
            writeln!(formatter, "{operation:<width$} {count:>6} {launches:>9} {:>10.1}", *bytes as f64 / 1e6)?;
        }
        for Tokens { depth, launches, bytes, cards } in &self.tokens {
            writeln!(formatter, "\nafter {depth} tokens: {launches} launches, {:.2} GB", *bytes as f64 / 1e9)?;
            for Rate { card, limit, predicted } in cards {
                writeln!(formatter, "  {card:<10} {predicted:>7.1} tokens/s predicted, {limit:>7.1} at most")?;
            }
        }
        let (share, launch) = (READ_SHARE * 100.0, LAUNCH_SECONDS * 1e6);
        writeln!(formatter, "\npredicted: {share:.0}% of the card's bandwidth, and {launch:.0} µs for each launch")
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use paceline_gguf::testing::PublishedShape;

    use super::*;
    use crate::cli::{Cli, Command};

    fn reckoned(shape: PublishedShape) -> Report {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("model.gguf");
        shape.writer().write(&path).expect("a sparse file");
        let gguf = Arc::new(Gguf::open(&path).expect("a model"));
        let cli = Cli::parse_from(["paceline", "plan", "--kernels", &path.to_string_lossy()]);
        let Command::Plan(arguments) = cli.command else { panic!("another command") };
        report(&gguf, &arguments).expect("a report")
    }

    /// Published hybrids in a mix of about four bits: what one user's token is at most, by hand from their sizes.
    #[test]
    fn limits_are_those_of_the_bytes_of_a_token() {
        for (shape, gigabytes, limits) in [
            (PublishedShape::B27, 16.5, [("RTX 4090", 61.0), ("H200", 291.0)]),
            (PublishedShape::B35_A3, 2.12, [("V100", 425.0), ("H200", 2266.0)]),
        ] {
            let report = reckoned(shape);
            let first = &report.tokens[0];
            let found = first.bytes as f64 / 1e9;
            assert!((found / gigabytes - 1.0).abs() < 0.05, "{found} GB, not {gigabytes}");
            for (name, limit) in limits {
                let rate = first.cards.iter().find(|rate| rate.card == name).expect("a card");
                assert!((rate.limit / limit - 1.0).abs() < 0.06, "{name}: {rate:?}, not {limit}");
                assert!(rate.predicted < rate.limit);
            }
            assert!(report.tokens[2].bytes > first.bytes);
            assert!(first.launches < 1000, "{} launches", first.launches);
            println!("{report}");
            let sum: usize = report.operations.iter().map(|line| line.launches).sum();
            assert_eq!(sum, first.launches);
            assert!(report.to_string().contains("linear"));
        }
    }
}
