//! Responses that are kept, shared by all requests, and put where they outlive the process if there is such a place.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::warn;

use super::not_found;
use super::store::{Record, ResponseLimits, ResponseShelf, StoredResponses};
use crate::error::{Error, Result};

/// What is kept, for all requests.
pub(crate) struct Kept {
    store: Mutex<StoredResponses>,
    shelf: Option<Arc<dyn ResponseShelf>>,
}

impl Kept {
    /// With what the shelf has of an earlier process.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn open(limits: ResponseLimits, shelf: Option<Arc<dyn ResponseShelf>>) -> io::Result<Self> {
        let kept = Self { store: Mutex::new(StoredResponses::new(limits)), shelf };
        let Some(shelf) = &kept.shelf else { return Ok(kept) };
        let mut records = Vec::new();
        for (name, bytes) in shelf.load()? {
            match serde_json::from_slice::<Record>(&bytes) {
                Ok(record) => records.push((Arc::new(record), bytes.len())),
                Err(error) => {
                    warn!(name, %error, "a response that was kept cannot be read, it is removed");
                    shelf.remove(&name)?;
                }
            }
        }
        records.sort_by_key(|(record, _)| record.kept_at);
        for (record, bytes) in records {
            for name in kept.store().put(record, bytes, now()) {
                shelf.remove(&name)?;
            }
        }
        Ok(kept)
    }

    /// A response of this owner.
    pub(crate) fn get(&self, id: &str, owner: &str) -> Result<Arc<Record>> {
        self.store().get(id, owner, now()).ok_or_else(|| not_found(id))
    }

    /// Keeps a response; others can go on from it at once. What is then left to be done waits for a disk.
    pub(crate) fn put(&self, mut record: Record) -> Option<Placing> {
        record.kept_at = now();
        let bytes = match serde_json::to_vec(&record) {
            Ok(bytes) => bytes,
            Err(error) => {
                warn!(%error, "a response cannot be kept");
                return None;
            }
        };
        let id = record.id.clone();
        let gone = self.store().put(Arc::new(record), bytes.len(), now());
        Some(Placing { shelf: Arc::clone(self.shelf.as_ref()?), id, bytes, gone })
    }

    /// Forgets a response of this owner. Waits for a disk if there is a shelf.
    pub(crate) fn remove(&self, id: &str, owner: &str) -> Result<()> {
        if !self.store().remove(id, owner, now()) {
            return Err(not_found(id));
        }
        let Some(shelf) = &self.shelf else { return Ok(()) };
        shelf.remove(id).map_err(|error| Error::Internal(format!("the response cannot be removed: {error}")))
    }

    /// No change of it can be left half done by a panic.
    fn store(&self) -> MutexGuard<'_, StoredResponses> {
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response on its way to the shelf, and those that had to go for it.
pub(crate) struct Placing {
    shelf: Arc<dyn ResponseShelf>,
    id: String,
    bytes: Vec<u8>,
    gone: Vec<String>,
}

impl Placing {
    /// Waits for a disk.
    pub(crate) fn carry_out(self) {
        let Self { shelf, id, bytes, gone } = self;
        let put = if gone.contains(&id) { Ok(()) } else { shelf.put(&id, &bytes) };
        let removed: io::Result<()> = gone.iter().filter(|name| **name != id).try_for_each(|name| shelf.remove(name));
        if let Err(error) = put.and(removed) {
            warn!(id, %error, "responses are kept in memory only: the store cannot be written");
        }
    }
}

/// Seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
