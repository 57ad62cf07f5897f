//! Tokenizers against llama.cpp, Hugging Face tokenizers and SentencePiece; round trips; long texts.

use paceline_text::Special;
use proptest::prelude::*;
use serde_json::Value;

use crate::vocabularies::{lines, sentence_piece, smollm2, tiny_hybrid};

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The reference ids come from a tokenizer that normalizes to NFC first. We, like llama.cpp, do not, so exactly the
/// texts that NFC alters must differ, and still say what they said.
#[test]
fn tiny_hybrid_agrees_wherever_nfc_changes_nothing() {
    let tokenizer = tiny_hybrid();
    let cases = lines("tiny-hybrid.jsonl");
    assert_eq!(cases.len(), 200);
    let mut altered = 0;
    for case in cases {
        let text = case["text"].as_str().unwrap();
        let tokens = tokenizer.encode(text, Special::Parse, false);
        if case["nfc_changes"].as_bool().unwrap() {
            assert_ne!(tokens, ids(&case["ids"]), "{text:?}");
            altered += 1;
        } else {
            assert_eq!(tokens, ids(&case["ids"]), "{text:?}");
        }
        assert_eq!(tokenizer.decode_with_special(&tokens).unwrap(), text);
    }
    assert_eq!(altered, 4);
}

#[test]
fn decomposed_characters_stay_decomposed() {
    let tokenizer = tiny_hybrid();
    let decomposed = tokenizer.encode("e\u{301}", Special::Parse, false);
    assert_eq!(tokenizer.token_text(decomposed[0]), "e");
    assert_eq!(
        decomposed.iter().flat_map(|&token| tokenizer.token_bytes(token)).copied().collect::<Vec<_>>(),
        b"e\xcc\x81"
    );
}

#[test]
fn every_pre_tokenizer_agrees_with_hugging_face() {
    for pre in ["gpt-2", "smollm", "qwen2", "qwen35", "llama-bpe"] {
        let tokenizer = smollm2(pre);
        for case in lines("byte-pairs.jsonl") {
            let text = case["text"].as_str().unwrap();
            assert_eq!(tokenizer.encode(text, Special::Parse, false), ids(&case[pre]), "{pre}: {text:?}");
        }
    }
}

#[test]
fn sentence_piece_agrees_with_the_original() {
    let tokenizer = sentence_piece();
    for case in lines("sentence-piece.jsonl") {
        let text = case["text"].as_str().unwrap();
        let tokens = tokenizer.encode(text, Special::Plain, false);
        assert_eq!(tokens, ids(&case["ids"]), "{text:?}");
        // The original writes ▁ for a space and cannot tell them apart afterwards.
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text.replace('▁', " "));
    }
}

#[test]
fn sentence_piece_begins_texts_with_a_token_and_pieces_with_a_space() {
    let tokenizer = sentence_piece();
    let tokens = tokenizer.encode("a</s>a", Special::Parse, true);
    let a = tokenizer.token_id("▁a").unwrap();
    assert_eq!(tokens, [1, a, 2, a]);
    assert_eq!(tokenizer.encode("", Special::Parse, true), [1]);
    assert!(tokenizer.encode("", Special::Parse, false).is_empty());
    assert!(!tokenizer.encode("</s>", Special::Plain, false).contains(&2));
}

#[test]
fn special_tokens_of_chatml() {
    let tokenizer = tiny_hybrid();
    let (start, end, think) = (2017, 2018, 2028);
    let tokens = tokenizer.encode("<|im_start|><think><|im_end|>", Special::Parse, true);
    assert_eq!(tokens, [start, think, end]);
    let plain = tokenizer.encode("<|im_start|><think>", Special::Plain, true);
    assert!(!plain.contains(&start) && plain.ends_with(&[think]));
    assert_eq!(tokenizer.decode(&tokens).unwrap(), "<think>");
    assert_eq!(tokenizer.end_of_generation(), [2016, 2018]);
    assert!(tokenizer.is_end_of_generation(end) && !tokenizer.is_end_of_generation(start));
    assert_eq!(tokenizer.vocabulary_size(), 2048);
    assert!(tokenizer.token_bytes(2040).is_empty() && tokenizer.token_bytes(99_999).is_empty());
    assert!(tokenizer.decode(&[2048]).is_err());
}

/// A single word of a megabyte: quadratic merging would take hours.
#[test]
fn a_megabyte_without_a_space_is_encoded() {
    let word: String = "abcdefghij".repeat(100_000);
    for tokenizer in [tiny_hybrid(), sentence_piece()] {
        for text in [word.clone(), "a".repeat(1_000_000), " ".repeat(1_000_000), "<|im_end|>".repeat(100_000)] {
            let tokens = tokenizer.encode(&text, Special::Plain, false);
            assert!(tokenizer.decode(&tokens).unwrap() == text);
        }
    }
}

proptest! {
    #[test]
    fn byte_level_round_trip(text in any::<String>()) {
        let tokenizer = tiny_hybrid();
        for special in [Special::Plain, Special::Parse] {
            let tokens = tokenizer.encode(&text, special, true);
            prop_assert_eq!(&tokenizer.decode_with_special(&tokens).unwrap(), &text);
        }
    }

    #[test]
    fn sentence_piece_round_trip(text in any::<String>()) {
        let tokenizer = sentence_piece();
        let tokens = tokenizer.encode(&text, Special::Plain, true);
        prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.replace('▁', " "));
    }
}
