//! The folder of fetched models, and its budget.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tracing::{info, warn};

use crate::error::failed;
use crate::files::{Identity, make_folder, open_with_length};
use crate::{CachedModel, Error, Manifest, ModelHash, Result};

/// The file that is locked by whoever uses a model; its time is when that began.
const LOCK: &str = "lock";
/// Begins the names of folders whose model is being removed.
const REMOVED: &str = "removed-";
/// How often, and for how long each time, opening waits for a removal.
const TRIES: usize = 200;
const WAIT: Duration = Duration::from_millis(10);

/// A folder with what has been fetched of models: `<folder>/<hash>/` has the `manifest`, a byte per piece in `pieces`,
/// and sparse `files/` with the names and lengths of the original.
///
/// Several processes may use one folder, and one model in it, at once. With a budget, models that nobody uses are
/// removed, the least recently used first, before more bytes are stored than it allows. Processes that store at the
/// same moment may pass it by a piece each.
#[derive(Clone, Debug)]
pub struct Cache {
    folder: Arc<Folder>,
}

/// The folder and its budget, shared with the models in it.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    budget: Option<u64>,
}

/// A model in the folder, seen from outside.
struct Resident {
    folder: PathBuf,
    used_at: SystemTime,
    bytes: u64,
}

impl Cache {
    /// Opens the cache in `folder`, which is made if it is not there. `budget` is in bytes on the disk.
    ///
    /// # Errors
    /// A folder that cannot be made or read.
    pub fn open(folder: &Path, budget: Option<u64>) -> Result<Self> {
        make_folder(folder)?;
        let folder = Folder { path: folder.to_owned(), budget };
        folder.finish_removals()?;
        Ok(Self { folder: Arc::new(folder) })
    }

    /// Opens a model of the cache; nothing of it needs to be there yet. It is not removed while it is open.
    ///
    /// # Errors
    /// Files that cannot be made.
    pub fn model(&self, manifest: &Manifest) -> Result<CachedModel> {
        CachedModel::open(Arc::clone(&self.folder), manifest)
    }

    /// Bytes on the disk of all models.
    ///
    /// # Errors
    /// A folder that cannot be read.
    pub fn bytes(&self) -> Result<u64> {
        Ok(self.folder.residents()?.iter().map(|resident| resident.bytes).sum())
    }
}

impl Folder {
    /// Where a model's files are.
    pub(crate) fn of_model(&self, model: &ModelHash) -> PathBuf {
        self.path.join(model.to_string())
    }

    /// Makes a model's folder and locks it against removal.
    pub(crate) fn lock(&self, model: &ModelHash) -> Result<File> {
        let folder = self.of_model(model);
        for _ in 0..TRIES {
            match lock_shared(&folder)? {
                Some(lock) => return Ok(lock),
                None => std::thread::park_timeout(WAIT),
            }
        }
        Err(Error::Contended { folder })
    }

    /// Removes models that nobody uses until `needed` more bytes fit the budget.
    pub(crate) fn make_room(&self, needed: u64) -> Result<()> {
        let Some(budget) = self.budget else { return Ok(()) };
        let mut residents = self.residents()?;
        residents.sort_by_key(|resident| resident.used_at);
        let mut used: u64 = residents.iter().map(|resident| resident.bytes).sum();
        for resident in residents {
            if used.saturating_add(needed) <= budget {
                break;
            }
            if self.remove(&resident)? {
                used -= resident.bytes;
            }
        }
        if used.saturating_add(needed) > budget {
            return Err(Error::OverBudget { folder: self.path.clone(), needed, used, budget });
        }
        Ok(())
    }

    /// Removes a model if nobody uses it. It leaves its place at once; whoever comes now makes a new one.
    fn remove(&self, resident: &Resident) -> Result<bool> {
        let Resident { folder, bytes, .. } = resident;
        let Some(lock) = lock_exclusive(folder)? else { return Ok(false) };
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        static REMOVALS: AtomicU64 = AtomicU64::new(0);
        let number = REMOVALS.fetch_add(1, Ordering::Relaxed);
        let removed = self.path.join(format!("{REMOVED}{name}-{}-{number}", std::process::id()));
        fs::rename(folder, &removed).map_err(failed("remove the model", folder))?;
        drop(lock);
        info!(model = %name, bytes, "removed from the cache: others were used later, and the budget is full");
        remove_folder(&removed)?;
        Ok(true)
    }

    /// Removals that were cut short. What cannot be removed is told and stays.
    fn finish_removals(&self) -> Result<()> {
        for path in self.entries()? {
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(REMOVED)) {
                // It has been told already.
                let _ = remove_folder(&path);
            }
        }
        Ok(())
    }

    fn residents(&self) -> Result<Vec<Resident>> {
        let is_model =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<ModelHash>().is_ok());
        Ok(self.entries()?.into_iter().filter(is_model).map(Resident::look).collect())
    }

    fn entries(&self) -> Result<Vec<PathBuf>> {
        let read = || fs::read_dir(&self.path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>();
        read().map_err(failed("read the folder", &self.path))
    }
}

impl Resident {
    /// What cannot be seen has been removed meanwhile, or counts as never used and without bytes.
    fn look(folder: PathBuf) -> Self {
        let used_at =
            fs::metadata(folder.join(LOCK)).and_then(|lock| lock.modified()).unwrap_or(SystemTime::UNIX_EPOCH);
        let bytes = bytes_in(&folder) + bytes_in(&folder.join("files"));
        Self { folder, used_at, bytes }
    }
}

/// Bytes on the disk of the files in a folder; holes have none.
fn bytes_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.filter(fs::Metadata::is_file).map(|file| file.blocks() * 512).sum()
}

/// Locks a model for use; `None` if it is being removed.
fn lock_shared(folder: &Path) -> Result<Option<File>> {
    make_folder(folder)?;
    let path = folder.join(LOCK);
    let Some(lock) = open_lock(&path)? else { return Ok(None) };
    if !is_locked(lock.try_lock_shared(), &path)? || !is_in_place(&lock, &path) {
        return Ok(None);
    }
    lock.set_modified(SystemTime::now()).map_err(failed("note the use in the file", &path))?;
    Ok(Some(lock))
}

/// Locks a model for removal; `None` if somebody uses it or it is gone.
fn lock_exclusive(folder: &Path) -> Result<Option<File>> {
    let path = folder.join(LOCK);
    let Some(lock) = open_lock(&path)? else { return Ok(None) };
    let mine = is_locked(lock.try_lock(), &path)? && is_in_place(&lock, &path);
    Ok(mine.then_some(lock))
}

/// Opens the file to lock; `None` if its folder is gone.
fn open_lock(path: &Path) -> Result<Option<File>> {
    match open_with_length(path, 0) {
        Err(Error::Io { problem, .. }) if problem.kind() == ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

fn is_locked(tried: std::result::Result<(), TryLockError>, path: &Path) -> Result<bool> {
    match tried {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(problem)) => Err(failed("lock the file", path)(problem)),
    }
}

/// Is a locked file still the one that others would lock?
fn is_in_place(lock: &File, path: &Path) -> bool {
    let (Ok(locked), Ok(there)) = (lock.metadata(), fs::metadata(path)) else { return false };
    Identity::of(&locked).is_same_file(Identity::of(&there))
}

fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        // Another process removes it as well.
        Err(problem) if problem.kind() == ErrorKind::NotFound => Ok(()),
        Err(problem) => {
            warn!(path = %path.display(), %problem, "what is left of a removed model stays on the disk");
            Err(failed("remove the folder", path)(problem))
        }
        Ok(()) => Ok(()),
    }
}
