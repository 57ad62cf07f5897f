//! What waits to be written, and the way around waiting.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, Bytes};
use paceline_proto::Activations;
use tokio::sync::mpsc;

use crate::{Error, Result};

/// Up to this size a message is handed to the system by the thread that sends it: that takes less time than waking
/// the writer does.
const AT_ONCE: usize = 64 << 10;

/// A message whose rows are not yet packed.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) head: Bytes,
    pub(super) rows: Bytes,
    pub(super) width: u32,
    pub(super) activations: Activations,
}

impl Outgoing {
    /// Bytes on the wire.
    pub(super) fn bytes(&self) -> usize {
        self.head.len() + self.activations.packed_bytes(self.width, self.rows.len())
    }

    /// The bytes to write, in order.
    pub(super) fn packed(self) -> [Bytes; 2] {
        [self.head, self.activations.pack(self.width, &self.rows)]
    }

    /// What is left after some bytes were written.
    fn rest(parts: [Bytes; 2], mut written: usize) -> Self {
        let [mut head, mut rows] = parts;
        let of_head = written.min(head.len());
        head.advance(of_head);
        written -= of_head;
        rows.advance(written.min(rows.len()));
        Self { head, rows, width: 0, activations: Activations::F32 }
    }
}

/// Where bytes go that can be written without waiting.
pub(super) trait Wire: Send + Sync + std::fmt::Debug {
    /// Writes as many bytes as can be written now.
    fn write_now(&self, parts: &[Bytes; 2]) -> Result<usize>;
}

/// A bounded queue in front of a link's writer.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    sender: mpsc::Sender<Outgoing>,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    wire: Arc<dyn Wire>,
    /// Messages in the queue or in the writer's hands.
    waiting: Arc<AtomicUsize>,
    turn: Mutex<()>,
}

/// The writer's side of the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) messages: mpsc::Receiver<Outgoing>,
    count: Arc<AtomicUsize>,
}

impl Queue {
    pub(super) fn new(frames: usize, wire: Arc<dyn Wire>) -> (Self, Waiting) {
        let (sender, messages) = mpsc::channel(frames);
        let count = Arc::new(AtomicUsize::new(0));
        let shared = Shared { wire, waiting: count.clone(), turn: Mutex::new(()) };
        (Self { sender, shared: Arc::new(shared) }, Waiting { messages, count })
    }

    /// Writes the message at once or queues it.
    pub(super) fn send(&self, outgoing: Outgoing) -> Result<()> {
        let _turn = self.shared.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = self.shared.waiting.load(Ordering::Acquire) == 0;
        if !idle || outgoing.bytes() > AT_ONCE || self.sender.is_closed() {
            return self.queue(outgoing);
        }
        let parts = outgoing.packed();
        let written = self.shared.wire.write_now(&parts)?;
        if written == parts[0].len() + parts[1].len() {
            return Ok(());
        }
        self.queue(Outgoing::rest(parts, written))
    }

    fn queue(&self, outgoing: Outgoing) -> Result<()> {
        self.shared.waiting.fetch_add(1, Ordering::AcqRel);
        self.sender.try_send(outgoing).map_err(|error| {
            self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            match error {
                mpsc::error::TrySendError::Full(_) => Error::Full { frames: self.sender.max_capacity() },
                mpsc::error::TrySendError::Closed(_) => Error::Closed,
            }
        })
    }
}

impl Waiting {
    /// The message that was taken last is written.
    pub(super) fn written(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
    }
}
