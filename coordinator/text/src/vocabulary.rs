//! The plain contents of a vocabulary, as a model file gives them.

use crate::error::{Error, Result};

/// How text is turned into tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VocabularyModel {
    /// Byte-level byte pair encoding with ranked merges (GPT-2 and nearly everything after Llama 2).
    Gpt2,
    /// SentencePiece: characters merged by the score of the result, bytes as the last resort.
    Llama,
    /// WordPiece: words cut into the longest pieces that are known.
    Bert,
}

impl VocabularyModel {
    /// The model of a `tokenizer.ggml.model` value.
    pub fn from_name(name: &str) -> Result<Self> {
        match name {
            "gpt2" => Ok(Self::Gpt2),
            "llama" => Ok(Self::Llama),
            "bert" => Ok(Self::Bert),
            _ => Err(Error::UnknownModel(name.to_owned())),
        }
    }
}

/// What a token is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// Ordinary text.
    Normal,
    /// Stands for whatever the vocabulary cannot write.
    Unknown,
    /// Steers the model; not text.
    Control,
    /// Added to the vocabulary as a whole; text, but never split or merged.
    UserDefined,
    /// Fills the vocabulary up; never written, never read.
    Unused,
    /// One byte, spelled `<0xXX>`.
    Byte,
}

impl TokenKind {
    /// The kind of a `tokenizer.ggml.token_type` entry; numbers without a meaning are unused tokens.
    pub fn from_gguf(number: i32) -> Self {
        match number {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Unused,
        }
    }

    /// Whether tokens of this kind are left out of text shown to people.
    pub fn is_hidden(self) -> bool {
        matches!(self, Self::Control | Self::Unknown)
    }
}

/// Everything a [`Tokenizer`](crate::Tokenizer) is built from.
#[derive(Debug, Clone)]
pub struct Vocabulary {
    /// The family.
    pub model: VocabularyModel,
    /// Name of the rule that cuts text into words before merging; used by [`VocabularyModel::Gpt2`] only.
    pub pre: String,
    /// The spelling of each token.
    pub tokens: Vec<Box<str>>,
    /// The kind of each token; empty means that all are normal.
    pub kinds: Vec<TokenKind>,
    /// The score of each token, higher first; used by [`VocabularyModel::Llama`] only.
    pub scores: Vec<f32>,
    /// Merges as `left right`, best first; used by [`VocabularyModel::Gpt2`] only.
    pub merges: Vec<Box<str>>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message that expects a tool's answer.
    pub eom: Option<u32>,
    /// Stands for what cannot be written.
    pub unknown: Option<u32>,
    /// Whether texts begin with `bos`.
    pub add_bos: bool,
    /// Whether texts end with `eos`.
    pub add_eos: bool,
    /// Whether a space is put before a text; used by [`VocabularyModel::Llama`] only.
    pub add_space_prefix: bool,
    /// Whether texts are read in lower case; used by [`VocabularyModel::Bert`] only.
    pub lowercase: bool,
    /// Whether accents are dropped; used by [`VocabularyModel::Bert`] only.
    pub strip_accents: bool,
}

impl Vocabulary {
    /// An empty vocabulary with the habits of its family, to be filled in.
    pub fn new(model: VocabularyModel) -> Self {
        let (sentence_piece, word_piece) = (model == VocabularyModel::Llama, model == VocabularyModel::Bert);
        Self {
            model,
            pre: String::new(),
            tokens: Vec::new(),
            kinds: Vec::new(),
            scores: Vec::new(),
            merges: Vec::new(),
            bos: None,
            eos: None,
            eot: None,
            eom: None,
            unknown: None,
            add_bos: sentence_piece || word_piece,
            add_eos: word_piece,
            add_space_prefix: sentence_piece || word_piece,
            lowercase: word_piece,
            strip_accents: word_piece,
        }
    }

    /// The kind of token `id`, which must exist.
    pub(crate) fn kind(&self, id: usize) -> TokenKind {
        self.kinds.get(id).copied().unwrap_or(TokenKind::Normal)
    }

    /// Checks lengths and ids, so that what is built from the vocabulary can rely on them.
    pub(crate) fn validate(&self) -> Result<()> {
        let tokens = self.tokens.len();
        if tokens == 0 || tokens > i32::MAX as usize {
            return Err(Error::VocabularySize(tokens));
        }
        let needs_scores = self.model == VocabularyModel::Llama;
        for (entries, needed, what) in
            [(self.kinds.len(), false, "token types"), (self.scores.len(), needs_scores, "scores")]
        {
            if entries != tokens && (needed || entries != 0) {
                return Err(Error::LengthMismatch { tokens, entries, what });
            }
        }
        for (role, id) in [
            ("beginning-of-text", self.bos),
            ("end-of-text", self.eos),
            ("end-of-turn", self.eot),
            ("end-of-message", self.eom),
            ("unknown", self.unknown),
        ] {
            if let Some(id) = id
                && id as usize >= tokens
            {
                return Err(Error::SpecialOutOfRange { role, id, tokens });
            }
        }
        if self.add_bos && self.bos.is_none() {
            return Err(Error::MissingSpecial("beginning-of-text"));
        }
        if self.add_eos && self.eos.is_none() {
            return Err(Error::MissingSpecial("end-of-text"));
        }
        Ok(())
    }
}
