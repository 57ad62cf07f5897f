//! Encoders that fit together, and files that do not, or say what cannot be.

use super::*;
use crate::testing::{GgufWriter, PublishedShape};
use crate::{TensorType, Value};

/// A small BERT model, without data.
fn writer() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "bert");
    let numbers =
        [("block_count", 2_u32), ("embedding_length", 64), ("attention.head_count", 4), ("context_length", 512)];
    for (key, value) in numbers {
        writer.metadata(format!("bert.{key}"), value);
    }
    writer.metadata("bert.pooling_type", 1_u32).metadata("bert.attention.causal", false);
    let mut hole = |name: String, dims: &[u64]| {
        writer.hole(name, TensorType::F32, dims);
    };
    hole("token_embd.weight".to_owned(), &[64, 100]);
    hole("position_embd.weight".to_owned(), &[64, 128]);
    hole("token_types.weight".to_owned(), &[64, 2]);
    for layer in 0..2 {
        hole(format!("blk.{layer}.attn_k.weight"), &[64, 64]);
        hole(format!("blk.{layer}.attn_v.weight"), &[64, 64]);
    }
    writer
}

fn open(writer: &GgufWriter) -> Gguf {
    Gguf::from_vec(writer.to_vec(), "encoder.gguf").unwrap()
}

fn with(key: &str, value: impl Into<Value>) -> Gguf {
    let mut writer = writer();
    writer.entries.retain(|(known, _)| known != key);
    open(writer.metadata(key, value))
}

#[test]
fn a_bert_is_as_long_as_its_table_of_positions() {
    let gguf = open(&writer());
    assert!(EncoderShape::is_one(&gguf).unwrap());
    let shape = EncoderShape::read(&gguf, None).unwrap();
    assert_eq!((shape.embedding_length, shape.vocabulary, shape.context_length), (64, 100, 128));
    assert_eq!((shape.pooling, shape.bidirectional, shape.token_kinds), (Pooling::Mean, true, 2));
    // Keys and values of 64 values of 4 bytes in 2 layers.
    assert_eq!(shape.key_value_bytes_per_token(), 2 * 2 * 64 * 4);
    assert_eq!(EncoderShape::read(&gguf, Some(Pooling::First)).unwrap().pooling, Pooling::First);
}

#[test]
fn every_kind_of_pooling_has_its_number() {
    let kinds = [Pooling::Mean, Pooling::First, Pooling::Last, Pooling::Rank];
    for (number, kind) in (1_u32..).zip(kinds) {
        assert_eq!(Pooling::of(&with("bert.pooling_type", number)).unwrap(), Some(kind), "{}", kind.name());
    }
    assert_eq!(Pooling::of(&with("bert.pooling_type", 0_u32)).unwrap(), None);
    let error = Pooling::of(&with("bert.pooling_type", 9_u32)).unwrap_err().to_string();
    assert_eq!(error, "encoder.gguf: key \"bert.pooling_type\" is 9, 0 (none) to 4 (rank) are known");
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let error = |gguf: &Gguf| EncoderShape::read(gguf, None).unwrap_err();
    assert!(matches!(error(&with("bert.pooling_type", 0_u32)), Error::NoPooling { .. }));
    assert!(matches!(error(&with("bert.pooling_type", 4_u32)), Error::NoClassifier { .. }));
    assert!(matches!(error(&with("bert.attention.causal", true)), Error::Hyperparameter { .. }));
    assert!(matches!(error(&with("bert.attention.head_count", 3_u32)), Error::WrongShape { .. }));
    assert!(matches!(ModelShape::read(&open(&writer())), Err(Error::WritesNoText { .. })));
    let mut writer = writer();
    writer.tensors.retain(|tensor| tensor.name != "token_types.weight");
    assert!(matches!(error(&open(&writer)), Error::MissingTensor { .. }));
}

#[test]
fn a_model_that_could_write_texts_is_read_where_its_file_or_somebody_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let mut writer = PublishedShape::B0_8.writer();
    writer.write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert!(!EncoderShape::is_one(&gguf).unwrap());
    assert!(matches!(EncoderShape::read(&gguf, None), Err(Error::NoPooling { .. })));
    assert!(matches!(EncoderShape::read(&gguf, Some(Pooling::Rank)), Err(Error::NoClassifier { .. })));
    let said = EncoderShape::read(&gguf, Some(Pooling::Last)).unwrap();
    assert_eq!((said.bidirectional, said.token_kinds, said.architecture.as_str()), (false, 1, "qwen35"));
    assert!(said.packed < said.total.packed, "neither embeddings nor a head are packed");

    writer.metadata("qwen35.pooling_type", 3_u32).write(&path).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    assert!(EncoderShape::is_one(&gguf).unwrap());
    assert_eq!(EncoderShape::read(&gguf, None).unwrap(), said);
}
