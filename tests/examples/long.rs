//! One very long session: reads a prompt, reads it again, and goes on from it; how long each takes and what was reused.
//!
//! `cargo run --release -p paceline-tests --example long [TOKENS [MODEL]]`, with the name of a model of the tests

use std::process::ExitCode;
use std::time::Instant;

use paceline_proto::SamplingSettings;
use paceline_tests::models::model;
use paceline_tests::row::{Row, RowLayout};
use paceline_tests::warm::text;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let tokens: usize = arguments.next().map_or(230_000, |count| count.parse().expect("a number of tokens"));
    let name = arguments.next().unwrap_or_else(|| "tiny-hybrid-mtp-q8_0".to_owned());
    let layout = RowLayout {
        run_ahead: true,
        slots: 2,
        prefill_rows: 512,
        context: tokens + 64,
        caches: true,
        snapshots: 32,
        snapshot_stride: 512,
        ..RowLayout::default()
    };
    let mut row = Row::new(&model(&name), &layout);
    let mut prompt = text(1, tokens);
    for (number, what) in (1..).zip(["cold", "the same again", "another question at its end"]) {
        if number == 3 {
            prompt.truncate(tokens - 30);
            prompt.extend(text(2, 30));
        }
        let begun = Instant::now();
        let id = row.start_with(number, &prompt, &[tokens - 30], 8, SamplingSettings::default());
        row.finish();
        let answer = row.forget(id).expect("it was started");
        let finish = answer.finish.expect("it ended");
        let (seconds, cached) = (begun.elapsed().as_secs_f64(), finish.usage.cached_tokens);
        println!("{what}: {tokens} tokens in {seconds:.2} s, {cached} cached, {:?}", finish.reason);
    }
    assert!(row.is_clean(), "pages or slots are not free: {:?}", row.status());
    ExitCode::SUCCESS
}
