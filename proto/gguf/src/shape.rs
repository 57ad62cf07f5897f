//! What a planner must know of a model: layers, bytes, rows, and the memory that a session costs.

mod dflash;
mod encoder;
mod keys;
mod layer;
mod read;
#[cfg(test)]
mod tests;

use std::{fmt, ops::Range};

use crate::{Error, Gguf, KvType, Result};

pub use dflash::DflashShape;
pub use encoder::{EncoderShape, Pooling};
pub use layer::{Experts, Layer, LayerKind, Weights};

/// Hidden rows travel between stages in single precision.
const HIDDEN_ELEMENT_BYTES: u64 = 4;

/// The model families that can be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama and what is built like it: attention everywhere, optional experts.
    Llama,
    /// Qwen 3: attention everywhere, normalized queries and keys.
    Qwen3,
    /// Qwen 3.5 and later: recurrent layers between attention layers.
    Qwen35,
    /// The same with experts.
    Qwen35Moe,
}

impl Architecture {
    /// Every architecture, in the order of declaration.
    pub const ALL: [Architecture; 4] =
        [Architecture::Llama, Architecture::Qwen3, Architecture::Qwen35, Architecture::Qwen35Moe];

    /// The value of `general.architecture`, which is also the prefix of the model's own keys.
    pub const fn name(self) -> &'static str {
        match self {
            Architecture::Llama => "llama",
            Architecture::Qwen3 => "qwen3",
            Architecture::Qwen35 => "qwen35",
            Architecture::Qwen35Moe => "qwen35moe",
        }
    }

    /// Whether some layers are recurrent.
    pub const fn is_hybrid(self) -> bool {
        matches!(self, Architecture::Qwen35 | Architecture::Qwen35Moe)
    }

    /// The architecture of a model.
    ///
    /// # Errors
    /// [`Error::UnknownArchitecture`] for one that cannot be run, listing those that can.
    pub fn of(gguf: &Gguf) -> Result<Architecture> {
        let name = gguf.architecture()?;
        if name == EncoderShape::BERT {
            return Err(Error::WritesNoText { file: gguf.file().to_owned() });
        }
        Architecture::ALL.into_iter().find(|known| known.name() == name).ok_or_else(|| Error::UnknownArchitecture {
            file: gguf.file().to_owned(),
            architecture: name.to_owned(),
            known: Architecture::ALL.map(Architecture::name).join(", "),
        })
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A model as the planner sees it.
///
/// All weight figures are as stored in the file; a device may repack them. Layers are numbered from zero without the
/// MTP blocks, which are listed apart although the file counts them as layers.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelShape {
    /// Which family it belongs to.
    pub architecture: Architecture,
    /// `general.name`, where given.
    pub name: Option<String>,
    /// `general.size_label`, such as `27B`, where given.
    pub size_label: Option<String>,
    /// The length of a hidden row.
    pub embedding_length: usize,
    /// The rows of the embedding and of the logits, padding included.
    pub vocabulary: usize,
    /// The longest context the model was trained for, in tokens.
    pub context_length: usize,
    /// The main layers in order.
    pub layers: Vec<Layer>,
    /// The blocks that predict further tokens (MTP), which the main pass does not run; none or one in known models.
    pub mtp: Vec<Layer>,
    /// The token embedding.
    pub embedding: Weights,
    /// The output head; `None` if it is tied, i.e. the token embedding serves as the head too.
    pub output: Option<Weights>,
    /// The norm before the head.
    pub output_norm: Weights,
    /// Whatever belongs to none of the above, such as `rope_freqs.weight`.
    pub other: Weights,
    /// The model that drafts for it, if it was opened with one; it counts in nothing that is said of this one.
    pub draft: Option<Box<ModelShape>>,
    /// The DFlash model that drafts for it, if it was opened with one.
    pub dflash: Option<DflashShape>,
}

impl ModelShape {
    /// Reads the shape from a model's header. No tensor data are touched.
    ///
    /// # Errors
    /// If the architecture is unknown, or hyperparameters and tensors are missing or contradict each other.
    pub fn read(gguf: &Gguf) -> Result<ModelShape> {
        read::model_shape(gguf)
    }

    /// The same model with a draft model, which reads the inputs of some of its layers.
    fn drafted_by(mut self, draft: DflashShape) -> ModelShape {
        for layer in &draft.target_layers {
            self.layers[*layer].tap = self.layers[*layer].tap + draft.tap();
        }
        ModelShape { dflash: Some(draft), ..self }
    }

