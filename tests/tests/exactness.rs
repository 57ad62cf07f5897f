//! The same bits whatever the number of stages and threads, the chunks of the prompt, the kernels and the company.
//! Every pair of choices is here; `cargo run --release -p paceline-tests --example exactness` runs all of them.

use std::sync::Arc;

use paceline_gguf::{Gguf, KvType};
use paceline_tests::exactness::{Way, Ways, logits};
use paceline_tests::models;

/// A text that has no meaning.
fn text(tokens: usize, vocabulary: u32) -> Vec<u32> {
    (0..tokens as u32).map(|index| (index * 7 + index * index * 13 + 5) % vocabulary).collect()
}

fn check(model: &Arc<Gguf>, text: &[u32], ways: &[Way], key_value_type: KvType) {
    let reference = logits(model, text, ways[0], key_value_type);
    assert_eq!(reference.len(), text.len() + 8);
    for &way in &ways[1..] {
        let rows = logits(model, text, way, key_value_type);
        let differs = reference.iter().zip(&rows).position(|(one, other)| one != other);
        assert_eq!(differs, None, "{} in {way:?} differs from {:?} at that row", model.name(), ways[0]);
    }
}

fn check_pairs(name: &str, tokens: usize) {
    let ways = Ways::usual().pairs();
    assert!(ways.len() >= 12, "{} ways cannot contain every pair", ways.len());
    for key_value_type in [KvType::F16, KvType::F32] {
        check(&models::model(name), &text(tokens, 320), &ways, key_value_type);
    }
}

#[test]
fn a_hybrid_with_keys_and_values_in_blocks() {
    for kind in KvType::ALL.into_iter().filter(|kind| kind.is_quantized()) {
        check(&models::model("mini16-Q8_0"), &text(130, 320), &Ways::usual().pairs(), kind);
    }
}

#[test]
fn a_hybrid_in_f32() {
    check_pairs("nano16-f32", 600);
}

#[test]
fn a_hybrid_with_experts() {
    check_pairs("nano-moe16-f32", 300);
}

#[test]
fn a_hybrid_in_q4_k() {
    check_pairs("mini16-Q4_K_M", 300);
}

#[test]
fn a_hybrid_in_q8_0() {
    check_pairs("mini16-Q8_0", 300);
}

#[test]
fn a_real_model() {
    let Some(model) = models::smollm2() else { return };
    let mut ways = Ways::usual();
    ways.chunks = vec![1, 7, 64];
    check(&model, &text(72, 49_000), &ways.pairs(), KvType::F16);
}

#[test]
fn few_ways_contain_every_pair_of_choices() {
    let ways = Ways::usual();
    let (all, few) = (ways.all(), ways.pairs());
    assert!(few.len() * 4 < all.len());
    for one in &all {
        let same_cut = |way: &Way| (way.shards, way.chunk) == (one.shards, one.chunk);
        let same_crowd = |way: &Way| (way.threads, way.company) == (one.threads, one.company);
        assert!(few.iter().any(same_cut), "no way has the stages and chunks of {one:?}");
        assert!(few.iter().any(same_crowd), "no way has the threads and company of {one:?}");
    }
}
