//! Files on the disk: those of a model, read and written by pieces, and small ones written whole.

use std::fs::{self, File, Metadata, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::failed;
use crate::manifest::PieceRange;
use crate::{Error, Result};

/// The open files of a model, in the order of its manifest.
#[derive(Debug)]
pub(crate) struct Files(Vec<(PathBuf, File)>);

/// What tells that a file is the one that it was, and unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Identity {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            bytes: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Is it the same file, whatever has been written to it?
    pub(crate) fn is_same_file(self, other: Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }
}

impl Files {
    /// Opens the files of a model that is complete, to read them.
    pub(crate) fn open(paths: &[PathBuf]) -> Result<Self> {
        let open = |path: &PathBuf| Ok((path.clone(), File::open(path).map_err(failed("open the file", path))?));
        paths.iter().map(open).collect::<Result<_>>().map(Self)
    }

    /// Opens files of these names and lengths to read and write them, and makes those that are not there. Their
    /// holes take no room on the disk.
    pub(crate) fn sparse<'a>(folder: &Path, files: impl Iterator<Item = (&'a str, u64)>) -> Result<Self> {
        let open = |(name, bytes)| {
            let path = folder.join(name);
            let file = open_with_length(&path, bytes)?;
            Ok((path, file))
        };
        files.map(open).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn path(&self, file: usize) -> &Path {
        &self.0[file].0
    }

    pub(crate) fn identities(&self) -> Result<Vec<Identity>> {
        let identity = |(path, file): &(PathBuf, File)| {
            Ok(Identity::of(&file.metadata().map_err(failed("look at the file", path))?))
        };
        self.0.iter().map(identity).collect()
    }

    /// Reads a piece into `buffer`, in place of what it had.
    pub(crate) fn read(&self, range: PieceRange, buffer: &mut Vec<u8>) -> Result<()> {
        let PieceRange { file, offset, bytes } = range;
        let (path, file) = &self.0[file];
        buffer.resize(bytes, 0);
        file.read_exact_at(buffer, offset).map_err(|problem| Error::Transfer {
            action: "read",
            path: path.clone(),
            bytes,
            offset,
            problem,
        })
    }

    /// Writes a piece.
    pub(crate) fn write(&self, range: PieceRange, piece: &[u8]) -> Result<()> {
        let (path, file) = &self.0[range.file];
        write_at(path, file, range.offset, piece)
    }
}

/// Writes bytes at their place in a file.
pub(crate) fn write_at(path: &Path, file: &File, offset: u64, bytes: &[u8]) -> Result<()> {
    file.write_all_at(bytes, offset).map_err(|problem| {
        let (path, bytes) = (path.to_owned(), bytes.len());
        Error::Transfer { action: "write", path, bytes, offset, problem }
    })
}

/// Opens a file to read and write it, and gives it this length.
pub(crate) fn open_with_length(path: &Path, bytes: u64) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    let file = options.open(path).map_err(failed("open the file for writing", path))?;
    let found = file.metadata().map_err(failed("look at the file", path))?.len();
    if found != bytes {
        file.set_len(bytes).map_err(failed("change the length of the file", path))?;
    }
    Ok(file)
}

/// Makes a folder and those above it.
pub(crate) fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(failed("make the folder", path))
}

/// Writes a small file so that nobody ever sees a part of it.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let beside = path.with_added_extension(format!("{}-{number}", std::process::id()));
    let failed_to_write = |problem| {
        let (path, bytes) = (path.to_owned(), bytes.len());
        Error::Transfer { action: "write", path, bytes, offset: 0, problem }
    };
    fs::write(&beside, bytes).and_then(|()| fs::rename(&beside, path)).map_err(|problem| {
        // What is left of it, if anything, is of no use.
        let _ = fs::remove_file(&beside);
        failed_to_write(problem)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_says_where_and_how_much() {
        // Writing to it fails as on a full disk.
        let path = Path::new("/dev/full");
        let full = OpenOptions::new().write(true).open(path).unwrap();
        let message = write_at(path, &full, 4096, &[1; 1000]).unwrap_err().to_string();
        assert_eq!(message, "/dev/full: cannot write 1000 bytes at 4096: No space left on device (os error 28)");
    }

    #[test]
    fn a_file_is_written_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("manifest");
        write_whole(&path, b"one").unwrap();
        write_whole(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        let nowhere = folder.path().join("manifest").join("below a file");
        let message = write_whole(&nowhere, b"three").unwrap_err().to_string();
        assert!(message.contains("below a file: cannot write 5 bytes at 0: Not a directory"), "{message}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
    }
}
