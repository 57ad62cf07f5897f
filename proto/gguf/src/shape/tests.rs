//! Shapes of published models, and files that contradict themselves.

use std::ops::Range;

use super::*;
use crate::{
    TensorType,
    testing::{GgufWriter, PublishedShape},
};

const MIB: f64 = (1 << 20) as f64;

/// A shape read back from a sparse file, which may be of full size.
fn published(shape: PublishedShape) -> (Gguf, ModelShape) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    shape.writer().write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let shape = ModelShape::read(&gguf).unwrap();
    (gguf, shape)
}

fn all(shape: &ModelShape) -> Range<usize> {
    0..shape.layers.len()
}

/// Attention layers, bytes per token in f16 and in q8_0, state in MiB, bytes of a hidden row.
fn session_costs(shape: &ModelShape) -> (usize, u64, u64, f64, u64) {
    let attention = shape.layers.iter().filter(|layer| layer.is_attention()).count();
    let key_values = |kind| shape.key_value_bytes_per_token(all(shape), kind, kind);
    let state = (shape.state_bytes(all(shape)) as f64 / MIB * 10.0).round() / 10.0;
    (attention, key_values(KvType::F16), key_values(KvType::Q8_0), state, shape.hidden_row_bytes())
}

#[test]
fn published_models_cost_what_is_known_of_them() {
    let (_, small) = published(PublishedShape::B0_8);
    assert_eq!(session_costs(&small), (6, 12 << 10, 6528, 19.3, 4096));
    let (_, dense) = published(PublishedShape::B27);
    assert_eq!(session_costs(&dense), (16, 64 << 10, 34_816, 149.6, 20_480));
    let (_, experts) = published(PublishedShape::B35_A3);
    assert_eq!(session_costs(&experts), (10, 20 << 10, 10_880, 62.8, 8192));
}

#[test]
fn the_log_is_a_small_part_of_the_state() {
    for (published_shape, parts) in
        [(PublishedShape::B0_8, 45), (PublishedShape::B27, 79), (PublishedShape::B35_A3, 66)]
    {
        let (_, shape) = published(published_shape);
        let ratio = shape.state_bytes(all(&shape)) as f64 / shape.log_bytes_per_token(all(&shape)) as f64;
        assert_eq!(ratio.round() as u64, parts);
    }
}

#[test]
fn parameters_are_what_the_names_promise() {
    let billions = |parameters: u64| (parameters as f64 / 1e8).round() / 10.0;
    let (_, dense) = published(PublishedShape::B27);
    assert_eq!(billions(dense.total().parameters), 26.9);
    assert_eq!(dense.active_parameters(), dense.total().parameters - dense.embedding.parameters);
    let (_, experts) = published(PublishedShape::B35_A3);
    assert_eq!(billions(experts.total().parameters), 34.7);
    assert_eq!(billions(experts.active_parameters()), 2.9);
    let (_, small) = published(PublishedShape::B0_8);
    assert_eq!(billions(small.total().parameters), 0.8);
    assert!(small.is_tied());
    assert_eq!(small.head(), small.embedding + small.output_norm);
}

#[test]
fn every_byte_of_the_file_belongs_somewhere() {
    for published_shape in [PublishedShape::B0_8, PublishedShape::B27.with_mtp(1), PublishedShape::B35_A3.with_mtp(1)] {
        let (gguf, shape) = published(published_shape);
        assert_eq!(shape.total().bytes, gguf.tensor_bytes());
        assert_eq!(shape.total().tensors, gguf.tensors().len());
        assert_eq!(shape.other, Weights::default());
        let blocks: Weights = shape.blocks().into_iter().map(|block| shape.weights(block)).sum();
        assert_eq!(blocks, shape.weights(all(&shape)));
    }
}

