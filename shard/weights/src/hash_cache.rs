//! Remembers the manifests of model files, so that a file is hashed once.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::error::failed;
use crate::files::{Identity, make_folder, write_whole};
use crate::hashing::Progress;
use crate::needs::model_files;
use crate::{Manifest, Result};

/// Manifests of model files in a folder, found again while the files are unchanged: same place, length, times and
/// inode.
#[derive(Debug)]
pub struct HashCache {
    folder: PathBuf,
}

/// What is kept of a model.
#[derive(Serialize, Deserialize)]
struct Entry {
    files: Vec<(Vec<u8>, Identity)>,
    manifest: Vec<u8>,
}

impl HashCache {
    /// Opens the cache in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// A folder that cannot be made.
    pub fn open(folder: &Path) -> Result<Self> {
        make_folder(folder)?;
        Ok(Self { folder: folder.to_owned() })
    }

    /// The manifest of the model at `model`: one file, or the first of several. Files that have not been hashed since
    /// they were changed are hashed now, and `progress` hears of it.
    ///
    /// # Errors
    /// Files that cannot be read, are no model, or change meanwhile. A manifest that cannot be kept is no error: the
    /// files are hashed again next time.
    pub fn manifest(&self, model: &Path, progress: Progress<'_>) -> Result<Manifest> {
        let paths = model_files(model)?;
        let before = identities(&paths)?;
        let kept = self.path_of(&before[0].0);
        if let Some(manifest) = recall(&kept, &before) {
            return Ok(manifest);
        }
        let manifest = Manifest::of_files(&paths, progress)?;
        if identities(&paths)? == before {
            remember(&kept, before, &manifest);
        }
        Ok(manifest)
    }

    fn path_of(&self, model: &[u8]) -> PathBuf {
        self.folder.join(format!("{}.manifest", blake3::hash(model).to_hex()))
    }
}

/// What stands for each file. A link is followed, but keeps its name, which is the model's.
fn identities(paths: &[PathBuf]) -> Result<Vec<(Vec<u8>, Identity)>> {
    let identity = |path: &PathBuf| {
        let parent = path.parent().filter(|parent| *parent != OsStr::new("")).unwrap_or(Path::new("."));
        let parent = parent.canonicalize().map_err(failed("find the folder of the file", path))?;
        let place = parent.join(path.file_name().unwrap_or_default());
        let metadata = fs::metadata(path).map_err(failed("look at the file", path))?;
        Ok((place.as_os_str().as_bytes().to_vec(), Identity::of(&metadata)))
    };
    paths.iter().map(identity).collect()
}

/// The manifest that was kept, if the files are unchanged. Whatever else is found counts as nothing.
fn recall(kept: &Path, files: &[(Vec<u8>, Identity)]) -> Option<Manifest> {
    let entry: Entry = postcard::from_bytes(&fs::read(kept).ok()?).ok()?;
    let same = entry.files == files;
    same.then(|| Manifest::decode(&entry.manifest).ok()).flatten()
}

fn remember(kept: &Path, files: Vec<(Vec<u8>, Identity)>, manifest: &Manifest) {
    let entry = Entry { files, manifest: manifest.encode() };
    let bytes = postcard::to_stdvec(&entry).expect("an entry holds nothing that cannot be written");
    if let Err(error) = write_whole(kept, &bytes) {
        warn!(%error, "the model will be hashed again next time");
    }
}
