//! A link over QUIC: one connection, one stream, one task in each direction.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use paceline_proto::frame::HEADER_BYTES;
use quinn::{Connection, ReadExactError, RecvStream, SendStream, VarInt};
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::inbox::Inbox;
use super::outgoing::{Queue, Waiting, Wire};
use super::{LinkReceiver, LinkSender, Terms, Writing};
use crate::{Error, Result};

/// A frame that has begun must be there after this time.
const STALL: Duration = Duration::from_secs(60);
/// The code with which a link's connection ends.
const DONE: VarInt = VarInt::from_u32(0);

/// A connection with its one stream, after the greeting.
#[derive(Debug)]
pub(crate) struct QuicLink {
    pub(crate) connection: Connection,
    pub(crate) send: SendStream,
    pub(crate) receive: RecvStream,
}

impl QuicLink {
    pub(crate) fn into_sender(self, terms: &Terms, writing: Writing) -> LinkSender {
        let Self { connection, send, receive } = self;
        let &Terms { epoch, link, settings, ref runtime } = terms;
        let stream = Arc::new(Mutex::new(send));
        let wire = QuicWire { connection: connection.clone(), stream: stream.clone() };
        let (queue, waiting) = Queue::new(settings.frames, Arc::new(wire));
        runtime.spawn(async move {
            if let Err(error) = write(waiting, &stream, &connection).await {
                tracing::debug!(link, %epoch, %error, "the link is closed");
            }
            drop((receive, writing));
        });
        LinkSender::new(queue, settings)
    }

    pub(crate) fn into_receiver(self, terms: Terms) -> LinkReceiver {
        let stream = Some(self.receive);
        let source = Source { connection: self.connection, stream, runtime: terms.runtime.clone(), _back: self.send };
        LinkReceiver::new(super::Source::Quic(source), terms)
    }
}

#[derive(Debug)]
struct QuicWire {
    connection: Connection,
    stream: Arc<Mutex<SendStream>>,
}

impl Wire for QuicWire {
    fn write_now(&self, parts: &[Bytes; 2]) -> Result<usize> {
        if self.connection.close_reason().is_some() {
            return Err(Error::Closed);
        }
        // The writer holds the stream only while something waits.
        let Ok(mut stream) = self.stream.try_lock() else { return Ok(0) };
        let mut context = Context::from_waker(Waker::noop());
        let mut sum = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match Pin::new(&mut *stream).poll_write(&mut context, part) {
                Poll::Ready(Ok(written)) => sum += written,
                Poll::Ready(Err(_)) => return Err(Error::Closed),
                Poll::Pending => return Ok(sum),
            }
            if sum < parts[0].len() {
                return Ok(sum);
            }
        }
        Ok(sum)
    }
}

/// Writes what waits; after the last message the receiver closes the connection.
async fn write(mut waiting: Waiting, stream: &Mutex<SendStream>, connection: &Connection) -> Result<()> {
    let mut closed = std::pin::pin!(connection.closed());
    loop {
        let next = tokio::select! {
            next = waiting.messages.recv() => next,
            _ = &mut closed => return Err(Error::Closed),
        };
        let Some(outgoing) = next else { break };
        let mut stream = stream.lock().await;
        stream.write_all_chunks(&mut outgoing.packed()).await.map_err(|_| Error::Closed)?;
        drop(stream);
        waiting.written();
    }
    stream.lock().await.finish().map_err(|_| Error::Closed)?;
    // The receiver closes when it has read everything; the idle timeout ends this if it is dead.
    closed.await;
    Ok(())
}

/// The receiving end before and while it is read.
#[derive(Debug)]
pub(crate) struct Source {
    connection: Connection,
    stream: Option<RecvStream>,
    runtime: tokio::runtime::Handle,
    _back: SendStream,
}

impl Source {
    pub(super) fn read_into(&mut self, inbox: Inbox) -> Result<()> {
        let mut stream = self.stream.take().ok_or(Error::Closed)?;
        let connection = self.connection.clone();
        self.runtime.spawn(async move {
            let result = read(&mut stream, &inbox).await;
            inbox.end(result);
            connection.close(DONE, b"done");
        });
        Ok(())
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.connection.close(DONE, b"done");
    }
}

/// Reads messages until the sender has finished.
async fn read(stream: &mut RecvStream, inbox: &Inbox) -> Result<()> {
    loop {
        let mut header = [0; HEADER_BYTES];
        match stream.read_exact(&mut header).await {
            Ok(()) => (),
            Err(ReadExactError::FinishedEarly(0)) => return Ok(()),
            Err(_) => return Err(Error::Closed),
        }
        let mut message = vec![0; HEADER_BYTES + inbox.announced(&header)?];
        let (head, body) = message.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header);
        let whole = timeout(STALL, stream.read_exact(body)).await;
        let late = |_| Error::Timeout { what: "the rest of a frame".into(), after: STALL };
        whole.map_err(late)?.map_err(|_| Error::Closed)?;
        inbox.deliver(&message.into())?;
    }
}