    /// Whether the token embedding serves as the output head too.
    pub fn is_tied(&self) -> bool {
        self.output.is_none()
    }

    /// What the last stage needs to make logits: the head (the embedding, if tied) and the norm before it.
    pub fn head(&self) -> Weights {
        self.output.unwrap_or(self.embedding) + self.output_norm
    }

    /// The weights of some main layers.
    pub fn weights(&self, layers: Range<usize>) -> Weights {
        self.layers[layers].iter().map(|layer| layer.weights).sum()
    }

    /// All weights of the file, MTP blocks included; a tied embedding counts once.
    pub fn total(&self) -> Weights {
        let blocks: Weights = self.layers.iter().chain(&self.mtp).map(|layer| layer.weights).sum();
        blocks + self.embedding + self.output.unwrap_or_default() + self.output_norm + self.other
    }

    /// The parameters that the main pass uses for one token: all layers with the experts in use, and the head.
    pub fn active_parameters(&self) -> u64 {
        let layers: u64 = self.layers.iter().map(|layer| layer.active().parameters).sum();
        layers + self.head().parameters
    }

    /// The units that may not be cut, as ranges of main layers: each ends with an attention layer.
    ///
    /// In a hybrid that is a run of recurrent layers and the attention layer that closes it; recurrent layers after
    /// the last attention layer join the last block. In a pure attention model every layer is a block.
    pub fn blocks(&self) -> Vec<Range<usize>> {
        let mut blocks: Vec<Range<usize>> = Vec::new();
        let mut start = 0;
        for (index, layer) in self.layers.iter().enumerate() {
            if layer.is_attention() {
                blocks.push(start..index + 1);
                start = index + 1;
            }
        }
        match blocks.last_mut() {
            Some(last) => last.end = self.layers.len(),
            None => blocks.push(0..self.layers.len()),
        }
        blocks
    }

    /// Bytes of keys and values that one token adds in some main layers.
    pub fn key_value_bytes_per_token(&self, layers: Range<usize>, key: KvType, value: KvType) -> u64 {
        self.layers[layers].iter().map(|layer| layer.key_value_bytes_per_token(key, value)).sum()
    }

    /// Bytes of the recurrent state of one session in some main layers, whatever its length.
    pub fn state_bytes(&self, layers: Range<usize>) -> u64 {
        self.layers[layers].iter().map(Layer::state_bytes).sum()
    }

    /// Bytes that one uncommitted token adds to the log of recurrent inputs in some main layers.
    pub fn log_bytes_per_token(&self, layers: Range<usize>) -> u64 {
        self.layers[layers].iter().map(Layer::log_bytes_per_token).sum()
    }

    /// Bytes of a hidden row, in single precision.
    pub fn hidden_row_bytes(&self) -> u64 {
        self.embedding_length as u64 * HIDDEN_ELEMENT_BYTES
    }

    /// Values of the row that one token sends from stage to stage at most: with a DFlash model, what that reads is
    /// beside the hidden row from the first stage on that has any of it.
    pub fn sent_width(&self) -> usize {
        self.embedding_length + self.dflash.as_ref().map_or(0, |draft| draft.embedding_length)
    }

    /// Bytes of that row, in single precision.
    pub fn sent_row_bytes(&self) -> u64 {
        self.sent_width() as u64 * HIDDEN_ELEMENT_BYTES
    }

    /// Checks that every attention head, MTP included, can be cached in these types.
    ///
    /// # Errors
    /// [`Error::HeadNotWholeBlocks`] if a head is not a whole number of the type's blocks.
    pub fn check_key_value_types(&self, key: KvType, value: KvType) -> Result<()> {
        check_types(self.layers.iter().chain(&self.mtp), key, value)
    }
}

fn check_types<'a>(layers: impl IntoIterator<Item = &'a Layer>, key: KvType, value: KvType) -> Result<()> {
    for layer in layers {
        let LayerKind::Attention { key_dim, value_dim, .. } = layer.kind else { continue };
        for (dim, kind) in [(key_dim, key), (value_dim, value)] {
            let block_len = kind.block_len();
            if !dim.is_multiple_of(block_len) {
                return Err(Error::HeadNotWholeBlocks { dim, kind, block_len });
            }
        }
    }
    Ok(())
}
