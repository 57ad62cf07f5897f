//! DFlash (arXiv 2602.06036): a model that drafts whole blocks of tokens from what the layers of another one compute.

use super::keys::{Heads, Keys};
use super::read::{BlockTensors, WeightsByBlock};
use super::{Layer, ModelShape, Weights, check_types};
use crate::{Error, Gguf, KvType, Metadata, Result, Shape};

/// Tokens of a block where the file says nothing.
const DEFAULT_BLOCK: usize = 16;
/// The longest block; published ones have up to 32 tokens.
const MAX_BLOCK: u32 = 1024;

/// What a planner and a tail must know of a DFlash draft model.
///
/// It reads the residual stream of its target before some layers, projected to rows of its own width, and has neither
/// embeddings nor a head: those are the target's.
#[derive(Clone, Debug, PartialEq)]
pub struct DflashShape {
    /// The length of a hidden row, which is the target's.
    pub embedding_length: usize,
    /// Its layers in order; all have attention.
    pub layers: Vec<Layer>,
    /// Tokens of a block, the one that is known among them; at least two.
    pub block: usize,
    /// The layers of the target whose input it reads, in the order of the projection's columns.
    pub target_layers: Vec<usize>,
    /// The token that stands for those that are drafted.
    pub mask_token: u32,
    /// The projection of what it reads, `(target layers · embedding length)` columns.
    pub projection: Weights,
    /// The norms outside of layers.
    pub norms: Weights,
}

impl DflashShape {
    /// The value of `general.architecture`, which is also the prefix of the model's own keys.
    pub const ARCHITECTURE: &'static str = "dflash";

    /// Is it a file of this architecture?
    pub fn is_one(gguf: &Gguf) -> bool {
        gguf.architecture().is_ok_and(|found| found == Self::ARCHITECTURE)
    }

    /// Reads the shape of a draft model for `target`. No tensor data are touched.
    ///
    /// # Errors
    /// A file of another architecture, one that contradicts itself or does not fit the target, and what has been made
    /// of DFlash since and is not known here.
    pub fn read(draft: &Gguf, target: &ModelShape) -> Result<DflashShape> {
        let found = draft.architecture()?;
        if found != Self::ARCHITECTURE {
            return Err(Error::UnknownArchitecture {
                file: draft.file().to_owned(),
                architecture: found.to_owned(),
                known: Self::ARCHITECTURE.to_owned(),
            });
        }
        refuse_variants(draft)?;
        let keys = Keys { gguf: draft, prefix: Self::ARCHITECTURE };
        let embedding_length = keys.length("embedding_length")?;
        if embedding_length != target.embedding_length {
            return Err(keys.wrong(
                "embedding_length",
                embedding_length,
                "which is not that of the model it is to draft for",
            ));
        }
        let block = keys.number("block_size", MAX_BLOCK)?.unwrap_or(DEFAULT_BLOCK);
        if block < 2 {
            return Err(keys.wrong("block_size", block, "which leaves no token to draft"));
        }
        let target_layers = read_target_layers(&keys, target)?;
        let columns = target_layers.len() * embedding_length;
        let projection = draft.require_shaped("fc.weight", Shape::from([columns, embedding_length]))?;
        let norm =
            |name| -> Result<Weights> { Ok(draft.require_shaped(name, Shape::from([embedding_length]))?.into()) };
        Ok(DflashShape {
            embedding_length,
            layers: read_layers(&keys, embedding_length)?,
            block,
            target_layers,
            mask_token: read_mask_token(draft, target)?,
            projection: projection.into(),
            norms: norm("enc.output_norm.weight")? + norm("output_norm.weight")?,
        })
    }

    /// All weights of the file.
    pub fn total(&self) -> Weights {
        self.layers.iter().map(|layer| layer.weights).sum::<Weights>() + self.projection + self.norms
    }

    /// How many layers a draft model has, whatever it drafts for.
    ///
    /// # Errors
    /// A file that says another number than it has.
    pub fn count_layers(draft: &Gguf) -> Result<usize> {
        WeightsByBlock::of(draft).check_count(&Keys { gguf: draft, prefix: Self::ARCHITECTURE })
    }

    /// Checks that every attention head can be cached in these types.
    ///
    /// # Errors
    /// [`Error::HeadNotWholeBlocks`]
    pub fn check_key_value_types(&self, key: KvType, value: KvType) -> Result<()> {
        check_types(&self.layers, key, value)
    }

    /// Bytes of keys and values that one token adds.
    pub fn key_value_bytes_per_token(&self, key: KvType, value: KvType) -> u64 {
        self.layers.iter().map(|layer| layer.key_value_bytes_per_token(key, value)).sum()
    }

