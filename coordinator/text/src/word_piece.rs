//! WordPiece (arXiv 1609.08144) as BERT has it: words, each cut into the longest pieces that the vocabulary knows.
//!
//! Model files spell a piece that begins a word with the space's stand-in before it, and one that goes on plainly.

use std::collections::HashMap;
use std::sync::Arc;

use fancy_regex::Regex;
use unicode_normalization::UnicodeNormalization;

use crate::error::{Error, Result};
use crate::sentence_piece::SPACE;
use crate::vocabulary::Vocabulary;

/// Longer words are unknown, as for the tokenizers that models were trained with.
const MAX_WORD: usize = 100;

/// What is dropped: control characters and what stands for characters that could not be read.
const DROPPED: &str = r"[\p{Cc}\p{Cf}\p{Co}\x{FFFD}&&[^\t\n\r]]+";

/// What is a word by itself: punctuation, all of ASCII that is neither letter nor digit, and ideographs. Otherwise words
/// end at white space.
const WORDS: &str = concat!(
    r"[\p{P}$+<=>^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]",
    r"|[^\s\p{P}$+<=>^`|~\x{4E00}-\x{9FFF}\x{3400}-\x{4DBF}\x{20000}-\x{2A6DF}\x{2A700}-\x{2CEAF}\x{F900}-\x{FAFF}\x{2F800}-\x{2FA1F}]+",
);

/// Marks that are dropped with accents.
const MARKS: &str = r"\p{Mn}+";

/// The encoder of a WordPiece vocabulary.
#[derive(Debug)]
pub(crate) struct WordPiece {
    ids: Arc<HashMap<Box<str>, u32>>,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
    dropped: Regex,
    marks: Regex,
    words: Regex,
    /// Bytes of the longest piece.
    longest: usize,
}

impl WordPiece {
    pub(crate) fn new(vocabulary: &Vocabulary, ids: &Arc<HashMap<Box<str>, u32>>) -> Result<Self> {
        let regex = |pattern| Regex::new(pattern).expect("the pattern is correct");
        Ok(Self {
            ids: Arc::clone(ids),
            unknown: vocabulary.unknown.ok_or(Error::MissingSpecial("unknown"))?,
            lowercase: vocabulary.lowercase,
            strip_accents: vocabulary.strip_accents,
            dropped: regex(DROPPED),
            marks: regex(MARKS),
            words: regex(WORDS),
            longest: vocabulary.tokens.iter().map(|spelling| spelling.len()).max().unwrap_or(0),
        })
    }

    /// Appends the tokens of a text without special tokens.
    pub(crate) fn encode(&self, text: &str, tokens: &mut Vec<u32>) {
        let text = self.normalize(text);
        // The patterns have neither look-around nor back-references, so matching cannot fail.
        for word in self.words.find_iter(&text).flatten() {
            self.encode_word(word.as_str(), tokens);
        }
    }

    fn normalize(&self, text: &str) -> String {
        let mut text = self.dropped.replace_all(text, "").into_owned();
        if self.strip_accents {
            let decomposed: String = text.nfd().collect();
            text = self.marks.replace_all(&decomposed, "").into_owned();
        }
        if self.lowercase {
            text = text.chars().flat_map(char::to_lowercase).collect();
        }
        text
    }

    /// Appends the pieces of a word, or the one token that stands for words that cannot be written.
    fn encode_word(&self, word: &str, tokens: &mut Vec<u32>) {
        let before = tokens.len();
        let spelled = format!("{SPACE}{word}");
        let mut rest = spelled.as_str();
        // The stand-in in a text is no beginning of a word.
        let is_known = word.chars().count() <= MAX_WORD && !word.contains(SPACE);
        while !rest.is_empty() {
            let Some((token, length)) = self.longest_piece(rest).filter(|_| is_known) else {
                tokens.truncate(before);
                tokens.push(self.unknown);
                return;
            };
            tokens.push(token);
            rest = &rest[length..];
        }
    }

