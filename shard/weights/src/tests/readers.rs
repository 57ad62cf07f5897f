//! What is handed out has the hash that the manifest says, or is not handed out.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::*;
use crate::{Error, ModelHash};

#[test]
fn a_model_in_the_program_is_handed_out() {
    let bytes: &'static [u8] = model::small(1).leak();
    let (manifest, reader) = (Manifest::of_bytes("a.gguf", bytes).unwrap(), PieceReader::new());
    let hash = manifest.hash();
    assert!(matches!(reader.read(&hash, 0), Err(Error::UnknownModel { model }) if model == hash));
    reader.add_bytes(&manifest, bytes);
    assert_eq!(reader.read(&hash, 0).unwrap(), bytes);
    assert!(matches!(reader.read(&hash, 1), Err(Error::UnknownPiece { piece: 1, count: 1 })));
    assert!(matches!(reader.read(&hash, u32::MAX), Err(Error::UnknownPiece { .. })));
    assert!(matches!(reader.read(&ModelHash([0; 32]), 0), Err(Error::UnknownModel { .. })));
    // The bytes of another model do not pass for it, whatever their length.
    for other in [model::small(2).leak(), &bytes[..10], &[]] {
        reader.add_bytes(&manifest, other);
        assert!(matches!(reader.read(&hash, 0), Err(Error::Changed { .. })));
    }
    reader.remove(&hash);
    assert!(matches!(reader.read(&hash, 0), Err(Error::UnknownModel { .. })));
}

#[test]
fn a_file_that_changes_is_not_handed_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write(folder.path(), &["token_embd.weight", "output_norm.weight"]);
    let (manifest, reader) = served(&path);
    let (hash, file) = (manifest.hash(), OpenOptions::new().write(true).open(&path).unwrap());
    let range = manifest.piece_range(2).unwrap();
    file.write_all_at(&[1, 2, 3], range.offset + 5).unwrap();
    let changed = reader.read(&hash, 2).unwrap_err();
    assert!(matches!(&changed, Error::Changed { file, piece: 2 } if *file == path), "{changed}");
    assert!(reader.read(&hash, 1).is_ok() && reader.read(&hash, 3).is_ok());
    file.set_len(range.offset + 5).unwrap();
    let cut = reader.read(&hash, 2).unwrap_err().to_string();
    assert!(cut.contains("model.gguf: cannot read 4194304 bytes at 8388608"), "{cut}");

    let missing = folder.path().join("nowhere");
    let error = reader.add_files(&manifest, std::slice::from_ref(&missing)).unwrap_err().to_string();
    assert!(error.contains("nowhere: cannot open the file: No such file"), "{error}");
    assert!(matches!(reader.add_files(&manifest, &[]), Err(Error::OtherFiles { found: 1, given: 0, .. })));
}

#[test]
fn the_cache_hands_out_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write(folder.path(), &["token_embd.weight", "output_norm.weight"]);
    let (manifest, origin) = served(&path);
    let model = cache(folder.path()).model(&manifest).unwrap();
    let reader = PieceReader::new();
    reader.add_cached(&model);
    let hash = manifest.hash();
    assert!(matches!(reader.read(&hash, 1), Err(Error::NotHere { piece: 1, .. })));
    fetch(&model, &origin, &only(1..3));
    for piece in 1..3 {
        assert_eq!(reader.read(&hash, piece).unwrap(), origin.read(&hash, piece).unwrap());
    }
    assert!(matches!(reader.read(&hash, 3), Err(Error::NotHere { piece: 3, .. })));
    assert!(matches!(reader.read(&hash, u32::MAX), Err(Error::UnknownPiece { .. })));

    // Damage on the disk is found when it is read, and then fetched again.
    let cached = OpenOptions::new().write(true).open(model.path()).unwrap();
    cached.write_all_at(&[9; 100], manifest.piece_range(1).unwrap().offset).unwrap();
    assert!(matches!(reader.read(&hash, 1), Err(Error::Changed { piece: 1, .. })));
    assert_eq!(model.missing(&all(&manifest)[..1]).first(), Some(&0));
    assert_eq!(fetch(&model, &origin, &only(1..3)), [1]);
    assert_eq!(reader.read(&hash, 1).unwrap(), origin.read(&hash, 1).unwrap());

    // A node with the file and a part in the cache has everything.
    reader.add_files(&manifest, std::slice::from_ref(&path)).unwrap();
    assert!((0..manifest.piece_count()).all(|piece| reader.read(&hash, piece).is_ok()));
    fs::remove_file(path).unwrap();
    assert!(reader.read(&hash, 0).is_ok(), "it is still open");
}
