//! The index: what is kept of which entry, and where. Its changes are whole or not at all, whenever the process ends.

use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use paceline_proto::{Entry, EntryKey};
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};

use crate::{Error, Result};

/// The index's file in the folder. The number is that of the records' format: other versions do not see each other, and
/// whoever opens a folder removes what its own index does not know.
const FILE: &str = "index-1.redb";
/// Records by the entry's key, as postcard.
const RECORDS: TableDefinition<'_, [u8; 32], &[u8]> = TableDefinition::new("records");
/// Tokens of entries by root and key: read when somebody asks what is there.
const TOKENS: TableDefinition<'_, [u8; 64], &[u8]> = TableDefinition::new("tokens");
/// Bytes of the index that stay in memory.
const CACHE: usize = 8 << 20;

/// What is kept of an entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) root: EntryKey,
    pub(crate) parent: EntryKey,
    pub(crate) start: u32,
    /// How many.
    pub(crate) tokens: u32,
    /// See [`crate::ledger`].
    pub(crate) worth: u64,
    pub(crate) batches: Vec<Batch>,
}

/// What a stage has given of an entry at a time: one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// How the bytes are to be understood.
    pub(crate) form: String,
    pub(crate) file: u64,
    /// In the order in which they lie in the file.
    pub(crate) parts: Vec<PartRecord>,
}

/// The bytes of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    pub(crate) layer: u32,
    pub(crate) bytes: u64,
    pub(crate) checksum: [u8; 32],
}

impl Record {
    /// Bytes of all files.
    pub(crate) fn bytes(&self) -> u64 {
        self.batches.iter().map(Batch::bytes).fold(0, u64::saturating_add)
    }

    /// Where the bytes of a layer are: the file, the offset and the part.
    pub(crate) fn part(&self, form: &str, layer: u32) -> Option<(u64, u64, &PartRecord)> {
        self.batches.iter().filter(|batch| batch.form == form).find_map(|batch| {
            let mut offset = 0;
            for part in &batch.parts {
                if part.layer == layer {
                    return Some((batch.file, offset, part));
                }
                offset += part.bytes;
            }
            None
        })
    }
}

impl Batch {
    pub(crate) fn bytes(&self) -> u64 {
        self.parts.iter().map(|part| part.bytes).fold(0, u64::saturating_add)
    }
}

/// The index of a folder.
#[derive(Debug)]
pub(crate) struct Index {
    folder: PathBuf,
    database: Database,
}

/// What changes together.
#[derive(Default)]
pub(crate) struct Change<'a> {
    /// Entries that are no longer kept, and their roots.
    pub(crate) remove: Vec<(EntryKey, EntryKey)>,
    /// Records that are new or different.
    pub(crate) records: Vec<(EntryKey, &'a Record)>,
    /// An entry that is new.
    pub(crate) entry: Option<&'a Entry>,
}

impl Index {
    /// Opens the index of a folder, or makes it, and reads all records.
    pub(crate) fn open(folder: &Path) -> Result<(Self, Vec<(EntryKey, Record)>)> {
        let path = folder.join(FILE);
        let damaged = |reason: String| Error::Damaged { folder: folder.to_owned(), reason };
        // Of a file that is damaged in a way it does not expect the library may also panic.
        let opened = catch_unwind(|| {
            let mut database = Database::builder().set_cache_size(CACHE).create(&path)?;
            database.check_integrity()?;
            Ok::<_, DatabaseError>(database)
        });
        let database = match opened {
            Ok(Ok(database)) => database,
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => return Err(Error::InUse { folder: folder.to_owned() }),
            Ok(Err(error)) => return Err(damaged(error.to_string())),
            Err(_) => return Err(damaged("it is not what was written".to_owned())),
        };
        let index = Self { folder: folder.to_owned(), database };
        let records = catch_unwind(AssertUnwindSafe(|| index.records()));
        let records = records.unwrap_or_else(|_| Err(damaged("it is not what was written".to_owned())))?;
        Ok((index, records))
    }

