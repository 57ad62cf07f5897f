//! Takes in connections to the control plane. Whoever does not complete a TLS handshake as a newcomer with a live token
//! or as a node of the cluster gets no answer but the end of the connection, and one line in the log.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use paceline_transport::identity::{Peer, Trust, peer_of};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tracing::warn;

use super::HANDSHAKE;

/// Connections at once, handshakes included: far more than a cluster has nodes.
const CONNECTIONS: usize = 512;
/// Handshakes that wait to be served.
const BACKLOG: usize = 16;
/// After a refusal this many lines are written in each such time; more are counted.
const LINES: u32 = 20;
const LINES_EVERY: Duration = Duration::from_secs(10);

/// Who is at the other end of a connection, and at which address of ours.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) peer: Peer,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
}

/// A connection whose other end is known.
pub(crate) struct Connection {
    stream: TlsStream<TcpStream>,
    caller: Caller,
    _place: OwnedSemaphorePermit,
}

/// Accepts connections until the receiver is gone.
pub(crate) async fn accept(
    listener: TcpListener,
    acceptor: TlsAcceptor,
    trust: Arc<dyn Trust>,
    connections: mpsc::Sender<std::io::Result<Connection>>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let mut refusals = Refusals::default();
    let (refused, mut said) = mpsc::channel::<(SocketAddr, String)>(BACKLOG);
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some((remote, reason)) = said.recv() => {
                refusals.tell(remote, &reason);
                continue;
            }
            () = connections.closed() => return,
        };
        match accepted {
            Ok((stream, remote)) => {
                let (acceptor, trust) = (acceptor.clone(), Arc::clone(&trust));
                let (connections, refused) = (connections.clone(), refused.clone());
                tokio::spawn(async move {
                    match shake_hands(stream, remote, &acceptor, trust.as_ref(), place).await {
                        // An error means that the server is going down.
                        Ok(connection) => drop(connections.send(Ok(connection)).await),
                        Err(reason) => drop(refused.try_send((remote, reason))),
                    }
                });
            }
            Err(error) => {
                // Out of file descriptors, most likely: others must end before more can come.
                warn!(%error, "a connection to the control plane could not be taken");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn shake_hands(
    stream: TcpStream,
    remote: SocketAddr,
    acceptor: &TlsAcceptor,
    trust: &dyn Trust,
    place: OwnedSemaphorePermit,
) -> Result<Connection, String> {
    let local = stream.local_addr().map_err(|error| error.to_string())?;
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let shaken = timeout(HANDSHAKE, acceptor.accept(stream)).await;
    let stream = shaken.map_err(|_| "it did not say who it is in time".to_owned())?.map_err(|e| e.to_string())?;
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let peer = peer_of(certificates, trust).map_err(|error| error.to_string())?;
    Ok(Connection { stream, caller: Caller { peer, local, remote }, _place: place })
}

/// Writes a line for each refusal, but not more than anyone would read.
#[derive(Debug)]
struct Refusals {
    since: Instant,
    lines: u32,
    unsaid: u64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self { since: Instant::now(), lines: 0, unsaid: 0 }
    }
}

impl Refusals {
    fn tell(&mut self, remote: SocketAddr, reason: &str) {
        if self.since.elapsed() >= LINES_EVERY {
            if self.unsaid > 0 {
                warn!(refusals = self.unsaid, "more strangers were refused at the control plane");
            }
            *self = Self::default();
        }
        if self.lines == LINES {
            self.unsaid += 1;
            return;
        }
        self.lines += 1;
        warn!(%remote, reason, "a stranger was refused at the control plane");
    }
}

impl Connected for Connection {
    type ConnectInfo = Caller;

    fn connect_info(&self) -> Caller {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
