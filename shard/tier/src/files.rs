//! The data files: each is written once, whole, and later removed; none is ever changed.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tracing::warn;

use crate::Result;
use crate::error::failed;

/// The folder of data files, each named by a number.
#[derive(Debug)]
pub(crate) struct DataFiles {
    folder: PathBuf,
    /// Greater than that of every file there is or was in this life.
    next: u64,
}

impl DataFiles {
    /// Opens the folder, or makes it, and says which files are there and how long they are.
    pub(crate) fn open(folder: PathBuf) -> Result<(Self, HashMap<u64, u64>)> {
        fs::create_dir_all(&folder).map_err(failed("make the folder", &folder))?;
        let read = || fs::read_dir(&folder)?.map(number_and_bytes).collect::<io::Result<Vec<_>>>();
        let found: HashMap<u64, u64> =
            read().map_err(failed("read the folder", &folder))?.into_iter().flatten().collect();
        let next = found.keys().max().map_or(0, |last| last.saturating_add(1));
        Ok((Self { folder, next }, found))
    }

    /// No new file gets this number.
    pub(crate) fn reserve(&mut self, number: u64) {
        self.next = self.next.max(number.saturating_add(1));
    }

    /// Writes a new file, waits until the disk has it, and gives its number. After an error nothing is left of it.
    pub(crate) fn write<'a>(&mut self, pieces: impl Iterator<Item = &'a [u8]>) -> Result<u64> {
        let number = self.next;
        let path = self.path(number);
        let written = write_whole(&path, pieces);
        if written.is_err() {
            // Perhaps there is none.
            let _ = fs::remove_file(&path);
        }
        written.map_err(failed("write the file", &path))?;
        self.next = number.saturating_add(1);
        Ok(number)
    }

    /// Reads bytes of a file; `None` if it has no such bytes (any more).
    pub(crate) fn read(&self, number: u64, offset: u64, into: &mut [u8]) -> Result<Option<()>> {
        let path = self.path(number);
        let read = File::open(&path).and_then(|file| file.read_exact_at(into, offset));
        match read {
            Ok(()) => Ok(Some(())),
            Err(problem) if matches!(problem.kind(), ErrorKind::NotFound | ErrorKind::UnexpectedEof) => Ok(None),
            Err(problem) => Err(failed("read the file", &path)(problem)),
        }
    }

    /// Removes a file that the index does not know any more. One that cannot be removed is removed when the folder is
    /// opened the next time.
    pub(crate) fn remove(&self, number: u64) {
        let path = self.path(number);
        match fs::remove_file(&path) {
            Err(problem) if problem.kind() != ErrorKind::NotFound => {
                warn!(path = %path.display(), %problem, "a file that is no longer needed stays on the disk");
            }
            _ => {}
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.folder.join(format!("{number:016x}"))
    }
}

fn write_whole<'a>(path: &Path, pieces: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    for piece in pieces {
        file.write_all(piece)?;
    }
    file.sync_data()
}

/// The number and length of a file that is one of ours; others are left alone.
fn number_and_bytes(entry: io::Result<fs::DirEntry>) -> io::Result<Option<(u64, u64)>> {
    let entry = entry?;
    let name = entry.file_name();
    let number = name.to_str().filter(|name| name.len() == 16).and_then(|name| u64::from_str_radix(name, 16).ok());
    let metadata = entry.metadata()?;
    Ok(number.filter(|_| metadata.is_file()).map(|number| (number, metadata.len())))
}
