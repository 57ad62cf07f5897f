//! Tokens to text, one token at a time, never half a character.

use std::sync::Arc;

use crate::tokenizer::Tokenizer;

/// Turns a stream of tokens into pieces of text whose concatenation is the text of all tokens.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Tokenizer>,
    special_tokens: bool,
    /// The next text begins a text, so the space that encoding put there is taken off again.
    at_text_start: bool,
    /// Bytes that may be the beginning of a character: three at most between pushes.
    pending: Vec<u8>,
    piece: String,
}

impl Detokenizer {
    /// A detokenizer for text that continues other text, with control tokens left out.
    pub fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, special_tokens: false, at_text_start: false, pending: Vec::new(), piece: String::new() }
    }

    /// Whose tokens it writes.
    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// Also writes control tokens, as they are spelled.
    #[must_use]
    pub fn with_special_tokens(mut self) -> Self {
        self.special_tokens = true;
        self
    }

    /// For whole texts: takes off the leading space that SentencePiece vocabularies put before them.
    #[must_use]
    pub fn at_text_start(mut self) -> Self {
        self.at_text_start = self.tokenizer.adds_space();
        self
    }

    /// The text that `token` completes; empty if it ends within a character. Bytes that are no UTF-8 become
    /// U+FFFD as soon as that is certain.
    pub fn push(&mut self, token: u32) -> &str {
        self.piece.clear();
        if !self.special_tokens && self.tokenizer.token_kind(token).is_hidden() {
            return &self.piece;
        }
        let mut bytes = self.tokenizer.token_bytes(token);
        if self.at_text_start && !bytes.is_empty() {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
            self.at_text_start = false;
        }
        self.pending.extend_from_slice(bytes);
        take_characters(&mut self.pending, &mut self.piece);
        &self.piece
    }

    /// What is left when no more tokens come: U+FFFD if the text ends within a character.
    pub fn finish(&mut self) -> String {
        let rest = String::from_utf8_lossy(&self.pending).into_owned();
        self.pending.clear();
        rest
    }
}

/// Moves what is certain from `bytes` to `text`; the beginning of a character stays.
fn take_characters(bytes: &mut Vec<u8>, text: &mut String) {
    let mut taken = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        taken += chunk.valid().len();
        if chunk.invalid().is_empty() {
            continue;
        }
        let is_last = taken + chunk.invalid().len() == bytes.len();
        if is_last && may_become_character(chunk.invalid()) {
            break;
        }
        text.push(char::REPLACEMENT_CHARACTER);
        taken += chunk.invalid().len();
    }
    bytes.drain(..taken);
}

/// Whether more bytes could make `bytes` (which is no UTF-8 as it stands) valid.
fn may_become_character(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::vocabulary::{TokenKind, Vocabulary, VocabularyModel};

    /// Token `b` is byte `b`; 256 is a control token, 257 and 258 are texts.
    fn byte_tokenizer() -> Arc<Tokenizer> {
        let mut vocabulary = Vocabulary::new(VocabularyModel::Llama);
        vocabulary.tokens = (0..=255_u8).map(|byte| format!("<0x{byte:02X}>").into()).collect();
        vocabulary.kinds = vec![TokenKind::Byte; 256];
        for (spelling, kind) in [
            ("<s>", TokenKind::Control),
            ("▁a", TokenKind::Normal),
            ("ü▁€", TokenKind::Normal),
            ("<|x|>", TokenKind::UserDefined),
        ] {
            vocabulary.tokens.push(spelling.into());
            vocabulary.kinds.push(kind);
        }
        vocabulary.scores = vec![0.0; vocabulary.tokens.len()];
        vocabulary.bos = Some(256);
        Arc::new(Tokenizer::new(vocabulary).unwrap())
    }

    proptest! {
        #[test]
        fn pieces_add_up_to_the_whole_text(tokens in prop::collection::vec(0_u32..262, 0..60)) {
            let tokenizer = byte_tokenizer();
            let visible = |&&token: &&u32| token != 256;
            let bytes: Vec<u8> = tokens.iter().filter(visible).flat_map(|&token| tokenizer.token_bytes(token)).copied().collect();
            let mut detokenizer = Detokenizer::new(tokenizer);
            let mut text = String::new();
            for &token in &tokens {
                text.push_str(detokenizer.push(token));
                prop_assert!(detokenizer.pending.len() < 4);
            }
            text.push_str(&detokenizer.finish());
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes));
        }

        #[test]
        fn valid_text_never_shows_replacement_characters(text in "\\PC{0,20}") {
            prop_assume!(!text.contains(char::REPLACEMENT_CHARACTER));
            let mut detokenizer = Detokenizer::new(byte_tokenizer());
            for byte in text.bytes() {
                let piece = detokenizer.push(u32::from(byte));
                prop_assert!(!piece.contains(char::REPLACEMENT_CHARACTER), "{piece:?}");
            }
            prop_assert_eq!(detokenizer.finish(), "");
        }
    }

    #[test]
    fn invalid_bytes_are_shown_once_certain() {
        let mut detokenizer = Detokenizer::new(byte_tokenizer());
        assert_eq!(detokenizer.push(0xf0), "");
        assert_eq!(detokenizer.push(0x9f), "");
        assert_eq!(detokenizer.push(u32::from(b'a')), "\u{fffd}a");
        assert_eq!(detokenizer.push(0xff), "\u{fffd}");
        assert_eq!(detokenizer.push(0xe2), "");
        assert_eq!(detokenizer.finish(), "\u{fffd}");
        assert_eq!(detokenizer.finish(), "");
    }

    #[test]
    fn the_added_space_is_taken_off_whole_texts_only() {
        let tokenizer = byte_tokenizer();
        let tokens = [256, 257, 257, 258];
        assert_eq!(tokenizer.decode(&tokens).unwrap(), "a aü €");
        assert_eq!(tokenizer.decode_with_special(&tokens).unwrap(), "<s> a aü €");
        let mut continued = Detokenizer::new(tokenizer);
        assert_eq!(continued.push(257), " a");
    }

    #[test]
    fn control_tokens_do_not_interrupt_characters() {
        let mut detokenizer = Detokenizer::new(byte_tokenizer());
        assert_eq!(detokenizer.push(0xc3), "");
        assert_eq!(detokenizer.push(256), "");
        assert_eq!(detokenizer.push(0xbc), "ü");
        assert_eq!(detokenizer.push(259), "<|x|>");
    }
}
