//! Text to tokens and back.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, OnceLock};

use paceline_grammar::{Speller, Spelling};

use crate::byte_alphabet;
use crate::byte_pairs::BytePairs;
use crate::detokenizer::Detokenizer;
use crate::error::{Error, Result};
use crate::sentence_piece::{self, SentencePiece};
use crate::special_tokens::{Fragment, Special, SpecialTokens};
use crate::vocabulary::{TokenKind, Vocabulary, VocabularyModel};
use crate::word_piece::WordPiece;

/// Spellings of tokens that end an answer, whatever the file's metadata name as the end. Files often name only
/// one of them although the model was trained with several.
const END_SPELLINGS: [&str; 25] = [
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "</s>",
    "<eos>",
    "<end_of_turn>",
    "<turn|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<end_of_utterance>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<|fim_repo|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

#[derive(Debug)]
enum Encoder {
    BytePairs(Box<BytePairs>),
    SentencePiece(Box<SentencePiece>),
    WordPiece(Box<WordPiece>),
}

/// A model's tokenizer. Shared by all sessions; nothing in it changes.
#[derive(Debug)]
pub struct Tokenizer {
    encoder: Encoder,
    special_tokens: SpecialTokens,
    ids: Arc<HashMap<Box<str>, u32>>,
    vocabulary: Vocabulary,
    /// The bytes of all tokens, one after the other.
    bytes: Vec<u8>,
    /// Where each token's bytes end.
    byte_ends: Vec<usize>,
    /// Sorted.
    end_of_generation: Vec<u32>,
    /// Made when first needed.
    speller: OnceLock<Arc<Speller>>,
}

impl Tokenizer {
    /// Builds the tables; fails if the vocabulary contradicts itself or wants rules that are not built here.
    pub fn new(mut vocabulary: Vocabulary) -> Result<Self> {
        vocabulary.validate()?;
        let ids = Arc::new(index_spellings(&vocabulary.tokens)?);
        let encoder = match vocabulary.model {
            VocabularyModel::Gpt2 => Encoder::BytePairs(Box::new(BytePairs::new(&vocabulary, &ids)?)),
            VocabularyModel::Llama => Encoder::SentencePiece(Box::new(SentencePiece::new(&vocabulary, &ids)?)),
            VocabularyModel::Bert => Encoder::WordPiece(Box::new(WordPiece::new(&vocabulary, &ids)?)),
        };
        vocabulary.merges = Vec::new();
        vocabulary.scores = Vec::new();
        let mut bytes = Vec::new();
        let mut byte_ends = Vec::with_capacity(vocabulary.tokens.len());
        for id in 0..vocabulary.tokens.len() {
            bytes.extend(bytes_of(&vocabulary, id)?);
            byte_ends.push(bytes.len());
        }
        Ok(Self {
            encoder,
            special_tokens: SpecialTokens::new(&vocabulary),
            end_of_generation: end_of_generation(&vocabulary, &ids),
            speller: OnceLock::new(),
            ids,
            vocabulary,
            bytes,
            byte_ends,
        })
    }

    /// The tokens of `text`. With `add_bos`, also the beginning (and end) tokens that the vocabulary asks for;
    /// rendered chat templates bring their own, so they are encoded without.
    ///
    /// Text is taken as it is, without Unicode normalization, unless the vocabulary is one of WordPiece.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() / 3 + 1);
        if add_bos && self.vocabulary.add_bos {
            tokens.extend(self.vocabulary.bos);
        }
        let mut after_special = true;
        for fragment in self.fragments(text, special) {
            match fragment {
                Fragment::Token(token) => tokens.push(token),
                Fragment::Text(text) => self.encode_plain(text, after_special, &mut tokens),
            }
            after_special = matches!(fragment, Fragment::Token(_));
        }
        if add_bos && self.vocabulary.add_eos {
            tokens.extend(self.vocabulary.eos);
        }
        tokens
    }

    /// `text` cut at its special tokens.
    pub(crate) fn fragments<'t>(&self, text: &'t str, special: Special) -> Vec<Fragment<'t>> {
        self.special_tokens.split(text, special)
    }

    /// Appends the tokens of a stretch of text without special tokens.
    pub(crate) fn encode_plain(&self, text: &str, after_special: bool, tokens: &mut Vec<u32>) {
        match &self.encoder {
            Encoder::BytePairs(encoder) => encoder.encode(text, tokens),
            Encoder::SentencePiece(encoder) => encoder.encode(text, after_special, tokens),
            Encoder::WordPiece(encoder) => encoder.encode(text, tokens),
        }
    }

    /// The text of `tokens`, control tokens left out; invalid UTF-8 becomes U+FFFD.
    pub fn decode(self: &Arc<Self>, tokens: &[u32]) -> Result<String> {
        self.decode_with(Detokenizer::new(Arc::clone(self)).at_text_start(), tokens)
    }

    /// The text of `tokens` with control tokens spelled out.
    pub fn decode_with_special(self: &Arc<Self>, tokens: &[u32]) -> Result<String> {
        self.decode_with(Detokenizer::new(Arc::clone(self)).at_text_start().with_special_tokens(), tokens)
    }

    fn decode_with(&self, mut detokenizer: Detokenizer, tokens: &[u32]) -> Result<String> {
        let mut text = String::new();
        for &id in tokens {
            if id as usize >= self.vocabulary_size() {
                return Err(Error::TokenOutOfRange { id, tokens: self.vocabulary_size() });
            }
            text.push_str(detokenizer.push(id));
        }
        text.push_str(&detokenizer.finish());
        Ok(text)
    }

    /// The bytes that `token` writes: the spelling of control tokens, nothing for unused ones and for ids beyond
    /// the vocabulary (models may have more rows than their vocabulary has tokens).
    pub fn token_bytes(&self, token: u32) -> &[u8] {
        let token = token as usize;
        let Some(&end) = self.byte_ends.get(token) else { return &[] };
        let start = token.checked_sub(1).map_or(0, |previous| self.byte_ends[previous]);
        &self.bytes[start..end]
    }

    /// What `token` writes, for people: invalid UTF-8 becomes U+FFFD.
    pub fn token_text(&self, token: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(token)).into_owned()
    }

    /// The spelling of `token` in the model file.
    pub fn token_spelling(&self, token: u32) -> Option<&str> {
        self.vocabulary.tokens.get(token as usize).map(|spelling| &**spelling)
    }

    /// The token that the model file spells `spelling`.
    pub fn token_id(&self, spelling: &str) -> Option<u32> {
        self.ids.get(spelling).copied()
    }

    /// What `token` is for; ids beyond the vocabulary are unused.
    pub fn token_kind(&self, token: u32) -> TokenKind {
        let token = token as usize;
        if token < self.vocabulary_size() { self.vocabulary.kind(token) } else { TokenKind::Unused }
    }

    /// Whether an answer ends with `token`.
    pub fn is_end_of_generation(&self, token: u32) -> bool {
        self.end_of_generation.binary_search(&token).is_ok()
    }

    /// All tokens that end an answer, sorted.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.end_of_generation
    }

    /// Number of tokens in the vocabulary; ids are below it.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary.tokens.len()
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.vocabulary.bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.vocabulary.eos
    }

    /// Knows how the tokens are spelled, for texts that must follow a grammar. Tokens that steer the model, and those
    /// that look like tags, stand for themselves and write nothing.
    ///
    /// # Errors
    /// A vocabulary that cannot be held to any grammar.
    pub fn speller(&self) -> Result<Arc<Speller>> {
        if let Some(speller) = self.speller.get() {
            return Ok(Arc::clone(speller));
        }
        let spellings = (0..self.vocabulary_size() as u32).map(|token| self.spelling(token));
        let speller = Arc::new(Speller::new(spellings, &self.end_of_generation)?);
        Ok(Arc::clone(self.speller.get_or_init(|| speller)))
    }

    fn spelling(&self, token: u32) -> Spelling<'_> {
        let name = self.token_spelling(token).unwrap_or_default();
        let is_tag =
            matches!((name.chars().next(), name.chars().last()), (Some('<'), Some('>')) | (Some('['), Some(']')));
        match self.token_kind(token) {
            TokenKind::Normal | TokenKind::Byte => Spelling::Text(self.token_bytes(token)),
            TokenKind::UserDefined if !is_tag => Spelling::Text(self.token_bytes(token)),
            TokenKind::UserDefined | TokenKind::Control | TokenKind::Unknown if !name.is_empty() => {
                Spelling::Special(name)
            }
            _ => Spelling::Unused,
        }
    }

    /// Whether the vocabulary asks for texts to begin with [`bos`](Self::bos).
    pub fn adds_bos(&self) -> bool {
        self.vocabulary.add_bos
    }

    /// Whether encoding puts a space before texts.
    pub(crate) fn adds_space(&self) -> bool {
        self.vocabulary.model != VocabularyModel::Gpt2 && self.vocabulary.add_space_prefix
    }
}

