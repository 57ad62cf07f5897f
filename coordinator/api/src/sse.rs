//! Answers as server-sent events.
//!
//! A task of its own writes the events of an answer into a short channel that is the body of the response. It ends,
//! and with it the sessions, as soon as the body is gone: the connection is watched for its end even while nothing
//! is written (see `server.rs`). A client that stays but reads nothing is given up after a while.

use std::convert::Infallible;
use std::time::Duration;

use actix_web::HttpResponse;
use actix_web::http::header;
use actix_web::rt::spawn;
use bytes::Bytes;
use futures_util::StreamExt;
use paceline_coordinator::{Finished, Reuse, TokenUpdate};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{Instrument, Span, debug, warn};

use crate::answers::{Answers, Progress};
use crate::config::ApiConfig;
use crate::error::{Error, Result};
use crate::reuse;

/// Events written ahead of the socket: enough that the writer need not wait for each, few enough that a slow reader
/// is felt at once.
const EVENTS_AHEAD: usize = 8;

/// How one API tells an answer in events.
pub(crate) trait EventWriter: 'static {
    /// Before anything else; so much of the prompt was known.
    fn start(&mut self, reuse: Reuse, events: &mut Events);
    /// A choice is one token longer.
    fn token(&mut self, choice: usize, update: &TokenUpdate, events: &mut Events);
    /// A choice is complete.
    fn finished(&mut self, choice: usize, finished: &Finished, events: &mut Events);
    /// All choices are complete.
    fn end(&mut self, events: &mut Events);
    /// The answer breaks off. Nothing follows.
    fn failed(&mut self, error: &Error, events: &mut Events) {
        events.data(&error.body());
    }
}

/// Events on their way to the client, as text.
#[derive(Debug, Default)]
pub(crate) struct Events {
    text: Vec<u8>,
}

impl Events {
    /// Appends an event with JSON in it.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.text.extend_from_slice(b"data: ");
        serde_json::to_writer(&mut self.text, value).expect("our own structures have text keys and write to memory");
        self.text.extend_from_slice(b"\n\n");
    }

    /// Appends an event with a name, and JSON in it.
    pub(crate) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.text.extend_from_slice(b"event: ");
        self.text.extend_from_slice(name.as_bytes());
        self.text.push(b'\n');
        self.data(value);
    }

    /// Appends the event that ends a stream of the OpenAI API.
    pub(crate) fn done(&mut self) {
        self.text.extend_from_slice(b"data: [DONE]\n\n");
    }

    /// Appends a line that clients skip.
    fn comment(&mut self) {
        self.text.extend_from_slice(b": still here\n\n");
    }
}

/// Waits until the first answer is admitted, so that a refusal is a proper response; then streams.
pub(crate) async fn respond(
    mut answers: Answers,
    writer: impl EventWriter,
    config: &ApiConfig,
) -> Result<HttpResponse> {
    let reuse = match answers.next().await {
        Some((_, Progress::Failed(error))) => return Err(error),
        Some((_, Progress::Admitted(reuse))) => reuse,
        // An answer is admitted before anything else happens to it.
        _ => Reuse::default(),
    };
    let (sender, receiver) = mpsc::channel(EVENTS_AHEAD);
    let telling = Telling { answers, writer, reuse, sender: sender.clone(), limits: Limits::new(config) };
    spawn(tell_until_closed(telling, sender).instrument(Span::current()));
    Ok(reuse::tell(HttpResponse::Ok(), reuse)
        .content_type("text/event-stream")
        .insert_header((header::CACHE_CONTROL, "no-cache"))
        // Asks proxies of the nginx kind not to collect the events.
        .insert_header(("x-accel-buffering", "no"))
        .streaming(ReceiverStream::new(receiver).map(Ok::<_, Infallible>)))
}

struct Limits {
    comment_interval: Duration,
    stall: Duration,
}

impl Limits {
    fn new(config: &ApiConfig) -> Self {
        Self { comment_interval: config.comment_interval, stall: config.stall_timeout }
    }
}

async fn tell_until_closed<W: EventWriter>(telling: Telling<W>, sender: mpsc::Sender<Bytes>) {
    tokio::select! {
        biased;
        () = sender.closed() => debug!("the client left"),
        told = telling.tell() => match told {
            Ok(()) => {}
            Err(Stalled) => warn!("the client reads nothing, its answer is given up"),
        },
    }
}

/// The client did not take an event in time.
struct Stalled;

/// A stream of events being written.
struct Telling<W> {
    answers: Answers,
    writer: W,
    reuse: Reuse,
    sender: mpsc::Sender<Bytes>,
    limits: Limits,
}

impl<W: EventWriter> Telling<W> {
    async fn tell(mut self) -> std::result::Result<(), Stalled> {
        let mut events = Events::default();
        self.writer.start(self.reuse, &mut events);
        self.send(events).await?;
        loop {
            let mut events = Events::default();
            let next = timeout(self.limits.comment_interval, self.answers.next()).await;
            let over = match next {
                Err(_) => {
                    events.comment();
                    false
                }
                Ok(progress) => self.write(progress, &mut events),
            };
            self.send(events).await?;
            if over {
                return Ok(());
            }
        }
    }

    /// Writes what happened; true if nothing follows.
    fn write(&mut self, progress: Option<(usize, Progress)>, events: &mut Events) -> bool {
        match progress {
            Some((_, Progress::Admitted(_))) => false,
            Some((choice, Progress::Token(update))) => {
                self.writer.token(choice, &update, events);
                false
            }
            Some((choice, Progress::Finished(finished))) => {
                self.writer.finished(choice, &finished, events);
                false
            }
            Some((_, Progress::Failed(error))) => {
                warn!(%error, "the answer broke off");
                self.writer.failed(&error, events);
                true
            }
            None => {
                self.writer.end(events);
                true
            }
        }
    }

    async fn send(&self, events: Events) -> std::result::Result<(), Stalled> {
        if events.text.is_empty() {
            return Ok(());
        }
        self.sender.send_timeout(Bytes::from(events.text), self.limits.stall).await.map_err(|_| Stalled)
    }
}
