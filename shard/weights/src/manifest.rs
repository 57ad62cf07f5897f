//! The files of a model in pieces, each with its hash.

use std::collections::HashSet;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::{Error, ModelHash, Result};

/// Bytes of a piece; the last one of a file may be shorter.
pub const PIECE_BYTES: u64 = 4 << 20;
/// The most bytes of an encoded manifest: that of two terabytes.
pub const MAX_MANIFEST_BYTES: usize = 16 << 20;
/// The most files of a model.
pub const MAX_FILES: usize = 4096;
/// The most bytes of a file's name: what file systems take.
pub const MAX_NAME_BYTES: usize = 255;

/// What an encoded manifest begins with; the last byte is its version.
const MAGIC: [u8; 4] = *b"PCM\x01";

/// All files of a model, in pieces of [`PIECE_BYTES`] that are numbered through all files.
///
/// Whatever made it, it is sound: names are plain file names and differ, every file has as many pieces as its length
/// needs, and its header lies in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    files: Vec<FileEntry>,
    /// The number of each file's first piece, and behind them the count of all.
    first_pieces: Vec<u32>,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// Its name, without a folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Bytes before the first that can belong to a tensor.
    pub header_bytes: u64,
    /// The blake3 hash of each piece.
    pub pieces: Vec<[u8; 32]>,
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PieceRange {
    /// In which of the files.
    pub file: usize,
    /// Its first byte in the file.
    pub offset: u64,
    /// How many bytes.
    pub bytes: usize,
}

impl Manifest {
    /// A manifest of these files.
    ///
    /// # Errors
    /// Entries that contradict themselves or one another.
    pub fn new(files: Vec<FileEntry>) -> Result<Self> {
        if files.is_empty() || files.len() > MAX_FILES {
            return Err(Error::FileCount { count: files.len(), limit: MAX_FILES });
        }
        let mut names = HashSet::new();
        let mut first_pieces = vec![0];
        let mut count = 0_u32;
        for file in &files {
            file.check()?;
            if !names.insert(file.name.as_str()) {
                return Err(Error::DuplicateName { name: file.name.clone() });
            }
            count =
                u32::try_from(file.pieces.len()).ok().and_then(|more| count.checked_add(more)).ok_or_else(too_large)?;
            first_pieces.push(count);
        }
        Ok(Self { files, first_pieces })
    }

    /// The files, in order.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// How many pieces all files have.
    pub fn piece_count(&self) -> u32 {
        self.first_pieces.last().copied().unwrap_or(0)
    }

    /// The length of all files together.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The name of the model that this is the manifest of.
    pub fn hash(&self) -> ModelHash {
        ModelHash(*blake3::hash(&self.encode()).as_bytes())
    }

    /// Where a piece lies.
    ///
    /// # Errors
    /// A piece that does not exist.
    pub fn piece_range(&self, piece: u32) -> Result<PieceRange> {
        let count = self.piece_count();
        if piece >= count {
            return Err(Error::UnknownPiece { piece, count });
        }
        let file = self.first_pieces.partition_point(|&first| first <= piece) - 1;
        let offset = u64::from(piece - self.first_pieces[file]) * PIECE_BYTES;
        let bytes = (self.files[file].bytes - offset).min(PIECE_BYTES) as usize;
        Ok(PieceRange { file, offset, bytes })
    }

    /// The hash of a piece.
    ///
    /// # Errors
    /// A piece that does not exist.
    pub fn piece_hash(&self, piece: u32) -> Result<[u8; 32]> {
        let PieceRange { file, offset, .. } = self.piece_range(piece)?;
        Ok(self.files[file].pieces[(offset / PIECE_BYTES) as usize])
    }

    /// The pieces that have these bytes of a file; bytes beyond its end have none.
    pub fn pieces_for(&self, file: usize, bytes: Range<u64>) -> Range<u32> {
        let Some(entry) = self.files.get(file) else { return 0..0 };
        let (first, end) = (self.first_pieces[file], bytes.end.min(entry.bytes));
        if bytes.start >= end {
            return first..first;
        }
        // No more than there are pieces, which are counted in 32 bits.
        first + (bytes.start / PIECE_BYTES) as u32..first + end.div_ceil(PIECE_BYTES) as u32
    }

