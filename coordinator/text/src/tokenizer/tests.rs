//! Vocabularies that contradict themselves, and merging against the obvious algorithm.

use proptest::prelude::*;

use super::*;
use crate::testing::byte_vocabulary;

/// Merges over the letters a to c, each making a new token where there is none.
fn with_merges(merges: &[(String, String)]) -> Vocabulary {
    let mut vocabulary = byte_vocabulary(&[]);
    for (left, right) in merges {
        vocabulary.merges.push([left, " ", right].concat().into());
        for spelling in [left.clone(), right.clone(), [left.as_str(), right].concat()] {
            let spelling: Box<str> = spelling.into();
            if !vocabulary.tokens.contains(&spelling) {
                vocabulary.tokens.push(spelling);
                vocabulary.kinds.push(TokenKind::Normal);
            }
        }
    }
    vocabulary
}

/// Merges the best pair, leftmost first, until there is none.
fn naive(word: &str, merges: &[(String, String)]) -> Vec<String> {
    let mut symbols: Vec<String> = word.chars().map(String::from).collect();
    loop {
        let rank = |index: usize| {
            merges.iter().position(|(left, right)| *left == symbols[index] && *right == symbols[index + 1])
        };
        let pairs = 0..symbols.len().saturating_sub(1);
        let Some((_, index)) = pairs.filter_map(|index| Some((rank(index)?, index))).min() else { return symbols };
        let right = symbols.remove(index + 1);
        symbols[index].push_str(&right);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn merging_follows_the_ranks(
        merges in prop::collection::vec(("[abc]{1,3}", "[abc]{1,3}"), 0..12),
        word in "[abc]{0,30}",
    ) {
        let tokenizer = Tokenizer::new(with_merges(&merges)).unwrap();
        let tokens = tokenizer.encode(&word, Special::Plain, false);
        let spellings: Vec<&str> = tokens.iter().map(|&token| tokenizer.token_spelling(token).unwrap()).collect();
        prop_assert_eq!(spellings, naive(&word, &merges));
    }

    #[test]
    fn sentence_piece_merges_the_best_score_first(
        pieces in prop::collection::btree_map("[abc]{2,4}", -5_i8..5, 0..12),
        word in "[abc]{0,30}",
    ) {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Llama);
        (vocabulary.add_bos, vocabulary.add_space_prefix, vocabulary.unknown) = (false, false, Some(0));
        for spelling in ["<unk>", "a", "b", "c"].into_iter().chain(pieces.keys().map(String::as_str)) {
            vocabulary.tokens.push(spelling.into());
            vocabulary.scores.push(pieces.get(spelling).map_or(-100.0, |&score| f32::from(score)));
        }
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let tokens = tokenizer.encode(&word, Special::Plain, false);
        let spellings: Vec<&str> = tokens.iter().map(|&token| tokenizer.token_spelling(token).unwrap()).collect();
        prop_assert_eq!(spellings, naive_by_score(&word, &pieces));
    }
}

/// Joins the neighbours with the best score, leftmost first, until there are none.
fn naive_by_score(word: &str, pieces: &std::collections::BTreeMap<String, i8>) -> Vec<String> {
    let mut symbols: Vec<String> = word.chars().map(String::from).collect();
    loop {
        let score = |index: usize| pieces.get(&[symbols[index].as_str(), &symbols[index + 1]].concat());
        let pairs = 0..symbols.len().saturating_sub(1);
        let best = pairs.filter_map(|index| Some((std::cmp::Reverse(score(index)?), index))).min();
        let Some((_, index)) = best else { return symbols };
        let right = symbols.remove(index + 1);
        symbols[index].push_str(&right);
    }
}

fn refused(change: impl FnOnce(&mut Vocabulary)) -> Error {
    let mut vocabulary = byte_vocabulary(&[("<s>", TokenKind::Control)]);
    change(&mut vocabulary);
    Tokenizer::new(vocabulary).unwrap_err()
}

#[test]
fn vocabularies_that_contradict_themselves_are_refused() {
    let merge = |text: &'static str| refused(|vocabulary| vocabulary.merges = vec![text.into()]);
    for bad in ["ab", "", " ", "a ", " a", "a bc", "bc a", "a  b"] {
        assert!(matches!(merge(bad), Error::BadMerge { .. }), "{bad:?}");
    }
    assert!(matches!(refused(|vocabulary| vocabulary.tokens.clear()), Error::VocabularySize(0)));
    assert!(matches!(refused(|vocabulary| vocabulary.kinds.truncate(3)), Error::LengthMismatch { entries: 3, .. }));
    assert!(matches!(refused(|vocabulary| vocabulary.tokens[7] = "a".into()), Error::DuplicateToken { .. }));
    assert!(matches!(refused(|vocabulary| vocabulary.eos = Some(257)), Error::SpecialOutOfRange { id: 257, .. }));
    assert!(matches!(refused(|vocabulary| vocabulary.add_bos = true), Error::MissingSpecial(_)));
    assert!(matches!(refused(|vocabulary| vocabulary.add_eos = true), Error::MissingSpecial(_)));
    assert!(matches!(refused(|vocabulary| vocabulary.kinds[0] = TokenKind::Byte), Error::BadByteToken { id: 0, .. }));
    assert!(matches!(refused(|vocabulary| vocabulary.pre = "new".into()), Error::UnknownPreTokenizer { .. }));
    let sentence_piece = |vocabulary: &mut Vocabulary| vocabulary.model = VocabularyModel::Llama;
    assert!(matches!(refused(sentence_piece), Error::LengthMismatch { what: "scores", .. }));
    let no_bytes = |vocabulary: &mut Vocabulary| {
        vocabulary.model = VocabularyModel::Llama;
        vocabulary.scores = vec![0.0; 257];
    };
    assert!(matches!(refused(no_bytes), Error::MissingByte(_)));
}

#[test]
fn merges_to_tokens_that_are_gone_are_not_made() {
    let mut vocabulary = byte_vocabulary(&[]);
    vocabulary.merges = vec!["Ġ Ġ".into()];
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("  ", Special::Plain, false), [32, 32]);
}

#[test]
fn bytes_without_a_token_are_left_out() {
    let mut vocabulary = byte_vocabulary(&[]);
    vocabulary.tokens[usize::from(b'x')] = "other".into();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("axb", Special::Plain, false), [97, 98]);
}

#[test]
fn ends_of_answers_are_gathered_from_metadata_and_spellings() {
    let mut vocabulary = byte_vocabulary(&[
        ("<|im_end|>", TokenKind::Control),
        ("<|end|>", TokenKind::Control),
        ("stop", TokenKind::Normal),
        ("</s>", TokenKind::Normal),
    ]);
    vocabulary.eot = Some(258);
    assert_eq!(Tokenizer::new(vocabulary.clone()).unwrap().end_of_generation(), [256, 257, 258]);
    for spelling in ["<|return|>", "<|call|>"] {
        vocabulary.tokens.push(spelling.into());
        vocabulary.kinds.push(TokenKind::Control);
    }
    assert_eq!(Tokenizer::new(vocabulary).unwrap().end_of_generation(), [256, 258, 260, 261]);
}

#[test]
fn beginning_and_end_are_added_on_request() {
    let mut vocabulary = byte_vocabulary(&[("<s>", TokenKind::Control), ("</s>", TokenKind::Control)]);
    (vocabulary.bos, vocabulary.eos) = (Some(256), Some(257));
    (vocabulary.add_bos, vocabulary.add_eos) = (true, true);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("a", Special::Plain, true), [256, 97, 257]);
    assert_eq!(tokenizer.encode("a", Special::Plain, false), [97]);
}
