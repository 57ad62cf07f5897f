//! Random operations on rows that keep what they computed, every answer compared with a cold one.
//!
//! `cargo run --release -p paceline-tests --example warm [OPERATIONS [SEED]]`

use std::process::ExitCode;

use paceline_gguf::KvType;
use paceline_tests::models::model;
use paceline_tests::row::RowLayout;
use paceline_tests::warm::random_operations;

/// Operations on one row, after which the next begins with other limits.
const ROUND: usize = 250;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse::<u64>().expect("a number"));
    let (operations, first) = (arguments.next().unwrap_or(10_000), arguments.next().unwrap_or(0));
    let kinds = [
        ("nano16-f32", KvType::F16, 4),
        ("mini16-Q8_0", KvType::Q8_0, 3),
        ("nano-moe16-f32", KvType::F16, 3),
        ("mini-llama-Q4_K_M", KvType::Q8_0, 2),
        ("nano16-f32", KvType::F32, 1),
    ];
    for (round, seed) in (0..operations.div_ceil(ROUND as u64)).zip(first..) {
        let (name, key_value_type, shards) = kinds[round as usize % kinds.len()];
        // Twice in three times with a disk, on which there is room for a part of it all.
        let folder = tempfile::tempdir().expect("a folder");
        let disk = (seed % 3 > 0).then(|| (folder.path().to_owned(), [1 << 21, 1 << 30][seed as usize % 2]));
        let layout = RowLayout {
            disk,
            shards,
            run_ahead: seed % 2 == 0,
            context: 240,
            kv_tokens: Some([480, 700, 1500][seed as usize % 3]),
            snapshots: [2, 7, 20, 60][seed as usize % 4],
            growth_tokens: [0, 3, 40][seed as usize / 3 % 3],
            key_value_type,
            ..RowLayout::default()
        };
        let tally = random_operations(&model(name), &layout, seed, ROUND);
        println!("seed {seed}, {name}, {shards} stages: {tally:?}");
    }
    ExitCode::SUCCESS
}
