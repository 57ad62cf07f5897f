//! For tests of what uses an [`Engine`]: an engine whose coordinator is played by the test.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_text::{ChatTemplate, Tokenizer};
use tokio::sync::{mpsc, oneshot, watch};

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
}

/// An engine without a model behind it: every request goes to the test, which answers as it likes.
pub fn played_engine(
    model: ModelCard,
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
) -> (Engine, Played) {
    let (sender, calls) = mpsc::channel(CALLS_WAITING);
    let status = Arc::new(Mutex::new(Status { ready: true, ..Status::default() }));
    let sessions = Arc::new(PlayedSessions { calls: sender, status: Arc::clone(&status) });
    // Nobody sends another card: the last one stays readable.
    let (_, model) = watch::channel(Arc::new(model));
    (Engine::new(model, tokenizer, template, sessions), Played { calls, status })
}

struct PlayedSessions {
    calls: mpsc::Sender<Call>,
    status: Arc<Mutex<Status>>,
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

    fn status(&self) -> Answer<Status> {
        let status = self.status.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Box::pin(async move { Ok(status) })
    }
}
