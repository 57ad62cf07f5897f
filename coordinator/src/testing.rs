//! For tests of what uses an [`Engine`]: an engine whose coordinator is played by the test.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_text::{ChatTemplate, Tokenizer};
use tokio::sync::{mpsc, oneshot, watch};

use crate::cache::{CacheChange, CacheChanged, CacheList, CachedPath};
use crate::engine::{Answer, Engine, Generate, Generation, ModelCard, Sessions, Status};
use crate::error::{Error, Result};

/// Requests that the test has not looked at yet.
const CALLS_WAITING: usize = 64;

/// A request that waits for its answer; dropping it answers that the service shuts down.
#[derive(Debug)]
pub struct Call {
    /// What is wanted.
    pub request: Generate,
    /// Where to admit or refuse it; closed when the client left.
    pub answer: oneshot::Sender<Result<Generation>>,
}

/// The other side of the engine.
#[derive(Debug)]
pub struct Played {
    /// Requests in the order in which they came.
    pub calls: mpsc::Receiver<Call>,
    /// What the engine says of itself.
    pub status: Arc<Mutex<Status>>,
    /// What the engine says that it remembers.
    pub cache: Arc<Mutex<CacheList>>,
}

/// An engine without a model behind it: every request goes to the test, which answers as it likes.
pub fn played_engine(
    model: ModelCard,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
) -> (Engine, Played) {
    let (sender, calls) = mpsc::channel(CALLS_WAITING);
    let status = Arc::new(Mutex::new(Status { ready: true, ..Status::default() }));
    let cache = Arc::default();
    let sessions = Arc::new(PlayedSessions { calls: sender, status: Arc::clone(&status), cache: Arc::clone(&cache) });
    // Nobody sends another card: the last one stays readable.
    let (_, model) = watch::channel(Arc::new(model));
    (Engine::new(model, tokenizer, template, sessions), Played { calls, status, cache })
}

struct PlayedSessions {
    calls: mpsc::Sender<Call>,
    status: Arc<Mutex<Status>>,
    cache: Arc<Mutex<CacheList>>,
}

impl Sessions for PlayedSessions {
    fn start(&self, request: Generate) -> Answer<Generation> {
        let calls = self.calls.clone();
        Box::pin(async move {
            let (answer, answered) = oneshot::channel();
            calls.send(Call { request, answer }).await.map_err(|_| Error::ShuttingDown)?;
            answered.await.unwrap_or(Err(Error::ShuttingDown))
        })
    }

    fn cache(&self, limit: usize) -> Answer<CacheList> {
        let mut list = self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        list.left_off += list.paths.len().saturating_sub(limit);
        list.paths.truncate(limit);
        Box::pin(async move { Ok(list) })
    }

    /// Only a text that begins like one in the list can be changed.
    fn change_cache(&self, _change: CacheChange, tokens: Vec<u32>) -> Answer<CacheChanged> {
        let list = self.cache.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let common =
            |path: &CachedPath| path.begins.iter().zip(&tokens).take_while(|(one, other)| one == other).count();
        let (tokens, cached) = (tokens.len(), list.paths.iter().map(common).max().unwrap_or(0));
        let changed = CacheChanged { tokens, cached, ..CacheChanged::default() };
        Box::pin(async move { if cached > 0 { Ok(changed) } else { Err(Error::NotCached { tokens }) } })
    }

    fn status(&self) -> Answer<Status> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move { Ok(status) })
    }
}