    /// How many bytes these pieces have; pieces that do not exist have none.
    pub fn piece_bytes(&self, pieces: impl IntoIterator<Item = u32>) -> u64 {
        pieces.into_iter().filter_map(|piece| self.piece_range(piece).ok()).map(|range| range.bytes as u64).sum()
    }

    /// Do these bytes have the hash of the piece?
    ///
    /// # Errors
    /// A piece that does not exist, or not so many bytes.
    pub fn is_piece(&self, piece: u32, bytes: &[u8]) -> Result<bool> {
        let expected = self.piece_range(piece)?.bytes;
        if bytes.len() != expected {
            return Err(Error::PieceLength { piece, found: bytes.len(), expected });
        }
        Ok(*blake3::hash(bytes).as_bytes() == self.piece_hash(piece)?)
    }

    /// The manifest as bytes: the same ones for the same manifest.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let body = postcard::to_stdvec(&self.files).expect("a manifest holds nothing that cannot be written");
        bytes.extend(body);
        bytes
    }

    /// Reads a manifest.
    ///
    /// # Errors
    /// Bytes that [`encode`](Self::encode) would not have written, and manifests that are not sound.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_MANIFEST_BYTES {
            return Err(Error::ManifestTooLarge { bytes: bytes.len(), limit: MAX_MANIFEST_BYTES });
        }
        let (files, mut rest): (u64, _) = understand(body(bytes)?)?;
        let count = usize::try_from(files).unwrap_or(usize::MAX);
        if count > MAX_FILES {
            return Err(Error::FileCount { count, limit: MAX_FILES });
        }
        let mut files = Vec::new();
        for _ in 0..count {
            let (file, behind): (FileEntry, _) = understand(rest)?;
            files.push(file);
            rest = behind;
        }
        let manifest = Self::new(files)?;
        // Numbers can be written in several ways; one manifest must have one hash.
        if manifest.encode() != bytes {
            return Err(unreadable("its bytes are not in the one form that they can have"));
        }
        Ok(manifest)
    }
}

impl FileEntry {
    fn check(&self) -> Result<()> {
        let (name, bytes, header_bytes) = (&self.name, self.bytes, self.header_bytes);
        if let Some(reason) = problem_of(name) {
            return Err(Error::Name { name: name.chars().take(MAX_NAME_BYTES).collect(), reason });
        }
        if header_bytes == 0 || header_bytes > bytes {
            return Err(Error::HeaderBytes { name: name.clone(), header_bytes, bytes });
        }
        let (found, expected) = (self.pieces.len() as u64, bytes.div_ceil(PIECE_BYTES));
        if found != expected {
            return Err(Error::PieceCount { name: name.clone(), bytes, found, expected });
        }
        Ok(())
    }
}

/// Why this is no name for a file in a folder of ours.
fn problem_of(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        return Some("it is empty");
    }
    if name.len() > MAX_NAME_BYTES {
        return Some("it is longer than 255 bytes");
    }
    if name == "." || name == ".." {
        return Some("it names a folder");
    }
    let wrong = |character: char| character == '/' || character == '\\' || character.is_control();
    name.contains(wrong).then_some("it has a slash, a backslash or a control character")
}

/// What follows the first bytes, which say what this is.
fn body(bytes: &[u8]) -> Result<&[u8]> {
    let [magic @ .., version] = MAGIC;
    match bytes.strip_prefix(&magic) {
        Some([found, body @ ..]) if *found == version => Ok(body),
        Some([found, ..]) => Err(Error::Version { found: *found, expected: version }),
        _ => Err(unreadable("it does not begin as a manifest does")),
    }
}

fn understand<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<(T, &'a [u8])> {
    postcard::take_from_bytes(bytes).map_err(|error| unreadable(&error.to_string()))
}

fn unreadable(reason: &str) -> Error {
    Error::Unreadable { reason: reason.to_owned() }
}

fn too_large() -> Error {
    unreadable("it has more pieces than can be counted in 32 bits")
}
