//! `paceline scale`, `paceline drain` and `paceline rebalance`: nodes added and taken away while people type.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result, ensure};
use paceline_api::{ScaleAction, ScaleOutcome, ScaleReport, ScaleRequest, StageShare};

use crate::cli::ServiceArgs;
use crate::status::server::Server;
use crate::text::{bytes, printable};

/// Asks for a change, waits for its end, and prints the report. Fails if the row is not as wanted then.
pub(crate) fn change(action: ScaleAction, nodes: Vec<String>, service: &ServiceArgs) -> Result<()> {
    let report = Server::new(&service.server)?.scale(&ScaleRequest { action, nodes })?;
    let text = if service.json { serde_json::to_string_pretty(&report)? + "\n" } else { text(&report) };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")?;
    let is_done = !matches!(report.outcome, ScaleOutcome::RolledBack | ScaleOutcome::Lost);
    ensure!(
        is_done,
        "the row is not as wanted: {}",
        printable(report.reason.as_deref().unwrap_or("no reason is known"))
    );
    Ok(())
}

/// The report for people.
fn text(report: &ScaleReport) -> String {
    let mut text = match report.outcome {
        ScaleOutcome::Moved => "moved: answers ran on".to_owned(),
        ScaleOutcome::Replayed => "replaced: answers go on after their tokens were read again".to_owned(),
        ScaleOutcome::Unchanged => "unchanged: the row is as wanted already".to_owned(),
        ScaleOutcome::RolledBack => "rolled back: the row is as before".to_owned(),
        ScaleOutcome::Lost => "lost: the row broke meanwhile, another one is placed as soon as that can be".to_owned(),
    };
    if let Some([before, after]) = report.epochs {
        let _ = write!(text, " (epoch {before} to {after})");
    }
    let _ = writeln!(text, "\n  before  {}", stages(&report.before));
    let _ = writeln!(text, "  after   {}", stages(&report.after));
    if let Some(pause) = report.pause_millis {
        let (fetched, copied) = (bytes(report.bytes_fetched), bytes(report.bytes_copied));
        let _ =
            writeln!(text, "  {fetched} from node to node, {copied} within nodes, answers paused for {pause:.1} ms");
    }
    if let Some(reason) = &report.reason {
        let _ = writeln!(text, "  {}", printable(reason));
    }
    text
}

/// `attic 0..12, cellar 12..24`, with as much of the id as tells nodes of one host apart.
fn stages(stages: &[StageShare]) -> String {
    let stage = |one: &StageShare| {
        let id: String = one.node.chars().take(8).collect();
        format!("{} {id} {}..{}", printable(&one.host), one.layers.start, one.layers.end)
    };
    if stages.is_empty() { "nothing".to_owned() } else { stages.iter().map(stage).collect::<Vec<_>>().join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(node: &str, host: &str, layers: std::ops::Range<usize>) -> StageShare {
        StageShare { node: node.to_owned(), host: host.to_owned(), layers }
    }

    fn moved() -> ScaleReport {
        ScaleReport {
            action: ScaleAction::Add,
            outcome: ScaleOutcome::Moved,
            reason: None,
            epochs: Some([1, 2]),
            before: vec![share("0123456789", "attic", 0..24)],
            after: vec![share("0123456789", "attic", 0..12), share("9876543210", "cel\u{1b}lar", 12..24)],
            bytes_fetched: 3 << 20,
            bytes_copied: 1 << 19,
            pause_millis: Some(12.34),
        }
    }

    #[test]
    fn reports_for_people() {
        let expected = "\
moved: answers ran on (epoch 1 to 2)
  before  attic 01234567 0..24
  after   attic 01234567 0..12, cel?lar 98765432 12..24
  3.0 MiB from node to node, 512.0 KiB within nodes, answers paused for 12.3 ms
";
        assert_eq!(text(&moved()), expected);
        let rolled_back = ScaleReport {
            outcome: ScaleOutcome::RolledBack,
            reason: Some("no\nmemory".to_owned()),
            before: Vec::new(),
            pause_millis: None,
            ..moved()
        };
        let text = text(&rolled_back);
        assert!(text.starts_with("rolled back: ") && text.contains("before  nothing\n"), "{text}");
        assert!(text.ends_with("  no?memory\n") && !text.contains("paused"), "{text}");
    }
}
