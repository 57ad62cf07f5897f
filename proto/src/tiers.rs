//! What the coordinator asks of the lower tier of every stage, and what each of them answers.
//!
//! None of it rides the step stream, since disks are slow. The coordinator holds the pages and the slot of a
//! [`TierTask::Keep`] unchanged until every stage has answered, and sends the step with
//! [`Operation::Install`](crate::Operation::Install) when every stage has staged what it is to install.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::entries::{Entry, EntryKey};
use crate::{Error, PageId, Result, Slot};

/// The most entries that an answer lists.
pub const LISTED: usize = 64;
/// The most entries of a path that is fetched.
pub const FETCHED: usize = 1 << 13;

/// Names an order, and its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Ticket(pub u64);

/// What a stage's lower tier is to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierOrder {
    /// Comes back in the answer.
    pub ticket: Ticket,
    /// What.
    pub task: TierTask,
}

/// The task of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierTask {
    /// Copies an entry out of the stage's memories, and keeps it.
    Keep {
        /// Which tokens.
        entry: Entry,
        /// The pages with the entry's tokens, from the page of its first to that of its last.
        pages: Vec<PageId>,
        /// Where the state behind its last token is, if that is to be kept as well.
        state: Option<Slot>,
    },
    /// Reads entries and holds them ready to be installed under this ticket.
    Fetch {
        /// Each the child of the one before.
        path: Vec<EntryKey>,
        /// With the state behind the last one's last token.
        state: bool,
    },
    /// Drops what is staged under this ticket. Not answered.
    Drop,
    /// Lists entries of which everything that this stage needs is kept.
    List {
        /// Under this root.
        root: EntryKey,
        /// With keys after this one.
        after: Option<EntryKey>,
    },
    /// Counts.
    Count,
    /// Forgets all entries of texts that begin with these tokens, and those before them that nothing else follows.
    Forget {
        /// Under this root.
        root: EntryKey,
        /// One at least.
        tokens: Vec<u32>,
    },
}

/// What a stage's lower tier answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierAnswer {
    /// The order's.
    pub ticket: Ticket,
    /// What came of it.
    pub outcome: TierOutcome,
}

/// What came of an order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierOutcome {
    /// The entry is on the disk.
    Kept {
        /// Entries that made room, for it or since the last answer of this kind: they are kept no longer.
        evicted: Vec<EntryKey>,
    },
    /// The entries are in memory, and may be installed.
    Staged {
        /// How much that is.
        bytes: u64,
    },
    /// Some entries that are kept.
    Listed {
        /// Which.
        entries: Vec<KeptEntry>,
        /// Where to go on; there are no more without it.
        next: Option<EntryKey>,
    },
    /// What there is, and what has happened.
    Counted(TierCounts),
    /// These entries were there, and are no longer.
    Forgotten(Vec<EntryKey>),
    /// Nothing was done; the service goes on without.
    Refused(TierRefusal),
}

/// An entry of which a stage has all pages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptEntry {
    /// Which.
    pub entry: Entry,
    /// And the state behind its last token.
    pub state: bool,
}

/// Why an order was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum TierRefusal {
    /// Other orders wait already, as many as may.
    Busy,
    /// The disk's budget, or that of memory for staging, has no room.
    NoRoom,
    /// Something of this entry is not kept, or is not what was kept.
    Missing(EntryKey),
    /// The disk or the stage could not do it.
    Failed(String),
}

impl fmt::Display for TierRefusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => formatter.write_str("too many orders wait already"),
            Self::NoRoom => formatter.write_str("the budget has no room for it"),
            Self::Missing(key) => write!(formatter, "entry {key} is not kept"),
            Self::Failed(reason) => formatter.write_str(reason),
        }
    }
}

/// What a lower tier has, and what it has done since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TierCounts {
    /// Entries that are kept.
    pub entries: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that may be taken.
    pub budget: u64,
    /// Bytes that were kept.
    pub kept_bytes: u64,
    /// Bytes that were read, and found to be what was kept.
    pub read_bytes: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Entries that were dropped because their bytes were not what was kept.
    pub refused: u64,
    /// Orders that were refused because too many waited.
    pub skipped: u64,
}

/// What a node has of an entry, for other nodes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldEntry {
    /// Which.
    pub entry: Entry,
    /// By form, which layers.
    pub layers: Vec<(String, Vec<u32>)>,
}

