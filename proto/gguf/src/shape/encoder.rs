//! Models that make vectors of texts, or judge how well two texts fit together: what a planner and an encoder must know.

use std::str::FromStr;

use super::keys::{Heads, Keys};
use super::read::WeightsByBlock;
use super::{Layer, LayerKind, ModelShape, Weights};
use crate::{Error, Gguf, Result, Shape};

/// The longest context; positions of BERT models have a table, so that theirs is far shorter.
const MAX_CONTEXT_LENGTH: u32 = 1 << 30;

/// How one vector is made of the rows of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The row of the first token, `[CLS]`.
    First,
    /// The row of the last token.
    Last,
    /// A classifier over the first row: one number, which says how well two texts fit together.
    Rank,
}

impl Pooling {
    /// All kinds, in the order of their numbers in files.
    pub const ALL: [Pooling; 4] = [Pooling::Mean, Pooling::First, Pooling::Last, Pooling::Rank];

    /// As flags and files of settings name it.
    pub const fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
            Pooling::Rank => "rank",
        }
    }

    /// What a file says, if it says anything: models that write texts do not.
    ///
    /// # Errors
    /// A number without a meaning.
    pub fn of(gguf: &Gguf) -> Result<Option<Pooling>> {
        let key = format!("{}.pooling_type", gguf.architecture()?);
        match gguf.metadata().get_u32(&key)? {
            None | Some(0) => Ok(None),
            Some(value) => match Pooling::ALL.get(value as usize - 1) {
                Some(kind) => Ok(Some(*kind)),
                None => Err(Error::Hyperparameter {
                    file: gguf.file().to_owned(),
                    key,
                    value: value.into(),
                    reason: "0 (none) to 4 (rank) are known",
                }),
            },
        }
    }
}

impl FromStr for Pooling {
    type Err = Error;

    fn from_str(given: &str) -> Result<Pooling> {
        Pooling::ALL.into_iter().find(|kind| kind.name() == given).ok_or_else(|| Error::UnknownPooling {
            given: given.to_owned(),
            known: Pooling::ALL.map(Pooling::name).join(", "),
        })
    }
}

/// What a planner and an encoder must know of a model that reads texts and writes none.
#[derive(Clone, Debug, PartialEq)]
pub struct EncoderShape {
    /// The architecture as the file names it.
    pub architecture: String,
    /// The length of a hidden row, which is that of a vector.
    pub embedding_length: usize,
    /// The rows of the embedding.
    pub vocabulary: usize,
    /// The most tokens of a text.
    pub context_length: usize,
    /// Its layers in order.
    pub layers: Vec<Layer>,
    /// How one vector is made of a text's rows.
    pub pooling: Pooling,
    /// Every token sees all others, so that a text must be read in one step.
    pub bidirectional: bool,
    /// The kinds of tokens there are: 2 where two texts are told apart.
    pub token_kinds: usize,
    /// All its weights.
    pub total: Weights,
    /// Bytes of those that a device packs: not the table of embeddings, which stays in the file, nor a head.
    pub packed: u64,
}

impl EncoderShape {
    /// The architecture of encoders; the value of `general.architecture`, and the prefix of its keys.
    pub const BERT: &'static str = "bert";

    /// Is it a file that can only be read as an encoder: one of an architecture that writes no texts, or one that says how
    /// its rows are pooled?
    ///
    /// # Errors
    /// A file without an architecture, or with an unknown kind of pooling.
    pub fn is_one(gguf: &Gguf) -> Result<bool> {
        Ok(gguf.architecture()? == Self::BERT || Pooling::of(gguf)?.is_some())
    }

    /// Reads the shape of an encoder; `pooling` replaces what the file says. No tensor data are touched.
    ///
    /// # Errors
    /// If the architecture is unknown, nobody says how rows are pooled, or hyperparameters and tensors are missing or
    /// contradict each other.
    pub fn read(gguf: &Gguf, pooling: Option<Pooling>) -> Result<EncoderShape> {
        let unpooled = || Error::NoPooling { file: gguf.file().to_owned() };
        let pooling = pooling.or(Pooling::of(gguf)?).ok_or_else(unpooled)?;
        match gguf.architecture()? {
            Self::BERT => bert(gguf, pooling),
            _ => decoder(gguf, pooling),
        }
    }

