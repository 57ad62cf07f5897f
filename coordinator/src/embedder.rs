//! A model that reads texts and writes none, as the HTTP API sees it: vectors of texts, or scores of pairs. It has no
//! sessions and remembers nothing, so nothing of it goes through the coordinator.

use std::sync::Arc;

use paceline_proto::EncodeText;
use paceline_text::{Special, Tokenizer};

use crate::engine::Answer;
use crate::error::{Error, Result};

/// What a client may know of such a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EmbedderCard {
    /// Its name in the API.
    pub id: String,
    /// Other names that mean it.
    pub aliases: Vec<String>,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Architecture as the file names it.
    pub architecture: String,
    /// The most tokens of a text, special ones included.
    pub context: usize,
    /// The most tokens of a text that it was trained for.
    pub trained_context: usize,
    /// Size of the vocabulary.
    pub vocabulary: usize,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Values of a vector.
    pub dimensions: usize,
    /// How a vector is made of a text's rows: `mean`, `cls`, `last`, or `rank` where a classifier judges pairs of texts.
    pub pooling: String,
    /// Whether it judges pairs of texts, and makes no vectors.
    pub ranks: bool,
}

/// Whoever runs the model.
pub trait Encodes: Send + Sync {
    /// The vectors of texts, in their order. Dropping the future takes the request back.
    fn encode(&self, texts: Vec<EncodeText>) -> Answer<Vec<Vec<f32>>>;

    /// What it has to do.
    fn load(&self) -> EncoderLoad;
}

/// What a model that reads texts has to do at this moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct EncoderLoad {
    /// Requests that are being answered.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Nobody is let in any more.
    pub draining: bool,
}

/// One such model, ready to read. Cheap to clone.
#[derive(Clone)]
pub struct Embedder {
    card: Arc<EmbedderCard>,
    tokenizer: Arc<Tokenizer>,
    encodes: Arc<dyn Encodes>,
}

impl Embedder {
    /// A model with the one that runs it.
    pub fn new(card: EmbedderCard, tokenizer: Arc<Tokenizer>, encodes: Arc<dyn Encodes>) -> Self {
        Self { card: Arc::new(card), tokenizer, encodes }
    }

    /// What it is.
    pub fn card(&self) -> &Arc<EmbedderCard> {
        &self.card
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// A text as the model reads it, with the tokens that begin and end it.
    pub fn text(&self, text: &str) -> EncodeText {
        EncodeText::single(self.tokenizer.encode(text, Special::Parse, true))
    }

    /// Two texts as a model that judges pairs reads them: `[CLS] first [SEP] second [SEP]`.
    pub fn pair(&self, first: &str, second: &str) -> EncodeText {
        let mut tokens = self.tokenizer.encode(first, Special::Parse, true);
        let start = tokens.len();
        let second = self.tokenizer.encode(second, Special::Parse, true);
        // What begins the first text begins both.
        let begins = usize::from(self.tokenizer.adds_bos() && second.first().copied() == self.tokenizer.bos());
        tokens.extend_from_slice(&second[begins..]);
        EncodeText { tokens, second: Some(start) }
    }

    /// The vectors of texts, in their order, not normalized; of pairs, one score each.
    ///
    /// # Errors
    /// Texts that the model cannot read, each with its number; a service that is full or has failed.
    pub async fn encode(&self, texts: Vec<EncodeText>) -> Result<Vec<Vec<f32>>> {
        texts.iter().enumerate().try_for_each(|(index, text)| self.check(index, text))?;
        self.encodes.encode(texts).await
    }

    /// What it has to do.
    pub fn load(&self) -> EncoderLoad {
        self.encodes.load()
    }

    /// Refuses what the model cannot read, before it waits.
    fn check(&self, index: usize, text: &EncodeText) -> Result<()> {
        let EmbedderCard { context, vocabulary, .. } = *self.card;
        let tokens = text.tokens.len();
        if tokens == 0 {
            return Err(Error::EmptyText { index });
        }
        if tokens > context {
            return Err(Error::TextLength { index, tokens, context });
        }
        let outside = text.tokens.iter().find(|token| **token as usize >= vocabulary);
        outside.map_or(Ok(()), |token| Err(Error::TokenOutOfRange { token: *token, vocabulary }))
    }
}
