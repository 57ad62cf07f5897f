//! A link over a Unix socket: blocking reads and writes, one thread in each direction.

use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use paceline_proto::frame::HEADER_BYTES;
use socket2::SockRef;

use super::inbox::Inbox;
use super::outgoing::{Queue, Waiting, Wire};
use super::{LinkReceiver, LinkSender, Terms, Writing};
use crate::{Error, Result};

/// Bytes of a message that has begun must go on coming, or going, within this time.
const STALL: Duration = Duration::from_secs(60);

/// A connected socket, after the greeting.
#[derive(Debug)]
pub(crate) struct UnixLink(Arc<UnixStream>);

impl UnixLink {
    /// Takes over a socket that asynchronous code has greeted on.
    pub(crate) fn new(stream: tokio::net::UnixStream) -> Result<Self> {
        let blocking = |stream: tokio::net::UnixStream| {
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            stream.set_read_timeout(Some(STALL))?;
            stream.set_write_timeout(Some(STALL))?;
            Ok(stream)
        };
        let stream = blocking(stream).map_err(|error: io::Error| Error::system("a Unix socket", error))?;
        Ok(Self(Arc::new(stream)))
    }

    pub(crate) fn into_sender(self, terms: &Terms, writing: Writing) -> Result<LinkSender> {
        let &Terms { epoch, link, settings, .. } = terms;
        let (queue, waiting) = Queue::new(settings.frames, Arc::new(UnixWire(self.0.clone())));
        spawn(format!("link {link} writer"), move || {
            if let Err(error) = write(waiting, &self.0) {
                tracing::debug!(link, %epoch, %error, "the link is closed");
            }
            close(&self.0);
            drop(writing);
        })?;
        Ok(LinkSender::new(queue, settings))
    }

    pub(crate) fn into_receiver(self, terms: Terms) -> LinkReceiver {
        LinkReceiver::new(super::Source::Unix(Source { stream: self.0, started: false }), terms)
    }
}

#[derive(Debug)]
struct UnixWire(Arc<UnixStream>);

impl Wire for UnixWire {
    fn write_now(&self, parts: &[Bytes; 2]) -> Result<usize> {
        let slices = [IoSlice::new(&parts[0]), IoSlice::new(&parts[1])];
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        match SockRef::from(&*self.0).send_vectored_with_flags(&slices, flags) {
            Ok(written) => Ok(written),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(0),
            Err(_) => Err(Error::Closed),
        }
    }
}

fn write(mut waiting: Waiting, mut stream: &UnixStream) -> io::Result<()> {
    while let Some(outgoing) = waiting.messages.blocking_recv() {
        for part in outgoing.packed() {
            stream.write_all(&part)?;
        }
        waiting.written();
    }
    Ok(())
}

/// The receiving end before and while it is read.
#[derive(Debug)]
pub(crate) struct Source {
    stream: Arc<UnixStream>,
    started: bool,
}

impl Source {
    pub(super) fn read_into(&mut self, inbox: Inbox) -> Result<()> {
        if std::mem::replace(&mut self.started, true) {
            return Err(Error::Closed);
        }
        let stream = self.stream.clone();
        spawn(format!("link {} reader", inbox.terms.link), move || {
            let result = read(&stream, &inbox);
            inbox.end(result);
            close(&stream);
        })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        close(&self.stream);
    }
}

/// Reads messages until the sender has closed its end.
fn read(stream: &UnixStream, inbox: &Inbox) -> Result<()> {
    let mut header = [0; HEADER_BYTES];
    while fill(stream, &mut header, false)? {
        let mut message = vec![0; HEADER_BYTES + inbox.announced(&header)?];
        let (head, body) = message.split_at_mut(HEADER_BYTES);
        head.copy_from_slice(&header);
        fill(stream, body, true)?;
        inbox.deliver(&message.into())?;
    }
    Ok(())
}

/// Reads exactly so many bytes; false if the stream ends before the first of a message.
fn fill(mut stream: &UnixStream, buffer: &mut [u8], mut begun: bool) -> Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match stream.read(&mut buffer[filled..]) {
            Ok(0) if begun => return Err(Error::Closed),
            Ok(0) => return Ok(false),
            Ok(count) => (filled, begun) = (filled + count, true),
            Err(error) if error.kind() == ErrorKind::Interrupted => (),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                // Nothing has begun: stages are idle for as long as nobody asks anything.
                if begun {
                    return Err(Error::Timeout { what: "the rest of a frame".into(), after: STALL });
                }
            }
            Err(_) => return Err(Error::Closed),
        }
    }
    Ok(true)
}

fn close(stream: &UnixStream) {
    // It fails only if the other end has closed it already.
    let _ = stream.shutdown(Shutdown::Both);
}

fn spawn(name: String, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name(name).spawn(work);
    spawned.map(drop).map_err(|error| Error::system("a thread for a link", error))
}
