//! SentencePiece: characters joined by the score of the token they make, bytes as the last resort.

use std::collections::HashMap;

use crate::error::{Error, Result};
use crate::merging::{Merge, Merger};
use crate::vocabulary::{TokenKind, Vocabulary};

/// What SentencePiece writes for a space.
pub(crate) const SPACE: char = '\u{2581}';

/// The encoder of [`VocabularyModel::Llama`](crate::VocabularyModel::Llama).
#[derive(Debug)]
pub(crate) struct SentencePiece {
    /// Tokens by spelling, with the priority of making them (low first).
    pieces: HashMap<Box<str>, Merge>,
    /// No token is longer than this many bytes.
    longest: usize,
    byte_tokens: [u32; 256],
    add_space_prefix: bool,
}

impl SentencePiece {
    /// Builds the tables; `ids` finds tokens by spelling.
    pub(crate) fn new(vocabulary: &Vocabulary, ids: &HashMap<Box<str>, u32>) -> Result<Self> {
        let pieces = ids.iter().map(|(spelling, &token)| {
            let priority = priority(vocabulary.scores[token as usize]);
            (spelling.clone(), Merge { priority, token })
        });
        Ok(Self {
            pieces: pieces.collect(),
            longest: ids.keys().map(|spelling| spelling.len()).max().unwrap_or(0),
            byte_tokens: byte_tokens(vocabulary, ids)?,
            add_space_prefix: vocabulary.add_space_prefix,
        })
    }

    /// Appends the tokens of `text`; `at_start` says that it begins a text or follows a special token.
    pub(crate) fn encode(&self, text: &str, at_start: bool, tokens: &mut Vec<u32>) {
        let prefix = if self.add_space_prefix && at_start { " " } else { "" };
        let text = [prefix, text].concat().replace(' ', SPACE.encode_utf8(&mut [0; 4]));
        let mut merger = Merger::default();
        for (start, letter) in text.char_indices() {
            let piece = self.pieces.get(&text[start..start + letter.len_utf8()]);
            merger.push(letter.len_utf8(), piece.map(|piece| piece.token));
        }
        merger.run(|left, right| {
            let joined = left.start..right.end;
            // Longer slices cannot be tokens, and hashing them would make long texts quadratic.
            if joined.len() > self.longest {
                return None;
            }
            self.pieces.get(&text[joined]).copied()
        });
        for symbol in merger.symbols() {
            match symbol.token {
                Some(token) => tokens.push(token),
                None => {
                    let bytes = text[symbol.start..symbol.end].bytes();
                    tokens.extend(bytes.map(|byte| self.byte_tokens[byte as usize]));
                }
            }
        }
    }
}

/// Maps scores to priorities: the higher the score, the lower the number.
fn priority(score: f32) -> u32 {
    // Adding zero turns -0 into 0, which must compare equal.
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { bits } else { !bits & 0x7fff_ffff }
}

/// The byte that a token spelled `<0xXX>` stands for.
pub(crate) fn parse_byte(spelling: &str) -> Option<u8> {
    let digits = spelling.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() != 2 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    u8::from_str_radix(digits, 16).ok()
}

/// The token of each byte: its own, or the character's, or the unknown token.
fn byte_tokens(vocabulary: &Vocabulary, ids: &HashMap<Box<str>, u32>) -> Result<[u32; 256]> {
    let mut tokens = [None; 256];
    for (id, spelling) in vocabulary.tokens.iter().enumerate() {
        if vocabulary.kind(id) == TokenKind::Byte
            && let Some(byte) = parse_byte(spelling)
        {
            tokens[byte as usize] = Some(id as u32);
        }
    }
    let mut complete = [0; 256];
    for byte in 0..=u8::MAX {
        let spelled = || ids.get(format!("<0x{byte:02X}>").as_str()).copied();
        let literal =
            || byte.is_ascii().then(|| ids.get((byte as char).encode_utf8(&mut [0; 4]) as &str).copied()).flatten();
        complete[byte as usize] = tokens[byte as usize]
            .or_else(spelled)
            .or_else(literal)
            .or(vocabulary.unknown)
            .ok_or(Error::MissingByte(byte))?;
    }
    Ok(complete)
}
