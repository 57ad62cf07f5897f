//! Fetching pieces of models from another node's endpoint, and giving them; and parts of what it keeps of prompts.
//!
//! A request is 36 bytes: the hash of the model or the key of what is kept, and the piece's number. The answer is a status, a length, and the piece or
//! the reason why not. Over QUIC every request is a stream of one connection, over a Unix socket a connection of its
//! own, so that requests never wait for each other and may be given up at any time.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::Bytes;
use quinn::Connection;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::endpoint::{greet, unix_connection};
use crate::hello::Hello;
use crate::{Error, Result, Target};

/// The most bytes of a piece.
pub const PIECE_LIMIT: u64 = 256 << 20;
const REASON_LIMIT: u64 = 4 << 10;
/// Reads of the source at one time.
const READS: usize = 4;
/// Requests of one client under way; more than these wait.
const REQUESTS: usize = 8;
/// Something must move within this time; a piece that is read from a slow disk counts.
const STALL: Duration = Duration::from_secs(60);
const PART: usize = 256 << 10;
const REQUEST_BYTES: usize = 36;
const GIVEN: u8 = 0;
const NOT_GIVEN: u8 = 1;

/// Which piece of what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PieceRequest {
    /// The hash of a model, or the key of what a disk tier keeps.
    pub of: [u8; 32],
    /// The piece's number.
    pub piece: u32,
}

impl PieceRequest {
    fn encode(&self) -> [u8; REQUEST_BYTES] {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..32].copy_from_slice(&self.of);
        bytes[32..].copy_from_slice(&self.piece.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; REQUEST_BYTES]) -> Self {
        let (mut of, mut piece) = ([0; 32], [0; 4]);
        of.copy_from_slice(&bytes[..32]);
        piece.copy_from_slice(&bytes[32..]);
        Self { of, piece: u32::from_le_bytes(piece) }
    }
}

/// Who has pieces.
pub trait PieceSource: Send + Sync {
    /// The bytes of a piece, at most [`PIECE_LIMIT`]. Called where it may block.
    ///
    /// # Errors
    /// Why there are none, in words for the one who asked.
    fn read(&self, request: &PieceRequest) -> std::result::Result<Vec<u8>, String>;
}

/// Answers requests, a bounded number at once.
pub(crate) struct PieceServer {
    source: RwLock<Option<Arc<dyn PieceSource>>>,
    reads: Semaphore,
}

impl Default for PieceServer {
    fn default() -> Self {
        Self { source: RwLock::new(None), reads: Semaphore::new(READS) }
    }
}

impl std::fmt::Debug for PieceServer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("PieceServer")
    }
}

impl PieceServer {
    pub(crate) fn serve(&self, source: Arc<dyn PieceSource>) {
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    /// Answers every stream of a connection until it closes.
    pub(crate) async fn answer_quic(self: &Arc<Self>, connection: &Connection) {
        let mut answers = JoinSet::new();
        loop {
            tokio::select! {
                streams = connection.accept_bi() => {
                    let Ok((mut send, mut receive)) = streams else { return };
                    let server = self.clone();
                    answers.spawn(async move {
                        if let Err(error) = server.answer(&mut receive, &mut send).await {
                            tracing::debug!(%error, "a request for a piece was not answered");
                        }
                    });
                }
                Some(_) = answers.join_next() => (),
            }
        }
    }

    /// Answers one request.
    pub(crate) async fn answer(
        &self,
        receive: &mut (impl AsyncRead + Unpin),
        send: &mut (impl AsyncWrite + Unpin),
    ) -> Result<()> {
        let mut bytes = [0; REQUEST_BYTES];
        moving(receive.read_exact(&mut bytes)).await?;
        let piece = self.read(PieceRequest::decode(&bytes)).await;
        let (status, bytes) = match piece {
            Ok(bytes) => (GIVEN, bytes),
            Err(mut reason) => {
                reason.truncate(reason.floor_char_boundary(REASON_LIMIT as usize));
                (NOT_GIVEN, reason.into_bytes())
            }
        };
        let mut head = [status; 9];
        head[1..].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        moving(send.write_all(&head)).await?;
        for part in bytes.chunks(PART) {
            moving(send.write_all(part)).await?;
        }
        moving(send.shutdown()).await
    }

    async fn read(&self, request: PieceRequest) -> std::result::Result<Vec<u8>, String> {
        let source = self.source.read().unwrap_or_else(PoisonError::into_inner).clone();
        let source = source.ok_or("this node gives no pieces")?;
        let _turn = self.reads.acquire().await.map_err(|_| "this node is closing")?;
        let read = tokio::task::spawn_blocking(move || source.read(&request)).await;
        let bytes = read.map_err(|_| "reading the piece failed")??;
        if bytes.len() as u64 > PIECE_LIMIT {
            return Err(format!("it has {} bytes, the limit is {PIECE_LIMIT}", bytes.len()));
        }
        Ok(bytes)
    }
}

/// Fetches pieces from another node. It may be used by many at once; more requests than a few wait for their turn.
#[derive(Debug)]
pub struct PieceClient {
    carrier: Carrier,
    turns: Semaphore,
}

#[derive(Debug)]
enum Carrier {
    Quic(Connection),
    Unix { to: Target, path: PathBuf, hello: Hello },
}

impl PieceClient {
    pub(crate) fn quic(connection: Connection) -> Self {
        Self { carrier: Carrier::Quic(connection), turns: Semaphore::new(REQUESTS) }
    }