    /// What one layer's input is multiplied with: an equal part of the projection for each.
    pub(super) fn tap(&self) -> Weights {
        let (parts, all) = (self.target_layers.len() as u64, self.projection);
        let part = |of: u64| of / parts.max(1);
        Weights { parameters: part(all.parameters), bytes: part(all.bytes), packed: part(all.packed), ..all }
    }
}

/// Refuses what changes the computation and is not known here, by its name.
fn refuse_variants(draft: &Gguf) -> Result<()> {
    let metadata = draft.metadata();
    let own = |key: &str| format!("{}.{key}", DflashShape::ARCHITECTURE);
    let refused = |variant: &'static str, sign: &str| {
        Err(Error::DraftVariant { file: draft.file().to_owned(), variant, sign: sign.to_owned() })
    };
    let tensors = [
        ("markov_w1.weight", "of the kind DSpark"),
        ("markov_w2.weight", "of the kind DSpark"),
        ("conf_proj.weight", "of the kind DSpark"),
        ("selector_hidden.weight", "of the kind DFlash2"),
        ("d2t", "with a reduced vocabulary"),
    ];
    if let Some((tensor, variant)) = tensors.into_iter().find(|(tensor, _)| draft.tensor(tensor).is_some()) {
        return refused(variant, tensor);
    }
    let keys = [
        ("sample_from_anchor", "of the kind DSpark"),
        ("conv_kernel_size", "of the kind DFlash2"),
        ("conv_group_size", "of the kind DFlash2"),
        ("selector_rank", "of the kind DFlash2"),
        ("selector_top_k", "of the kind DFlash2"),
        ("embedding_scale", "with scaled embeddings"),
        ("logit_scale", "with scaled logits"),
    ];
    if let Some((key, variant)) = keys.into_iter().find(|(key, _)| metadata.get(&own(key)).is_some()) {
        return refused(variant, &own(key));
    }
    for (key, variant) in [("attention.causal", "with causal blocks"), ("has_confidence_head", "of the kind DSpark")] {
        if metadata.get_bool(&own(key))? == Some(true) {
            return refused(variant, &own(key));
        }
    }
    if has_sliding_windows(metadata, &own)? {
        return refused("with sliding windows", &own("attention.sliding_window"));
    }
    match metadata.get_str(&own("hidden_activation"))? {
        None | Some("silu") => Ok(()),
        Some(_) => refused("with another activation than SiLU", &own("hidden_activation")),
    }
}

/// Is there a window, and a layer that has it?
fn has_sliding_windows(metadata: &Metadata, own: &dyn Fn(&str) -> String) -> Result<bool> {
    let window = metadata.get_u32(&own("attention.sliding_window"))?.unwrap_or(0);
    let layers = metadata.bools(&own("attention.sliding_window_pattern"))?;
    Ok(window > 0 && layers.is_none_or(|layers| layers.contains(&true)))
}

fn read_target_layers(keys: &Keys<'_>, target: &ModelShape) -> Result<Vec<usize>> {
    const KEY: &str = "target_layers";
    let layers = keys.gguf.metadata().u32s(&keys.full(KEY))?.ok_or_else(|| keys.missing(KEY))?;
    // A layer more than once is of no use, so there are at most as many as the target has.
    if layers.is_empty() || layers.len() > target.layers.len() {
        return Err(keys.wrong(KEY, layers.len(), "as many layers cannot be read of the model it is to draft for"));
    }
    let layers: Vec<usize> = layers.into_iter().map(|layer| layer as usize).collect();
    match layers.iter().find(|layer| **layer >= target.layers.len()) {
        Some(layer) => Err(keys.wrong(KEY, *layer, "a layer that the model it is to draft for does not have")),
        None => Ok(layers),
    }
}

fn read_layers(keys: &Keys<'_>, embedding_length: usize) -> Result<Vec<Layer>> {
    let weights = WeightsByBlock::of(keys.gguf);
    let blocks = weights.check_count(keys)?;
    let heads = Heads::read(keys, embedding_length, blocks)?;
    let read = |(&index, block): (&usize, &super::read::BlockWeights)| {
        let kind = heads.attention(keys, index)?;
        BlockTensors { gguf: keys.gguf, index, embedding_length, gated_queries: false }.check_kind(kind)?;
        Ok(Layer { kind, weights: block.all, experts: None, tap: Weights::default() })
    };
    weights.blocks.iter().map(read).collect()
}

fn read_mask_token(draft: &Gguf, target: &ModelShape) -> Result<u32> {
    const KEY: &str = "tokenizer.ggml.mask_token_id";
    let token = draft.metadata().require_u32(KEY)?;
    if (token as usize) < target.vocabulary {
        return Ok(token);
    }
    Err(Error::Hyperparameter {
        file: draft.file().to_owned(),
        key: KEY.to_owned(),
        value: token.into(),
        reason: "a token that the model it is to draft for does not have",
    })
}

#[cfg(test)]
mod tests;
