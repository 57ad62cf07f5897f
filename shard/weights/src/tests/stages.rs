//! A stage fetches what it needs, and no more, and has the original's bytes.

use std::fs;
use std::sync::Arc;

use paceline_gguf::Gguf;
use paceline_gguf::testing::PublishedShape;
use paceline_model::StageLayers;

use super::model::LAYERS;
use super::*;
use crate::{Error, PIECE_BYTES, StageParts, header_pieces, stage_pieces};

/// Fetches a stage and checks that all that its program loads is there.
fn fetch_stage(model: &CachedModel, reader: &PieceReader, original: &Gguf, layers: Range<usize>) -> Vec<u32> {
    let mut fetched = fetch(model, reader, &header_pieces(model.manifest()));
    let gguf = Gguf::open(model.path()).unwrap();
    let stage = StageLayers::of(layers.clone(), LAYERS);
    let parts = StageParts { layers, first: stage.first, last: stage.last, mtp: false };
    let pieces = stage_pieces(model.manifest(), &gguf, &parts).unwrap();
    fetched.extend(fetch(model, reader, &pieces));
    let program = paceline_model::record(&gguf, &stage).unwrap();
    assert!(!program.weights.is_empty());
    for spec in &program.weights {
        let (own, original) = (gguf.tensor(&spec.tensor).unwrap(), original.tensor(&spec.tensor).unwrap());
        assert!(own.data == original.data, "{} differs", spec.tensor);
    }
    fetched
}

fn is_there(gguf: &Gguf, original: &Gguf, tensor: &str) -> bool {
    gguf.tensor(tensor).unwrap().data == original.tensor(tensor).unwrap().data
}

#[test]
fn layers_are_fetched_as_they_are_needed_until_the_file_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write(folder.path(), &["output_norm.weight", "output.weight", "token_embd.weight"]);
    let (manifest, reader) = served(&path);
    let original = Gguf::open(&path).unwrap();
    let cache = cache(folder.path());
    let model = cache.model(&manifest).unwrap();

    let header = fetch(&model, &reader, &header_pieces(&manifest));
    assert_eq!(header, [0]);
    let gguf = Gguf::open(model.path()).unwrap();
    assert!(gguf.tensors().map(|tensor| tensor.name).eq(original.tensors().map(|tensor| tensor.name)));

    let middle = fetch_stage(&model, &reader, &original, 1..2);
    assert!(middle.len() <= 3, "a layer of one and a half pieces touches {middle:?}");
    assert!(!is_there(&gguf, &original, "token_embd.weight") && !is_there(&gguf, &original, "blk.3.ffn_up.weight"));
    // Two more layers and the head; what is there is not fetched again.
    let tail = fetch_stage(&model, &reader, &original, 2..4);
    assert!(tail.iter().all(|piece| !middle.contains(piece) && !header.contains(piece)));
    let stored = header.len() + middle.len() + tail.len();
    let (on_disk, small) = (cache.bytes().unwrap(), 64 << 10);
    assert!(on_disk <= stored as u64 * PIECE_BYTES + small && on_disk < manifest.bytes(), "{on_disk} bytes");

    fetch_stage(&model, &reader, &original, 0..1);
    fetch(&model, &reader, &all(&manifest));
    assert!(fs::read(model.path()).unwrap() == fs::read(&path).unwrap());
    assert_eq!(model.path().file_name(), path.file_name());
}

