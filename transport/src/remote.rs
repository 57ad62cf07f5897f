//! The two ends of a link between processes, whatever carries it.
//!
//! Sending never waits: a small frame is handed to the system at once when nothing waits before it, else it is queued
//! for the link's writer (a task for QUIC, a thread for a Unix socket). The receiving end has a reader that empties
//! the network into a queue with room for every credit; a sender that ignores its credits loses the link.

mod inbox;
mod outgoing;
mod quic;
mod unix;

use std::sync::{Arc, Mutex, PoisonError};

use crossbeam_channel::{Receiver, Sender};
use paceline_proto::frame::HEADER_BYTES;
use paceline_proto::{Activations, Epoch, Frame, Payload, Reply};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

use self::inbox::{Inbox, Sink};
use self::outgoing::{Outgoing, Queue};
pub(crate) use self::quic::QuicLink;
pub(crate) use self::unix::UnixLink;
use crate::{Error, FrameReceiver, FrameSender, LinkCounters, LinkKey, LinkSettings, ReplySender, Result};

/// What both ends of a link know of it, and where its work runs.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    pub(crate) epoch: Epoch,
    pub(crate) link: u32,
    pub(crate) settings: LinkSettings,
    pub(crate) runtime: Handle,
}

/// Held by every writer as long as it may have something to write; an endpoint that closes waits for all of them.
pub(crate) type Writing = mpsc::Sender<()>;

impl Terms {
    pub(crate) fn new(key: &LinkKey, settings: LinkSettings) -> Self {
        Self { epoch: key.epoch, link: key.link, settings, runtime: Handle::current() }
    }
}

/// Sends frames or replies to another process. Clones share the link; it ends after the last frame of the last clone.
#[derive(Debug, Clone)]
pub struct LinkSender {
    queue: Queue,
    settings: LinkSettings,
    counters: Arc<LinkCounters>,
}

impl LinkSender {
    fn new(queue: Queue, settings: LinkSettings) -> Self {
        Self { queue, settings, counters: Arc::default() }
    }

    /// What went over the link so far.
    pub fn counters(&self) -> Arc<LinkCounters> {
        self.counters.clone()
    }

    fn dispatch(&self, outgoing: Outgoing) -> Result<()> {
        let (bytes, limit) = (outgoing.bytes(), self.settings.frame_bytes);
        let announced = (bytes as u64).saturating_sub(HEADER_BYTES as u64);
        if announced > limit {
            return Err(paceline_proto::Error::TooLarge { announced, limit }.into());
        }
        self.queue.send(outgoing)?;
        self.counters.count(bytes);
        Ok(())
    }
}

impl FrameSender for LinkSender {
    fn send(&mut self, frame: Frame) -> Result<()> {
        let head = frame.encode_head(self.settings.activations);
        let Payload::Host { width, rows } = frame.payload;
        self.dispatch(Outgoing { head, rows, width, activations: self.settings.activations })
    }
}

impl ReplySender for LinkSender {
    fn reply(&mut self, reply: Reply) -> Result<()> {
        let activations = Activations::F32;
        self.dispatch(Outgoing { head: reply.encode(), rows: bytes::Bytes::new(), width: 0, activations })
    }
}

/// Receives frames or replies of another process. Reading begins with the first [`receive`](FrameReceiver::receive)
/// or with [`into_replies`](Self::into_replies); until then the network holds what was sent.
#[derive(Debug)]
pub struct LinkReceiver {
    source: Source,
    terms: Terms,
    frames: Option<Receiver<Result<Frame>>>,
    counters: Arc<LinkCounters>,
    closer: LinkCloser,
    closed: Receiver<()>,
}

/// Ends a link from the receiving side while the stage's thread may be waiting for its next frame.
#[derive(Debug, Clone)]
pub struct LinkCloser(Arc<Mutex<Option<Sender<()>>>>);

impl LinkCloser {
    /// The receiver gets no more frames, not even those that have arrived.
    pub fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

/// Where a link's bytes come from. Dropping it closes the link.
#[derive(Debug)]
pub(crate) enum Source {
    Quic(quic::Source),
    Unix(unix::Source),
}

impl LinkReceiver {
    pub(crate) fn new(source: Source, terms: Terms) -> Self {
        let (open, closed) = crossbeam_channel::bounded(0);
        let closer = LinkCloser(Arc::new(Mutex::new(Some(open))));
        Self { source, terms, frames: None, counters: Arc::default(), closer, closed }
    }

    /// What ends this link, for whoever takes the stage down.
    pub fn closer(&self) -> LinkCloser {
        self.closer.clone()
    }

    /// What went over the link so far.
    pub fn counters(&self) -> Arc<LinkCounters> {
        self.counters.clone()
    }

    /// Makes this the coordinator's end of the way back: up to `replies` wait in the channel.
    pub fn into_replies(mut self, replies: usize) -> mpsc::Receiver<Reply> {
        let (sender, receiver) = mpsc::channel(replies.max(1));
        let (reading, ended) = oneshot::channel::<()>();
        let runtime = self.terms.runtime.clone();
        match self.read_into(Sink::Replies { sender: sender.clone(), _reading: reading }) {
            Ok(()) => {
                // Keeps the link until the replies end or nobody wants them.
                runtime.spawn(async move {
                    tokio::select! { _ = ended => (), () = sender.closed() => () }
                    drop(self.source);
                });
            }
            Err(error) => tracing::warn!(%error, link = self.terms.link, "replies cannot be read"),
        }
        receiver
    }

    fn start(&mut self) -> Result<Receiver<Result<Frame>>> {
        if let Some(frames) = &self.frames {
            return Ok(frames.clone());
        }
        let most = self.terms.settings.frames;
        // One more place, for the error that ends the link.
        let (sender, receiver) = crossbeam_channel::bounded(most + 1);
        self.read_into(Sink::Frames { sender, most })?;
        self.frames = Some(receiver.clone());
        Ok(receiver)
    }

    fn read_into(&mut self, sink: Sink) -> Result<()> {
        let inbox = Inbox { sink, terms: self.terms.clone(), counters: self.counters.clone() };
        match &mut self.source {
            Source::Quic(source) => source.read_into(inbox),
            Source::Unix(source) => source.read_into(inbox),
        }
    }
}

impl FrameReceiver for LinkReceiver {
    fn receive(&mut self) -> Result<Frame> {
        let frames = self.start()?;
        crossbeam_channel::select_biased! {
            recv(self.closed) -> _ => Err(Error::Closed),
            recv(frames) -> frame => frame.map_err(|_| Error::Closed)?,
        }
    }
}
