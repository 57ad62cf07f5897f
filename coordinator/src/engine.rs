//! The engine as the HTTP API and the command line see it: one model, ready to answer.

use std::sync::Arc;
use std::time::Duration;

pub use paceline_core::drafts::DraftSettings;
pub use paceline_core::reuse::{Missed, Reuse, Tier};
pub use paceline_core::session::Usage;
use paceline_proto::{Logprobs, SamplingSettings, SessionId};
use paceline_text::{ChatTemplate, Mark, Tokenizer};
use tokio::sync::{mpsc, watch};

use crate::cache::{CacheChange, CacheChanged, CacheList};
use crate::error::{Error, Result};
pub use crate::status::{StageStatus, Status};

/// What a client may know of the model.
#[derive(Debug, Clone)]
pub struct ModelCard {
    /// Its name in the API.
    pub id: String,
    /// Other names that mean it.
    pub aliases: Vec<String>,
    /// When it was loaded, in seconds since 1970.
    pub created: u64,
    /// Architecture as the file names it.
    pub architecture: String,
    /// The most tokens of one session, prompt and answer together.
    pub context: usize,
    /// The context it was trained for.
    pub trained_context: usize,
    /// Size of the vocabulary, padding included.
    pub vocabulary: usize,
    /// Parameters.
    pub parameters: u64,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Stages it runs on.
    pub stages: usize,
    /// Which drafts its sessions may have.
    pub drafts: DraftSettings,
    /// The file of the model that makes some of them, if one does.
    pub draft_model: Option<String>,
}

/// What is wanted of a prompt.
#[derive(Debug, Clone)]
pub struct Generate {
    /// The prompt; never empty.
    pub prompt: Vec<u32>,
    /// How many of its tokens come before places where other prompts are likely to branch off: where it is worth keeping a
    /// state. Advice: anything is allowed, and positions outside the prompt are ignored.
    pub boundaries: Vec<usize>,
    /// The most tokens to generate; without it, until the context is full.
    pub max_tokens: Option<usize>,
    /// Texts that end the answer; they are not part of it.
    pub stop: Vec<String>,
    /// How tokens are chosen.
    pub sampling: SamplingSettings,
    /// Go on after end tokens.
    pub ignore_end: bool,
    /// Show special tokens in the text.
    pub show_special: bool,
}

/// One step forward of an answer.
#[derive(Debug, Clone)]
pub enum Update {
    /// A token was accepted.
    Token(TokenUpdate),
    /// The answer is complete. Nothing follows.
    Finished(Finished),
    /// The answer ends early. Nothing follows.
    Failed(Error),
}

/// A token and the text it completes.
#[derive(Debug, Clone)]
pub struct TokenUpdate {
    /// The token.
    pub token: u32,
    /// Text that is certain now; may be empty, may hold text of tokens before it.
    pub text: String,
    /// Where in the text tokens stand that are no ordinary text.
    pub marks: Vec<Mark>,
    /// Log probabilities, where asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// Why.
    pub reason: FinishReason,
    /// Text that was held back until now.
    pub text: String,
    /// Where in the text tokens stand that are no ordinary text.
    pub marks: Vec<Mark>,
    /// Counts.
    pub usage: Usage,
    /// What of the prompt was known when it was first admitted, and why not more.
    pub reuse: Reuse,
    /// Times.
    pub timings: Timings,
}

/// Why an answer is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token.
    EndToken,
    /// One of the stop strings.
    StopString(String),
    /// The most tokens asked for, or the context is full.
    Length,
}

/// Where the time of an answer went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Timings {
    /// From the request to its admission.
    pub queued: Duration,
    /// From admission to the first token.
    pub prefill: Duration,
    /// From the first to the last token.
    pub decode: Duration,
}

/// An answer on its way. Dropping it cancels the session at once.
#[derive(Debug)]
pub struct Generation {
    /// Its session.
    pub session: SessionId,
    /// What of the prompt was known when it was admitted, and why not more.
    pub reuse: Reuse,
    /// What happens, in order; ends after [`Update::Finished`] or [`Update::Failed`].
    pub updates: mpsc::Receiver<Update>,
}

/// Starts sessions; implemented by the coordinator actor's address.
pub(crate) trait Sessions: Send + Sync {
    /// Starts a session, or says why not.
    fn start(&self, request: Generate) -> Answer<Generation>;
    /// The state of the service.
    fn status(&self) -> Answer<Status>;
    /// What it remembers, at most so many texts.
    fn cache(&self, limit: usize) -> Answer<CacheList>;
    /// Changes what becomes of a text.
    fn change_cache(&self, change: CacheChange, tokens: Vec<u32>) -> Answer<CacheChanged>;
}

/// A future answer of the coordinator, or of whoever runs a model.
pub type Answer<T> = std::pin::Pin<Box<dyn Future<Output = Result<T>> + Send>>;

/// One model, ready to answer. Cheap to clone.
#[derive(Clone)]
pub struct Engine {
    model: watch::Receiver<Arc<ModelCard>>,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    sessions: Arc<dyn Sessions>,
}

impl Engine {
    pub(crate) fn new(
        model: watch::Receiver<Arc<ModelCard>>,
        tokenizer: Arc<Tokenizer>,
        template: Option<Arc<ChatTemplate>>,
        sessions: Arc<dyn Sessions>,
    ) -> Self {
        Self { model, tokenizer, template, sessions }
    }

    /// The model it serves, with the context and the stages of the newest placement.
    pub fn model(&self) -> Arc<ModelCard> {
        Arc::clone(&self.model.borrow())
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The model's chat template, where it has one.
    pub fn template(&self) -> Option<&Arc<ChatTemplate>> {
        self.template.as_ref()
    }

    /// Starts an answer; returns when the session is admitted or refused.
    ///
    /// # Errors
    /// A request that cannot be served, with the numbers that matter, or a service that is full or going down.
    pub async fn generate(&self, request: Generate) -> Result<Generation> {
        self.check(&request)?;
        self.sessions.start(request).await
    }

    /// How the service is doing.
    ///
    /// # Errors
    /// When the coordinator is gone.
    pub async fn status(&self) -> Result<Status> {
        self.sessions.status().await
    }

    /// What it remembers: at most `limit` texts, the last used first.
    ///
    /// # Errors
    /// When the coordinator is gone.
    pub async fn cache(&self, limit: usize) -> Result<CacheList> {
        self.sessions.cache(limit).await
    }

    /// Keeps or forgets the text of these tokens. Pinning keeps what is cached of it, dropping forgets what goes on from
    /// all of it.
    ///
    /// # Errors
    /// When nothing of it is cached (not all of it, for dropping), too much would be pinned, or the coordinator is gone.
    pub async fn change_cache(&self, change: CacheChange, tokens: Vec<u32>) -> Result<CacheChanged> {
        self.sessions.change_cache(change, tokens).await
    }

    /// Refuses what no model could answer, before it reaches the coordinator.
    fn check(&self, request: &Generate) -> Result<()> {
        let model = self.model();
        let vocabulary = model.vocabulary;
        let outside = request.prompt.iter().find(|token| **token as usize >= vocabulary);
        if let Some(token) = outside {
            return Err(Error::TokenOutOfRange { token: *token, vocabulary });
        }
        if request.prompt.is_empty() {
            return Err(Error::EmptyPrompt);
        }
        let (tokens, context) = (request.prompt.len(), model.context);
        if tokens >= context && request.max_tokens != Some(0) {
            return Err(Error::ContextLength { tokens, context });
        }
        Ok(())
    }
}
