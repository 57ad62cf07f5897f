//! The store: entries in, entries out.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use paceline_proto::entries::beginning_with;
use paceline_proto::{Entry, EntryKey};
use tracing::{info, warn};

use crate::error::failed;
use crate::files::DataFiles;
use crate::index::{Batch, Change, Index, PartRecord, Record};
use crate::ledger::{Ledger, OVERHEAD};
use crate::{Error, Result};

/// Entries that are read from the index at once.
const LISTED: usize = 256;
/// What the checksum of a part is for.
const CONTEXT: &str = "paceline 2026-11 bytes of an entry's layer";

/// A folder of entries with a budget in bytes. One process has it at a time.
#[derive(Debug)]
pub struct Store {
    folder: PathBuf,
    budget: u64,
    index: Index,
    files: DataFiles,
    ledger: Ledger,
    counts: Counts,
    /// Entries that made room since somebody asked.
    evicted: Vec<EntryKey>,
}

/// The bytes of one layer.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// Of the model.
    pub layer: u32,
    /// What the stage remembers there.
    pub bytes: &'a [u8],
}

/// Where an entry lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The entry before it, or the root.
    pub parent: EntryKey,
    /// Tokens before it.
    pub start: u32,
    /// Tokens before its end.
    pub end: u32,
}

/// What became of bytes that were to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// They are on the disk.
    Kept,
    /// They had been kept before.
    Known,
    /// The budget has no room for them: everything else is part of the same prefix, or they are more than the budget.
    NoRoom,
}

/// What there is, and what has happened since the folder was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Entries that are kept.
    pub entries: u64,
    /// Bytes that they take, with about what the index takes for them.
    pub bytes: u64,
    /// Parts that were kept, and their bytes.
    pub kept: u64,
    /// Bytes of them.
    pub kept_bytes: u64,
    /// Parts that were read, and found to be what was kept.
    pub read: u64,
    /// Bytes of them.
    pub read_bytes: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Entries that were dropped because bytes were missing or were not what was kept.
    pub refused: u64,
}

impl Store {
    /// Opens the folder, or makes it. Reads the index, but no data; removes what a killed process has left; makes room
    /// if the budget has become smaller.
    ///
    /// # Errors
    /// A folder that cannot be made, read or written, that another process has, or whose index is damaged.
    pub fn open(folder: &Path, budget: u64) -> Result<Self> {
        std::fs::create_dir_all(folder).map_err(failed("make the folder", folder))?;
        // First of all, since it locks the folder.
        let (index, records) = Index::open(folder)?;
        let (mut files, mut found) = DataFiles::open(folder.join("data"))?;
        let (whole, lost): (Vec<_>, Vec<_>) = records.into_iter().partition(|(_, record)| is_there(record, &found));
        for (_, record) in &whole {
            for batch in &record.batches {
                found.remove(&batch.file);
                files.reserve(batch.file);
            }
        }
        let counts = Counts { refused: lost.len() as u64, ..Counts::default() };
        let (ledger, evicted) = (Ledger::new(whole), Vec::new());
        let mut store = Self { folder: folder.to_owned(), budget, index, files, ledger, counts, evicted };
        if !lost.is_empty() {
            warn!(folder = %folder.display(), entries = lost.len(), "files of entries are missing; the entries are dropped");
            store.forget(&lost)?;
        }
        // What no record speaks of any more, or did not yet when the process was killed.
        found.keys().for_each(|file| store.files.remove(*file));
        let nobody = [EntryKey([0; 32]); 2];
        store.make_room(0, nobody)?;
        // Nobody has heard of them.
        store.evicted.clear();
        info!(folder = %folder.display(), entries = store.ledger.len(), bytes = store.ledger.bytes(), "disk tier opened");
        Ok(store)
    }

