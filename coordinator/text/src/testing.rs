//! Small vocabularies for the tests of this crate.

use std::sync::Arc;

use crate::byte_alphabet;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyModel};

/// Token `b` is byte `b`; then come `special` tokens.
pub(crate) fn byte_vocabulary(special: &[(&str, TokenKind)]) -> Vocabulary {
    let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
    vocabulary.pre = "gpt-2".into();
    vocabulary.tokens = (0..=255_u8).map(|byte| byte_alphabet::character(byte).to_string().into()).collect();
    vocabulary.kinds = vec![TokenKind::Normal; 256];
    for &(spelling, kind) in special {
        vocabulary.tokens.push(spelling.into());
        vocabulary.kinds.push(kind);
    }
    vocabulary
}

/// The tokenizer of [`byte_vocabulary`].
pub(crate) fn byte_tokenizer(special: &[(&str, TokenKind)]) -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(byte_vocabulary(special)).unwrap())
}
