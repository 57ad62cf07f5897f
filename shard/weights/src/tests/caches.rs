//! Fetching that is cut short, damaged, or done twice at once.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use super::*;
use crate::Error;

/// A model with its manifest, and a folder for a cache.
struct Served {
    folder: tempfile::TempDir,
    path: PathBuf,
    manifest: Manifest,
    reader: PieceReader,
}

impl Served {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = model::write(folder.path(), &["token_embd.weight", "output_norm.weight"]);
        let (manifest, reader) = served(&path);
        Self { folder, path, manifest, reader }
    }

    /// The model in a cache as another run of the program would open it.
    fn model(&self) -> CachedModel {
        cache(self.folder.path()).model(&self.manifest).unwrap()
    }

    fn piece(&self, piece: u32) -> Vec<u8> {
        self.reader.read(&self.manifest.hash(), piece).unwrap()
    }

    /// A file of the cached model's folder.
    fn cached(&self, name: &str) -> PathBuf {
        self.folder.path().join("cache").join(self.manifest.hash().to_string()).join(name)
    }

    /// Fetches what `model` lacks, which must be `expected`, and compares with the original.
    fn complete(&self, model: &CachedModel, expected: &[u32]) {
        assert_eq!(fetch(model, &self.reader, &all(&self.manifest)), expected);
        assert!(fs::read(model.path()).unwrap() == fs::read(&self.path).unwrap());
        assert_eq!(fetch(&self.model(), &self.reader, &all(&self.manifest)), [], "another run has it all");
    }
}

#[test]
fn a_fetch_goes_on_where_it_ended() {
    let served = Served::new();
    fetch(&served.model(), &served.reader, &only(1..3));
    let model = served.model();
    assert_eq!(model.missing(&only(0..4)), [0, 3]);
    assert_eq!(model.missing(&[3..4, 1..4, 0..1, 2..2]), [0, 3], "in order, each once");
    let rest: Vec<u32> = std::iter::once(0).chain(3..served.manifest.piece_count()).collect();
    served.complete(&model, &rest);
    assert_eq!(model.missing(&only(0..u32::MAX)), [], "pieces that do not exist are not missing");
}

#[test]
fn wrong_bytes_are_not_stored() {
    let served = Served::new();
    let model = served.model();
    let mut wrong = served.piece(1);
    wrong[1000] ^= 1;
    let error = model.store(1, &wrong).unwrap_err();
    assert!(matches!(&error, Error::WrongBytes { piece: 1, .. }), "{error}");
    assert!(matches!(model.store(1, &served.piece(2)), Err(Error::WrongBytes { piece: 1, .. })));
    assert!(matches!(model.store(1, &wrong[1..]), Err(Error::PieceLength { piece: 1, .. })));
    assert!(matches!(model.store(1, &[]), Err(Error::PieceLength { found: 0, .. })));
    assert!(matches!(model.store(u32::MAX, &wrong), Err(Error::UnknownPiece { .. })));
    assert_eq!(model.missing(&all(&served.manifest)).len(), served.manifest.piece_count() as usize);
    assert!(fs::read(model.path()).unwrap().iter().all(|&byte| byte == 0), "nothing has been written");
}

#[test]
fn a_piece_that_was_written_but_not_recorded_is_fetched_again() {
    let served = Served::new();
    let model = served.model();
    fetch(&model, &served.reader, &only(0..2));
    drop(model);
    // Killed in the middle of piece 2, and between the bytes and the record of piece 3.
    let file = OpenOptions::new().write(true).open(served.cached("files/model.gguf")).unwrap();
    let offset = |piece| served.manifest.piece_range(piece).unwrap().offset;
    file.write_all_at(&served.piece(2)[..100_000], offset(2)).unwrap();
    file.write_all_at(&served.piece(3), offset(3)).unwrap();
    let rest: Vec<u32> = (2..served.manifest.piece_count()).collect();
    served.complete(&served.model(), &rest);
}

#[test]
fn a_record_without_its_bytes_counts_for_nothing() {
    let served = Served::new();
    served.complete(&served.model(), &(0..served.manifest.piece_count()).collect::<Vec<_>>());
    let file = OpenOptions::new().write(true).open(served.cached("files/model.gguf")).unwrap();
    // Power failed: the file's end was never written, nor was a block of piece 1.
    let kept = served.manifest.piece_range(4).unwrap().offset + 1;
    file.set_len(kept).unwrap();
    file.write_all_at(&[0; 4096], served.manifest.piece_range(1).unwrap().offset).unwrap();
    let lost: Vec<u32> = std::iter::once(1).chain(4..served.manifest.piece_count()).collect();
    served.complete(&served.model(), &lost);

    // A file that has grown, or is gone.
    OpenOptions::new().append(true).open(served.cached("files/model.gguf")).unwrap().set_len(1 << 40).unwrap();
    served.complete(&served.model(), &[]);
    fs::remove_file(served.cached("files/model.gguf")).unwrap();
    served.complete(&served.model(), &(0..served.manifest.piece_count()).collect::<Vec<_>>());
}

#[test]
fn garbage_in_the_records_costs_no_more_than_a_fetch() {
    let served = Served::new();
    let count = served.manifest.piece_count();
    fetch(&served.model(), &served.reader, &only(0..2));
    let garbage: [&[u8]; 5] = [b"", &[1; 3], &[1; 500], b"\x01\x00garbage of every kind", &[0; 2]];
    for records in garbage {
        fs::write(served.cached("pieces"), records).unwrap();
        let claimed = |piece: u32| records.get(piece as usize) == Some(&1);
        let expected: Vec<u32> = (0..count).filter(|&piece| piece >= 2 || !claimed(piece)).collect();
        assert_eq!(served.model().missing(&all(&served.manifest)), expected, "{records:?}");
    }
    // The manifest beside them is for whoever looks; it is written again.
    fs::write(served.cached("manifest"), "garbage").unwrap();
    let model = served.model();
    assert_eq!(fs::read(served.cached("manifest")).unwrap(), served.manifest.encode());
    fetch(&model, &served.reader, &all(&served.manifest));
    served.complete(&model, &[]);
}

#[test]
fn two_caches_share_a_folder() {
    let served = Served::new();
    let (one, other) = (served.model(), served.model());
    fetch(&one, &served.reader, &only(0..3));
    assert_eq!(other.missing(&only(0..4)), [3], "one has fetched the rest");
    // Both fetch everything at the same time.
    std::thread::scope(|scope| {
        for model in [&one, &other, &one] {
            scope.spawn(|| fetch(model, &served.reader, &all(&served.manifest)));
        }
    });
    served.complete(&served.model(), &[]);
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let served = Served::new();
    let error = Cache::open(&served.path, None).unwrap_err().to_string();
    assert!(error.contains("model.gguf: cannot make the folder: File exists"), "{error}");
    let error = Cache::open(&served.path.join("below"), None).unwrap_err().to_string();
    assert!(error.contains("model.gguf/below: cannot make the folder: Not a directory"), "{error}");
    fs::create_dir_all(served.cached("files/model.gguf")).unwrap();
    let error = cache(served.folder.path()).model(&served.manifest).unwrap_err().to_string();
    assert!(error.contains("files/model.gguf: cannot open the file for writing: Is a directory"), "{error}");
}