#[test]
fn published_models_have_the_size_of_their_files() {
    let bytes = |shape: PublishedShape| published(shape).0.tensor_bytes();
    assert_eq!(bytes(PublishedShape::B0_8), 518_335_744);
    assert_eq!(bytes(PublishedShape::B27), 16_864_188_416);
    assert_eq!(bytes(PublishedShape::B27.with_mtp(1)), 17_127_501_824);
    assert_eq!(bytes(PublishedShape::B35_A3), 21_286_881_792);
}

#[test]
fn packing_widens_some_types() {
    let (_, shape) = published(PublishedShape::B0_8);
    // A tied embedding of six bits stays as it is, four-bit matrices grow by a 36th.
    assert_eq!(shape.embedding.packed, shape.embedding.bytes);
    let layers = shape.weights(all(&shape));
    assert!(layers.packed > layers.bytes + layers.bytes / 100 && layers.packed < layers.bytes + layers.bytes / 36);
    for kind in TensorType::ALL {
        assert!((kind.block_bytes()..kind.block_bytes() + 5).contains(&kind.packed_block_bytes()), "{kind}");
    }
}

#[test]
fn mtp_blocks_are_not_layers() {
    let (_, plain) = published(PublishedShape::B27);
    let (_, with_mtp) = published(PublishedShape::B27.with_mtp(1));
    assert_eq!(plain.layers, with_mtp.layers);
    assert!(plain.mtp.is_empty());
    let mtp = &with_mtp.mtp[0];
    assert!(mtp.is_attention());
    assert_eq!(with_mtp.mtp.len(), 1);
    assert_eq!(mtp.key_value_bytes_per_token(KvType::F16, KvType::F16), 4096);
    assert_eq!(with_mtp.total().bytes - plain.total().bytes, mtp.weights.bytes);
}

#[test]
fn experts_are_a_part_of_their_layer() {
    let (_, shape) = published(PublishedShape::B35_A3);
    let layer = &shape.layers[3];
    let experts = layer.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.weights.tensors), (256, 8, 3));
    assert_eq!(experts.weights.parameters, 3 * 2048 * 512 * 256);
    assert_eq!(layer.weights.bytes - layer.active().bytes, experts.weights.bytes / 256 * 248);
    let (_, dense) = published(PublishedShape::B0_8);
    assert_eq!(dense.layers[0].active(), dense.layers[0].weights);
}

#[test]
fn an_attention_layer_closes_a_block() {
    let (_, shape) = published(PublishedShape::B0_8);
    assert_eq!(shape.blocks(), [0..4, 4..8, 8..12, 12..16, 16..20, 20..24]);
    let with_kinds = |attention: &[bool]| {
        let layer = |&is_attention: &bool| shape.layers[if is_attention { 3 } else { 0 }].clone();
        ModelShape { layers: attention.iter().map(layer).collect(), ..shape.clone() }.blocks()
    };
    assert_eq!(with_kinds(&[true, true, true]), [0..1, 1..2, 2..3]);
    assert_eq!(with_kinds(&[false, true, false, false]), vec![0..4]);
    assert_eq!(with_kinds(&[true, false, true, false]), [0..1, 1..4]);
    assert_eq!(with_kinds(&[false, false]), vec![0..2]);
}

#[test]
fn heads_must_be_whole_blocks_of_the_key_and_value_types() {
    let (_, shape) = published(PublishedShape::B0_8);
    for kind in KvType::ALL {
        shape.check_key_value_types(kind, KvType::F16).unwrap();
    }
    let gguf = Gguf::from_vec(llama().to_vec(), "llama").unwrap();
    let narrow = ModelShape::read(&gguf).unwrap();
    narrow.check_key_value_types(KvType::F16, KvType::BF16).unwrap();
    let error = narrow.check_key_value_types(KvType::F16, KvType::Q8_0).unwrap_err();
    assert_eq!(error.to_string(), "heads of 8 values cannot be stored as q8_0, which needs a multiple of 32");
}

