//! Hands out pieces of the models that this node has.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use crate::files::Files;
use crate::manifest::{PIECE_BYTES, PieceRange};
use crate::{CachedModel, Error, Manifest, ModelHash, Result};

/// Reads pieces of models that are here: complete files, models that are part of the program, and what the cache has
/// of others. Shared by all threads. Every piece is hashed again before it is handed out.
#[derive(Debug, Default)]
pub struct PieceReader {
    models: RwLock<HashMap<ModelHash, Vec<Arc<Source>>>>,
}

#[derive(Debug)]
enum Source {
    Files { manifest: Manifest, files: Files },
    Bytes { manifest: Manifest, bytes: &'static [u8] },
    Cached(CachedModel),
}

impl PieceReader {
    /// A reader without models.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a model in files; `paths` are all of them, in the manifest's order. They are kept open.
    ///
    /// # Errors
    /// Files that cannot be opened, or another number of them than the manifest has.
    pub fn add_files(&self, manifest: &Manifest, paths: &[PathBuf]) -> Result<()> {
        if paths.len() != manifest.files().len() {
            let path = paths.first().cloned().unwrap_or_default();
            return Err(Error::OtherFiles { path, found: manifest.files().len(), given: paths.len() });
        }
        self.add(manifest.hash(), Source::Files { manifest: manifest.clone(), files: Files::open(paths)? });
        Ok(())
    }

    /// Adds a model that is part of the program.
    pub fn add_bytes(&self, manifest: &Manifest, bytes: &'static [u8]) {
        self.add(manifest.hash(), Source::Bytes { manifest: manifest.clone(), bytes });
    }

    /// Adds what the cache has, and will have, of a model. It stays in use until it is removed here.
    pub fn add_cached(&self, model: &CachedModel) {
        self.add(model.hash(), Source::Cached(model.clone()));
    }

    /// Forgets a model: closes its files, and lets the cache remove what it has of it.
    pub fn remove(&self, model: &ModelHash) {
        self.models.write().unwrap_or_else(PoisonError::into_inner).remove(model);
    }

    /// A piece of a model, with the hash that its manifest says.
    ///
    /// # Errors
    /// A model or piece that is not here, a file that cannot be read or has been changed.
    pub fn read(&self, model: &ModelHash, piece: u32) -> Result<Vec<u8>> {
        let sources = self.models.read().unwrap_or_else(PoisonError::into_inner).get(model).cloned();
        let mut refused = Error::UnknownModel { model: *model };
        // One that has it is enough.
        for source in sources.unwrap_or_default() {
            match source.read(piece) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }

    /// A source takes the place of one of its kind.
    fn add(&self, model: ModelHash, source: Source) {
        let mut models = self.models.write().unwrap_or_else(PoisonError::into_inner);
        let sources = models.entry(model).or_default();
        sources.retain(|other| std::mem::discriminant(other.as_ref()) != std::mem::discriminant(&source));
        sources.push(Arc::new(source));
    }
}

impl Source {
    fn read(&self, piece: u32) -> Result<Vec<u8>> {
        match self {
            Self::Files { manifest, files } => read_verified(manifest, files, piece),
            Self::Bytes { manifest, bytes } => {
                let PieceRange { offset, bytes: length, .. } = manifest.piece_range(piece)?;
                let read = usize::try_from(offset).ok().and_then(|start| bytes.get(start..)?.get(..length));
                let read = read.filter(|read| manifest.is_piece(piece, read).is_ok_and(|same| same));
                let changed = || Error::Changed { file: manifest.files()[0].name.clone().into(), piece };
                read.map(<[u8]>::to_vec).ok_or_else(changed)
            }
            Self::Cached(model) => model.read(piece),
        }
    }
}

/// Reads a piece and hashes it.
pub(crate) fn read_verified(manifest: &Manifest, files: &Files, piece: u32) -> Result<Vec<u8>> {
    let range = manifest.piece_range(piece)?;
    let mut bytes = Vec::with_capacity(PIECE_BYTES.min(range.bytes as u64) as usize);
    files.read(range, &mut bytes)?;
    match manifest.is_piece(piece, &bytes)? {
        true => Ok(bytes),
        false => Err(Error::Changed { file: files.path(range.file).to_owned(), piece }),
    }
}