    /// The longest piece that `text` begins with, and its bytes.
    fn longest_piece(&self, text: &str) -> Option<(u32, usize)> {
        let ends = text.char_indices().map(|(start, character)| start + character.len_utf8());
        let ends: Vec<usize> = ends.take_while(|end| *end <= self.longest).collect();
        // A stand-in alone begins no word: the first piece has at least a letter.
        let is_piece = |end: &usize| &text[..*end] != SPACE.encode_utf8(&mut [0; 4]);
        ends.into_iter().rev().filter(is_piece).find_map(|end| Some((*self.ids.get(&text[..end])?, end)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vocabulary::{TokenKind, VocabularyModel};
    use crate::{Special, Tokenizer};

    const PIECES: [&str; 19] = [
        "[UNK]", "[CLS]", "[SEP]", "▁un", "aff", "able", "▁the", "▁cafe", "▁,", "▁.", "▁日", "▁本", "s", "▁a", "▁$",
        "▁naive", "▁1", "0", "▁stra",
    ];

    fn tokenizer(change: impl FnOnce(&mut Vocabulary)) -> Tokenizer {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Bert);
        vocabulary.tokens = PIECES.iter().map(|piece| Box::from(*piece)).collect();
        vocabulary.kinds = vec![TokenKind::Normal; PIECES.len()];
        vocabulary.kinds[..3].copy_from_slice(&[TokenKind::Unknown, TokenKind::Control, TokenKind::Control]);
        (vocabulary.unknown, vocabulary.bos, vocabulary.eos) = (Some(0), Some(1), Some(2));
        change(&mut vocabulary);
        Tokenizer::new(vocabulary).unwrap()
    }

    fn pieces(tokenizer: &Tokenizer, text: &str) -> Vec<&'static str> {
        tokenizer.encode(text, Special::Parse, true).into_iter().map(|token| PIECES[token as usize]).collect()
    }

    #[test]
    fn words_are_cut_into_their_longest_pieces() {
        let tokenizer = tokenizer(|_| ());
        for (text, expected) in [
            ("unaffable", &["▁un", "aff", "able"][..]),
            ("  The\tcafés ,naïve.", &["▁the", "▁cafe", "s", "▁,", "▁naive", "▁."]),
            ("日本の", &["▁日", "▁本", "[UNK]"]),
            ("$100", &["▁$", "▁1", "0", "0"]),
            ("a\u{200b}\u{0}\u{fffd}s", &["▁a", "s"]),
            ("unaffablex", &["[UNK]"]),
            ("a▁a", &["[UNK]"]),
            ("the[SEP]the", &["▁the", "[SEP]", "▁the"]),
            ("", &[]),
        ] {
            assert_eq!(pieces(&tokenizer, text), [&["[CLS]"], expected, &["[SEP]"]].concat(), "{text:?}");
        }
        let long = format!("a{}", "s".repeat(MAX_WORD - 1));
        assert_eq!(pieces(&tokenizer, &long).len(), 2 + MAX_WORD);
        assert_eq!(pieces(&tokenizer, &(long + "s")), ["[CLS]", "[UNK]", "[SEP]"]);
    }

    #[test]
    fn a_file_may_keep_case_and_accents() {
        let tokenizer = tokenizer(|vocabulary| (vocabulary.lowercase, vocabulary.strip_accents) = (false, false));
        assert_eq!(pieces(&tokenizer, "The cafe café"), ["[CLS]", "[UNK]", "▁cafe", "[UNK]", "[SEP]"]);
    }

    #[test]
    fn a_vocabulary_needs_a_token_for_the_unknown() {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Bert);
        vocabulary.tokens = vec!["[CLS]".into(), "[SEP]".into()];
        (vocabulary.bos, vocabulary.eos) = (Some(0), Some(1));
        assert!(matches!(Tokenizer::new(vocabulary), Err(Error::MissingSpecial("unknown"))));
    }
}
