//! What the coordinator knows of its cluster and must not forget: the newest epoch, the row in force, who is drained, and
//! the links that were measured. One file, whose changes are whole or not at all, whenever the process ends.
//!
//! Keys and tokens are files of their own beside it: other processes read and change those while this one is locked by
//! the coordinator that runs.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use paceline_core::membership::{Remembered, RememberedRow};
use paceline_core::planner::{LinkSpeed, Placement};
use paceline_proto::{Epoch, NodeId};
use paceline_weights::ModelHash;
use redb::{Database, DatabaseError, ReadableDatabase, ReadableTable, TableDefinition};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The store's file in the folder.
const FILE: &str = "cluster.redb";
/// The newest epoch.
const EPOCH: TableDefinition<'_, (), u32> = TableDefinition::new("epoch");
/// The row in force, as JSON.
const ROW: TableDefinition<'_, (), &[u8]> = TableDefinition::new("row");
/// Drained nodes.
const DRAINED: TableDefinition<'_, u128, ()> = TableDefinition::new("drained");
/// Links by the node that sends and the one that receives: microseconds there and back, bytes per second.
const LINKS: TableDefinition<'_, (u128, u128), (u64, f64)> = TableDefinition::new("links");

/// Measured links.
pub(crate) type MeasuredLinks = Vec<((NodeId, NodeId), LinkSpeed)>;

/// For what a row is made. One that was made for anything else is not taken up again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Purpose {
    /// The program's version: another one may read placements differently.
    pub(crate) program: String,
    /// The content of the model's files.
    pub(crate) model: ModelHash,
    /// What the flags ask of a placement.
    pub(crate) wishes: String,
}

/// A row as it is kept.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RowRecord {
    pub(crate) epoch: Epoch,
    pub(crate) purpose: Purpose,
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) placement: Placement,
}

/// What of a row every version can read.
#[derive(Deserialize)]
struct RowHead {
    epoch: Epoch,
    purpose: Purpose,
}

/// The store.
#[derive(Debug)]
pub(crate) struct Store {
    path: PathBuf,
    database: Database,
}

