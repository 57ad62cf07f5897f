//! Whole ways: from files through manifests, pieces and caches, and back to the same bytes.

mod budgets;
mod caches;
mod hostile;
mod manifests;
mod model;
mod readers;
mod stages;

use std::ops::Range;
use std::path::Path;

use crate::{Cache, CachedModel, Manifest, PieceReader};

/// For those who do not care how far it is.
fn quiet(_: u64) {}

/// The manifest of the model at `path`, and a reader that has it.
fn served(path: &Path) -> (Manifest, PieceReader) {
    let paths = crate::model_files(path).unwrap();
    let (manifest, reader) = (Manifest::of_files(&paths, &quiet).unwrap(), PieceReader::new());
    reader.add_files(&manifest, &paths).unwrap();
    (manifest, reader)
}

/// Fetches what is missing of `wanted` and returns it.
fn fetch(model: &CachedModel, reader: &PieceReader, wanted: &[Range<u32>]) -> Vec<u32> {
    let missing = model.missing(wanted);
    model.reserve(&missing).unwrap();
    for &piece in &missing {
        model.store(piece, &reader.read(&model.hash(), piece).unwrap()).unwrap();
    }
    assert_eq!(model.missing(wanted), []);
    missing
}

/// All pieces of a model.
fn all(manifest: &Manifest) -> [Range<u32>; 1] {
    only(0..manifest.piece_count())
}

/// These pieces and no others.
fn only(pieces: Range<u32>) -> [Range<u32>; 1] {
    [pieces]
}

/// A cache without a budget.
fn cache(folder: &Path) -> Cache {
    Cache::open(&folder.join("cache"), None).unwrap()
}