    /// Bytes of keys and values in single precision that one token needs while its text is read.
    pub fn key_value_bytes_per_token(&self) -> u64 {
        let kind = crate::KvType::F32;
        self.layers.iter().map(|layer| layer.key_value_bytes_per_token(kind, kind)).sum()
    }
}

/// A model that could write texts, read without its head.
fn decoder(gguf: &Gguf, pooling: Pooling) -> Result<EncoderShape> {
    let shape = ModelShape::read(gguf)?;
    if pooling == Pooling::Rank {
        return Err(Error::NoClassifier { file: gguf.file().to_owned(), architecture: shape.architecture.to_string() });
    }
    Ok(EncoderShape {
        architecture: shape.architecture.to_string(),
        total: shape.total(),
        packed: shape.total().packed - shape.embedding.packed - shape.output.unwrap_or_default().packed,
        embedding_length: shape.embedding_length,
        vocabulary: shape.vocabulary,
        context_length: shape.context_length,
        layers: shape.layers,
        pooling,
        bidirectional: false,
        token_kinds: 1,
    })
}

fn bert(gguf: &Gguf, pooling: Pooling) -> Result<EncoderShape> {
    let keys = Keys { gguf, prefix: EncoderShape::BERT };
    if gguf.metadata().get_bool(&keys.full("attention.causal"))? == Some(true) {
        return Err(keys.wrong("attention.causal", 1, "BERT models see whole texts"));
    }
    let embedding_length = keys.length("embedding_length")?;
    let matrix = |name| -> Result<usize> {
        let rows = gguf.require_tensor(name)?.shape.rows();
        gguf.require_shaped(name, Shape::from([embedding_length, rows]))?;
        Ok(rows)
    };
    let vocabulary = matrix("token_embd.weight")?;
    let positions = matrix("position_embd.weight")?;
    let token_kinds = matrix("token_types.weight")?;
    let declared = keys.number("context_length", MAX_CONTEXT_LENGTH)?.unwrap_or(positions);
    if pooling == Pooling::Rank && gguf.tensor("cls.output.weight").is_none() {
        return Err(Error::NoClassifier { file: gguf.file().to_owned(), architecture: EncoderShape::BERT.to_owned() });
    }
    let total: Weights = gguf.tensors().map(Weights::from).sum();
    let embedding = Weights::from(gguf.require_tensor("token_embd.weight")?);
    Ok(EncoderShape {
        packed: total.packed - embedding.packed,
        architecture: EncoderShape::BERT.to_owned(),
        embedding_length,
        vocabulary,
        context_length: declared.min(positions),
        layers: bert_layers(&keys, embedding_length)?,
        pooling,
        bidirectional: true,
        token_kinds,
        total,
    })
}

fn bert_layers(keys: &Keys<'_>, embedding_length: usize) -> Result<Vec<Layer>> {
    let weights = WeightsByBlock::of(keys.gguf);
    let blocks = weights.check_count(keys)?;
    let heads = Heads::read(keys, embedding_length, blocks)?;
    let read = |(&index, block): (&usize, &super::read::BlockWeights)| {
        let kind = heads.attention(keys, index)?;
        check_attention(keys.gguf, index, embedding_length, kind)?;
        Ok(Layer { kind, weights: block.all, experts: None, tap: Weights::default() })
    };
    weights.blocks.iter().map(read).collect()
}

/// Checks the tensors that the memory of keys and values follows from.
fn check_attention(gguf: &Gguf, index: usize, embedding_length: usize, kind: LayerKind) -> Result<()> {
    let LayerKind::Attention { query_heads, key_value_heads, key_dim, value_dim } = kind else { return Ok(()) };
    let (keys, values) = (key_value_heads * key_dim, key_value_heads * value_dim);
    let shaped = |name: &str, rows| {
        gguf.require_shaped(&format!("blk.{index}.{name}.weight"), Shape::from([embedding_length, rows])).map(drop)
    };
    if gguf.tensor(&format!("blk.{index}.attn_qkv.weight")).is_some() {
        return shaped("attn_qkv", query_heads * key_dim + keys + values);
    }
    shaped("attn_k", keys)?;
    shaped("attn_v", values)
}

#[cfg(test)]
mod tests;
