//! The models that requests can be answered with, and how a request finds its own.

use std::any::Any;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use paceline_coordinator::{Embedder, EmbedderCard, Engine, ModelCard};
use paceline_text::Tokenizer;
use serde::{Deserialize, Serialize};

use crate::config::Defaults;
use crate::error::{Error, Result};

/// What answers for a model that is loaded.
#[derive(Clone)]
pub enum Served {
    /// It writes texts.
    Texts(Engine),
    /// It makes vectors of texts, or judges pairs of them.
    Vectors(Embedder),
}

/// What is asked of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Texts: chats and completions.
    Texts,
    /// Vectors of texts.
    Vectors,
    /// Scores of pairs of texts.
    Scores,
    /// Tokens of texts, or whatever the model is for.
    Anything,
}

/// What a model is, whether it is loaded or not.
#[derive(Debug, Clone)]
pub enum Card {
    /// It writes texts.
    Texts(Arc<ModelCard>),
    /// It makes vectors, or scores.
    Vectors(Arc<EmbedderCard>),
}

/// How far a model is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ModelState {
    /// It takes no memory; a request loads it.
    #[default]
    Unloaded,
    /// It is being loaded.
    Loading,
    /// It answers.
    Loaded,
    /// It ends, and its memory is given back.
    Unloading,
}

/// A model that can be asked for.
#[derive(Clone)]
pub struct ListedModel {
    /// What it is.
    pub card: Card,
    /// How far it is.
    pub state: ModelState,
    /// Bytes of memory that it has, or would have.
    pub memory_bytes: u64,
    /// What answers, where it is loaded.
    pub served: Option<Served>,
}

/// A model that a request is answered with. It stays loaded for as long as this is held.
#[derive(Clone)]
pub struct Serving {
    /// What answers.
    pub served: Served,
    /// What holds for requests that do not say.
    pub defaults: Arc<Defaults>,
    /// Keeps it loaded.
    pub held: Arc<dyn Any + Send + Sync>,
}

/// Why a model cannot be had, though there is one of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// Too many requests wait for it to be loaded.
    #[error("{waiting} requests wait for {model} to be loaded already; try again later")]
    QueueFull {
        /// Its name.
        model: String,
        /// How many wait.
        waiting: usize,
    },
    /// It does not fit beside the models that are at work.
    #[error(
        "{model} needs {needed} bytes of memory, and models that are in use leave {left} of {budget}; try again later"
    )]
    NoRoom {
        /// Its name.
        model: String,
        /// What it needs.
        needed: u64,
        /// What could be freed.
        left: u64,
        /// What all models may have together.
        budget: u64,
    },
    /// It could not be loaded.
    #[error("{model} could not be loaded: {reason}")]
    Failed {
        /// Its name.
        model: String,
        /// What went wrong.
        reason: String,
    },
    /// The service ends.
    #[error("the service is shutting down")]
    ShuttingDown,
}

/// A model on its way.
pub type Opening = Pin<Box<dyn Future<Output = std::result::Result<Serving, ModelError>> + Send>>;

/// All models of a service.
pub trait Models: Send + Sync {
    /// All of them, in the order in which they stand in for requests that name none.
    fn list(&self) -> Vec<ListedModel>;

    /// Gets the model at this place of the list for a request that calls it so, and loads it if it has to be. The name may
    /// be empty.
    fn open(&self, place: usize, name: &str) -> Opening;
}

/// A service of one model, which is loaded and stays so.
pub struct OneModel {
    serving: Serving,
    memory_bytes: u64,
}

impl OneModel {
    /// The service of this model, which takes so much memory (0 where it is not in this process).
    pub fn serve(served: Served, defaults: Defaults, memory_bytes: u64) -> Arc<dyn Models> {
        let serving = Serving { served, defaults: Arc::new(defaults), held: Arc::new(()) };
        Arc::new(Self { serving, memory_bytes })
    }
}

impl Models for OneModel {
    fn list(&self) -> Vec<ListedModel> {
        let served = self.serving.served.clone();
        let (card, memory_bytes) = (served.card(), self.memory_bytes);
        vec![ListedModel { card, state: ModelState::Loaded, memory_bytes, served: Some(served) }]
    }

    fn open(&self, _: usize, _: &str) -> Opening {
        let serving = self.serving.clone();
        Box::pin(async move { Ok(serving) })
    }
}

impl Served {
    /// Its tokenizer.
    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        match self {
            Self::Texts(engine) => engine.tokenizer(),
            Self::Vectors(embedder) => embedder.tokenizer(),
        }
    }

    /// What it is, as it is loaded.
    pub fn card(&self) -> Card {
        match self {
            Self::Texts(engine) => Card::Texts(engine.model()),
            Self::Vectors(embedder) => Card::Vectors(Arc::clone(embedder.card())),
        }
    }
}

impl Card {
    /// Its name.
    pub fn id(&self) -> &str {
        match self {
            Self::Texts(card) => &card.id,
            Self::Vectors(card) => &card.id,
        }
    }

    /// Other names that mean it.
    pub fn aliases(&self) -> &[String] {
        match self {
            Self::Texts(card) => &card.aliases,
            Self::Vectors(card) => &card.aliases,
        }
    }

