//! The settings of a model file: what [`ModelShape`] knows, and the means to read the rest with the same care.

use std::fmt::Display;

use paceline_gguf::{DflashShape, EncoderShape, Gguf, Layer, LayerKind, ModelShape, Tensor};

use crate::dflash::Taps;
use crate::recorder::EMBEDDINGS;
use crate::rope::Overrides;
use crate::{Error, Result};

/// The largest size that any setting may have; products of three of them still fit in 64 bits.
const MAX_COUNT: usize = 1 << 20;

/// The most layers that a model may have; the deepest published ones have about 130.
const MAX_LAYERS: usize = 1024;

/// The key of what is added in root-mean-square norms, and in layer norms.
const RMS_EPSILON: &str = "attention.layer_norm_rms_epsilon";
const LAYER_NORM_EPSILON: &str = "attention.layer_norm_epsilon";

/// The settings that all architectures have, and the means to read the others.
#[derive(Debug)]
pub(crate) struct Settings<'a> {
    /// The file.
    pub(crate) model: &'a Gguf,
    /// What replaces the file's own settings.
    pub(crate) overrides: &'a Overrides,
    /// The architecture's name, the prefix of its keys.
    architecture: &'static str,
    /// Its layers, and behind them blocks for multi-token prediction.
    blocks: Vec<Layer>,
    /// How many of the blocks are layers.
    layers: usize,
    /// Values per row of the residual stream.
    width: usize,
    /// What a draft model reads of the layers' inputs, if one does.
    pub(crate) taps: Option<Taps>,
    /// Is the head left out, and the last norm the end?
    pub(crate) headless: bool,
    /// Added to the mean of squares, or to the variance, in every norm.
    pub(crate) epsilon: f32,
}