/// A llama of two layers with the fewest tensors; its heads are of length 8 by default.
fn llama() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama").metadata("general.size_label", "2K");
    for (key, value) in [
        ("block_count", 2),
        ("context_length", 128),
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        writer.metadata(format!("llama.{key}"), value);
    }
    writer.hole("token_embd.weight", TensorType::Q8_0, &[32, 10]).hole("output_norm.weight", TensorType::F32, &[32]);
    for block in 0..2 {
        writer.hole(format!("blk.{block}.attn_norm.weight"), TensorType::F32, &[32]);
        writer.hole(format!("blk.{block}.attn_k.weight"), TensorType::Q8_0, &[32, 16]);
        writer.hole(format!("blk.{block}.attn_v.weight"), TensorType::Q8_0, &[32, 16]);
    }
    writer.hole("rope_freqs.weight", TensorType::F32, &[4]);
    writer
}

fn read(writer: &GgufWriter) -> Result<ModelShape> {
    ModelShape::read(&Gguf::from_vec(writer.to_vec(), "test.gguf").unwrap())
}

#[test]
fn a_pure_attention_model_has_no_state() {
    let shape = read(&llama()).unwrap();
    assert_eq!(shape.blocks(), [0..1, 1..2]);
    assert_eq!(shape.state_bytes(0..2), 0);
    assert_eq!(shape.log_bytes_per_token(0..2), 0);
    assert_eq!(shape.key_value_bytes_per_token(0..1, KvType::F32, KvType::F16), 2 * 8 * (4 + 2));
    assert_eq!((shape.vocabulary, shape.size_label.as_deref()), (10, Some("2K")));
    assert_eq!(shape.other, Weights { tensors: 1, parameters: 4, bytes: 16, packed: 16 });
}

#[test]
fn explicit_lists_of_layers_are_followed() {
    let mut writer = PublishedShape { layers: 4, ..PublishedShape::B0_8 }.writer();
    let expected = read_sparse(&writer).unwrap();
    writer.metadata("qwen35.attention.recurrent_layers", &[true, true, true, false][..]);
    writer.entries.retain(|(key, _)| !key.contains("head_count_kv") && !key.contains("interval"));
    writer.metadata("qwen35.attention.head_count_kv", &[0, 0, 0, 2_u32][..]);
    assert_eq!(read_sparse(&writer).unwrap(), expected);
}

fn read_sparse(writer: &GgufWriter) -> Result<ModelShape> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("test.gguf");
    writer.write(&path).unwrap();
    ModelShape::read(&Gguf::open(&path).unwrap())
}

/// What is done to a good file, and how the error goes on after the file's name.
type Contradiction = (&'static str, fn(&mut GgufWriter), &'static str);

fn check_refused(cases: &[Contradiction]) {
    for (case, change, expected) in cases {
        let mut writer = PublishedShape { layers: 4, ..PublishedShape::B0_8 }.writer();
        change(&mut writer);
        let message = read_sparse(&writer).expect_err(case).to_string();
        assert!(message.contains(&format!("test.gguf: {expected}")), "{case}: {message}");
    }
}

#[test]
fn contradictions_between_blocks_are_refused() {
    check_refused(&[
        ("no architecture", |w| remove(w, "general.architecture"), "key \"general.architecture\" is missing"),
        (
            "unknown architecture",
            |w| set(w, "general.architecture", "mamba"),
            "architecture \"mamba\" is not known; known are llama, qwen3, qwen35, qwen35moe",
        ),
        ("no width", |w| remove(w, "qwen35.embedding_length"), "key \"qwen35.embedding_length\" is missing"),
        ("no context", |w| set(w, "qwen35.context_length", 0), "key \"qwen35.context_length\" is 0, at least 1"),
        (
            "wrong type",
            |w| set(w, "qwen35.block_count", "four"),
            "key \"qwen35.block_count\" is a string, an integer of 32 bits without sign is needed",
        ),
        (
            "huge block count",
            |w| set(w, "qwen35.block_count", u32::MAX),
            "key \"qwen35.block_count\" is 4294967295, which no model can have",
        ),
        (
            "more blocks than tensors",
            |w| set(w, "qwen35.block_count", 5),
            "key \"qwen35.block_count\" says 5 blocks, the file has tensors of 4, numbered up to 3",
        ),
        (
            "a gap between blocks",
            |w| rename(w, "blk.3.", "blk.9."),
            "key \"qwen35.block_count\" says 4 blocks, the file has tensors of 4, numbered up to 9",
        ),
        (
            "only predicting blocks",
            |w| set(w, "qwen35.nextn_predict_layers", 4),
            "key \"qwen35.nextn_predict_layers\" is 4, which leaves no main layer",
        ),
    ]);
}

