//! The hyperparameters: a model's own keys, and what they say about the kinds of its layers.

use super::{Architecture, LayerKind};
use crate::{Error, Gguf, Result};

/// The largest hyperparameter that is a length or a count. Products of three, summed over all layers, fit in 64 bits.
const MAX_HYPERPARAMETER: u32 = 1 << 20;
/// In a hybrid, one of so many layers has attention, where the file says nothing.
const DEFAULT_ATTENTION_INTERVAL: usize = 4;

/// Looks up the keys of one architecture.
pub(super) struct Keys<'a> {
    pub(super) gguf: &'a Gguf,
    /// The architecture's name, which the keys begin with.
    pub(super) prefix: &'static str,
}

impl Keys<'_> {
    pub(super) fn full(&self, key: &str) -> String {
        format!("{}.{key}", self.prefix)
    }

    pub(super) fn missing(&self, key: &str) -> Error {
        self.gguf.metadata().missing(&self.full(key))
    }

    pub(super) fn wrong(&self, key: &str, value: usize, reason: &'static str) -> Error {
        let (file, key, value) = (self.gguf.file().to_owned(), self.full(key), value as u64);
        Error::Hyperparameter { file, key, value, reason }
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<String>> {
        Ok(self.gguf.metadata().get_str(key)?.map(str::to_owned))
    }

    /// A number from 1 to `limit`, if it is there.
    pub(super) fn number(&self, key: &str, limit: u32) -> Result<Option<usize>> {
        match self.gguf.metadata().get_u32(&self.full(key))? {
            None => Ok(None),
            Some(0) => Err(self.wrong(key, 0, "at least 1 is needed")),
            Some(value) if value > limit => Err(self.wrong(key, value as usize, "which no model can have")),
            Some(value) => Ok(Some(value as usize)),
        }
    }

    pub(super) fn optional_length(&self, key: &str) -> Result<Option<usize>> {
        self.number(key, MAX_HYPERPARAMETER)
    }

    pub(super) fn length(&self, key: &str) -> Result<usize> {
        self.optional_length(key)?.ok_or_else(|| self.missing(key))
    }

    /// How many of the blocks are for predicting further tokens; they are the last ones.
    pub(super) fn mtp_blocks(&self, blocks: usize) -> Result<usize> {
        const KEY: &str = "nextn_predict_layers";
        let mtp_blocks = self.gguf.metadata().get_u32(&self.full(KEY))?.unwrap_or(0) as usize;
        if mtp_blocks < blocks {
            return Ok(mtp_blocks);
        }
        Err(self.wrong(KEY, mtp_blocks, "which leaves no main layer"))
    }
}

/// What mixes the tokens of each block.
pub(super) fn read_kinds(
    keys: &Keys<'_>,
    architecture: Architecture,
    embedding_length: usize,
    blocks: usize,
) -> Result<Vec<LayerKind>> {
    let heads = Heads::read(keys, embedding_length, blocks)?;
    if !architecture.is_hybrid() {
        return (0..blocks).map(|block| heads.attention(keys, block)).collect();
    }
    let recurrent = recurrent_kind(keys)?;
    let is_recurrent = recurrent_blocks(keys, blocks)?;
    let kind = |block: usize| if is_recurrent[block] { Ok(recurrent) } else { heads.attention(keys, block) };
    (0..blocks).map(kind).collect()
}

/// The experts per layer and how many of them a token uses, if the model has any.
pub(super) fn read_expert_counts(keys: &Keys<'_>, architecture: Architecture) -> Result<Option<(usize, usize)>> {
    let count = match architecture {
        Architecture::Qwen35Moe => Some(keys.length("expert_count")?),
        // Writers put a zero into dense models.
        _ => keys
            .gguf
            .metadata()
            .get_u32(&keys.full("expert_count"))?
            .filter(|&count| count > 0)
            .map(|count| count as usize),
    };
    let Some(count) = count else { return Ok(None) };
    let used = keys.length("expert_used_count")?;
    if used > count {
        return Err(keys.wrong("expert_used_count", used, "more than there are experts"));
    }
    Ok(Some((count, used)))
}

/// The attention heads of all blocks.
pub(super) struct Heads {
    query_heads: Vec<u32>,
    key_value_heads: Vec<u32>,
    key_dim: usize,
    value_dim: usize,
}

impl Heads {
    pub(super) fn read(keys: &Keys<'_>, embedding_length: usize, blocks: usize) -> Result<Heads> {
        let per_layer = |key| keys.gguf.metadata().u32_per_layer(&keys.full(key), blocks);
        let query_heads = per_layer("attention.head_count")?.ok_or_else(|| keys.missing("attention.head_count"))?;
        let key_value_heads = per_layer("attention.head_count_kv")?.unwrap_or_else(|| query_heads.clone());
        let most_heads = query_heads.iter().max().copied().unwrap_or(0).max(1) as usize;
        let default_dim = embedding_length / most_heads;
        Ok(Heads {
            query_heads,
            key_value_heads,
            key_dim: keys.optional_length("attention.key_length")?.unwrap_or(default_dim),
            value_dim: keys.optional_length("attention.value_length")?.unwrap_or(default_dim),
        })
    }

    pub(super) fn attention(&self, keys: &Keys<'_>, block: usize) -> Result<LayerKind> {
        let query_heads = self.query_heads[block] as usize;
        let key_value_heads = self.key_value_heads[block] as usize;
        if query_heads == 0 || query_heads > MAX_HYPERPARAMETER as usize {
            return Err(keys.wrong("attention.head_count", query_heads, "which no model can have"));
        }
        if key_value_heads == 0 || !query_heads.is_multiple_of(key_value_heads) {
            return Err(keys.wrong("attention.head_count_kv", key_value_heads, "it must divide the number of heads"));
        }
        Ok(LayerKind::Attention { query_heads, key_value_heads, key_dim: self.key_dim, value_dim: self.value_dim })
    }
}

fn recurrent_kind(keys: &Keys<'_>) -> Result<LayerKind> {
    let state_size = keys.length("ssm.state_size")?;
    let key_heads = keys.length("ssm.group_count")?;
    let value_heads = keys.length("ssm.time_step_rank")?;
    let inner_size = keys.length("ssm.inner_size")?;
    if inner_size != state_size * value_heads {
        return Err(keys.wrong("ssm.inner_size", inner_size, "it must be state_size times time_step_rank"));
    }
    if !value_heads.is_multiple_of(key_heads) {
        return Err(keys.wrong("ssm.group_count", key_heads, "it must divide time_step_rank"));
    }
    let conv_channels = 2 * state_size * key_heads + inner_size;
    let conv_kernel = keys.length("ssm.conv_kernel")?;
    Ok(LayerKind::Recurrent { conv_channels, conv_kernel, key_heads, value_heads, state_size })
}

/// Which blocks are recurrent. MTP blocks never are.
fn recurrent_blocks(keys: &Keys<'_>, blocks: usize) -> Result<Vec<bool>> {
    const KEY: &str = "attention.recurrent_layers";
    let metadata = keys.gguf.metadata();
    let mut recurrent = match metadata.bools(&keys.full(KEY))? {
        Some(listed) => {
            metadata.expect_length(&keys.full(KEY), Some(listed.len()), blocks)?;
            listed
        }
        None => {
            let interval = keys.optional_length("full_attention_interval")?.unwrap_or(DEFAULT_ATTENTION_INTERVAL);
            (1..=blocks).map(|number| !number.is_multiple_of(interval)).collect()
        }
    };
    let main = blocks - keys.mtp_blocks(blocks)?;
    recurrent[main..].fill(false);
    Ok(recurrent)
}