#[test]
fn ends_need_the_embeddings_or_the_head() {
    let folder = tempfile::tempdir().unwrap();
    let others = ["output.weight", "token_embd.weight", "output_norm.weight", "rope_freqs.weight"];
    for tensors in [&others[..], &others[1..]] {
        let path = model::write(folder.path(), tensors);
        let (manifest, gguf) = (served(&path).0, Gguf::open(&path).unwrap());
        let touched = |first, last| {
            let parts = StageParts { layers: 1..2, first, last, mtp: false };
            let pieces = stage_pieces(&manifest, &gguf, &parts).unwrap();
            let has = |tensor: &&str| {
                let (file, bytes) = gguf.tensor_place(tensor).unwrap();
                let needed = manifest.pieces_for(file, bytes);
                pieces.iter().any(|range| range.start <= needed.start && needed.end <= range.end)
            };
            tensors.iter().copied().filter(has).collect::<Vec<_>>()
        };
        // Each table has a piece to itself; the small tensors share the last one's.
        let small = ["output_norm.weight", "rope_freqs.weight"];
        let tables = |table: &[&'static str]| [table, &small].concat();
        assert_eq!(touched(true, false), tables(&["token_embd.weight"]));
        let head = if tensors.contains(&"output.weight") { "output.weight" } else { "token_embd.weight" };
        assert_eq!(touched(false, true), tables(&[head]));
        assert_eq!(touched(false, false), small);
        assert!(others.ends_with(&touched(true, true)) && touched(true, true).len() == tensors.len());
    }
}

#[test]
fn parts_of_a_split_model_are_fetched_where_they_are_needed() {
    let folder = tempfile::tempdir().unwrap();
    let path = model::write_parts(folder.path());
    let (manifest, reader) = served(&path);
    let original = Gguf::open(&path).unwrap();
    let model = cache(folder.path()).model(&manifest).unwrap();
    let headers = header_pieces(&manifest);
    assert_eq!(fetch(&model, &reader, &headers).len(), 3, "every part has a header");
    let first = fetch_stage(&model, &reader, &original, 1..2);
    assert!(first.iter().all(|&piece| manifest.piece_range(piece).unwrap().file == 1), "{first:?}");
    fetch_stage(&model, &reader, &original, 0..4);
    fetch(&model, &reader, &all(&manifest));
    for (file, original) in manifest.files().iter().zip(crate::model_files(&path).unwrap()) {
        assert!(fs::read(model.path().with_file_name(&file.name)).unwrap() == fs::read(original).unwrap());
    }
}

#[test]
fn pieces_of_another_model_are_not_named() {
    let folder = tempfile::tempdir().unwrap();
    let tied = ["token_embd.weight", "output_norm.weight"];
    let (manifest, _) = served(&model::write(folder.path(), &tied));
    let other = tempfile::tempdir().unwrap();
    let split = Gguf::open(&model::write_parts(other.path())).unwrap();
    let longer = Gguf::open(&model::write(other.path(), &["token_embd.weight", "output_norm.weight", "more"])).unwrap();
    for gguf in [&split, &longer] {
        let parts = StageParts { layers: 0..1, first: true, last: false, mtp: false };
        let refused = stage_pieces(&manifest, gguf, &parts);
        assert!(matches!(refused, Err(Error::OtherModel { .. })), "{refused:?}");
    }
    let gguf = Gguf::open(&folder.path().join("model.gguf")).unwrap();
    #[expect(clippy::reversed_empty_ranges, reason = "a range that is none must be refused")]
    for layers in [0..5, 5..5, 3..2, 0..usize::MAX] {
        let refused = stage_pieces(&manifest, &gguf, &StageParts { layers, first: true, last: true, mtp: false });
        assert!(matches!(refused, Err(Error::Layers { count: 4, .. })), "{refused:?}");
    }
    // A header that has not been fetched cannot be opened.
    let model = cache(folder.path()).model(&manifest).unwrap();
    assert!(Gguf::open(model.path()).is_err());
}

#[test]
fn models_of_all_kinds_come_whole() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/models");
    let folder = tempfile::tempdir().unwrap();
    let cache = cache(folder.path());
    for name in ["mini-moe-Q4_K_M.gguf", "mini16-Q4_K_M.gguf", "mini-Q6_K.gguf"] {
        let path = data.join(name);
        let (manifest, reader) = served(&path);
        let model = cache.model(&manifest).unwrap();
        fetch(&model, &reader, &header_pieces(&manifest));
        let gguf = Arc::new(Gguf::open(model.path()).unwrap());
        let layers = paceline_gguf::ModelShape::read(&gguf).unwrap().layers.len();
        let parts = StageParts { layers: 0..layers, first: true, last: true, mtp: false };
        fetch(&model, &reader, &stage_pieces(&manifest, &gguf, &parts).unwrap());
        let original = Gguf::open(&path).unwrap();
        assert!(original.tensors().all(|tensor| is_there(&gguf, &original, tensor.name)), "{name}");
    }
}

#[test]
fn a_tail_that_makes_drafts_has_the_block_and_the_embeddings() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.gguf");
    let shape = PublishedShape { layers: 8, ..PublishedShape::B0_8 }.with_mtp(1);
    shape.writer().write(&path).unwrap();
    let (manifest, gguf) = (served(&path).0, Gguf::open(&path).unwrap());
    let has = |mtp, tensor: &str| {
        let parts = StageParts { layers: 4..8, first: false, last: true, mtp };
        let (file, bytes) = gguf.tensor_place(tensor).unwrap();
        let needed = manifest.pieces_for(file, bytes);
        let pieces = stage_pieces(&manifest, &gguf, &parts).unwrap();
        pieces.iter().any(|range| range.start <= needed.start && needed.end <= range.end)
    };
    for tensor in ["blk.8.nextn.eh_proj.weight", "blk.8.ffn_up.weight", "token_embd.weight"] {
        assert!(has(true, tensor), "{tensor}");
    }
    assert!(!has(false, "blk.8.ffn_up.weight") && !has(true, "blk.2.ffn_up.weight"));
}
