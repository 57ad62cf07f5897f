//! A model in the cache: sparse files that pieces are stored in.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use tracing::warn;

use crate::cache::Folder;
use crate::error::failed;
use crate::files::{Files, make_folder, open_with_length, write_at, write_whole};
use crate::hashing::on_pieces;
use crate::reader::read_verified;
use crate::{Error, Manifest, ModelHash, Result};

/// What the byte of a piece in `pieces` is when the piece has been stored.
const STORED: u8 = 1;

/// A model that has been fetched in part. Cheap to clone; all clones are the same model.
///
/// A piece is written, then recorded. A record is only a claim: what earlier runs and other processes recorded is
/// hashed before it counts, so that neither a crash nor a damaged file can pass for a piece.
#[derive(Clone, Debug)]
pub struct CachedModel(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    cache: Arc<Folder>,
    manifest: Manifest,
    hash: ModelHash,
    files: Files,
    /// A byte per piece, [`STORED`] or 0, which several processes can write without a word between them.
    records: File,
    records_path: PathBuf,
    /// Pieces whose bytes in the file have been hashed since the model was opened.
    verified: Box<[AtomicBool]>,
    /// Keeps the model from being removed.
    lock: File,
}

impl CachedModel {
    pub(crate) fn open(cache: Arc<Folder>, manifest: &Manifest) -> Result<Self> {
        let hash = manifest.hash();
        let lock = cache.lock(&hash)?;
        let folder = cache.of_model(&hash);
        keep_manifest(&folder.join("manifest"), manifest)?;
        let (files_path, records_path) = (folder.join("files"), folder.join("pieces"));
        make_folder(&files_path)?;
        let files = manifest.files().iter().map(|file| (file.name.as_str(), file.bytes));
        let files = Files::sparse(&files_path, files)?;
        let records = open_with_length(&records_path, manifest.piece_count().into())?;
        let verified = (0..manifest.piece_count()).map(|_| AtomicBool::new(false)).collect();
        let manifest = manifest.clone();
        Ok(Self(Arc::new(Inner { cache, manifest, hash, files, records, records_path, verified, lock })))
    }

    /// Which model it is.
    pub fn hash(&self) -> ModelHash {
        self.0.hash
    }

    /// Its manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.0.manifest
    }

    /// Its first file, to open as any model once the pieces that are needed of it are here.
    pub fn path(&self) -> &Path {
        self.0.files.path(0)
    }

    /// Which of these pieces must be fetched, in order. Pieces that were recorded before are hashed now, once.
    pub fn missing(&self, wanted: &[Range<u32>]) -> Vec<u32> {
        let wanted = self.existing(wanted);
        self.verify_records(&wanted);
        wanted.into_iter().filter(|&piece| !self.is_verified(piece)).collect()
    }

    /// Makes room in the cache's budget for pieces that will be stored, so that too little of it is known before
    /// anything is fetched.
    ///
    /// # Errors
    /// A budget that all models in use, and these pieces, would pass.
    pub fn reserve(&self, pieces: &[u32]) -> Result<()> {
        self.0.cache.make_room(self.0.manifest.piece_bytes(pieces.iter().copied()))
    }

    /// Takes in a piece.
    ///
    /// # Errors
    /// Bytes that are not this piece; a full budget; a disk that is full or refuses it.
    pub fn store(&self, piece: u32, bytes: &[u8]) -> Result<()> {
        let Inner { cache, manifest, hash, files, records, records_path, verified, .. } = &*self.0;
        if !manifest.is_piece(piece, bytes)? {
            return Err(Error::WrongBytes { model: *hash, piece });
        }
        if self.is_verified(piece) {
            return Ok(());
        }
        cache.make_room(bytes.len() as u64)?;
        files.write(manifest.piece_range(piece)?, bytes)?;
        write_at(records_path, records, piece.into(), &[STORED])?;
        verified[piece as usize].store(true, Ordering::Release);
        Ok(())
    }

    /// A piece, hashed again.
    ///
    /// # Errors
    /// A piece that has not been stored, or is damaged.
    pub(crate) fn read(&self, piece: u32) -> Result<Vec<u8>> {
        let Inner { manifest, hash, files, verified, .. } = &*self.0;
        manifest.piece_range(piece)?;
        if !self.is_verified(piece) && !self.is_recorded(piece)? {
            return Err(Error::NotHere { model: *hash, piece });
        }
        let read = read_verified(manifest, files, piece);
        verified[piece as usize].store(read.is_ok(), Ordering::Release);
        read
    }

    /// The pieces in these ranges that exist, each once, in order.
    fn existing(&self, ranges: &[Range<u32>]) -> Vec<u32> {
        let count = self.0.manifest.piece_count();
        let mut pieces: Vec<u32> = ranges.iter().flat_map(|range| range.start..range.end.min(count)).collect();
        pieces.sort_unstable();
        pieces.dedup();
        pieces
    }

    /// Hashes the pieces that are recorded and have not been hashed yet.
    fn verify_records(&self, wanted: &[u32]) {
        let Inner { manifest, files, verified, .. } = &*self.0;
        let unverified = wanted.iter().copied().filter(|&piece| !self.is_verified(piece));
        let recorded: Vec<u32> = unverified.filter(|&piece| self.is_recorded(piece).unwrap_or(false)).collect();
        let sound = on_pieces(&recorded, |piece, buffer| {
            let read = files.read(manifest.piece_range(piece)?, buffer);
            let sound = read.and_then(|()| manifest.is_piece(piece, buffer));
            Ok(sound.inspect_err(|error| warn!(piece, %error, "piece in the cache is fetched again")).unwrap_or(false))
        });
        let sound = sound.unwrap_or_default();
        let damaged = sound.iter().filter(|&&sound| !sound).count();
        if damaged > 0 {
            warn!(model = %self.0.hash, pieces = damaged, "pieces in the cache are damaged and are fetched again");
        }
        for (&piece, sound) in recorded.iter().zip(sound) {
            verified[piece as usize].store(sound, Ordering::Release);
        }
    }

    fn is_verified(&self, piece: u32) -> bool {
        self.0.verified.get(piece as usize).is_some_and(|verified| verified.load(Ordering::Acquire))
    }

    fn is_recorded(&self, piece: u32) -> Result<bool> {
        let (mut record, path) = ([0], &self.0.records_path);
        self.0
            .records
            .read_exact_at(&mut record, piece.into())
            .map_err(failed("read the record of pieces in", path))?;
        Ok(record[0] == STORED)
    }
}

impl Drop for Inner {
    /// The time of the last use decides which model is removed first.
    fn drop(&mut self) {
        if let Err(error) = self.lock.set_modified(SystemTime::now()) {
            warn!(model = %self.hash, %error, "the end of a model's use could not be noted in the cache");
        }
    }
}

/// Writes the manifest beside the files, unless it is there.
fn keep_manifest(path: &Path, manifest: &Manifest) -> Result<()> {
    let bytes = manifest.encode();
    match fs::read(path) {
        Ok(found) if found == bytes => Ok(()),
        _ => write_whole(path, &bytes),
    }
}