    /// Finds out whether the other side is there before the first request is.
    pub(crate) async fn unix(to: Target, path: PathBuf, hello: Hello) -> Result<Self> {
        drop(greeted(&to, &path, &hello).await?);
        Ok(Self { carrier: Carrier::Unix { to, path, hello }, turns: Semaphore::new(REQUESTS) })
    }

    /// Fetches a piece. What it should be is for the caller to check.
    ///
    /// # Errors
    /// [`Piece`](Error::Piece) when the other node does not give it, [`Closed`](Error::Closed) or
    /// [`Connection`](Error::Connection) when the other node is gone, [`Timeout`](Error::Timeout) when nothing has
    /// moved for a minute.
    pub async fn fetch(&self, request: PieceRequest) -> Result<Bytes> {
        let _turn = self.turns.acquire().await.map_err(|_| Error::Closed)?;
        match &self.carrier {
            Carrier::Quic(connection) => {
                let (mut send, mut receive) = moving(connection.open_bi()).await?;
                fetch(&mut receive, &mut send, request).await
            }
            Carrier::Unix { to, path, hello } => {
                let mut stream = greeted(to, path, hello).await?;
                let (mut receive, mut send) = stream.split();
                fetch(&mut receive, &mut send, request).await
            }
        }
    }
}

impl Drop for PieceClient {
    fn drop(&mut self) {
        if let Carrier::Quic(connection) = &self.carrier {
            connection.close(quinn::VarInt::from_u32(0), b"done");
        }
    }
}

async fn greeted(to: &Target, path: &Path, hello: &Hello) -> Result<UnixStream> {
    let mut stream = unix_connection(to, path).await?;
    let (mut receive, mut send) = stream.split();
    let late = |_| Error::Timeout { what: format!("the greeting of {to}"), after: STALL };
    timeout(STALL, greet(&mut receive, &mut send, hello)).await.map_err(late)??;
    Ok(stream)
}

async fn fetch(
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
    request: PieceRequest,
) -> Result<Bytes> {
    moving(send.write_all(&request.encode())).await?;
    let mut head = [0; 9];
    moving(receive.read_exact(&mut head)).await?;
    let [status, length @ ..] = head;
    let (length, limit) = (u64::from_le_bytes(length), if status == GIVEN { PIECE_LIMIT } else { REASON_LIMIT });
    let refuse = |reason: String| Error::Piece { piece: request.piece, reason };
    if length > limit {
        return Err(refuse(format!("the other node announces {length} bytes, the limit is {limit}")));
    }
    // What is announced is allocated only as it comes.
    let mut bytes = Vec::new();
    while bytes.len() < length as usize {
        let at = bytes.len();
        bytes.resize(at + PART.min(length as usize - at), 0);
        moving(receive.read_exact(&mut bytes[at..])).await?;
    }
    match status {
        GIVEN => Ok(bytes.into()),
        NOT_GIVEN => Err(refuse(String::from_utf8_lossy(&bytes).into_owned())),
        _ => Err(refuse(format!("the other node answers with status {status}"))),
    }
}

/// Something that must not stand still.
async fn moving<T, E>(work: impl Future<Output = std::result::Result<T, E>>) -> Result<T> {
    let late = |_| Error::Timeout { what: "a piece that does not move on".into(), after: STALL };
    timeout(STALL, work).await.map_err(late)?.map_err(|_| Error::Closed)
}
