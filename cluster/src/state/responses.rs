//! Responses of the API that outlive the coordinator: a file each, whole or not there.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Error, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use anyhow::{Context, Result};
use paceline_api::ResponseShelf;

/// What a file is called while it is written.
const UNFINISHED: &str = ".part";

/// A folder of responses.
#[derive(Debug)]
pub(crate) struct ResponseFolder {
    folder: PathBuf,
}

impl ResponseFolder {
    /// Opens the folder, or makes it. What was being written when a process ended is cleared away.
    pub(crate) fn open(folder: PathBuf) -> Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&folder);
        made.with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let opened = Self { folder };
        opened.clear().with_context(|| format!("cannot read the folder {}", opened.folder.display()))?;
        Ok(opened)
    }

    fn clear(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.folder)? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(UNFINISHED) {
                fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    /// The file of a response. Names are made by the API, but they come back from clients.
    fn file(&self, name: &str) -> io::Result<PathBuf> {
        let is_word = !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if !is_word {
            return Err(Error::new(ErrorKind::InvalidInput, format!("{name:?} is no name of a response")));
        }
        Ok(self.folder.join(name))
    }
}

impl ResponseShelf for ResponseFolder {
    fn load(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if let Ok(name) = entry.file_name().into_string()
                && self.file(&name).is_ok()
            {
                found.push((name, fs::read(entry.path())?));
            }
        }
        Ok(found)
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(name)?;
        let unfinished = self.folder.join(format!("{name}{UNFINISHED}"));
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&unfinished)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(unfinished, path)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        match fs::remove_file(self.file(name)?) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_there_is_found_by_the_next_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("responses");
        let first = ResponseFolder::open(path.clone()).expect("a folder of ours");
        first.put("resp_1", b"one").expect("written");
        first.put("resp_2", b"two").expect("written");
        first.put("resp_1", b"three").expect("written");
        first.remove("resp_2").expect("removed");
        first.remove("resp_2").expect("it is gone already");
        fs::write(path.join("resp_3.part"), "unfin").expect("written");
        let next = ResponseFolder::open(path.clone()).expect("a folder of ours");
        assert_eq!(next.load().expect("readable"), [("resp_1".to_owned(), b"three".to_vec())]);
        assert!(!path.join("resp_3.part").exists());
    }

    #[test]
    fn names_do_not_lead_out_of_the_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let shelf = ResponseFolder::open(folder.path().join("responses")).expect("a folder of ours");
        for name in ["../key", "", "a/b", "a.part", "."] {
            assert!(shelf.put(name, b"x").is_err() && shelf.remove(name).is_err(), "{name}");
        }
    }
}
