//! `paceline cache`: what a running service remembers, what of it must stay, and what must go.

use std::fmt::Write as _;
use std::io::Write as _;

use anyhow::{Context, Result, bail, ensure};
use paceline_api::{CacheReport, PathCard};
use paceline_coordinator::CacheChanged;
use serde_json::{Value, json};

use crate::cli::{CacheAction, CacheArgs};
use crate::status::server::Server;
use crate::text::{bytes, printable};

/// Carries it out and prints what came of it.
pub(crate) fn cache(arguments: &CacheArgs) -> Result<()> {
    let server = Server::new(&arguments.service.server)?;
    let json = arguments.service.json;
    let text = if arguments.action == CacheAction::List {
        let report = server.cache(arguments.limit)?;
        if json { serde_json::to_string_pretty(&report)? + "\n" } else { list(&report) }
    } else {
        let changed = server.change_cache(arguments.action.name(), &which(arguments)?)?;
        if json { serde_json::to_string_pretty(&changed)? + "\n" } else { told(arguments.action, &changed) }
    };
    std::io::stdout().write_all(text.as_bytes()).context("cannot write to standard output")
}

/// The text that is meant, as the service takes it.
fn which(arguments: &CacheArgs) -> Result<Value> {
    let action = arguments.action.name();
    match (&arguments.prompt, &arguments.messages) {
        (Some(prompt), _) => Ok(json!({ "prompt": prompt })),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
            let request: Value =
                serde_json::from_str(&text).with_context(|| format!("{} is not valid JSON", path.display()))?;
            // A list is taken for the messages alone.
            let request = if request.is_array() { json!({ "messages": request }) } else { request };
            ensure!(request["messages"].is_array(), "{} has no list of messages", path.display());
            Ok(request)
        }
        (None, None) => bail!("cache {action} needs the text: --prompt TEXT or --messages FILE"),
    }
}

/// The report for people.
fn list(report: &CacheReport) -> String {
    let totals = &report.totals;
    let mut text = format!(
        "{} pages ({}), {} of {} snapshots ({})\n",
        totals.pages,
        bytes(totals.page_bytes),
        totals.snapshots,
        totals.snapshot_slots,
        bytes(totals.snapshot_bytes)
    );
    let _ = writeln!(
        text,
        "{} of {} prompts found something: {} tokens were not computed again, {} were although known",
        totals.hits, totals.lookups, totals.cached_tokens, totals.reread_tokens
    );
    if let Some(disk) = &totals.disk {
        let _ = writeln!(
            text,
            "on disk: {} entries ({} of {}); {} prompts had {} tokens from there",
            disk.entries,
            bytes(disk.bytes),
            bytes(disk.budget),
            disk.hits,
            disk.tokens
        );
    }
    let _ = writeln!(text, "\n  tokens  pages  states  used again  text");
    for PathCard { tokens, begins, ends, snapshots, pages, reuses, pinned } in &report.paths {
        let ends = ends.as_ref().map_or_else(String::new, |ends| format!(" ... {}", printable(ends)));
        let pinned = if *pinned { "pinned: " } else { "" };
        let states = snapshots.len();
        let _ =
            writeln!(text, "  {tokens:>6}  {pages:>5}  {states:>6}  {reuses:>10}  {pinned}{}{ends}", printable(begins));
    }
    if report.left_off > 0 {
        let _ = writeln!(text, "  and {} more", report.left_off);
    }
    text
}

fn told(action: CacheAction, changed: &CacheChanged) -> String {
    let CacheChanged { tokens, cached, pages, snapshots, on_disk } = changed;
    let disks = if *on_disk { ", and whatever the disks have of it" } else { "" };
    match action {
        CacheAction::Drop => format!("forgotten: {pages} pages and {snapshots} snapshots{disks}\n"),
        CacheAction::Unpin => "unpinned\n".to_owned(),
        CacheAction::Pin | CacheAction::List => format!("pinned: {cached} of {tokens} tokens\n"),
    }
}

#[cfg(test)]
mod tests {
    use paceline_coordinator::CacheStatus;

    use super::*;

    #[test]
    fn the_list_for_people() {
        let totals = CacheStatus {
            lookups: 4,
            hits: 3,
            cached_tokens: 900,
            reread_tokens: 7,
            pages: 12,
            page_bytes: 3 << 20,
            snapshots: 2,
            snapshot_slots: 8,
            snapshot_bytes: 1 << 20,
            ..CacheStatus::default()
        };
        let path = PathCard {
            tokens: 700,
            begins: "system\nBe brief".to_owned(),
            ends: Some("so long".to_owned()),
            snapshots: vec![64, 690],
            pages: 11,
            reuses: 3,
            pinned: true,
        };
        let short = PathCard { tokens: 9, begins: "Hello".to_owned(), pages: 1, ..PathCard::default() };
        let expected = "\
12 pages (3.0 MiB), 2 of 8 snapshots (1.0 MiB)
3 of 4 prompts found something: 900 tokens were not computed again, 7 were although known

  tokens  pages  states  used again  text
     700     11       2           3  pinned: system?Be brief ... so long
       9      1       0           0  Hello
  and 5 more
";
        assert_eq!(list(&CacheReport { totals, paths: vec![path, short], left_off: 5 }), expected);
    }
}