    fn records(&self) -> Result<Vec<(EntryKey, Record)>> {
        let reading = self.database.begin_read().map_err(|error| self.damaged(&error))?;
        let table = match reading.open_table(RECORDS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            table => table.map_err(|error| self.damaged(&error))?,
        };
        let mut records = Vec::new();
        for row in table.iter().map_err(|error| self.damaged(&error))? {
            let (key, record) = row.map_err(|error| self.damaged(&error))?;
            let record = postcard::from_bytes(record.value()).map_err(|error| self.damaged(&error))?;
            records.push((EntryKey(key.value()), record));
        }
        Ok(records)
    }

    /// At most `limit` entries of a root whose keys come after this one, by key.
    pub(crate) fn entries(
        &self,
        root: EntryKey,
        after: Option<EntryKey>,
        limit: usize,
        record: impl Fn(EntryKey) -> Option<Record>,
    ) -> Result<Vec<Entry>> {
        let reading = self.database.begin_read().map_err(|error| self.damaged(&error))?;
        let table = match reading.open_table(TOKENS) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
            table => table.map_err(|error| self.damaged(&error))?,
        };
        let from = both(root, after.unwrap_or(EntryKey([0; 32])));
        let until = both(root, EntryKey([u8::MAX; 32]));
        let mut entries = Vec::new();
        for row in table.range(from..=until).map_err(|error| self.damaged(&error))? {
            if entries.len() == limit {
                break;
            }
            let (place, tokens) = row.map_err(|error| self.damaged(&error))?;
            let key = EntryKey(std::array::from_fn(|index| place.value()[32 + index]));
            let Some(known) = record(key).filter(|_| after != Some(key)) else { continue };
            let tokens: Vec<u32> = postcard::from_bytes(tokens.value()).map_err(|error| self.damaged(&error))?;
            let entry = Entry { root, parent: known.parent, start: known.start, tokens };
            // The key proves the tokens: what was damaged is not shown.
            if entry.key() == key && entry.end().is_some() {
                entries.push(entry);
            }
        }
        Ok(entries)
    }

    /// Makes all changes, and waits until the disk has them.
    pub(crate) fn change(&self, change: &Change<'_>) -> Result<()> {
        let changed = catch_unwind(AssertUnwindSafe(|| self.try_change(change)));
        let failed = |reason: String| Error::Index { folder: self.folder.clone(), reason };
        match changed {
            Ok(changed) => changed.map_err(|error| failed(error.to_string())),
            Err(_) => Err(failed("it is not what was written".to_owned())),
        }
    }

    fn try_change(&self, change: &Change<'_>) -> std::result::Result<(), redb::Error> {
        let writing = self.database.begin_write()?;
        {
            let (mut records, mut tokens) = (writing.open_table(RECORDS)?, writing.open_table(TOKENS)?);
            for (root, key) in &change.remove {
                records.remove(key.0)?;
                tokens.remove(both(*root, *key))?;
            }
            for (key, record) in &change.records {
                records.insert(key.0, encoded(record).as_slice())?;
            }
            if let Some(entry) = change.entry {
                tokens.insert(both(entry.root, entry.key()), encoded(&entry.tokens).as_slice())?;
            }
        }
        writing.commit()?;
        Ok(())
    }

    fn damaged(&self, error: &dyn Display) -> Error {
        Error::Damaged { folder: self.folder.clone(), reason: error.to_string() }
    }
}

fn both(root: EntryKey, key: EntryKey) -> [u8; 64] {
    std::array::from_fn(|index| if index < 32 { root.0[index] } else { key.0[index - 32] })
}

fn encoded(value: &impl Serialize) -> Vec<u8> {
    postcard::to_stdvec(value).expect("records hold nothing that cannot be written")
}
