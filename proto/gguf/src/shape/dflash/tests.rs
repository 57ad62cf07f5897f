//! Draft models that fit their target, and files that do not, or say what cannot be.

use std::sync::LazyLock;

use proptest::prelude::*;

use super::*;
use crate::testing::{GgufWriter, PublishedShape};
use crate::{LayerKind, TensorType, Value};

/// A small published model, whose hidden rows have 1024 values.
static TARGET: LazyLock<ModelShape> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    PublishedShape::B0_8.writer().write(&path).unwrap();
    ModelShape::read(&Gguf::open(&path).unwrap()).unwrap()
});

/// A draft model for it, without data.
fn writer() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "dflash");
    let numbers = [
        ("block_count", 2_u32),
        ("embedding_length", 1024),
        ("feed_forward_length", 2048),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 128),
        ("attention.value_length", 128),
        ("block_size", 8),
    ];
    for (key, value) in numbers {
        writer.metadata(format!("dflash.{key}"), value);
    }
    writer.metadata("dflash.target_layers", &[2_i32, 12, 22][..]);
    writer.metadata("tokenizer.ggml.mask_token_id", 77_u32);
    let mut hole = |name: String, dims: &[u64]| {
        writer.hole(name, TensorType::Q4_0, dims);
    };
    hole("fc.weight".to_owned(), &[3 * 1024, 1024]);
    hole("enc.output_norm.weight".to_owned(), &[1024]);
    hole("output_norm.weight".to_owned(), &[1024]);
    for layer in 0..2 {
        hole(format!("blk.{layer}.attn_norm.weight"), &[1024]);
        hole(format!("blk.{layer}.attn_k.weight"), &[1024, 256]);
        hole(format!("blk.{layer}.attn_v.weight"), &[1024, 256]);
    }
    writer
}

fn read(writer: &GgufWriter) -> Result<DflashShape> {
    DflashShape::read(&Gguf::from_vec(writer.to_vec(), "draft.gguf").unwrap(), &TARGET)
}

/// The writer with one value changed or added.
fn with(key: &str, value: impl Into<Value>) -> GgufWriter {
    let mut writer = writer();
    writer.entries.retain(|(known, _)| known != key);
    writer.metadata(key, value);
    writer
}

#[test]
fn a_draft_model_is_read() {
    let shape = read(&writer()).unwrap();
    assert_eq!((shape.block, shape.mask_token, shape.tap().bytes), (8, 77, 1024 * 1024 / 32 * 18));
    assert_eq!(shape.target_layers, [2, 12, 22]);
    let kind = LayerKind::Attention { query_heads: 8, key_value_heads: 2, key_dim: 128, value_dim: 128 };
    assert!(shape.layers.len() == 2 && shape.layers.iter().all(|layer| layer.kind == kind));
    assert_eq!(shape.key_value_bytes_per_token(KvType::F16, KvType::F16), 2 * 2 * (128 + 128) * 2);
    let file = Gguf::from_vec(writer().to_vec(), "draft.gguf").unwrap();
    assert_eq!((shape.total().bytes, shape.total().tensors), (file.tensor_bytes(), file.tensors().len()));
    let mut without = writer();
    without.entries.retain(|(key, _)| key != "dflash.block_size");
    assert_eq!(read(&without).unwrap().block, 16);
    // A window that no layer has.
    let mut windows = with("dflash.attention.sliding_window", 2048_u32);
    windows.metadata("dflash.attention.sliding_window_pattern", &[false, false][..]);
    assert!(read(&windows).is_ok());
}

#[test]
fn files_that_do_not_fit_or_contradict_themselves_are_refused() {
    let target_layers = |layers: &[i32]| with("dflash.target_layers", layers);
    let cases = [
        (with("general.architecture", "qwen3"), "architecture \"qwen3\" is not known; known are dflash"),
        (
            with("dflash.embedding_length", 512_u32),
            "\"dflash.embedding_length\" is 512, which is not that of the model",
        ),
        (with("dflash.block_size", 0_u32), "\"dflash.block_size\" is 0, at least 1 is needed"),
        (with("dflash.block_size", 1_u32), "\"dflash.block_size\" is 1, which leaves no token to draft"),
        (with("dflash.block_size", u32::MAX), "\"dflash.block_size\" is 4294967295, which no model can have"),
        (with("dflash.block_count", 3_u32), "says 3 blocks, the file has tensors of 2"),
        (target_layers(&[]), "\"dflash.target_layers\" is 0, as many layers cannot be read"),
        (target_layers(&[1; 25]), "\"dflash.target_layers\" is 25, as many layers cannot be read"),
        (
            target_layers(&[2, 24, 3]),
            "\"dflash.target_layers\" is 24, a layer that the model it is to draft for does not",
        ),
        (target_layers(&[2, -1, 3]), "an array of integers of 32 bits without sign is needed"),
        (target_layers(&[2, 3]), "\"fc.weight\" has shape [3072, 1024], [2048, 1024] is needed"),
        (with("tokenizer.ggml.mask_token_id", u32::MAX), "is 4294967295, a token that the model it is to draft for"),
        (with("dflash.attention.head_count", 0_u32), "\"dflash.attention.head_count\" is 0"),
        (with("dflash.attention.head_count_kv", 3_u32), "it must divide the number of heads"),
        (
            with("dflash.attention.key_length", 64_u32),
            "\"blk.0.attn_k.weight\" has shape [1024, 256], [1024, 128] is needed",
        ),
    ];
    for (writer, expected) in cases {
        let error = read(&writer).unwrap_err().to_string();
        assert!(error.starts_with("draft.gguf: ") && error.contains(expected), "{error}, not {expected}");
    }
}

#[test]
fn what_is_not_known_is_refused_by_its_name() {
    let with_tensor = |name: &str| {
        let mut writer = writer();
        writer.hole(name, TensorType::F32, &[4]);
        writer
    };
    let cases = [
        (with_tensor("markov_w1.weight"), "of the kind DSpark, as \"markov_w1.weight\" says"),
        (with("dflash.sample_from_anchor", true), "of the kind DSpark"),
        (with("dflash.has_confidence_head", true), "of the kind DSpark"),
        (with("dflash.conv_kernel_size", 4_u32), "of the kind DFlash2, as \"dflash.conv_kernel_size\" says"),
        (with("dflash.selector_rank", 4_u32), "of the kind DFlash2"),
        (with_tensor("d2t"), "with a reduced vocabulary, as \"d2t\" says"),
        (with("dflash.attention.causal", true), "with causal blocks"),
        (with("dflash.attention.sliding_window", 2048_u32), "with sliding windows"),
        (with("dflash.hidden_activation", "gelu"), "with another activation than SiLU"),
        (with("dflash.logit_scale", 2.0_f32), "with scaled logits"),
    ];
    for (writer, expected) in cases {
        let error = read(&writer).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains("only plain DFlash"), "{error}, not {expected}");
    }
}

proptest! {
    /// Whatever the numbers are, the answer is a shape whose sums can be computed, or an error.
    #[test]
    fn numbers_never_panic(at in 0usize..8, value: u32, layers in prop::collection::vec(any::<u32>(), 0..4)) {
        let key = writer().entries[1 + at].0.clone();
        for writer in [with(&key, value), with(&key, value % 5), with("dflash.target_layers", &layers[..])] {
            if let Ok(shape) = read(&writer) {
                shape.total();
                shape.key_value_bytes_per_token(KvType::F32, KvType::F32);
            }
        }
    }
}
