//! Several answers at once, each on its own session, as one stream of what happens.

use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use paceline_coordinator::{Engine, Error, Finished, Generate, Generation, Reuse, TokenUpdate, Update};

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
}

impl Answers {
    /// Starts a session for each request; the answers are numbered in this order.
    pub(crate) fn start(engine: &Engine, requests: Vec<Generate>) -> Self {
        let streams = requests.into_iter().enumerate().map(|(index, request)| {
            let life = Life::Waiting(engine.clone(), Box::new(request));
            stream::unfold(life, Life::advance).map(move |progress| (index, progress)).boxed()
        });
        Self { streams: stream::select_all(streams) }
    }

    /// The next thing that happens, and to which answer; `None` once all are complete or failed.
    pub(crate) async fn next(&mut self) -> Option<(usize, Progress)> {
        self.streams.next().await
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
                Err(error) => (Progress::Failed(error), Self::Over),
            }),
            Self::Running(mut generation) => Some(match generation.updates.recv().await {
                Some(Update::Token(update)) => (Progress::Token(update), Self::Running(generation)),
                Some(Update::Finished(finished)) => (Progress::Finished(finished), Self::Over),
                Some(Update::Failed(error)) => (Progress::Failed(error), Self::Over),
                None => (Progress::Failed(broken_off()), Self::Over),
            }),
            Self::Over => None,
        }
    }
}

/// A session that says nothing more, not even why.
fn broken_off() -> Error {
    Error::Lost { reason: "the session ended without a word".to_owned() }
}
