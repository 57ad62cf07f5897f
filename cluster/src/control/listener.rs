//! Takes in connections to the control plane. Whoever does not complete a TLS handshake as a newcomer with a live token
//! or as a node of the cluster gets no answer but the end of the connection, and one line in the log.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
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

/// Connections at once: far more than a cluster has nodes.
const CONNECTIONS: usize = 512;
/// Handshakes at once, of all and of one address: strangers who keep many open do not keep others out.
const HANDSHAKES: usize = 256;
const HANDSHAKES_OF_ONE: usize = 16;
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
    let door = Door { acceptor, trust, places: Arc::new(Semaphore::new(CONNECTIONS)), shaking: Shaking::default() };
    let mut refusals = Refusals::default();
    let (refused, mut said) = mpsc::channel::<(SocketAddr, String)>(BACKLOG);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, remote)) => match door.shaking.begin(remote.ip()) {
                    Some(begun) => {
                        let (door, connections, refused) = (door.clone(), connections.clone(), refused.clone());
                        tokio::spawn(async move {
                            let shaken = door.shake_hands(stream, remote).await;
                            drop(begun);
                            match shaken {
                                // An error means that the server is going down.
                                Ok(connection) => drop(connections.send(Ok(connection)).await),
                                Err(reason) => drop(refused.try_send((remote, reason))),
                            }
                        });
                    }
                    None => refusals.tell(remote, "too many handshakes are under way"),
                },
                Err(error) => {
                    // Out of file descriptors, most likely: others must end before more can come.
                    warn!(%error, "a connection to the control plane could not be taken");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some((remote, reason)) = said.recv() => refusals.tell(remote, &reason),
            () = connections.closed() => return,
        }
    }
}

/// What every handshake needs.
#[derive(Clone)]
struct Door {
    acceptor: TlsAcceptor,
    trust: Arc<dyn Trust>,
    places: Arc<Semaphore>,
    shaking: Shaking,
}

impl Door {
    async fn shake_hands(&self, stream: TcpStream, remote: SocketAddr) -> Result<Connection, String> {
        let local = stream.local_addr().map_err(|error| error.to_string())?;
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let shaken = timeout(HANDSHAKE, self.acceptor.accept(stream)).await;
        let shaken = shaken.map_err(|_| "it did not say who it is in time".to_owned())?;
        let stream = shaken.map_err(|error| error.to_string())?;
        let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let peer = peer_of(certificates, self.trust.as_ref()).map_err(|error| error.to_string())?;
        let place = Arc::clone(&self.places).try_acquire_owned();
        let place = place.map_err(|_| format!("there are {CONNECTIONS} connections already"))?;
        Ok(Connection { stream, caller: Caller { peer, local, remote }, _place: place })
    }
}

/// Handshakes under way, by address.
#[derive(Clone, Default)]
struct Shaking(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// A handshake under way.
struct Begun {
    shaking: Shaking,
    address: IpAddr,
}

impl Shaking {
    fn begin(&self, address: IpAddr) -> Option<Begun> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let own = counts.get(&address).copied().unwrap_or(0);
        if own >= HANDSHAKES_OF_ONE || counts.values().sum::<usize>() >= HANDSHAKES {
            return None;
        }
        counts.insert(address, own + 1);
        Some(Begun { shaking: self.clone(), address })
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let mut counts = self.shaking.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = counts.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                counts.remove(&self.address);
            }
        }
    }
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn one_address_cannot_take_all_handshakes() {
        let shaking = Shaking::default();
        let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
        let mut begun: Vec<Begun> = (0..HANDSHAKES_OF_ONE).map_while(|_| shaking.begin(address(1))).collect();
        assert_eq!(begun.len(), HANDSHAKES_OF_ONE);
        assert!(shaking.begin(address(1)).is_none());
        assert!(shaking.begin(address(2)).is_some());
        begun.pop();
        assert!(shaking.begin(address(1)).is_some());
        drop(begun);
        assert!(shaking.0.lock().expect("not poisoned").is_empty());
    }
}