    /// Keeps layers of an entry, unless they are kept already. `form` says how their bytes are to be understood: bytes
    /// of another form are other bytes. Waits until the disk has them.
    ///
    /// # Errors
    /// Files that cannot be written, such as on a full disk; then the entry is as it was.
    pub fn put(&mut self, entry: &Entry, form: &str, parts: &[Part<'_>]) -> Result<Put> {
        let no_entry = || Error::NoEntry { start: entry.start, tokens: entry.tokens.len() };
        entry.end().ok_or_else(no_entry)?;
        let key = entry.key();
        let known = self.ledger.get(key).cloned();
        let is_new = |part: &&Part<'_>| known.as_ref().is_none_or(|known| known.part(form, part.layer).is_none());
        let parts: Vec<Part<'_>> = parts.iter().filter(is_new).copied().collect();
        if parts.is_empty() && known.is_some() {
            self.ledger.touch(key);
            return Ok(Put::Known);
        }
        let bytes: u64 = parts.iter().map(|part| part.bytes.len() as u64).sum();
        let needed = if known.is_some() { bytes } else { bytes.saturating_add(OVERHEAD) };
        if !self.make_room(needed, [key, entry.parent])? {
            return Ok(Put::NoRoom);
        }
        let (root, parent, start) = (entry.root, entry.parent, entry.start);
        let new = || Record { root, parent, start, tokens: entry.tokens.len() as u32, worth: 0, batches: Vec::new() };
        let is_known = known.is_some();
        let mut record = known.unwrap_or_else(new);
        let file = self.files.write(parts.iter().map(|part| part.bytes))?;
        let parts: Vec<_> = parts.iter().map(|part| part_record(key, form, part)).collect();
        let count = parts.len() as u64;
        record.batches.push(Batch { form: form.to_owned(), file, parts });
        record.worth = self.ledger.worth(record.tokens, record.bytes());
        let mut change = Change { records: self.ledger.used().collect(), ..Change::default() };
        change.records.push((key, &record));
        change.entry = (!is_known).then_some(entry);
        if let Err(error) = self.index.change(&change) {
            self.files.remove(file);
            return Err(error);
        }
        self.ledger.noted();
        self.ledger.insert(key, record);
        self.counts.kept += count;
        self.counts.kept_bytes += bytes;
        Ok(Put::Kept)
    }

    /// Where an entry lies; `None` if nothing of it is kept.
    pub fn span(&self, key: EntryKey) -> Option<Span> {
        let Record { parent, start, tokens, .. } = *self.ledger.get(key)?;
        Some(Span { parent, start, end: start.checked_add(tokens)? })
    }

    /// Bytes that may be taken.
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// Are these layers of an entry kept? That their bytes are still what they were shows when they are read.
    pub fn holds(&self, key: EntryKey, form: &str, layers: impl IntoIterator<Item = u32>) -> bool {
        let record = self.ledger.get(key);
        record.is_some_and(|record| layers.into_iter().all(|layer| record.part(form, layer).is_some()))
    }

    /// By form, which layers of an entry are kept.
    pub fn layers(&self, key: EntryKey) -> Vec<(String, Vec<u32>)> {
        let batches = self.ledger.get(key).into_iter().flat_map(|record| &record.batches);
        let layers = |batch: &Batch| batch.parts.iter().map(|part| part.layer).collect();
        batches.map(|batch| (batch.form.clone(), layers(batch))).collect()
    }

    /// Reads a layer of an entry into `into`, in place of what that had; false if it is not kept. Bytes that are not
    /// what was kept are as if they had never been: their entry is dropped.
    ///
    /// # Errors
    /// A file that cannot be read though it is there.
    pub fn read(&mut self, key: EntryKey, form: &str, layer: u32, into: &mut Vec<u8>) -> Result<bool> {
        into.clear();
        let Some((file, offset, part)) = self.ledger.get(key).and_then(|record| record.part(form, layer)) else {
            return Ok(false);
        };
        // The file had this length when the folder was opened, or when it was written.
        into.resize(part.bytes as usize, 0);
        let read = self.files.read(file, offset, into)?;
        if read.is_some() && checksum(key, form, layer, into) == part.checksum {
            self.counts.read += 1;
            self.counts.read_bytes += into.len() as u64;
            return Ok(true);
        }
        into.clear();
        warn!(folder = %self.folder.display(), %key, layer, "bytes are not what was kept; the entry is dropped");
        self.counts.refused += 1;
        if let Some(record) = self.ledger.remove(key) {
            self.forget(&[(key, record)])?;
        }
        Ok(false)
    }

    /// An entry is used: it stays longer.
    pub fn touch(&mut self, key: EntryKey) {
        self.ledger.touch(key);
    }

    /// At most `limit` entries of a root whose keys come after this one, by key; fewer if there are no more.
    ///
    /// # Errors
    /// An index that is damaged.
    pub fn entries(&self, root: EntryKey, after: Option<EntryKey>, limit: usize) -> Result<Vec<Entry>> {
        self.index.entries(root, after, limit, |key| self.ledger.get(key).cloned())
    }

    /// Forgets all entries of texts that begin with these tokens, and those before them that nothing else follows. What
    /// hangs in the air, because the entry before it is gone, goes too: nobody knows of what text it was.
    ///
    /// # Errors
    /// An index that is damaged or cannot be written.
    pub fn forget_text(&mut self, root: EntryKey, tokens: &[u32]) -> Result<Vec<EntryKey>> {
        let mut entries = Vec::new();
        loop {
            let part = self.entries(root, entries.last().map(Entry::key), LISTED)?;
            let is_last = part.len() < LISTED;
            entries.extend(part);
            if is_last {
                break;
            }
        }
        let keys: Vec<EntryKey> = beginning_with(root, &entries, tokens);
        let removed: Vec<_> = keys.iter().filter_map(|key| Some((*key, self.ledger.remove(*key)?))).collect();
        if !removed.is_empty() {
            self.forget(&removed)?;
        }
        Ok(keys)
    }

    /// What there is, and what has happened.
    pub fn counts(&self) -> Counts {
        Counts { entries: self.ledger.len() as u64, bytes: self.ledger.bytes(), ..self.counts }
    }

    /// Entries that made room for others since this was last asked.
    pub fn take_evicted(&mut self) -> Vec<EntryKey> {
        std::mem::take(&mut self.evicted)
    }

    /// Notes in the index which entries were used; also done whenever something is kept.
    ///
    /// # Errors
    /// An index that cannot be written.
    pub fn note(&mut self) -> Result<()> {
        let records: Vec<_> = self.ledger.used().collect();
        if !records.is_empty() {
            self.index.change(&Change { records, ..Change::default() })?;
            self.ledger.noted();
        }
        Ok(())
    }

    /// Evicts entries until so many more bytes fit; false if they cannot. What has gone is gone also then.
    fn make_room(&mut self, needed: u64, but: [EntryKey; 2]) -> Result<bool> {
        if needed > self.budget {
            return Ok(false);
        }
        let mut evicted = Vec::new();
        while self.ledger.bytes().saturating_add(needed) > self.budget {
            let Some(least) = self.ledger.evict(but) else { break };
            evicted.push(least);
        }
        if !evicted.is_empty() {
            self.counts.evicted += evicted.len() as u64;
            self.evicted.extend(evicted.iter().map(|(key, _)| *key));
            self.forget(&evicted)?;
        }
        Ok(self.ledger.bytes().saturating_add(needed) <= self.budget)
    }

    /// Forgets entries that are not in the ledger any more, and then removes their files. If the index cannot be
    /// written they are still not used in this life.
    fn forget(&mut self, entries: &[(EntryKey, Record)]) -> Result<()> {
        let remove = entries.iter().map(|(key, record)| (record.root, *key)).collect();
        self.index.change(&Change { remove, ..Change::default() })?;
        let batches = entries.iter().flat_map(|(_, record)| &record.batches);
        batches.for_each(|batch| self.files.remove(batch.file));
        Ok(())
    }
}

/// Are the files of a record there, with the lengths that they must have?
fn is_there(record: &Record, found: &HashMap<u64, u64>) -> bool {
    record.batches.iter().all(|batch| found.get(&batch.file) == Some(&batch.bytes()))
}

fn part_record(key: EntryKey, form: &str, part: &Part<'_>) -> PartRecord {
    let checksum = checksum(key, form, part.layer, part.bytes);
    PartRecord { layer: part.layer, bytes: part.bytes.len() as u64, checksum }
}

/// Over what the bytes are as well: bytes of another entry, layer or form are as wrong as damaged ones.
fn checksum(key: EntryKey, form: &str, layer: u32, bytes: &[u8]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(&key.0);
    hasher.update(&layer.to_le_bytes());
    hasher.update(&(form.len() as u64).to_le_bytes());
    hasher.update(form.as_bytes());
    hasher.update(bytes);
    *hasher.finalize().as_bytes()
}