/// Finds ids by spelling. Nameless tokens have none.
fn index_spellings(tokens: &[Box<str>]) -> Result<HashMap<Box<str>, u32>> {
    let mut ids = HashMap::with_capacity(tokens.len());
    for (id, spelling) in (0..).zip(tokens) {
        if spelling.is_empty() {
            continue;
        }
        match ids.entry(spelling.clone()) {
            Entry::Vacant(entry) => entry.insert(id),
            Entry::Occupied(entry) => {
                return Err(Error::DuplicateToken { text: spelling.to_string(), first: *entry.get(), second: id });
            }
        };
    }
    Ok(ids)
}

/// The bytes that token `id` stands for.
fn bytes_of(vocabulary: &Vocabulary, id: usize) -> Result<Vec<u8>> {
    let spelling = &*vocabulary.tokens[id];
    match (vocabulary.kind(id), vocabulary.model) {
        (TokenKind::Normal, VocabularyModel::Gpt2) => Ok(byte_alphabet::decode(spelling)),
        (TokenKind::Normal, VocabularyModel::Llama | VocabularyModel::Bert) => {
            Ok(spelling.replace(sentence_piece::SPACE, " ").into_bytes())
        }
        (TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined, _) => Ok(spelling.as_bytes().to_vec()),
        (TokenKind::Byte, _) => match sentence_piece::parse_byte(spelling) {
            Some(byte) => Ok(vec![byte]),
            None => Err(Error::BadByteToken { id: id as u32, text: spelling.to_owned() }),
        },
        (TokenKind::Unused, _) => Ok(Vec::new()),
    }
}

/// All tokens that end an answer, sorted.
fn end_of_generation(vocabulary: &Vocabulary, ids: &HashMap<Box<str>, u32>) -> Vec<u32> {
    let is_special = |id: u32| matches!(vocabulary.kind(id as usize), TokenKind::Control | TokenKind::UserDefined);
    let spelled = END_SPELLINGS.iter().filter_map(|&spelling| ids.get(spelling).copied()).filter(|&id| is_special(id));
    let mut ends: Vec<u32> = spelled.chain(vocabulary.eos).chain(vocabulary.eot).chain(vocabulary.eom).collect();
    // Where <|return|> and <|call|> end an answer, <|end|> only ends one of its messages.
    if ids.contains_key("<|return|>") && ids.contains_key("<|call|>") {
        ends.retain(|&id| &*vocabulary.tokens[id as usize] != "<|end|>" || vocabulary.eos == Some(id));
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}
