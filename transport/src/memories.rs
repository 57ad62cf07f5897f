//! Taking what a stage of another node remembers, and giving it.
//!
//! Both ends have the secret of the move from the coordinator. After the greeting the taker sends a request, and the
//! giver answers in parts: a length and as many bytes, again and again; then a length of 0, or a sign that there is no
//! more and the reason. An answer without such an end is none. What the bytes mean is for others to know.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::Epoch;
use subtle::ConstantTimeEq;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::{Error, Result};

/// The most bytes of a request: the numbers of some million pages.
const REQUEST_LIMIT: u32 = 16 << 20;
/// Bytes of a part, and the most parts that wait at either end.
const PART: usize = 256 << 10;
const PARTS: usize = 8;
/// In place of a length: what follows is the reason why there is no more.
const FAILED: u32 = u32::MAX;
const REASON_LIMIT: u32 = 4 << 10;
/// Something must move within this time.
const STALL: Duration = Duration::from_secs(10);
/// A taker may be told of a move earlier than the giver, by so much.
const GIVE: Duration = Duration::from_secs(5);

/// What giver and taker have from the coordinator, and nobody else.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MoveKey {
    /// The placement whose memories are taken.
    pub epoch: Epoch,
    /// Known to the nodes of the move and the coordinator only.
    pub secret: [u8; 16],
}

impl fmt::Debug for MoveKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "MoveKey(epoch {}, ..)", self.epoch)
    }
}

impl MoveKey {
    fn is(&self, other: &Self) -> bool {
        self.epoch == other.epoch && bool::from(self.secret.ct_eq(&other.secret))
    }
}

/// Who has memories.
pub trait MemorySource: Send + Sync {
    /// Writes what is asked for. Called where it may block.
    ///
    /// # Errors
    /// Why there is no more, in words for the one who asked.
    fn give(&self, request: &[u8], to: &mut dyn Write) -> std::result::Result<(), String>;
}

/// All moves in which this endpoint gives.
#[derive(Clone)]
pub(crate) struct Gives(watch::Sender<Table>);

#[derive(Default)]
struct Table {
    next: u64,
    gives: BTreeMap<u64, (MoveKey, Arc<dyn MemorySource>)>,
}

impl Default for Gives {
    fn default() -> Self {
        Self(watch::Sender::new(Table::default()))
    }
}

impl fmt::Debug for Gives {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Gives")
    }
}

/// Memories that may be taken. Dropping it withdraws the permission; what is under way is still given.
#[derive(Debug)]
#[must_use = "memories are given only as long as this lives"]
pub struct Giving {
    gives: Gives,
    id: u64,
}

impl Drop for Giving {
    fn drop(&mut self) {
        self.gives.0.send_if_modified(|table| table.gives.remove(&self.id).is_some());
    }
}

impl Gives {
    pub(crate) fn add(&self, key: MoveKey, source: Arc<dyn MemorySource>) -> Giving {
        let mut id = 0;
        self.0.send_modify(|table| {
            (id, table.next) = (table.next, table.next + 1);
            table.gives.insert(id, (key, source));
        });
        Giving { gives: self.clone(), id }
    }

    /// The source of a move, which may be told of in a moment.
    pub(crate) async fn find(&self, key: &MoveKey) -> Option<Arc<dyn MemorySource>> {
        let find =
            |table: &Table| table.gives.values().find(|(known, _)| known.is(key)).map(|(_, source)| source.clone());
        let mut tables = self.0.subscribe();
        let found = timeout(GIVE, tables.wait_for(|table| find(table).is_some())).await;
        found.ok()?.ok().and_then(|table| find(&table))
    }
}

/// Hears one request, and answers it.
pub(crate) async fn answer(
    source: Arc<dyn MemorySource>,
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
) -> Result<()> {
    let request = read_request(receive).await?;
    let (mut writer, mut reader) = pipe();
    let giving = tokio::task::spawn_blocking(move || {
        let given = source.give(&request, &mut writer);
        writer.end(given);
    });
    while let Some(part) = reader.parts.recv().await {
        if write_part(send, part).await? {
            return moving("the end of memories that are given", send.shutdown()).await;
        }
    }
    // The source has panicked.
    drop(giving);
    write_part(send, Part::Failed("the stage's memories could not be read".to_owned())).await?;
    moving("the end of memories that are given", send.shutdown()).await
}

async fn read_request(receive: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>> {
    let what = "a request for memories";
    let length = moving(what, receive.read_u32_le()).await?;
    if length > REQUEST_LIMIT {
        return Err(Error::greeting(format!("a request for memories of {length} bytes, the limit is {REQUEST_LIMIT}")));
    }
    read_bytes(what, receive, length as usize).await
}

/// Reads bytes that were announced; they are allocated only as they come.
async fn read_bytes(what: &'static str, receive: &mut (impl AsyncRead + Unpin), length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        let at = bytes.len();
        bytes.resize(at + PART.min(length - at), 0);
        moving(what, receive.read_exact(&mut bytes[at..])).await?;
    }
    Ok(bytes)
}

