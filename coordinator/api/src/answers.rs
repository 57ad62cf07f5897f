//! Several answers at once, each on its own session, as one stream of what happens.

use std::any::Any;
use std::sync::Arc;

use actix_web::HttpRequest;
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use paceline_coordinator::{Engine, Error as EngineError, Finished, Generate, Generation, Reuse, TokenUpdate, Update};
use tokio::time::{Instant, timeout_at};

use crate::caller::{Account, Permit};
use crate::error::{Error, Result};
use crate::server::Api;

/// What happened to one of the answers.
#[derive(Debug)]
pub(crate) enum Progress {
    /// Its session runs, and so much of its prompt was known.
    Admitted(Reuse),
    /// It is one token longer.
    Token(TokenUpdate),
    /// It is complete.
    Finished(Finished),
    /// It will never be complete.
    Failed(Error),
}

/// Answers on their way. Dropping them cancels all sessions, admitted or waiting.
///
/// An answer's tokens are taken while others still wait to be admitted: with fewer places than answers, the last are
/// admitted only when the first are read to their end.
pub(crate) struct Answers {
    streams: SelectAll<BoxStream<'static, (usize, Progress)>>,
    permit: Permit,
    deadline: Instant,
    /// The same as the time that a request may take.
    seconds: u64,
    /// Keeps the model loaded.
    _held: Arc<dyn Any + Send + Sync>,
}

impl Answers {
    /// Starts a session for each of the requests that came in one, if who sent it may have them. The answers are numbered
    /// in this order.
    ///
    /// # Errors
    /// When the key's limits are reached.
    pub(crate) fn start(api: &Api, request: &HttpRequest, requests: Vec<Generate>) -> Result<Self> {
        let prompt_tokens = requests.iter().map(|request| request.prompt.len()).sum();
        let permit = Account::of(request).open(requests.len(), prompt_tokens)?;
        let streams = requests.into_iter().enumerate().map(|(index, request)| {
            let life = Life::Waiting(api.engine.clone(), Box::new(request));
            stream::unfold(life, Life::advance).map(move |progress| (index, progress)).boxed()
        });
        let limit = api.config.request_deadline;
        let (deadline, seconds) = (Instant::now() + limit, limit.as_secs());
        Ok(Self { streams: stream::select_all(streams), permit, deadline, seconds, _held: Arc::clone(&api.held) })
    }

    /// The next thing that happens, and to which answer; `None` once all are complete or failed.
    pub(crate) async fn next(&mut self) -> Option<(usize, Progress)> {
        match timeout_at(self.deadline, self.streams.next()).await {
            Ok(progress) => {
                if let Some((_, Progress::Token(_))) = progress {
                    self.permit.token();
                }
                progress
            }
            Err(_) => Some((0, Progress::Failed(Error::Deadline { seconds: self.seconds }))),
        }
    }
}

impl Answers {
    /// What is wrong when answers end before they are complete.
    pub(crate) fn without_end() -> Error {
        broken_off()
    }
}

/// The life of one answer.
enum Life {
    Waiting(Engine, Box<Generate>),
    Running(Generation),
    Over,
}

impl Life {
    async fn advance(self) -> Option<(Progress, Self)> {
        match self {
            Self::Waiting(engine, request) => Some(match engine.generate(*request).await {
                Ok(generation) => (Progress::Admitted(generation.reuse), Self::Running(generation)),
                Err(error) => (Progress::Failed(error.into()), Self::Over),
            }),
            Self::Running(mut generation) => Some(match generation.updates.recv().await {
                Some(Update::Token(update)) => (Progress::Token(update), Self::Running(generation)),
                Some(Update::Finished(finished)) => (Progress::Finished(finished), Self::Over),
                Some(Update::Failed(error)) => (Progress::Failed(error.into()), Self::Over),
                None => (Progress::Failed(broken_off()), Self::Over),
            }),
            Self::Over => None,
        }
    }
}

/// A session that says nothing more, not even why.
fn broken_off() -> Error {
    EngineError::Lost { reason: "the session ended without a word".to_owned() }.into()
}
