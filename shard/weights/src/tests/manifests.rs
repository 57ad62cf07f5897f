//! Manifests of files, of memory, and remembered.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use super::*;
use crate::{Error, HashCache, ModelHash, PIECE_BYTES};

fn hash_of(path: &Path) -> ModelHash {
    Manifest::of_files(&crate::model_files(path).unwrap(), &quiet).unwrap().hash()
}

#[test]
fn a_manifest_has_the_hash_of_every_piece_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write(folder.path(), &["token_embd.weight", "output_norm.weight"]);
    let (bytes, read) = (fs::read(&path).unwrap(), AtomicU64::new(0));
    let count = |bytes| {
        read.fetch_add(bytes, Ordering::Relaxed);
    };
    let manifest = Manifest::of_files(std::slice::from_ref(&path), &count).unwrap();
    assert_eq!(read.into_inner(), bytes.len() as u64);
    let [file] = manifest.files() else { panic!("{manifest:?}") };
    assert_eq!((file.name.as_str(), file.bytes), ("model.gguf", bytes.len() as u64));
    let hashes: Vec<_> = bytes.chunks(PIECE_BYTES as usize).map(|piece| *blake3::hash(piece).as_bytes()).collect();
    assert!(hashes.len() > 5 && bytes.len() % PIECE_BYTES as usize != 0, "{} pieces", hashes.len());
    assert_eq!(file.pieces, hashes);
    assert_eq!(manifest, Manifest::of_bytes("model.gguf", bytes.leak()).unwrap());
    assert_eq!(Manifest::decode(&manifest.encode()).unwrap(), manifest);
}

#[test]
fn the_name_of_a_model_depends_on_its_bytes_and_its_files_names() {
    let bytes = |seed| -> &'static [u8] { model::small(seed).leak() };
    let hash = |name, seed| Manifest::of_bytes(name, bytes(seed)).unwrap().hash();
    assert_eq!(hash("a.gguf", 1), hash("a.gguf", 1));
    assert_ne!(hash("a.gguf", 1), hash("a.gguf", 2));
    assert_ne!(hash("a.gguf", 1), hash("b.gguf", 1));
}

#[test]
fn pieces_are_numbered_through_all_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write_parts(folder.path());
    let (manifest, reader) = served(&path);
    let paths = crate::model_files(&path).unwrap();
    assert_eq!(manifest.files().len(), 3);
    let mut all_bytes = 0;
    for piece in 0..manifest.piece_count() {
        let range = manifest.piece_range(piece).unwrap();
        let file = fs::read(&paths[range.file]).unwrap();
        let bytes = &file[range.offset as usize..][..range.bytes];
        assert_eq!(reader.read(&manifest.hash(), piece).unwrap(), bytes);
        let end = range.offset + range.bytes as u64;
        assert_eq!(manifest.pieces_for(range.file, range.offset..end), piece..piece + 1);
        assert_eq!(manifest.pieces_for(range.file, end - 1..end + 1).start, piece);
        all_bytes += range.bytes as u64;
    }
    assert_eq!(all_bytes, manifest.bytes());
    assert_eq!(manifest.piece_bytes(0..1000), manifest.bytes());
    // The first file is its header alone.
    assert_eq!(manifest.files()[0].header_bytes, manifest.files()[0].bytes);
    let count = manifest.piece_count();
    assert!(matches!(manifest.piece_range(count), Err(Error::UnknownPiece { piece, .. }) if piece == count));
    for nothing in [5..5, u64::MAX - 1..u64::MAX, manifest.files()[1].bytes..u64::MAX] {
        assert!(manifest.pieces_for(1, nothing.clone()).is_empty(), "{nothing:?}");
    }
    assert!(manifest.pieces_for(3, 0..10).is_empty());
    assert_eq!(manifest.pieces_for(2, 0..u64::MAX).end, count);
}

#[test]
fn what_is_no_model_has_no_manifest() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("text");
    fs::write(&path, "no model").unwrap();
    assert!(matches!(Manifest::of_files(std::slice::from_ref(&path), &quiet), Err(Error::Gguf(_))));
    assert!(matches!(Manifest::of_files(&[], &quiet), Err(Error::FileCount { .. })));
    assert!(matches!(Manifest::of_bytes("a.gguf", b"no model"), Err(Error::Gguf(_))));
    assert!(matches!(Manifest::of_bytes("a/", model::small(1).leak()), Ok(m) if m.files()[0].name == "a"));
    assert!(matches!(Manifest::of_bytes("..", model::small(1).leak()), Err(Error::Name { .. })));
    let parts = model::write_parts(folder.path());
    assert!(matches!(Manifest::of_files(&[parts], &quiet), Err(Error::OtherFiles { found: 3, given: 1, .. })));
}

#[test]
fn a_model_is_hashed_once_and_again_when_it_changes() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write_parts(folder.path());
    let read = AtomicU64::new(0);
    let count = |bytes| {
        read.fetch_add(bytes, Ordering::Relaxed);
    };
    let hashes = || HashCache::open(&folder.path().join("hashes")).unwrap();
    let manifest = hashes().manifest(&path, &count).unwrap();
    assert_eq!(read.swap(0, Ordering::Relaxed), manifest.bytes());
    assert_eq!(hashes().manifest(&path, &count).unwrap(), manifest);
    assert_eq!(read.load(Ordering::Relaxed), 0, "it has been hashed already");

    // The last part is replaced by one of the same length.
    let last = crate::model_files(&path).unwrap().pop().unwrap();
    let mut bytes = fs::read(&last).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(last.with_extension("new"), &bytes).unwrap();
    fs::rename(last.with_extension("new"), &last).unwrap();
    let changed = hashes().manifest(&path, &count).unwrap();
    assert_ne!(changed.hash(), manifest.hash());
    assert_eq!(changed.hash(), hash_of(&path));
    assert_eq!(read.swap(0, Ordering::Relaxed), manifest.bytes());
}

#[test]
fn a_kept_manifest_that_is_damaged_counts_as_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.gguf");
    fs::write(&path, model::small(1)).unwrap();
    let place = folder.path().join("hashes");
    let hashes = HashCache::open(&place).unwrap();
    let manifest = hashes.manifest(&path, &quiet).unwrap();
    let kept: Vec<_> = fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [kept] = kept.as_slice() else { panic!("{kept:?}") };
    let whole = fs::read(kept).unwrap();
    for length in 0..whole.len() {
        fs::write(kept, &whole[..length]).unwrap();
        assert_eq!(hashes.manifest(&path, &quiet).unwrap(), manifest);
    }
    // Where nothing can be kept, it is hashed all the same.
    fs::remove_file(kept).unwrap();
    fs::create_dir(kept).unwrap();
    assert_eq!(hashes.manifest(&path, &quiet).unwrap(), manifest);
    fs::remove_dir_all(&place).unwrap();
    assert_eq!(hashes.manifest(&path, &quiet).unwrap(), manifest);
}

#[test]
fn a_link_to_a_model_keeps_its_own_name() {
    let folder = tempfile::tempdir().unwrap();
    let (blob, link) = (folder.path().join("0123abcd"), folder.path().join("model.gguf"));
    fs::write(&blob, model::small(1)).unwrap();
    std::os::unix::fs::symlink(&blob, &link).unwrap();
    let hashes = HashCache::open(&folder.path().join("hashes")).unwrap();
    let name = |path: &Path| hashes.manifest(path, &quiet).unwrap().files()[0].name.clone();
    assert_eq!((name(&blob), name(&link), name(&blob)), ("0123abcd".into(), "model.gguf".into(), "0123abcd".into()));
}
