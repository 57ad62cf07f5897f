//! A process's data endpoint: other nodes make links to it and fetch pieces of models from it.
//!
//! Over the network it speaks QUIC, and both sides show a certificate of the cluster's authority; over its Unix socket
//! it speaks to processes of the same user alone. A link must also be expected: both ends have its key from the
//! coordinator. Everybody else is refused with one line in the log.

mod expected;
mod greeting;
mod probe;
mod quic;
mod unix;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_proto::NodeId;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::expected::ExpectedLinks;
pub use self::expected::Pending;
pub(crate) use self::greeting::greet;
pub use self::quic::SOCKET_BYTES;
pub(crate) use self::unix::connect as unix_connection;
use crate::complaints::Complaints;
use crate::hello::{Hello, Purpose};
use crate::identity::Identity;
use crate::memories::{self, Gives, Giving, MemoryReader, MemorySource, MoveKey};
use crate::pieces::{PieceClient, PieceServer, PieceSource};
use crate::remote::{QuicLink, Terms, UnixLink, Writing};
use crate::{Carrier, Error, Expected, LinkKey, LinkReport, LinkSender, LinkSettings, Result, Route, Target};

/// A connection that wants something must say what within this time.
const HELLO_DEADLINE: Duration = Duration::from_secs(5);
/// A link must be made and measured within this time.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);
/// Connections that have not yet said what they want.
const HALF_OPEN: usize = 64;
/// Connections that fetch pieces.
const FETCHERS: usize = 64;
/// Connections that take memories, or wait until they may.
const TAKERS: usize = 64;
/// How long closing waits for frames that are still to be written.
const DRAIN: Duration = Duration::from_secs(3);

/// A process's data endpoint. Clones are the same endpoint; the last one that is dropped stops it from accepting.
#[derive(Debug, Clone)]
pub struct Endpoint(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    quic: quinn::Endpoint,
    client: quinn::ClientConfig,
    udp: SocketAddr,
    unix: Option<PathBuf>,
    accepting: Mutex<JoinSet<()>>,
    /// Ends when nobody writes any more.
    writers: tokio::sync::Mutex<mpsc::Receiver<()>>,
    writing: Mutex<Option<Writing>>,
}

/// What the tasks that greet strangers work with.
#[derive(Debug)]
struct Shared {
    node: NodeId,
    expected: Arc<ExpectedLinks>,
    pieces: Arc<PieceServer>,
    complaints: Complaints,
    half_open: Arc<Semaphore>,
    fetchers: Arc<Semaphore>,
    gives: Gives,
    takers: Arc<Semaphore>,
}

impl Endpoint {
    /// Listens on a UDP address (port 0 for any) and, if asked, on a Unix socket that only this user may use. Must be
    /// called on a tokio runtime.
    ///
    /// # Errors
    /// [`System`](Error::System) when a socket cannot be had, [`Certificate`](Error::Certificate) when the identity
    /// cannot be used.
    pub async fn bind(identity: Identity, udp: SocketAddr, unix: Option<&Path>) -> Result<Self> {
        let quic = quic::bind(&identity, udp)?;
        let udp = quic.local_addr().map_err(|error| Error::system("the address of the UDP socket", error))?;
        let shared = Arc::new(Shared::new(identity.node()));
        let mut accepting = JoinSet::new();
        accepting.spawn(quic::accept(quic.clone(), shared.clone()));
        if let Some(path) = unix {
            let listener = unix::bind(path).await?;
            accepting.spawn(unix::accept(listener, shared.clone()));
        }
        let (writing, writers) = mpsc::channel(1);
        Ok(Self(Arc::new(Inner {
            shared,
            quic,
            client: quic::client(&identity)?,
            udp,
            unix: unix.map(Path::to_owned),
            accepting: Mutex::new(accepting),
            writers: tokio::sync::Mutex::new(writers),
            writing: Mutex::new(Some(writing)),
        })))
    }

    /// Whose it is.
    pub fn node(&self) -> NodeId {
        self.0.shared.node
    }

    /// Where it listens, with the real port.
    pub fn udp_address(&self) -> SocketAddr {
        self.0.udp
    }

    /// Its Unix socket.
    pub fn unix_path(&self) -> Option<&Path> {
        self.0.unix.as_deref()
    }

    /// Lets one link in, from now until [`Pending`] is dropped. It may arrive before anyone waits for it.
    pub fn expect(&self, expected: Expected) -> Pending {
        self.0.shared.expected.add(expected)
    }

    /// Makes a link to an endpoint that expects it, and measures it before the first frame.
    ///
    /// # Errors
    /// [`Connection`](Error::Connection), [`Refused`](Error::Refused) when the link is not expected there,
    /// [`Timeout`](Error::Timeout) after ten seconds, [`Settings`](Error::Settings) for impossible settings.
    pub async fn connect(&self, to: &Target, key: LinkKey, settings: LinkSettings) -> Result<(LinkSender, LinkReport)> {
        settings.check()?;
        let made = timeout(CONNECT_DEADLINE, self.make(to, key, settings)).await;
        made.map_err(|_| Error::Timeout { what: format!("the link to {to}"), after: CONNECT_DEADLINE })?
    }