impl<'a> Settings<'a> {
    /// Reads what all architectures have.
    pub(crate) fn read(model: &'a Gguf, overrides: &'a Overrides) -> Result<Settings<'a>> {
        let ModelShape { architecture, layers, mtp, embedding_length: width, .. } = ModelShape::read(model)?;
        let (architecture, count) = (architecture.name(), layers.len());
        let blocks = [layers, mtp].concat();
        Settings {
            model,
            overrides,
            architecture,
            blocks,
            layers: count,
            width,
            taps: None,
            headless: false,
            epsilon: 0.0,
        }
        .checked(RMS_EPSILON)
    }

    /// Reads what an encoder of this shape has, which is a BERT.
    pub(crate) fn of_bert(model: &'a Gguf, overrides: &'a Overrides, shape: &EncoderShape) -> Result<Settings<'a>> {
        let (architecture, width) = (EncoderShape::BERT, shape.embedding_length);
        let (blocks, layers) = (shape.layers.clone(), shape.layers.len());
        Settings { model, overrides, architecture, blocks, layers, width, taps: None, headless: true, epsilon: 0.0 }
            .checked(LAYER_NORM_EPSILON)
    }

    /// Reads what a draft model of this shape has.
    pub(crate) fn of_draft(model: &'a Gguf, overrides: &'a Overrides, shape: &DflashShape) -> Result<Settings<'a>> {
        let (architecture, width) = (DflashShape::ARCHITECTURE, shape.embedding_length);
        let (blocks, layers) = (shape.layers.clone(), shape.layers.len());
        Settings { model, overrides, architecture, blocks, layers, width, taps: None, headless: false, epsilon: 0.0 }
            .checked(RMS_EPSILON)
    }

    /// The same model, of whose layers' inputs a draft model reads some.
    pub(crate) fn with_taps(self, draft: &DflashShape) -> Settings<'a> {
        Settings { taps: Some(Taps::of(draft)), ..self }
    }

    /// The same model without its head: its results are the rows after the last norm.
    pub(crate) fn without_head(self) -> Settings<'a> {
        Settings { headless: true, ..self }
    }

    fn checked(self, name: &str) -> Result<Settings<'a>> {
        if self.layers > MAX_LAYERS {
            return Err(self.bad("block_count", &self.layers, format!("at most {MAX_LAYERS} are possible")));
        }
        let epsilon = self.model.metadata().require_f32(&self.key(name))?;
        Ok(Settings { epsilon: self.positive(name, epsilon)?, ..self })
    }

    /// The architecture's name, the prefix of its keys.
    pub(crate) fn architecture(&self) -> &'static str {
        self.architecture
    }

    /// Layers of the main model; blocks for multi-token prediction are not among them.
    pub(crate) fn layers(&self) -> usize {
        self.layers
    }

    /// Blocks for multi-token prediction, which are numbered behind the layers.
    pub(crate) fn mtp_blocks(&self) -> usize {
        self.blocks.len() - self.layers
    }

    fn layer(&self, layer: usize) -> &Layer {
        &self.blocks[layer]
    }

    /// Values per row of the residual stream.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// What mixes the tokens in a layer, and its sizes.
    pub(crate) fn kind(&self, layer: usize) -> LayerKind {
        self.layer(layer).kind
    }

    /// Is the layer a recurrent one?
    pub(crate) fn is_recurrent(&self, layer: usize) -> bool {
        !self.layer(layer).is_attention()
    }

    /// Does the layer have experts?
    pub(crate) fn has_experts(&self, layer: usize) -> bool {
        self.layer(layer).experts.is_some()
    }

    /// How many experts a layer has, and how many of them a row uses.
    pub(crate) fn experts(&self, layer: usize) -> Result<(usize, usize)> {
        match self.layer(layer).experts {
            Some(experts) => Ok((experts.count, experts.used)),
            None => Err(self.model.metadata().missing(&self.key("expert_count")).into()),
        }
    }

    /// Values of a query or key head, in the first layer that has any.
    pub(crate) fn key_dim(&self) -> Option<usize> {
        self.blocks[..self.layers].iter().find_map(|layer| match layer.kind {
            LayerKind::Attention { key_dim, .. } => Some(key_dim),
            LayerKind::Recurrent { .. } => None,
        })
    }

    /// The full key of a setting of this architecture.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture())
    }

    /// A size that must be there: at least 1, at most [`MAX_COUNT`].
    pub(crate) fn count(&self, name: &str) -> Result<usize> {
        self.checked_count(name, self.model.metadata().require_u32(&self.key(name))?)
    }

    /// A size that may be absent.
    pub(crate) fn optional_count(&self, name: &str) -> Result<Option<usize>> {
        let value = self.model.metadata().get_u32(&self.key(name))?;
        value.map(|value| self.checked_count(name, value)).transpose()
    }

    /// A size that is written once for all layers or for each block of the file.
    pub(crate) fn count_at(&self, name: &str, layer: usize) -> Result<usize> {
        let metadata = self.model.metadata();
        let key = self.key(name);
        let values = metadata.u32_per_layer(&key, self.blocks.len())?.ok_or_else(|| metadata.missing(&key))?;
        self.checked_count(name, values[layer])
    }

    fn checked_count(&self, name: &str, value: u32) -> Result<usize> {
        match usize::try_from(value) {
            Ok(count) if (1..=MAX_COUNT).contains(&count) => Ok(count),
            _ => Err(self.bad(name, &value, format!("1 to {MAX_COUNT} are possible"))),
        }
    }

    /// A finite number that may be absent.
    pub(crate) fn optional_number(&self, name: &str) -> Result<Option<f32>> {
        match self.model.metadata().get_f32(&self.key(name))? {
            Some(value) if !value.is_finite() => Err(self.bad(name, &value, "it must be finite")),
            value => Ok(value),
        }
    }

    /// A text that may be absent.
    pub(crate) fn optional_text(&self, name: &str) -> Result<Option<&str>> {
        Ok(self.model.metadata().get_str(&self.key(name))?)
    }

    /// Checks that a number is positive.
    pub(crate) fn positive(&self, name: &str, value: f32) -> Result<f32> {
        if value.is_finite() && value > 0.0 {
            return Ok(value);
        }
        Err(self.bad(name, &value, "it must be a positive number"))
    }

    /// The name of the model's head, which may be the table of embeddings.
    pub(crate) fn head_name(&self) -> &'static str {
        let has_own = self.model.tensor("output.weight").is_some();
        if has_own { "output.weight" } else { EMBEDDINGS }
    }

    /// A tensor that must be there.
    pub(crate) fn tensor(&self, name: &str) -> Result<Tensor<'a>> {
        Ok(self.model.require_tensor(name)?)
    }

    /// The error for a setting whose value is impossible.
    pub(crate) fn bad(&self, name: &str, value: &dyn Display, expected: impl Into<String>) -> Error {
        Error::BadSetting { key: self.key(name), value: value.to_string(), expected: expected.into() }
    }
}