impl HeldEntry {
    /// Some of them as bytes.
    pub fn encode(held: &[Self]) -> Vec<u8> {
        postcard::to_stdvec(held).expect("entries hold nothing that cannot be written")
    }

    /// Reads some of them.
    ///
    /// # Errors
    /// [`Error::Tier`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Vec<Self>> {
        decode(bytes)
    }
}

/// A layer of an entry, for another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLayer {
    /// How its bytes are to be understood.
    pub form: String,
    /// What a stage remembers there.
    pub bytes: Vec<u8>,
}

impl HeldLayer {
    /// The layer as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("layers hold nothing that cannot be written")
    }

    /// Reads a layer.
    ///
    /// # Errors
    /// [`Error::Tier`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        decode(bytes)
    }
}

impl TierOrder {
    /// The order as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("orders hold nothing that cannot be written")
    }

    /// Reads an order.
    ///
    /// # Errors
    /// [`Error::Tier`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let order: Self = decode(bytes)?;
        match &order.task {
            TierTask::Keep { entry, .. } if entry.end().is_none() => Err(unreadable("an entry that cannot be")),
            TierTask::Fetch { path, .. } if path.is_empty() || path.len() > FETCHED => {
                Err(unreadable("a path without entries, or with too many"))
            }
            _ => Ok(order),
        }
    }
}

impl TierAnswer {
    /// The answer as bytes.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).expect("answers hold nothing that cannot be written")
    }

    /// Reads an answer.
    ///
    /// # Errors
    /// [`Error::Tier`]; bytes from outside never panic.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let answer: Self = decode(bytes)?;
        match &answer.outcome {
            TierOutcome::Listed { entries, .. }
                if entries.len() > LISTED || entries.iter().any(|kept| kept.entry.end().is_none()) =>
            {
                Err(unreadable("entries that cannot be, or too many"))
            }
            _ => Ok(answer),
        }
    }
}

fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T> {
    match postcard::take_from_bytes(bytes) {
        Ok((value, [])) => Ok(value),
        Ok((_, rest)) => Err(unreadable(format!("{} bytes are left over", rest.len()))),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

fn unreadable(reason: impl Into<String>) -> Error {
    Error::Tier { reason: reason.into() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn entry(tokens: Vec<u32>) -> Entry {
        let root = EntryKey([1; 32]);
        Entry { root, parent: root, start: 0, tokens }
    }

    fn keep(tokens: Vec<u32>) -> TierOrder {
        let task = TierTask::Keep { entry: entry(tokens), pages: vec![PageId(3)], state: Some(Slot(2)) };
        TierOrder { ticket: Ticket(7), task }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(tokens in proptest::collection::vec(any::<u32>(), 1..40), state: bool) {
            let order = keep(tokens.clone());
            prop_assert_eq!(TierOrder::decode(&order.encode()), Ok(order));
            let entries = vec![KeptEntry { entry: entry(tokens), state }];
            let outcome = TierOutcome::Listed { entries, next: state.then_some(EntryKey([3; 32])) };
            let answer = TierAnswer { ticket: Ticket(9), outcome };
            prop_assert_eq!(TierAnswer::decode(&answer.encode()), Ok(answer));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, cut in 1usize..20, more: u8) {
            let _ = TierOrder::decode(&bytes);
            let _ = TierAnswer::decode(&bytes);
            let mut order = keep(vec![1, 2, 3]).encode();
            prop_assert!(TierOrder::decode(&order[..order.len() - cut]).is_err());
            order.push(more);
            prop_assert!(TierOrder::decode(&order).is_err());
        }
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let fetch = |count| TierTask::Fetch { path: vec![EntryKey([0; 32]); count], state: false };
        for task in [fetch(0), fetch(FETCHED + 1), keep(vec![]).task] {
            let order = TierOrder { ticket: Ticket(1), task };
            assert!(matches!(TierOrder::decode(&order.encode()), Err(Error::Tier { .. })));
        }
        let kept = KeptEntry { entry: entry(vec![1]), state: false };
        let outcome = TierOutcome::Listed { entries: vec![kept; LISTED + 1], next: None };
        let answer = TierAnswer { ticket: Ticket(1), outcome };
        assert!(matches!(TierAnswer::decode(&answer.encode()), Err(Error::Tier { .. })));
    }
}
