//! Which entries are kept, how many bytes that is, and which of them goes first: in memory, without files.
//!
//! An entry is of use only together with those before it, so only a *leaf* goes: an entry behind which nothing is kept.
//! Among leaves the one of the least worth goes. Worth is that of Greedy-Dual-Size (Cao and Irani, 1997): when an entry
//! is kept or used, it is set to `level` + tokens / bytes, and `level` is the worth of what went last. So what saves more
//! reading for its bytes stays longer, and what was not used for long goes whatever it saves: no entry has to be looked
//! at when time passes.

use std::collections::{BTreeSet, HashMap, HashSet};

use paceline_proto::EntryKey;

use crate::index::Record;

/// Bytes that an entry takes in the index, about: they count, so that the budget bounds the number of entries too.
pub(crate) const OVERHEAD: u64 = 4 << 10;

/// All entries of a folder.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    records: HashMap<EntryKey, Record>,
    /// How many entries that are kept have this parent, which itself may be gone.
    children: HashMap<EntryKey, usize>,
    /// By worth.
    leaves: BTreeSet<(u64, EntryKey)>,
    level: f64,
    bytes: u64,
    /// Whose worth is not in the index yet.
    used: HashSet<EntryKey>,
}

impl Ledger {
    /// Entries as the index has them.
    pub(crate) fn new(records: impl IntoIterator<Item = (EntryKey, Record)>) -> Self {
        let mut ledger = Self::default();
        for (key, record) in records {
            ledger.insert(key, record);
        }
        let least = ledger.records.values().map(|record| f64::from_bits(record.worth)).fold(f64::MAX, f64::min);
        ledger.level = if ledger.records.is_empty() { 0.0 } else { least };
        ledger
    }

    pub(crate) fn len(&self) -> usize {
        self.records.len()
    }

    /// Bytes of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn get(&self, key: EntryKey) -> Option<&Record> {
        self.records.get(&key)
    }

    /// What an entry of so many tokens and bytes is worth when it is used now.
    pub(crate) fn worth(&self, tokens: u32, bytes: u64) -> u64 {
        // All are positive, so their bits are in the order of the numbers.
        (self.level + f64::from(tokens) / (bytes.saturating_add(OVERHEAD)) as f64).to_bits()
    }

    /// Puts an entry in, or other content in the place of what is known of it.
    pub(crate) fn insert(&mut self, key: EntryKey, mut record: Record) {
        self.remove(key);
        // A number that was damaged must not stay for ever.
        if !f64::from_bits(record.worth).is_finite() || f64::from_bits(record.worth) < 0.0 {
            record.worth = 0.0_f64.to_bits();
        }
        self.bytes = self.bytes.saturating_add(record.bytes().saturating_add(OVERHEAD));
        *self.children.entry(record.parent).or_default() += 1;
        if let Some(parent) = self.records.get(&record.parent) {
            self.leaves.remove(&(parent.worth, record.parent));
        }
        if !self.children.contains_key(&key) {
            self.leaves.insert((record.worth, key));
        }
        self.records.insert(key, record);
    }

    /// Takes an entry out; what is behind it stays.
    pub(crate) fn remove(&mut self, key: EntryKey) -> Option<Record> {
        let record = self.records.remove(&key)?;
        self.used.remove(&key);
        self.leaves.remove(&(record.worth, key));
        self.bytes = self.bytes.saturating_sub(record.bytes().saturating_add(OVERHEAD));
        if let Some(count) = self.children.get_mut(&record.parent) {
            *count -= 1;
            if *count == 0 {
                self.children.remove(&record.parent);
                if let Some(parent) = self.records.get(&record.parent) {
                    self.leaves.insert((parent.worth, record.parent));
                }
            }
        }
        Some(record)
    }

    /// Takes out the leaf that is worth least, but none of these.
    pub(crate) fn evict(&mut self, but: [EntryKey; 2]) -> Option<(EntryKey, Record)> {
        let (worth, key) = *self.leaves.iter().find(|(_, key)| !but.contains(key))?;
        self.level = self.level.max(f64::from_bits(worth));
        self.remove(key).map(|record| (key, record))
    }

    /// An entry is used now.
    pub(crate) fn touch(&mut self, key: EntryKey) {
        let Some(record) = self.records.get(&key) else { return };
        let (old, worth) = (record.worth, self.worth(record.tokens, record.bytes()));
        if self.leaves.remove(&(old, key)) {
            self.leaves.insert((worth, key));
        }
        if let Some(record) = self.records.get_mut(&key) {
            record.worth = worth;
            self.used.insert(key);
        }
    }

    /// Entries whose worth is not in the index yet.
    pub(crate) fn used(&self) -> impl Iterator<Item = (EntryKey, &Record)> {
        self.used.iter().filter_map(|key| Some((*key, self.records.get(key)?)))
    }

    /// They are now.
    pub(crate) fn noted(&mut self) {
        self.used.clear();
    }
}
