//! Responses that are kept, so that others can go on from them. Bounded in number, bytes and time; the oldest go first.
//! Pure: the time is told, in seconds since 1970, because what is kept may outlive the process.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A response with what is needed to go on from it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// Its id.
    pub(crate) id: String,
    /// Whose it is: other keys do not find it.
    pub(crate) owner: String,
    /// When it was kept, in seconds since 1970.
    pub(crate) kept_at: u64,
    /// As it was told.
    pub(crate) response: Value,
    /// The items of the request.
    pub(crate) input: Vec<Value>,
    /// The whole conversation, its answer included.
    pub(crate) messages: Vec<Value>,
}

/// How much is kept, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResponseLimits {
    /// The most responses. Default: 4096.
    pub count: usize,
    /// The most bytes of all together, as JSON. Default: 256 MiB.
    pub bytes: usize,
    /// How long a response is kept. Default: 30 days, as the OpenAI API does.
    pub life: Duration,
}

impl Default for ResponseLimits {
    fn default() -> Self {
        Self { count: 4096, bytes: 256 << 20, life: Duration::from_secs(30 * 24 * 3600) }
    }
}

/// Somewhere that outlives the process. Called from threads that may wait.
pub trait ResponseShelf: Send + Sync {
    /// Everything that was put there, by name.
    ///
    /// # Errors
    /// When it cannot be read.
    fn load(&self) -> std::io::Result<Vec<(String, Vec<u8>)>>;
    /// Puts something there.
    ///
    /// # Errors
    /// When it cannot be written.
    fn put(&self, name: &str, bytes: &[u8]) -> std::io::Result<()>;
    /// Takes something away; nothing happens if it is not there.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn remove(&self, name: &str) -> std::io::Result<()>;
}

/// What is kept.
#[derive(Debug)]
pub(crate) struct StoredResponses {
    limits: ResponseLimits,
    entries: HashMap<String, Entry>,
    /// Names in the order in which they came; may hold names that were removed.
    order: VecDeque<String>,
    bytes: usize,
}

#[derive(Debug)]
struct Entry {
    record: Arc<Record>,
    bytes: usize,
}

impl StoredResponses {
    pub(crate) fn new(limits: ResponseLimits) -> Self {
        Self { limits, entries: HashMap::new(), order: VecDeque::new(), bytes: 0 }
    }

    /// A response, if it is there, this owner's, and not too old.
    pub(crate) fn get(&self, id: &str, owner: &str, now: u64) -> Option<Arc<Record>> {
        let entry = self.entries.get(id)?;
        (entry.record.owner == owner && !self.is_over(&entry.record, now)).then(|| Arc::clone(&entry.record))
    }

    /// Keeps a response of so many bytes. Says which had to go for it; it may be itself.
    pub(crate) fn put(&mut self, record: Arc<Record>, bytes: usize, now: u64) -> Vec<String> {
        let id = record.id.clone();
        self.take_out(&id);
        self.bytes += bytes;
        self.order.push_back(id.clone());
        self.entries.insert(id, Entry { record, bytes });
        self.make_room(now)
    }

    /// Forgets a response; whether it was there and this owner's.
    pub(crate) fn remove(&mut self, id: &str, owner: &str, now: u64) -> bool {
        let found = self.get(id, owner, now).is_some();
        if found {
            self.take_out(id);
        }
        found
    }

    fn take_out(&mut self, id: &str) {
        if let Some(entry) = self.entries.remove(id) {
            self.bytes -= entry.bytes;
            self.order.retain(|name| name != id);
        }
    }

    fn make_room(&mut self, now: u64) -> Vec<String> {
        let mut gone = Vec::new();
        while let Some(oldest) = self.order.front() {
            let over = self.entries.get(oldest).is_some_and(|entry| self.is_over(&entry.record, now));
            if !over && self.entries.len() <= self.limits.count && self.bytes <= self.limits.bytes {
                break;
            }
            let oldest = oldest.clone();
            self.take_out(&oldest);
            gone.push(oldest);
        }
        gone
    }

    fn is_over(&self, record: &Record, now: u64) -> bool {
        now.saturating_sub(record.kept_at) >= self.limits.life.as_secs()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(id: &str, kept_at: u64) -> Arc<Record> {
        let (response, input, messages) = (Value::Null, Vec::new(), Vec::new());
        Arc::new(Record { id: id.to_owned(), owner: "me".to_owned(), kept_at, response, input, messages })
    }

    fn store(count: usize, bytes: usize, seconds: u64) -> StoredResponses {
        StoredResponses::new(ResponseLimits { count, bytes, life: Duration::from_secs(seconds) })
    }

    #[test]
    fn the_oldest_go_when_there_are_too_many() {
        let mut store = store(2, 100, 1000);
        assert!(store.put(record("a", 1), 10, 1).is_empty());
        assert!(store.put(record("b", 2), 10, 2).is_empty());
        assert_eq!(store.put(record("c", 3), 10, 3), ["a"]);
        assert!(store.get("a", "me", 3).is_none() && store.get("b", "me", 3).is_some());
    }

    #[test]
    fn bytes_are_bounded_and_given_back() {
        let mut store = store(9, 100, 1000);
        store.put(record("a", 1), 60, 1);
        assert!(store.remove("a", "me", 1));
        assert!(store.put(record("b", 1), 60, 1).is_empty());
        assert_eq!(store.put(record("c", 1), 60, 1), ["b"]);
        assert_eq!(store.put(record("d", 1), 101, 1), ["c", "d"], "one that never fits is not kept");
        assert_eq!(store.bytes, 0);
        store.put(record("e", 1), 60, 1);
        store.put(record("e", 2), 70, 2);
        assert_eq!((store.bytes, store.order.len()), (70, 1));
    }

    #[test]
    fn what_is_too_old_is_not_found_and_goes() {
        let mut store = store(9, 100, 10);
        store.put(record("a", 1), 1, 1);
        assert!(store.get("a", "me", 10).is_some());
        assert!(store.get("a", "me", 11).is_none());
        assert_eq!(store.put(record("b", 11), 1, 11), ["a"]);
    }

    #[test]
    fn nobody_finds_what_belongs_to_others() {
        let mut store = store(9, 100, 10);
        store.put(record("a", 1), 1, 1);
        assert!(store.get("a", "you", 1).is_none());
        assert!(!store.remove("a", "you", 1));
        assert!(store.remove("a", "me", 1));
        assert!(!store.remove("a", "me", 1));
    }
}
