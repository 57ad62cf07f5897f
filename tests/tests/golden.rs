//! Logits and greedy tokens equal the reference implementation's, for every architecture and weight type.
//!
//! The reference quantizes activations to 8 bits, which alone costs an rms of 0.05 to 0.08 on logits of rms 2.5; hence
//! the tolerance for quantized weights. A mixture of quantized experts may pick another expert at a near-tie.

use paceline_compute::cpu::CpuDevice;
use paceline_gguf::KvType;
use paceline_tests::golden::{Distance, Golden, distance, gap, greedy};
use paceline_tests::model_run::{Chunk, Layout, ModelRun};
use paceline_tests::models::model;

/// Greedy tokens must agree where the reference's best logit leads by this much.
const DECISIVE_GAP: f32 = 0.15;

/// How far logits may be from the reference's.
#[derive(Clone, Copy)]
enum Tolerance {
    Max(f32),
    Rms(f32),
}

const SINGLE: Tolerance = Tolerance::Max(1e-3);
const QUANTIZED: Tolerance = Tolerance::Rms(0.12);
const QUANTIZED_EXPERTS: Tolerance = Tolerance::Rms(0.4);

impl Tolerance {
    fn allows(self, distance: Distance) -> bool {
        match self {
            Tolerance::Max(limit) => distance.max <= limit,
            Tolerance::Rms(limit) => distance.rms <= limit,
        }
    }
}

/// Runs a model over the golden prompt and the tokens that the reference chose, and compares every row of logits.
fn check(name: &str, tolerance: Tolerance) {
    check_with(name, name, KvType::F32, tolerance);
}

fn check_with(model_name: &str, golden: &str, key_value_type: KvType, tolerance: Tolerance) {
    let golden = Golden::named(golden);
    let device = CpuDevice::new(2, None).unwrap();
    let mut run = ModelRun::new(&device, &model(model_name), Layout { key_value_type, ..Layout::default() });
    let prompt = run.step(&[Chunk::text(1, &golden.tokens("prompt_tokens"))]);
    compare(model_name, "prompt", &prompt, golden.f32("prompt_logits").rows(), tolerance);
    let decode = run.text(1, &golden.tokens("decode_tokens"), 1);
    compare(model_name, "decode", &decode, golden.f32("decode_logits").rows(), tolerance);
}

fn compare<'a>(
    model: &str,
    what: &str,
    found: &[Vec<f32>],
    expected: impl ExactSizeIterator<Item = &'a [f32]>,
    tolerance: Tolerance,
) {
    assert_eq!(found.len(), expected.len(), "{model} {what}: rows");
    let expected: Vec<&[f32]> = expected.collect();
    let distance = distance(&found.concat(), &expected.concat());
    println!("{model} {what}: max {:.2e}, rms {:.2e}", distance.max, distance.rms);
    assert!(tolerance.allows(distance), "{model} {what}: {distance:?}");
    for (row, (found, expected)) in found.iter().zip(expected).enumerate() {
        if gap(expected) > DECISIVE_GAP {
            assert_eq!(greedy(found), greedy(expected), "{model} {what}: greedy token of row {row}");
        }
    }
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
    let device = CpuDevice::new(2, None).unwrap();
    let mut run = ModelRun::new(&device, &model("mini-f32"), Layout::default());
    let text = golden.tokens("text_tokens");
    let components = golden.i32("pos4");
    let rows = components.shape[1];
    let position = |row: usize| [0, 1, 2, 3].map(|component| components.values[component * rows + row] as u32);
    let positions: Vec<[u32; 4]> = (0..rows).map(position).collect();

    let mut found = run.text(1, &text[..10], 10);
    found.extend(run.step(&[Chunk::vectors(1, &golden.f32("embd").values, positions[10..22].to_vec())]));
    let rest = Chunk { positions: Some(positions[22..].to_vec()), ..Chunk::text(1, &text[10..]) };
    found.extend(run.step(&[rest]));
    compare("mini-f32", "image", &found, golden.f32("logits").rows(), SINGLE);
}
