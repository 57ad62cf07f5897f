//! Runs every combination of stages, chunks, threads, kernels and company, and compares the logits with `==`.
//!
//! `cargo run --release -p paceline-tests --example exactness [--tokens N] [MODEL.gguf …]`; without files the models of
//! the tests. The scalar kernels are slow: for a larger model a shorter text, and `RUSTFLAGS="-C target-cpu=native"`, with
//! which they use the processor's fused multiply-add, make hours minutes.

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_tests::exactness::{Ways, logits};
use paceline_tests::models;

/// Tokens of the text: more than the largest chunk.
const TOKENS: u32 = 530;

fn main() -> ExitCode {
    let mut files: Vec<String> = std::env::args().skip(1).collect();
    let tokens = match files.iter().position(|argument| argument == "--tokens") {
        Some(flag) => files.drain(flag..=flag + 1).nth(1).and_then(|count| count.parse().ok()).expect("a number"),
        None => TOKENS,
    };
    let models: Vec<Arc<Gguf>> = if files.is_empty() {
        ["nano16-f32", "nano-moe16-f32", "mini16-Q4_K_M", "mini16-Q8_0"].map(models::model).into()
    } else {
        files.iter().map(|file| Arc::new(Gguf::open(Path::new(file)).expect("a model file"))).collect()
    };
    let differences: usize = models.iter().map(|model| differences(model, tokens)).sum();
    if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Counts the ways that give other bits than the first, and says which.
fn differences(model: &Arc<Gguf>, tokens: u32) -> usize {
    let shape = ModelShape::read(model).expect("a model");
    let text: Vec<u32> =
        (0..tokens).map(|index| (index * 7 + index * index * 13 + 5) % shape.vocabulary as u32).collect();
    let mut ways = Ways::usual();
    ways.shards.retain(|shards| *shards <= shape.blocks().len());
    let ways = ways.all();
    let reference = logits(model, &text, ways[0], KvType::F16);
    let mut output = std::io::stdout();
    let mut differences = 0;
    for way in &ways[1..] {
        if logits(model, &text, *way, KvType::F16) != reference {
            differences += 1;
            writeln!(output, "{}: {way:?} differs", model.name()).expect("standard output");
        }
    }
    writeln!(output, "{}: {} ways, {differences} differ", model.name(), ways.len()).expect("standard output");
    differences
}
