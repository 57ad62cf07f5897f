//! Reads a [`ModelShape`] from a header, checking that hyperparameters and tensors agree.

use std::collections::BTreeMap;

use super::{
    Architecture, DflashShape, Experts, Layer, LayerKind, ModelShape, Weights,
    keys::{self, Keys},
};
use crate::{Error, Gguf, Result, Shape};

/// The longest context; it is never multiplied here.
const MAX_CONTEXT_LENGTH: u32 = 1 << 30;

pub(super) fn model_shape(gguf: &Gguf) -> Result<ModelShape> {
    let architecture = Architecture::of(gguf)?;
    let keys = Keys { gguf, prefix: architecture.name() };
    let embedding_length = keys.length("embedding_length")?;
    let context_length =
        keys.number("context_length", MAX_CONTEXT_LENGTH)?.ok_or_else(|| keys.missing("context_length"))?;
    let weights = WeightsByBlock::of(gguf);
    let mut layers = read_layers(&keys, architecture, embedding_length, &weights)?;
    let mtp = layers.split_off(layers.len() - keys.mtp_blocks(layers.len())?);

    let embedding = gguf.require_tensor("token_embd.weight")?;
    let vocabulary = embedding.shape.rows();
    let matrix = Shape::from([embedding_length, vocabulary]);
    let embedding = gguf.require_shaped("token_embd.weight", matrix)?;
    let output = gguf.tensor("output.weight").map(|_| gguf.require_shaped("output.weight", matrix)).transpose()?;
    let output_norm = gguf.require_shaped("output_norm.weight", Shape::from([embedding_length]))?;
    let shape = ModelShape {
        architecture,
        name: keys.text("general.name")?,
        size_label: keys.text("general.size_label")?,
        embedding_length,
        vocabulary,
        context_length,
        layers,
        mtp,
        embedding: embedding.into(),
        output: output.map(Weights::from),
        output_norm: output_norm.into(),
        other: weights.other,
        draft: None,
        dflash: None,
    };
    match gguf.draft() {
        None => Ok(shape),
        Some(draft) if DflashShape::is_one(draft) => {
            let draft = DflashShape::read(draft, &shape)?;
            Ok(shape.drafted_by(draft))
        }
        Some(draft) => Ok(ModelShape { draft: Some(Box::new(model_shape(draft)?)), ..shape }),
    }
}

/// All blocks of the file in order, MTP blocks last.
fn read_layers(
    keys: &Keys<'_>,
    architecture: Architecture,
    embedding_length: usize,
    weights: &WeightsByBlock,
) -> Result<Vec<Layer>> {
    let blocks = weights.check_count(keys)?;
    let kinds = keys::read_kinds(keys, architecture, embedding_length, blocks)?;
    let expert_counts = keys::read_expert_counts(keys, architecture)?;
    let gated_queries = architecture.is_hybrid();
    let read = |((&index, block), kind): ((&usize, &BlockWeights), LayerKind)| {
        let tensors = BlockTensors { gguf: keys.gguf, index, embedding_length, gated_queries };
        tensors.check_kind(kind)?;
        let experts = match expert_counts {
            Some((count, used)) => {
                tensors.check_experts(count)?;
                Some(Experts { count, used, weights: block.experts })
            }
            None => None,
        };
        Ok(Layer { kind, weights: block.all, experts, tap: Weights::default() })
    };
    weights.blocks.iter().zip(kinds).map(read).collect()
}

/// The weights of a file, by the block they belong to.
#[derive(Default)]
pub(super) struct WeightsByBlock {
    pub(super) blocks: BTreeMap<usize, BlockWeights>,
    other: Weights,
}

#[derive(Clone, Copy, Default)]
pub(super) struct BlockWeights {
    pub(super) all: Weights,
    experts: Weights,
}

impl WeightsByBlock {
    pub(super) fn of(gguf: &Gguf) -> WeightsByBlock {
        let mut found = WeightsByBlock::default();
        for tensor in gguf.tensors() {
            let weights = Weights::from(tensor);
            if let Some((block, name)) = split_name(tensor.name) {
                let block = found.blocks.entry(block).or_default();
                block.all = block.all + weights;
                if name.starts_with("ffn_") && name.contains("_exps.") {
                    block.experts = block.experts + weights;
                }
            } else if !matches!(tensor.name, "token_embd.weight" | "output.weight" | "output_norm.weight") {
                found.other = found.other + weights;
            }
        }
        found
    }

    /// The number of blocks, which the file must declare and have tensors of: 0, 1, 2 and so on.
    pub(super) fn check_count(&self, keys: &Keys<'_>) -> Result<usize> {
        let declared = keys.length("block_count")?;
        let found = self.blocks.len();
        let last = self.blocks.last_key_value().map_or(0, |(&last, _)| last);
        if found == declared && last == declared - 1 {
            return Ok(declared);
        }
        let (file, key) = (keys.gguf.file().to_owned(), keys.full("block_count"));
        Err(Error::BlockCount { file, key, declared, found, last })
    }
}

/// `blk.7.attn_k.weight` is `attn_k.weight` of block 7.
fn split_name(name: &str) -> Option<(usize, &str)> {
    let (block, rest) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((block.parse().ok()?, rest))
}

/// The tensors of one block that a layer's kind and its experts can be checked against.
///
/// Whoever loads the block checks all its tensors; these few are enough to trust the memory formulas.
pub(super) struct BlockTensors<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) index: usize,
    pub(super) embedding_length: usize,
    pub(super) gated_queries: bool,
}

impl BlockTensors<'_> {
    fn check(&self, name: &str, wanted: Shape) -> Result<()> {
        self.gguf.require_shaped(&self.name(name), wanted).map(drop)
    }

    fn name(&self, name: &str) -> String {
        format!("blk.{}.{name}", self.index)
    }

    pub(super) fn check_kind(&self, kind: LayerKind) -> Result<()> {
        let columns = self.embedding_length;
        self.check("attn_norm.weight", Shape::from([columns]))?;
        match kind {
            LayerKind::Attention { query_heads, key_value_heads, key_dim, value_dim } => {
                // Some files have queries, keys and values in one tensor; gated queries are twice as long.
                if self.gguf.tensor(&self.name("attn_qkv.weight")).is_some() {
                    let queries = if self.gated_queries { 2 } else { 1 } * query_heads * key_dim;
                    let rows = queries + key_value_heads * (key_dim + value_dim);
                    return self.check("attn_qkv.weight", Shape::from([columns, rows]));
                }
                self.check("attn_k.weight", Shape::from([columns, key_value_heads * key_dim]))?;
                self.check("attn_v.weight", Shape::from([columns, key_value_heads * value_dim]))
            }
            LayerKind::Recurrent { conv_channels, conv_kernel, value_heads, .. } => {
                self.check("attn_qkv.weight", Shape::from([columns, conv_channels]))?;
                self.check("ssm_conv1d.weight", Shape::from([conv_kernel, conv_channels]))?;
                self.check("ssm_a", Shape::from([value_heads]))
            }
        }
    }

    fn check_experts(&self, count: usize) -> Result<()> {
        let down = self.gguf.require_tensor(&self.name("ffn_down_exps.weight"))?;
        self.check("ffn_down_exps.weight", Shape::from([down.shape.columns(), self.embedding_length, count]))
    }
}
