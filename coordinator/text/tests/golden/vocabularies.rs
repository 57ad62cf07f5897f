//! The small vocabularies in `../data`.

use std::path::Path;
use std::sync::Arc;

use paceline_text::{TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use serde_json::Value;

pub(crate) fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn lines(name: &str) -> Vec<Value> {
    read(name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn push_special(vocabulary: &mut Vocabulary, special: &Value) {
    for token in special.as_array().unwrap() {
        vocabulary.tokens.push(token[0].as_str().unwrap().into());
        vocabulary.kinds.push(TokenKind::from_gguf(token[1].as_i64().unwrap() as i32));
    }
}

/// A byte-level vocabulary: special tokens, the byte alphabet, one token for each merge, more special tokens.
pub(crate) fn byte_pairs(name: &str, pre: &str) -> Arc<Tokenizer> {
    byte_pairs_with(name, pre, &[])
}

fn byte_pairs_with(name: &str, pre: &str, control: &[&str]) -> Arc<Tokenizer> {
    let data: Value = serde_json::from_str(&read(name)).unwrap();
    let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
    vocabulary.pre = pre.to_owned();
    push_special(&mut vocabulary, &data["first"]);
    vocabulary.tokens.extend(data["alphabet"].as_str().unwrap().chars().map(|letter| letter.to_string().into()));
    for merge in data["merges"].as_array().unwrap() {
        let merge = merge.as_str().unwrap();
        vocabulary.merges.push(merge.into());
        vocabulary.tokens.push(merge.replacen(' ', "", 1).into());
    }
    vocabulary.kinds.resize(vocabulary.tokens.len(), TokenKind::Normal);
    push_special(&mut vocabulary, &data["last"]);
    for spelling in control {
        vocabulary.tokens.push((*spelling).into());
        vocabulary.kinds.push(TokenKind::Control);
    }
    vocabulary.eos = data["eos"].as_u64().map(|id| id as u32);
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

pub(crate) fn tiny_hybrid() -> Arc<Tokenizer> {
    byte_pairs("tiny-hybrid.json", "qwen35")
}

/// The same with the brackets of Llama 3 and of Mistral.
pub(crate) fn tiny_hybrid_with_other_brackets() -> Arc<Tokenizer> {
    let control = ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<s>", "</s>", "[INST]", "[/INST]"];
    byte_pairs_with("tiny-hybrid.json", "qwen35", &control)
}

/// SmolLM2's first merges.
pub(crate) fn smollm2(pre: &str) -> Arc<Tokenizer> {
    byte_pairs("smollm2-short.json", pre)
}

pub(crate) fn sentence_piece() -> Arc<Tokenizer> {
    let data: Value = serde_json::from_str(&read("sentence-piece.json")).unwrap();
    let mut vocabulary = Vocabulary::new(VocabularyModel::Llama);
    push_special(&mut vocabulary, &data);
    vocabulary.scores = data.as_array().unwrap().iter().map(|token| token[2].as_f64().unwrap() as f32).collect();
    vocabulary.unknown = Some(0);
    vocabulary.bos = Some(1);
    vocabulary.eos = Some(2);
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}