    /// In one word: `texts`, `vectors` or `scores`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Texts(_) => "texts",
            Self::Vectors(card) if card.ranks => "scores",
            Self::Vectors(_) => "vectors",
        }
    }

    fn is_called(&self, name: &str) -> bool {
        self.id() == name || self.aliases().iter().any(|alias| alias == name)
    }

    fn does(&self, task: Task) -> bool {
        match (self, task) {
            (_, Task::Anything) | (Self::Texts(_), Task::Texts) => true,
            (Self::Vectors(card), Task::Vectors) => !card.ranks,
            (Self::Vectors(card), Task::Scores) => card.ranks,
            _ => false,
        }
    }

    /// What it is for, and where that is asked for.
    fn purpose(&self) -> &'static str {
        match self {
            Self::Texts(_) => "it writes texts; ask it at /v1/chat/completions",
            Self::Vectors(card) if card.ranks => "it judges pairs of texts; ask it at /v1/rerank",
            Self::Vectors(_) => "it makes vectors of texts; ask it at /v1/embeddings",
        }
    }
}

impl Task {
    /// What a model would have to do.
    fn wish(self) -> &'static str {
        match self {
            Self::Texts => "writes texts",
            Self::Vectors => "makes vectors of texts",
            Self::Scores => "judges pairs of texts (a cross-encoder with a classifier)",
            Self::Anything => "answers",
        }
    }
}

/// The place of the model that a request means. No name, or an empty one, means the first that does what is asked.
///
/// # Errors
/// A name that no model has, a model that does something else, and no model at all that does what is asked.
pub(crate) fn find(models: &[ListedModel], wanted: Option<&str>, task: Task) -> Result<usize> {
    let wanted = wanted.unwrap_or_default();
    if wanted.is_empty() {
        let able = models.iter().position(|model| model.card.does(task));
        return able.ok_or_else(|| Error::NoSuchModel { task: task.wish(), available: names(models) });
    }
    let place = models.iter().position(|model| model.card.is_called(wanted));
    let unknown = || Error::ModelNotFound { wanted: wanted.to_owned(), available: names(models) };
    let place = place.ok_or_else(unknown)?;
    let card = &models[place].card;
    if card.does(task) {
        return Ok(place);
    }
    Err(Error::WrongModel { wanted: wanted.to_owned(), task: task.wish(), purpose: card.purpose() })
}

/// All names, for people.
fn names(models: &[ListedModel]) -> String {
    let names = models
        .iter()
        .flat_map(|model| std::iter::once(model.card.id()).chain(model.card.aliases().iter().map(String::as_str)));
    names.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use paceline_coordinator::DraftSettings;

    use super::*;

    fn texts(id: &str, aliases: &[&str]) -> Card {
        Card::Texts(Arc::new(ModelCard {
            id: id.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            created: 0,
            architecture: "llama".to_owned(),
            context: 8,
            trained_context: 8,
            vocabulary: 8,
            parameters: 8,
            file_bytes: 8,
            stages: 1,
            drafts: DraftSettings::NONE,
            draft_model: None,
        }))
    }

    fn vectors(id: &str, ranks: bool) -> Card {
        Card::Vectors(Arc::new(EmbedderCard {
            id: id.to_owned(),
            aliases: Vec::new(),
            created: 0,
            architecture: "bert".to_owned(),
            context: 8,
            trained_context: 8,
            vocabulary: 8,
            parameters: 8,
            file_bytes: 8,
            dimensions: 8,
            pooling: "mean".to_owned(),
            ranks,
        }))
    }

    fn models(cards: Vec<Card>) -> Vec<ListedModel> {
        let listed = |card| ListedModel { card, state: ModelState::Unloaded, memory_bytes: 0, served: None };
        cards.into_iter().map(listed).collect()
    }

    #[test]
    fn a_request_finds_the_model_that_it_names_or_the_first_that_does_what_is_asked() {
        let models = models(vec![vectors("v", false), texts("a", &["x"]), texts("b", &[]), vectors("r", true)]);
        for (wanted, task, place) in [
            (None, Task::Texts, 1),
            (Some(""), Task::Vectors, 0),
            (None, Task::Scores, 3),
            (None, Task::Anything, 0),
            (Some("x"), Task::Texts, 1),
            (Some("b"), Task::Texts, 2),
            (Some("v"), Task::Anything, 0),
        ] {
            assert_eq!(find(&models, wanted, task).unwrap(), place, "{wanted:?} {task:?}");
        }
        for (wanted, task, message) in [
            ("c", Task::Texts, "the model \"c\" does not exist, this server has v, a, x, b, r"),
            (
                "a",
                Task::Vectors,
                "the model \"a\" is none that makes vectors of texts: it writes texts; ask it at /v1/chat/completions",
            ),
            (
                "r",
                Task::Vectors,
                "the model \"r\" is none that makes vectors of texts: it judges pairs of texts; ask it at /v1/rerank",
            ),
        ] {
            assert_eq!(find(&models, Some(wanted), task).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn a_service_without_such_a_model_says_what_it_has() {
        let error = find(&models(vec![texts("a", &[])]), None, Task::Vectors).unwrap_err().to_string();
        assert_eq!(error, "this server has no model that makes vectors of texts, only a");
    }
}