#[test]
fn contradictions_within_layers_are_refused() {
    check_refused(&[
        ("no queries", |w| set(w, "qwen35.attention.head_count", 0), "key \"qwen35.attention.head_count\" is 0"),
        ("no heads", |w| set(w, "qwen35.attention.head_count_kv", 0), "key \"qwen35.attention.head_count_kv\" is 0"),
        ("odd heads", |w| set(w, "qwen35.attention.head_count_kv", 3), "key \"qwen35.attention.head_count_kv\" is 3"),
        (
            "too few heads",
            |w| set(w, "qwen35.attention.head_count_kv", &[2_u32, 2][..]),
            "key \"qwen35.attention.head_count_kv\" has 2 elements, 4 are needed",
        ),
        (
            "wrong head length",
            |w| set(w, "qwen35.attention.key_length", 128),
            "tensor \"blk.3.attn_k.weight\" has shape [1024, 512], [1024, 256] is needed",
        ),
        ("no interval", |w| set(w, "qwen35.full_attention_interval", 0), "key \"qwen35.full_attention_interval\" is 0"),
        (
            "another interval",
            |w| set(w, "qwen35.full_attention_interval", 2),
            "tensor \"blk.1.attn_qkv.weight\" has shape",
        ),
        (
            "a short list of recurrent layers",
            |w| set(w, "qwen35.attention.recurrent_layers", &[true][..]),
            "key \"qwen35.attention.recurrent_layers\" has 1 elements, 4 are needed",
        ),
        ("wrong inner size", |w| set(w, "qwen35.ssm.inner_size", 5), "key \"qwen35.ssm.inner_size\" is 5"),
        ("wrong groups", |w| set(w, "qwen35.ssm.group_count", 3), "key \"qwen35.ssm.group_count\" is 3"),
        (
            "another kernel",
            |w| set(w, "qwen35.ssm.conv_kernel", 3),
            "tensor \"blk.0.ssm_conv1d.weight\" has shape [4, 6144], [3, 6144] is needed",
        ),
        ("no embedding", |w| rename(w, "token_embd", "x"), "tensor \"token_embd.weight\" is missing"),
        ("no norm", |w| rename(w, "blk.2.attn_norm", "blk.2.x"), "tensor \"blk.2.attn_norm.weight\" is missing"),
        (
            "experts without tensors",
            |w| {
                set(w, "qwen35.expert_count", 8);
                set(w, "qwen35.expert_used_count", 2);
            },
            "tensor \"blk.0.ffn_down_exps.weight\" is missing",
        ),
        (
            "more experts used than there are",
            |w| {
                set(w, "qwen35.expert_count", 8);
                set(w, "qwen35.expert_used_count", 9);
            },
            "key \"qwen35.expert_used_count\" is 9, more than there are experts",
        ),
    ]);
}

fn remove(writer: &mut GgufWriter, key: &str) {
    writer.entries.retain(|(existing, _)| existing != key);
}

fn set(writer: &mut GgufWriter, key: &str, value: impl Into<crate::Value>) {
    remove(writer, key);
    writer.metadata(key, value);
}

fn rename(writer: &mut GgufWriter, from: &str, to: &str) {
    for tensor in &mut writer.tensors {
        tensor.name = tensor.name.replacen(from, to, 1);
    }
}
