//! Logits and greedy tokens equal the reference implementation's, for every architecture and weight type.
//!
//! The reference quantizes activations to 8 bits, which alone costs an rms of 0.05 to 0.08 on logits of rms 2.5; hence
//! the tolerance for quantized weights. A mixture of quantized experts may pick another expert at a near-tie.

use paceline_gguf::KvType;
use paceline_tests::golden::{Distance, Golden, distance, gap, greedy};
use paceline_tests::model_run::{Chunk, Layout, ModelRun, cpu};
use paceline_tests::models::model;
use paceline_tests::npy::Array;

/// How far logits may be from the reference's.
#[derive(Clone, Copy)]
enum Tolerance {
    Max(f32),
    Rms(f32),
}

const SINGLE: Tolerance = Tolerance::Max(1e-3);
const BLOCKS: Tolerance = Tolerance::Rms(0.05);
/// Where two experts are nearly as good, rounding may choose the other one.
const BLOCKS_EXPERTS: Tolerance = Tolerance::Rms(0.1);
const QUANTIZED: Tolerance = Tolerance::Rms(0.12);
const QUANTIZED_EXPERTS: Tolerance = Tolerance::Rms(0.4);

impl Tolerance {
    fn allows(self, distance: Distance) -> bool {
        match self {
            Tolerance::Max(limit) => distance.max <= limit,
            Tolerance::Rms(limit) => distance.rms <= limit,
        }
    }

    /// The lead of the best logit from which on greedy tokens must agree.
    fn decisive_gap(self) -> f32 {
        match self {
            Tolerance::Max(limit) => 2.0 * limit,
            Tolerance::Rms(_) => 0.15,
        }
    }
}

/// Runs a model over the golden prompt and the tokens that the reference chose, and compares every row of logits.
fn check(name: &str, tolerance: Tolerance) {
    check_with(name, name, KvType::F32, tolerance);
}

fn check_with(model_name: &str, golden: &str, key_value_type: KvType, tolerance: Tolerance) {
    let golden = Golden::named(golden);
    let mut run = ModelRun::new(&cpu(), &model(model_name), Layout { key_value_type, ..Layout::default() });
    let prompt = run.step(&[Chunk::text(1, &golden.tokens("prompt_tokens"))]);
    let expected_prompt = golden.f32("prompt_logits");
    compare(&format!("{model_name}, prompt"), &prompt, &expected_prompt, tolerance);
    if golden.has("h_nextn") {
        let hidden = run.hidden(prompt.len());
        compare(&format!("{model_name}, hidden"), &hidden, &golden.f32("h_nextn"), tolerance);
    }
    let decode = run.text(1, &golden.tokens("decode_tokens"), 1);
    let expected_decode = golden.f32("decode_logits");
    compare(&format!("{model_name}, decode"), &decode, &expected_decode, tolerance);

    let last = prompt.len() - 1;
    let found = prompt[last..].iter().chain(&decode).map(Vec::as_slice);
    let expected = expected_prompt.rows().skip(last).chain(expected_decode.rows());
    same_greedy_tokens(model_name, found, expected, tolerance);
}

fn compare(what: &str, found: &[Vec<f32>], expected: &Array<f32>, tolerance: Tolerance) {
    assert_eq!(found.len(), expected.rows().len(), "{what}: rows");
    let distance = distance(&found.concat(), &expected.values);
    println!("{what}: max {:.2e}, rms {:.2e}", distance.max, distance.rms);
    assert!(tolerance.allows(distance), "{what}: {distance:?}");
}

/// Greedy tokens are the same up to the first that the reference itself was not sure of.
fn same_greedy_tokens<'a>(
    model: &str,
    found: impl Iterator<Item = &'a [f32]>,
    expected: impl Iterator<Item = &'a [f32]>,
    tolerance: Tolerance,
) {
    let sure = found.zip(expected).take_while(|(_, expected)| gap(expected) >= tolerance.decisive_gap());
    let compared = sure.inspect(|(found, expected)| assert_eq!(greedy(found), greedy(expected), "{model}")).count();
    println!("{model}: {compared} greedy tokens");
}

#[test]
fn hybrids_in_single_precision() {
    for name in ["nano-f32", "nano16-f32", "mini-f32"] {
        check(name, SINGLE);
    }
}

#[test]
fn hybrids_with_experts_in_single_precision() {
    for name in ["nano-moe-f32", "nano-moe16-f32", "mini-moe-f32"] {
        check(name, SINGLE);
    }
}

#[test]
fn hybrids_with_blocks_for_prediction() {
    for name in ["nano-mtp-f32", "mini-mtp-f32"] {
        check(name, SINGLE);
    }
    check("mini16-mtp-Q8_0", QUANTIZED);
}

#[test]
fn pure_attention() {
    for architecture in ["qwen3", "llama"] {
        check(&format!("mini-{architecture}-f32"), SINGLE);
        check(&format!("mini-{architecture}-Q4_K_M"), QUANTIZED);
    }
}

#[test]
fn half_precision_keys_and_values() {
    check_with("mini-f32", "mini-f32-kvf16-fa", KvType::F16, Tolerance::Max(1e-2));
}

/// The reference is of keys and values in single precision: blocks of 8-bit codes lose this much.
#[test]
fn keys_and_values_in_blocks() {
    for name in ["mini-f32", "mini-qwen3-f32", "mini-llama-f32"] {
        check_with(name, name, KvType::Q8_0, BLOCKS);
    }
    check_with("mini-moe-f32", "mini-moe-f32", KvType::Q8_0, BLOCKS_EXPERTS);
}

#[test]
fn half_precision_weights() {
    for kind in ["F16", "BF16"] {
        check(&format!("mini-{kind}"), QUANTIZED);
    }
}

#[test]
fn weights_in_blocks_of_32() {
    for kind in ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL"] {
        check(&format!("mini-{kind}"), QUANTIZED);
    }
}

#[test]
fn weights_in_blocks_of_256() {
    for kind in ["Q2_K", "Q3_K_M", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"] {
        check(&format!("mini-{kind}"), QUANTIZED);
    }
}

#[test]
fn deep_hybrids_with_quantized_weights() {
    for kind in ["Q8_0", "Q4_K_M"] {
        check(&format!("mini16-{kind}"), QUANTIZED);
    }
}

#[test]
fn quantized_experts() {
    for kind in ["Q4_K_M", "MXFP4_MOE"] {
        check(&format!("mini-moe-{kind}"), QUANTIZED_EXPERTS);
    }
}

/// Text, an image of 4 × 3 rows that turn by their own time, height and width, and text again.
#[test]
fn an_image_between_two_texts() {
    let golden = Golden::named("mini-mrope");
    let mut run = ModelRun::new(&cpu(), &model("mini-f32"), Layout::default());
    let text = golden.tokens("text_tokens");
    let components = golden.i32("pos4");
    let rows = components.shape[1];
    let position = |row: usize| [0, 1, 2, 3].map(|component| components.values[component * rows + row] as u32);
    let positions: Vec<[u32; 4]> = (0..rows).map(position).collect();

    let mut found = run.text(1, &text[..10], 10);
    found.extend(run.step(&[Chunk::vectors(1, &golden.f32("embd").values, positions[10..22].to_vec())]));
    let rest = Chunk { positions: Some(positions[22..].to_vec()), ..Chunk::text(1, &text[10..]) };
    found.extend(run.step(&[rest]));
    compare("mini-f32, image", &found, &golden.f32("logits"), SINGLE);
}