    async fn make(&self, to: &Target, key: LinkKey, settings: LinkSettings) -> Result<(LinkSender, LinkReport)> {
        let writing = self.0.writing.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Error::Closed)?;
        let terms = Terms::new(&key, settings);
        let hello = self.hello(to, Purpose::Link(key, settings));
        match &to.route {
            Route::Quic(address) => {
                let mut link = self.quic_stream(to, *address, &hello).await?;
                let report = probe::measure(&mut link.receive, &mut link.send, Carrier::Quic).await?;
                Ok((link.into_sender(&terms, writing), report))
            }
            Route::Unix(path) => {
                let mut stream = unix::connect(to, path).await?;
                let (mut receive, mut send) = stream.split();
                greet(&mut receive, &mut send, &hello).await?;
                let report = probe::measure(&mut receive, &mut send, Carrier::Unix).await?;
                Ok((UnixLink::new(stream)?.into_sender(&terms, writing)?, report))
            }
        }
    }

    /// A stream to an endpoint that has taken the greeting.
    async fn quic_stream(&self, to: &Target, address: SocketAddr, hello: &Hello) -> Result<QuicLink> {
        let connection = self.quic_connection(to, address).await?;
        let (mut send, mut receive) = connection.open_bi().await.map_err(|error| Error::connection(to, error))?;
        greet(&mut receive, &mut send, hello).await.map_err(|error| quic::why(&connection, error))?;
        Ok(QuicLink { connection, send, receive })
    }

    /// Gives pieces of models to nodes that ask; before this is called, every request is told that there are none.
    pub fn serve_pieces(&self, source: Arc<dyn PieceSource>) {
        self.0.shared.pieces.serve(source);
    }

    /// Connects to an endpoint to fetch pieces from it.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub async fn piece_client(&self, to: &Target) -> Result<PieceClient> {
        let hello = self.hello(to, Purpose::Pieces);
        let made = timeout(CONNECT_DEADLINE, async {
            match &to.route {
                Route::Quic(address) => Ok(PieceClient::quic(self.quic_stream(to, *address, &hello).await?.connection)),
                Route::Unix(path) => PieceClient::unix(to.clone(), path.clone(), hello).await,
            }
        });
        let late = |_| Error::Timeout { what: format!("the connection to {to}"), after: CONNECT_DEADLINE };
        made.await.map_err(late)?
    }

    /// Gives a stage's memories to whoever shows the key, until the answer is dropped.
    pub fn give(&self, key: MoveKey, source: Arc<dyn MemorySource>) -> Giving {
        self.0.shared.gives.add(key, source)
    }

    /// Asks an endpoint for memories of a stage. They come through the reader while the transfer lives; to be read
    /// where it may block.
    ///
    /// # Errors
    /// As [`connect`](Self::connect). What goes wrong later is told by the reader.
    pub async fn take(&self, to: &Target, key: MoveKey, request: &[u8]) -> Result<(MemoryReader, JoinSet<()>)> {
        let hello = self.hello(to, Purpose::Memories(key));
        let asked = timeout(CONNECT_DEADLINE, async {
            match &to.route {
                Route::Quic(address) => {
                    let QuicLink { send, receive, .. } = self.quic_stream(to, *address, &hello).await?;
                    memories::ask(receive, send, request).await
                }
                Route::Unix(path) => {
                    let (mut receive, mut send) = unix::connect(to, path).await?.into_split();
                    greet(&mut receive, &mut send, &hello).await?;
                    memories::ask(receive, send, request).await
                }
            }
        });
        let late = |_| Error::Timeout { what: format!("asking {to} for memories"), after: CONNECT_DEADLINE };
        asked.await.map_err(late)?
    }

    /// Stops accepting, lets links whose senders are dropped write what they hold (for three seconds), and closes
    /// every QUIC connection.
    pub async fn close(&self) {
        self.0.stop_accepting();
        self.0.writing.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = timeout(DRAIN, async { self.0.writers.lock().await.recv().await }).await;
        self.0.quic.close(quinn::VarInt::from_u32(0), b"closing");
        let _ = timeout(DRAIN, self.0.quic.wait_idle()).await;
    }

    fn hello(&self, to: &Target, purpose: Purpose) -> Hello {
        Hello { from: self.0.shared.node, to: to.node, purpose }
    }

    async fn quic_connection(&self, to: &Target, address: SocketAddr) -> Result<quinn::Connection> {
        let name = crate::identity::node_name(to.node);
        let connecting = self.0.quic.connect_with(self.0.client.clone(), address, &name);
        let connecting = connecting.map_err(|error| Error::connection(to, error))?;
        connecting.await.map_err(|error| Error::connection(to, error))
    }
}

impl Inner {
    fn stop_accepting(&self) {
        self.accepting.lock().unwrap_or_else(PoisonError::into_inner).abort_all();
        if let Some(path) = &self.unix {
            // Another process may have cleaned up already.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.stop_accepting();
    }
}

impl Shared {
    fn new(node: NodeId) -> Self {
        Self {
            node,
            expected: Arc::default(),
            pieces: Arc::default(),
            complaints: Complaints::new(),
            half_open: Arc::new(Semaphore::new(HALF_OPEN)),
            fetchers: Arc::new(Semaphore::new(FETCHERS)),
            gives: Gives::default(),
            takers: Arc::new(Semaphore::new(TAKERS)),
        }
    }
}
