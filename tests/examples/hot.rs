//! A system prompt that everybody sends, among prompts that come once: does it stay, and does neither pages nor states
//! push the other out?
//!
//! `cargo run --release -p paceline-tests --example hot [PROMPTS [TOKENS]]`

use std::process::ExitCode;

use paceline_tests::models::model;
use paceline_tests::row::RowLayout;
use paceline_tests::warm::{HotPrefix, hot_prefix};

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let (others, other_tokens) = (arguments.next().unwrap_or(200), arguments.next().unwrap_or(4096));
    let plan = HotPrefix { tokens: 1024, others, other_tokens, every: 4 };
    // Room for three of the prompts and the states of four: more comes between two uses of the prefix than there is room
    // for.
    let snapshots = 4 * other_tokens.div_ceil(512);
    let layout = RowLayout {
        slots: 2,
        prefill_rows: 512,
        context: other_tokens + 64,
        kv_tokens: Some(3 * other_tokens + 2048),
        snapshots,
        snapshot_stride: 512,
        ..RowLayout::default()
    };
    let tally = hot_prefix(&model("tiny-hybrid-mtp-q8_0"), &layout, plan);
    println!("{plan:?}: {tally:?}; {snapshots} states could be kept");
    let stays = tally.least_cached >= plan.tokens - 64;
    let balanced = tally.least_kept.1 > snapshots / 2 && tally.least_kept.0 > other_tokens / 16;
    if stays && balanced { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