/// Sends a part, and says whether it was the last.
async fn write_part(send: &mut (impl AsyncWrite + Unpin), part: Part) -> Result<bool> {
    let what = "memories that are given";
    let (last, head, bytes) = match part {
        Part::Bytes(bytes) => (false, (bytes.len() as u32).to_le_bytes().to_vec(), bytes),
        Part::End => (true, 0_u32.to_le_bytes().to_vec(), Vec::new()),
        Part::Failed(mut reason) => {
            reason.truncate(reason.floor_char_boundary(REASON_LIMIT as usize));
            (true, [FAILED.to_le_bytes(), (reason.len() as u32).to_le_bytes()].concat(), reason.into_bytes())
        }
    };
    moving(what, send.write_all(&head)).await?;
    moving(what, send.write_all(&bytes)).await?;
    Ok(last)
}

/// Sends a request; what comes of it is read from the reader while the transfer lives.
pub(crate) async fn ask<R, W>(mut receive: R, mut send: W, request: &[u8]) -> Result<(MemoryReader, JoinSet<()>)>
where
    R: AsyncRead + Unpin + Send + 'static,
    W: AsyncWrite + Unpin + Send + 'static,
{
    let length = u32::try_from(request.len()).ok().filter(|length| *length <= REQUEST_LIMIT);
    let too_long = || Error::greeting(format!("a request for memories of {} bytes is too long", request.len()));
    let length = length.ok_or_else(too_long)?;
    let what = "a request for memories";
    moving(what, send.write_all(&length.to_le_bytes())).await?;
    moving(what, send.write_all(request)).await?;
    moving(what, send.flush()).await?;
    let (writer, reader) = pipe();
    let mut transfer = JoinSet::new();
    transfer.spawn(async move {
        loop {
            let part = read_part(&mut receive).await.unwrap_or_else(|error| Part::Failed(error.to_string()));
            let last = !matches!(part, Part::Bytes(_));
            if writer.parts.send(part).await.is_err() || last {
                // The sending half keeps the connection open.
                drop(send);
                return;
            }
        }
    });
    Ok((reader, transfer))
}

async fn read_part(receive: &mut (impl AsyncRead + Unpin)) -> Result<Part> {
    let what = "memories that are taken";
    match moving(what, receive.read_u32_le()).await? {
        0 => Ok(Part::End),
        FAILED => {
            let length = moving(what, receive.read_u32_le()).await?;
            let reason = read_bytes(what, receive, length.min(REASON_LIMIT) as usize).await?;
            Ok(Part::Failed(String::from_utf8_lossy(&reason).into_owned()))
        }
        length if length as usize > PART => Ok(Part::Failed(format!("a part of {length} bytes, the limit is {PART}"))),
        length => Ok(Part::Bytes(read_bytes(what, receive, length as usize).await?)),
    }
}

/// Something that must not stand still.
async fn moving<T, E>(what: &'static str, work: impl Future<Output = std::result::Result<T, E>>) -> Result<T> {
    let late = |_| Error::Timeout { what: what.into(), after: STALL };
    timeout(STALL, work).await.map_err(late)?.map_err(|_| Error::Closed)
}

enum Part {
    Bytes(Vec<u8>),
    End,
    Failed(String),
}

/// A way for memories inside this process, as [`Endpoint::take`](crate::Endpoint::take) is one between two: a bounded
/// number of bytes is under way, and each end waits for the other where it may block.
pub fn pipe() -> (MemoryWriter, MemoryReader) {
    let (sender, receiver) = mpsc::channel(PARTS);
    (
        MemoryWriter { parts: sender, part: Vec::new() },
        MemoryReader { parts: receiver, part: io::Cursor::default(), ended: false },
    )
}

/// The giver's end. What is written counts only after [`end`](Self::end).
pub struct MemoryWriter {
    parts: mpsc::Sender<Part>,
    part: Vec<u8>,
}

impl MemoryWriter {
    /// There is no more, or why there is none.
    pub fn end(mut self, given: std::result::Result<(), String>) {
        let end = match given.and_then(|()| self.flush().map_err(|error| error.to_string())) {
            Ok(()) => Part::End,
            Err(reason) => Part::Failed(reason),
        };
        // Whoever wanted it may have left.
        let _ = self.parts.blocking_send(end);
    }
}

impl Write for MemoryWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(PART - self.part.len());
        self.part.extend_from_slice(&bytes[..count]);
        if self.part.len() == PART {
            self.flush()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.part.is_empty() {
            return Ok(());
        }
        let part = std::mem::replace(&mut self.part, Vec::with_capacity(PART));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "nobody takes the memories any more");
        self.parts.blocking_send(Part::Bytes(part)).map_err(gone)
    }
}

/// The taker's end; it has ended when nothing more is read.
pub struct MemoryReader {
    parts: mpsc::Receiver<Part>,
    part: io::Cursor<Vec<u8>>,
    ended: bool,
}

impl Read for MemoryReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        loop {
            let count = Read::read(&mut self.part, into)?;
            if count > 0 || self.ended {
                return Ok(count);
            }
            match self.parts.blocking_recv() {
                Some(Part::Bytes(part)) => self.part = io::Cursor::new(part),
                Some(Part::End) => self.ended = true,
                Some(Part::Failed(reason)) => return Err(io::Error::other(reason)),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the giver is gone")),
            }
        }
    }
}
