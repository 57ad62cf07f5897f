//! Writes to the store on a thread of its own, one change after the other: a disk that is slow holds up nobody who
//! answers.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result};
use paceline_proto::{Epoch, NodeId};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tracing::warn;

use super::store::{MeasuredLinks, RowRecord, Store};

/// Changes that wait for the disk: a few for each placement.
const WAITING: usize = 64;
/// The store is closed within this time, or left as it is: it survives that as it survives a lost process.
const CLOSE: Duration = Duration::from_secs(5);

/// What comes of a change that is not written.
const FORGOTTEN: &str = "after a restart the layers may be placed anew, and drained nodes be used again";

/// The thread, as the rest of the program sees it.
#[derive(Debug, Clone)]
pub(crate) struct Keeper(mpsc::Sender<Change>);

#[derive(Debug)]
enum Change {
    Epoch(Epoch, oneshot::Sender<Result<()>>),
    Row(Box<RowRecord>, MeasuredLinks),
    Drained(BTreeSet<NodeId>),
    Forget(Epoch),
    Close(oneshot::Sender<()>),
}

impl Keeper {
    /// Starts the thread.
    pub(crate) fn start(store: Store) -> Result<Self> {
        let (changes, queue) = mpsc::channel(WAITING);
        let thread = std::thread::Builder::new().name("store".to_owned());
        thread.spawn(move || keep(store, queue)).context("cannot start the store's thread")?;
        Ok(Self(changes))
    }

    /// Keeps an epoch; to be waited for before anybody is told of it.
    pub(crate) fn epoch(&self, epoch: Epoch) -> impl Future<Output = Result<()>> + use<> {
        let (kept, written) = oneshot::channel();
        let sent = self.0.try_send(Change::Epoch(epoch, kept));
        async move {
            sent.ok().context("the store does not keep up")?;
            written.await.context("the store is closed")?
        }
    }

    /// Keeps the row that is in force now.
    pub(crate) fn row(&self, row: RowRecord, links: MeasuredLinks) {
        self.note(Change::Row(Box::new(row), links));
    }

    /// Keeps who is drained.
    pub(crate) fn drained(&self, nodes: BTreeSet<NodeId>) {
        self.note(Change::Drained(nodes));
    }

    /// Forgets the row of this epoch.
    pub(crate) fn forget(&self, epoch: Epoch) {
        self.note(Change::Forget(epoch));
    }

    fn note(&self, change: Change) {
        if self.0.try_send(change).is_err() {
            warn!("the store does not keep up: {FORGOTTEN}");
        }
    }

    /// Waits until everything is written, and closes the store.
    pub(crate) async fn close(&self) {
        let (closed, done) = oneshot::channel();
        let closing = async {
            if self.0.send(Change::Close(closed)).await.is_ok() {
                // An error means that the thread is gone, and the store closed.
                let _ = done.await;
            }
        };
        if timeout(CLOSE, closing).await.is_err() {
            warn!("the store was not closed within {} s", CLOSE.as_secs());
        }
    }
}

fn keep(store: Store, mut queue: mpsc::Receiver<Change>) {
    while let Some(change) = queue.blocking_recv() {
        let written = match change {
            Change::Epoch(epoch, kept) => {
                // Whoever asked may have given the row up meanwhile.
                let _ = kept.send(store.keep_epoch(epoch));
                Ok(())
            }
            Change::Row(row, links) => store.keep_row(&row, &links),
            Change::Drained(nodes) => store.keep_drained(&nodes),
            Change::Forget(epoch) => store.forget_row(epoch),
            Change::Close(closed) => {
                drop(store);
                let _ = closed.send(());
                return;
            }
        };
        if let Err(error) = written {
            warn!("{FORGOTTEN}: {error:#}");
        }
    }
}
