//! Which pieces of a model a stage needs.

use std::ops::Range;
use std::path::{Path, PathBuf};

use paceline_gguf::{DflashShape, Gguf, ModelShape};

use crate::{Error, Manifest, Result};

/// The table of token embeddings, which is also the head of models without one of their own.
const EMBEDDINGS: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const LAST_NORM: &str = "output_norm.weight";

/// The files of the model at `model`: itself, or all parts of a split one, given the first.
///
/// # Errors
/// Files that cannot be opened or are no model.
pub fn model_files(model: &Path) -> Result<Vec<PathBuf>> {
    Ok(Gguf::open(model)?.files().map(|file| file.path.to_owned()).collect())
}

/// The pieces with the headers of all files, in order. With them the model can be opened; only then is it known where
/// its tensors are.
pub fn header_pieces(manifest: &Manifest) -> Vec<Range<u32>> {
    let files = manifest.files().iter().enumerate();
    joined(files.map(|(file, entry)| manifest.pieces_for(file, 0..entry.header_bytes)).collect())
}

/// What a stage is made of.
#[derive(Debug, Clone)]
pub struct StageParts {
    /// Main layers.
    pub layers: Range<usize>,
    /// It embeds tokens.
    pub first: bool,
    /// It makes logits.
    pub last: bool,
    /// It makes drafts with the blocks for multi-token prediction, which follow the main layers.
    pub mtp: bool,
}

impl StageParts {
    /// A whole model with so many main layers.
    pub fn whole(layers: usize) -> Self {
        Self { layers: 0..layers, first: true, last: true, mtp: false }
    }
}

/// All pieces that a stage needs before it can load, in order: the headers, its layers' tensors, the embeddings where
/// it embeds tokens or makes drafts, the last norm and the head (or the embeddings in place of one) where it is the
/// last, and whatever belongs to no layer.
///
/// `gguf` is the model, opened with its headers in place.
///
/// # Errors
/// A model that is not the manifest's; layers that it does not have.
pub fn stage_pieces(manifest: &Manifest, gguf: &Gguf, parts: &StageParts) -> Result<Vec<Range<u32>>> {
    check_files(manifest, gguf)?;
    let StageParts { layers, first, last, mtp } = parts.clone();
    let count = layers_of(gguf)?;
    if layers.start > layers.end || layers.end > count {
        return Err(Error::Layers { first: layers.start, end: layers.end, count });
    }
    let has_head = gguf.tensor(HEAD).is_some();
    let needed = |name: &str| match name {
        EMBEDDINGS => first || mtp || (last && !has_head),
        HEAD | LAST_NORM => last,
        _ => layer_of(name).is_none_or(|layer| layers.contains(&layer) || (mtp && layer >= count)),
    };
    let mut pieces = header_pieces(manifest);
    for tensor in gguf.tensors().filter(|tensor| needed(tensor.name)) {
        if let Some((file, bytes)) = gguf.tensor_place(tensor.name) {
            pieces.push(manifest.pieces_for(file, bytes));
        }
    }
    Ok(joined(pieces))
}

/// Main layers of a model, or of one that drafts for another and is no model by itself.
///
/// # Errors
/// A file that contradicts itself.
pub fn layers_of(gguf: &Gguf) -> Result<usize> {
    match DflashShape::is_one(gguf) {
        true => Ok(DflashShape::count_layers(gguf)?),
        false => Ok(ModelShape::read(gguf)?.layers.len()),
    }
}

/// The layer that a tensor belongs to, if it belongs to one.
fn layer_of(tensor: &str) -> Option<usize> {
    tensor.strip_prefix("blk.")?.split('.').next()?.parse().ok()
}

/// Pieces that are too few would leave holes in the weights, without a sign.
fn check_files(manifest: &Manifest, gguf: &Gguf) -> Result<()> {
    let other = |file: String, reason| Err(Error::OtherModel { file, reason });
    if gguf.files().len() != manifest.files().len() {
        return other(gguf.name().to_owned(), "the model has another number of files");
    }
    for (found, entry) in gguf.files().zip(manifest.files()) {
        if found.bytes != entry.bytes {
            return other(entry.name.clone(), "its length is another");
        }
        if found.header_bytes != entry.header_bytes {
            return other(entry.name.clone(), "its header has another length");
        }
    }
    Ok(())
}

/// The same pieces in order, in as few ranges as there can be.
fn joined(mut ranges: Vec<Range<u32>>) -> Vec<Range<u32>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u32>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}
