//! Manifests from strangers: typed errors, no panic, no memory beyond what came.

use proptest::collection::vec;
use proptest::prelude::*;

use crate::{Error, FileEntry, MAX_FILES, MAX_MANIFEST_BYTES, Manifest, PIECE_BYTES};

fn file(name: &str, bytes: u64) -> FileEntry {
    let pieces = (0..bytes.div_ceil(PIECE_BYTES)).map(|piece| [piece as u8; 32]).collect();
    FileEntry { name: name.to_owned(), bytes, header_bytes: 1, pieces }
}

fn encoded() -> Vec<u8> {
    Manifest::new(vec![file("a.gguf", 3 * PIECE_BYTES + 1), file("b.gguf", 5)]).unwrap().encode()
}

/// The bytes of a manifest with this behind its version.
fn with_body(body: &[u8]) -> Vec<u8> {
    [b"PCM\x01", body].concat()
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let long = "x".repeat(256);
    let wrong = ["", ".", "..", "/", "/etc/passwd", "../a", "a/b", "a/", "a\\b", "a\0", "a\nb", "\u{1b}[31m", &long];
    for name in wrong {
        let refused = Manifest::new(vec![file(name, 5)]);
        assert!(matches!(&refused, Err(Error::Name { .. })), "{name:?}: {refused:?}");
        let bytes = [b"PCM\x01".to_vec(), postcard::to_stdvec(&[file(name, 5)].to_vec()).unwrap()].concat();
        assert!(matches!(Manifest::decode(&bytes), Err(Error::Name { .. })), "{name:?}");
    }
    for name in ["a", "...", "..a", "Modell für alle.gguf", "manifest", "lock", &"x".repeat(255)] {
        assert!(Manifest::new(vec![file(name, 5)]).is_ok(), "{name:?}");
    }
}

#[test]
fn manifests_that_contradict_themselves_are_refused() {
    let refused = |change: &dyn Fn(&mut FileEntry)| {
        let mut wrong = file("a.gguf", 3 * PIECE_BYTES);
        change(&mut wrong);
        Manifest::new(vec![wrong]).unwrap_err()
    };
    assert!(matches!(refused(&|file| file.bytes = 0), Error::HeaderBytes { .. }));
    assert!(matches!(refused(&|file| file.header_bytes = 0), Error::HeaderBytes { .. }));
    assert!(matches!(refused(&|file| file.header_bytes = file.bytes + 1), Error::HeaderBytes { .. }));
    assert!(matches!(refused(&|file| file.bytes += 1), Error::PieceCount { found: 3, expected: 4, .. }));
    assert!(matches!(refused(&|file| file.bytes = u64::MAX), Error::PieceCount { .. }));
    assert!(matches!(refused(&|file| file.pieces.truncate(2)), Error::PieceCount { .. }));
    assert!(matches!(Manifest::new(vec![]), Err(Error::FileCount { count: 0, .. })));
    assert!(matches!(Manifest::new(vec![file("a", 1), file("a", 2)]), Err(Error::DuplicateName { .. })));
    let many = (0..=MAX_FILES).map(|index| file(&index.to_string(), 1)).collect();
    assert!(matches!(Manifest::new(many), Err(Error::FileCount { .. })));
}

#[test]
fn absurd_counts_cost_nothing() {
    let most = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
    // Of files; of a name's bytes; of pieces.
    assert!(matches!(Manifest::decode(&with_body(&most)), Err(Error::FileCount { .. })));
    assert!(matches!(Manifest::decode(&with_body(&[&[1][..], &most].concat())), Err(Error::Unreadable { .. })));
    let pieces = [&[1, 1, b'a', 5, 1][..], &most, &[0; 64]].concat();
    assert!(matches!(Manifest::decode(&with_body(&pieces)), Err(Error::Unreadable { .. })));
    let large = vec![0; MAX_MANIFEST_BYTES + 1];
    assert!(matches!(Manifest::decode(&large), Err(Error::ManifestTooLarge { .. })));
}

#[test]
fn other_forms_of_the_same_manifest_are_refused() {
    let bytes = encoded();
    let reason = |bytes: &[u8]| Manifest::decode(bytes).unwrap_err().to_string();
    assert!(reason(&[&bytes[..], &[0]].concat()).contains("not in the one form"));
    // The count of files, 2, in two bytes instead of one.
    assert!(reason(&[&bytes[..4], &[0x82, 0x00], &bytes[5..]].concat()).contains("the manifest cannot be read"));
    let mut newer = bytes.clone();
    newer[3] = 2;
    assert!(reason(&newer).contains("version 2, this program knows version 1"));
    assert!(reason(b"GGUF").contains("does not begin as a manifest"));
    for length in 0..bytes.len() {
        assert!(Manifest::decode(&bytes[..length]).is_err(), "{length} bytes of {}", bytes.len());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_a_manifest_or_an_error(body in vec(any::<u8>(), 0..400)) {
        for bytes in [body.clone(), with_body(&body)] {
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(manifest.encode(), bytes);
            }
        }
    }

    #[test]
    fn changed_manifests_are_sound_or_refused(
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = encoded();
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        bytes.truncate(cut.index(2 * bytes.len()) + 1);
        if let Ok(manifest) = Manifest::decode(&bytes) {
            prop_assert_eq!(manifest.encode(), bytes);
            for piece in 0..manifest.piece_count() {
                let range = manifest.piece_range(piece).unwrap();
                prop_assert!(range.offset + range.bytes as u64 <= manifest.files()[range.file].bytes);
            }
        }
    }

    #[test]
    fn pieces_cover_files_of_any_length(lengths in vec(1..5 * PIECE_BYTES, 1..5), from in any::<u64>(), to in any::<u64>()) {
        let files = lengths.iter().enumerate().map(|(index, &bytes)| file(&index.to_string(), bytes)).collect();
        let manifest = Manifest::new(files).unwrap();
        for (index, &bytes) in lengths.iter().enumerate() {
            let all = manifest.pieces_for(index, 0..bytes);
            prop_assert_eq!(manifest.piece_bytes(all.clone()), bytes);
            prop_assert_eq!(manifest.pieces_for(index, 0..u64::MAX), all.clone());
            let part = manifest.pieces_for(index, from % bytes..to);
            prop_assert!(part.is_empty() || (all.start <= part.start && part.end <= all.end));
            if from % bytes < to {
                let first = manifest.piece_range(part.start).unwrap();
                let last = manifest.piece_range(part.end - 1).unwrap();
                prop_assert!(first.offset <= from % bytes && first.file == index);
                prop_assert!(last.offset + last.bytes as u64 >= to.min(bytes) && last.file == index);
            }
        }
    }
}