impl Store {
    /// Opens the store in the folder, or makes it.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        // Of a file that is damaged in a way it does not expect the library may also panic: its message then comes before ours.
        let opened = catch_unwind(|| {
            let mut database = Database::create(&path)?;
            database.check_integrity()?;
            Ok::<_, DatabaseError>(database)
        });
        match opened {
            Ok(Ok(database)) => Ok(Self { path, database }),
            Ok(Err(DatabaseError::DatabaseAlreadyOpen)) => {
                bail!("{} is in use: another coordinator runs with this --state folder", path.display())
            }
            Ok(Err(error)) => Err(error).with_context(|| damaged(&path)),
            Err(_) => bail!(damaged(&path)),
        }
    }

    /// What is left of the life before, for a coordinator that wants rows for this purpose.
    pub(crate) fn remembered(&self, purpose: &Purpose) -> Result<Remembered> {
        self.reading(|| {
            let drained = self.drained()?;
            let Some((epoch, row)) = self.read()? else { return Ok(Remembered { drained, ..Remembered::default() }) };
            let Some(row) = row else { return Ok(Remembered { epoch, drained, row: None }) };
            let head: RowHead = serde_json::from_slice(&row)?;
            if head.purpose != *purpose {
                return Ok(Remembered { epoch, drained, row: None });
            }
            let RowRecord { nodes, placement, .. } = serde_json::from_slice(&row)?;
            Ok(Remembered { epoch, drained, row: RememberedRow::new(nodes, placement) })
        })
    }

    fn drained(&self) -> Result<BTreeSet<NodeId>> {
        let nodes = match self.database.begin_read()?.open_table(DRAINED) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(BTreeSet::new()),
            nodes => nodes?,
        };
        nodes.iter()?.map(|entry| Ok(NodeId(Uuid::from_u128(entry?.0.value())))).collect()
    }

    /// The newest epoch and the row, if anything was kept.
    fn read(&self) -> Result<Option<(Epoch, Option<Vec<u8>>)>> {
        let reading = self.database.begin_read()?;
        let epochs = match reading.open_table(EPOCH) {
            Err(redb::TableError::TableDoesNotExist(_)) => return Ok(None),
            epochs => epochs?,
        };
        let epoch = Epoch(epochs.get(())?.map_or(0, |epoch| epoch.value()));
        let row = reading.open_table(ROW)?.get(())?.map(|row| row.value().to_vec());
        Ok(Some((epoch, row)))
    }

    /// The links that were measured in the life before.
    pub(crate) fn links(&self) -> Result<MeasuredLinks> {
        self.reading(|| {
            let links = match self.database.begin_read()?.open_table(LINKS) {
                Err(redb::TableError::TableDoesNotExist(_)) => return Ok(Vec::new()),
                links => links?,
            };
            let mut all = Vec::new();
            for entry in links.iter()? {
                let (ends, speed) = entry?;
                let ((from, to), (micros, bytes_per_second)) = (ends.value(), speed.value());
                let speed = LinkSpeed { round_trip: Duration::from_micros(micros), bytes_per_second };
                all.push(((NodeId(Uuid::from_u128(from)), NodeId(Uuid::from_u128(to))), speed));
            }
            Ok(all)
        })
    }

    /// Keeps an epoch, unless a newer one is kept already.
    pub(crate) fn keep_epoch(&self, epoch: Epoch) -> Result<()> {
        self.writing(|writing| {
            let newest = writing.open_table(EPOCH)?.get(())?.map_or(0, |newest| newest.value());
            writing.open_table(EPOCH)?.insert((), newest.max(epoch.0))?;
            // Whoever reads finds all tables.
            writing.open_table(ROW)?;
            Ok(())
        })
    }

    /// Keeps the row that is in force now, and all links that were measured.
    pub(crate) fn keep_row(&self, row: &RowRecord, links: &MeasuredLinks) -> Result<()> {
        let text = serde_json::to_vec(row)?;
        self.writing(|writing| {
            writing.open_table(ROW)?.insert((), text.as_slice())?;
            writing.delete_table(LINKS)?;
            let mut table = writing.open_table(LINKS)?;
            for ((from, to), speed) in links {
                let micros = u64::try_from(speed.round_trip.as_micros()).unwrap_or(u64::MAX);
                table.insert((from.0.as_u128(), to.0.as_u128()), (micros, speed.bytes_per_second))?;
            }
            Ok(())
        })
    }

    /// Keeps who is drained.
    pub(crate) fn keep_drained(&self, nodes: &BTreeSet<NodeId>) -> Result<()> {
        self.writing(|writing| {
            writing.delete_table(DRAINED)?;
            let mut table = writing.open_table(DRAINED)?;
            for node in nodes {
                table.insert(node.0.as_u128(), ())?;
            }
            Ok(())
        })
    }

    /// The row of this epoch is over: its nodes are not waited for after a restart.
    pub(crate) fn forget_row(&self, epoch: Epoch) -> Result<()> {
        self.writing(|writing| {
            let mut rows = writing.open_table(ROW)?;
            let kept = rows.get(())?.map(|row| serde_json::from_slice::<RowHead>(row.value())).transpose()?;
            if kept.is_some_and(|kept| kept.epoch == epoch) {
                rows.remove(())?;
            }
            Ok(())
        })
    }

    fn reading<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        let result = catch_unwind(AssertUnwindSafe(read));
        result
            .unwrap_or_else(|_| bail!("it holds what this program did not write"))
            .with_context(|| damaged(&self.path))
    }

    fn writing(&self, write: impl FnOnce(&redb::WriteTransaction) -> Result<()>) -> Result<()> {
        let written = || {
            let writing = self.database.begin_write()?;
            write(&writing)?;
            Ok::<_, anyhow::Error>(writing.commit()?)
        };
        written().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn damaged(path: &Path) -> String {
    format!(
        "{} cannot be read: it is damaged. Move it away and start again: keys and tokens are not in it, only the layers \
         are then placed anew",
        path.display()
    )
}

#[cfg(test)]
mod tests;
