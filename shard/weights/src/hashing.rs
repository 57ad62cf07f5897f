//! Making the manifest of a model: all pieces hashed, on several threads.

use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use paceline_gguf::{Gguf, ModelFile};

use crate::files::Files;
use crate::manifest::{FileEntry, PIECE_BYTES};
use crate::{Error, Manifest, Result};

/// Is called with the bytes of each piece that has been read.
pub type Progress<'a> = &'a (dyn Fn(u64) + Sync);

/// More threads than this read faster than disks and memory give.
const MOST_THREADS: usize = 8;

impl Manifest {
    /// The manifest of a model on the disk: `paths` are all its files in order, as
    /// [`model_files`](crate::model_files) finds them. Each thread holds one piece in memory.
    ///
    /// # Errors
    /// Files that cannot be read, are no model, or change meanwhile; names that are not plain text.
    pub fn of_files(paths: &[PathBuf], progress: Progress<'_>) -> Result<Self> {
        let [first, ..] = paths else { return Err(Error::FileCount { count: 0, limit: crate::MAX_FILES }) };
        let unhashed = unhashed(&open(first, paths)?)?;
        let files = Files::open(paths)?;
        let before = files.identities()?;
        let hashes = on_pieces(&unhashed.all_pieces(), |piece, buffer| {
            files.read(unhashed.piece_range(piece)?, buffer)?;
            progress(buffer.len() as u64);
            Ok(*blake3::hash(buffer).as_bytes())
        })?;
        if let Some(file) = (0..paths.len()).zip(&before).zip(&files.identities()?).find(|((_, old), new)| old != new) {
            return Err(Error::ChangedMeanwhile { path: files.path(file.0.0).to_owned() });
        }
        unhashed.with_hashes(hashes)
    }

    /// The manifest of a model that is part of the program; `name` stands for a file name.
    ///
    /// # Errors
    /// Bytes that are no model in one piece; a name that is none for a file.
    pub fn of_bytes(name: &str, bytes: &'static [u8]) -> Result<Self> {
        let unhashed = unhashed(&Gguf::from_static(bytes, name)?)?;
        let (pieces, _) = bytes.as_chunks::<{ PIECE_BYTES as usize }>();
        let rest = &bytes[pieces.len() * PIECE_BYTES as usize..];
        let rest = (!rest.is_empty()).then_some(rest);
        let pieces = pieces.iter().map(<[u8; _]>::as_slice).chain(rest);
        unhashed.with_hashes(pieces.map(|piece| *blake3::hash(piece).as_bytes()).collect())
    }

    fn all_pieces(&self) -> Vec<u32> {
        (0..self.piece_count()).collect()
    }

    /// The same files with the hashes of all pieces.
    fn with_hashes(self, hashes: Vec<[u8; 32]>) -> Result<Self> {
        let mut hashes = hashes.into_iter();
        let filled = self.files().iter().map(|file| {
            let pieces = hashes.by_ref().take(file.pieces.len()).collect();
            FileEntry { pieces, ..file.clone() }
        });
        Self::new(filled.collect())
    }
}

fn open(first: &Path, paths: &[PathBuf]) -> Result<Gguf> {
    let gguf = Gguf::open(first)?;
    if !gguf.files().map(|file| file.path).eq(paths) {
        let (found, given) = (gguf.files().len(), paths.len());
        return Err(Error::OtherFiles { path: first.to_owned(), found, given });
    }
    Ok(gguf)
}

/// The manifest of a model before any piece has been hashed.
fn unhashed(gguf: &Gguf) -> Result<Manifest> {
    let entry = |ModelFile { path, bytes, header_bytes }: ModelFile<'_>| {
        let name = path.file_name().unwrap_or_default();
        let refused = || Error::Name { name: name.to_string_lossy().into_owned(), reason: "it is not UTF-8" };
        let name = name.to_str().ok_or_else(refused)?.to_owned();
        let pieces = vec![[0; 32]; usize::try_from(bytes.div_ceil(PIECE_BYTES)).unwrap_or(usize::MAX)];
        Ok(FileEntry { name, bytes, header_bytes, pieces })
    };
    Manifest::new(gguf.files().map(entry).collect::<Result<_>>()?)
}

/// Does `work` for each of `pieces` on several threads, each with a buffer of its own, and returns what it made of
/// them, in their order. The first error ends it.
pub(crate) fn on_pieces<T: Send>(
    pieces: &[u32],
    work: impl Fn(u32, &mut Vec<u8>) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let next = AtomicUsize::new(0);
    let take_turns = || {
        let (mut buffer, mut made) = (Vec::new(), Vec::new());
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(&piece) = pieces.get(index) else { return Ok::<_, Error>(made) };
            let result = work(piece, &mut buffer).inspect_err(|_| next.store(pieces.len(), Ordering::Relaxed));
            made.push((index, result?));
        }
    };
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(MOST_THREADS).min(pieces.len());
    let mut made = thread::scope(|scope| {
        // A thread that cannot be had is one that does not help.
        let spawn = |_| thread::Builder::new().name("paceline-hash".to_owned()).spawn_scoped(scope, take_turns).ok();
        let helpers: Vec<_> = (1..threads).filter_map(spawn).collect();
        let mut made: Vec<(usize, T)> = take_turns()?;
        for helper in helpers {
            made.extend(helper.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok::<_, Error>(made)
    })?;
    made.sort_unstable_by_key(|(index, _)| *index);
    Ok(made.into_iter().map(|(_, result)| result).collect())
}
