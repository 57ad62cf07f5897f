//! The bytes that a stage reserves.

use std::{iter::Sum, ops::Add};

use paceline_gguf::{Layer, ModelShape};
use serde::Serialize;

use super::{Wishes, cut::Stage};
use crate::limits::CREDITS_PER_STAGE;

/// Activations are in single precision.
const ELEMENT_BYTES: u64 = 4;
/// Devices pack weights for speed; of the type that grows most (Q3_K, by 3.6 %) it takes this part of them in addition.
const PACKING_PARTS: u64 = 27;
/// What a device works with besides the buffers that its rows need, such as partial results of long contexts.
const SCRATCH_BYTES: u64 = 16 << 20;

/// Bytes by what they are for. Sums that are too large stop at the largest number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// Layers and head, as stored in the model file.
    pub weights: u64,
    /// Pages of keys and values.
    pub key_value: u64,
    /// Slots of recurrent states.
    pub states: u64,
    /// Activations of a step, logits and frames in flight.
    pub buffers: u64,
    /// Kept for what a device needs in addition: a 27th of the weights for packing them, and scratch space.
    pub reserve: u64,
    /// The table of embeddings, which is read where the model file is mapped. It is not reserved: the system keeps
    /// the rows in use in memory, and takes them back when it needs to.
    pub mapped: u64,
}

impl Memory {
    /// All that is reserved.
    pub fn total(&self) -> u64 {
        [self.key_value, self.states, self.buffers, self.reserve].into_iter().fold(self.weights, u64::saturating_add)
    }

    /// What a stage needs to fulfil the wishes.
    pub(super) fn of(shape: &ModelShape, stage: &Stage, wishes: &Wishes) -> Self {
        let layers = stage.layers.clone();
        let page_bytes = shape
            .key_value_bytes_per_token(layers.clone(), wishes.key_type, wishes.value_type)
            .saturating_mul(wishes.page_tokens as u64);
        let weights = weights(shape, stage);
        Self {
            weights,
            key_value: page_bytes.saturating_mul(wishes.pages() as u64),
            states: shape.state_bytes(layers).saturating_mul(wishes.slots() as u64),
            buffers: buffers(shape, stage, wishes),
            reserve: weights.div_ceil(PACKING_PARTS) + SCRATCH_BYTES,
            mapped: if stage.first { shape.embedding.bytes } else { 0 },
        }
    }
}

impl Add for Memory {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights.saturating_add(other.weights),
            key_value: self.key_value.saturating_add(other.key_value),
            states: self.states.saturating_add(other.states),
            buffers: self.buffers.saturating_add(other.buffers),
            reserve: self.reserve.saturating_add(other.reserve),
            mapped: self.mapped.saturating_add(other.mapped),
        }
    }
}

impl Sum for Memory {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// The layers, and the head where logits go out; an embedding that is the head too is reserved for that only. What
/// belongs to no layer (frequencies of the rotation) is small, and every stage keeps it.
fn weights(shape: &ModelShape, stage: &Stage) -> u64 {
    let layers = shape.weights(stage.layers.clone()).bytes + shape.other.bytes;
    let head = if stage.last { shape.head().bytes } else { 0 };
    layers + head
}

/// Bytes of weights that the stage reads for one token.
///
/// Of experts only those in use, of the embedding one row.
pub(super) fn read_per_token(shape: &ModelShape, stage: &Stage) -> u64 {
    let layers: u64 = shape.layers[stage.layers.clone()].iter().map(|layer| layer.active().bytes).sum();
    let row = if stage.first { shape.embedding.bytes / shape.vocabulary.max(1) as u64 } else { 0 };
    let head = if stage.last { shape.head().bytes } else { 0 };
    layers + row + head
}

/// An upper estimate of what a stage computes with besides weights and caches.
///
/// Of each row of a step: the residual stream, and the results inside the widest layer of each kind, as layers of one
/// kind share buffers. Of each row wanted: two hidden rows and the logits. In a row of stages also the frames that may
/// be in flight.
fn buffers(shape: &ModelShape, stage: &Stage, wishes: &Wishes) -> u64 {
    let hidden = shape.embedding_length as u64;
    let frames = if stage.first && stage.last { 0 } else { CREDITS_PER_STAGE as u64 };
    let layers = &shape.layers[stage.layers.clone()];
    let widest = |attention| {
        let of_kind = layers.iter().filter(|layer| layer.is_attention() == attention);
        of_kind.map(|layer| width(layer, hidden)).max().unwrap_or(0)
    };
    let step_row = (hidden * (1 + frames)).saturating_add(widest(true)).saturating_add(widest(false));
    let wanted_row = if stage.last { 2 * hidden + shape.vocabulary as u64 } else { 0 };
    let step = step_row.saturating_mul(wishes.step_rows as u64);
    let wanted = wanted_row.saturating_mul(wishes.step_wanted as u64);
    step.saturating_add(wanted).saturating_mul(ELEMENT_BYTES)
}

/// Values per row of all results inside a layer.
///
/// A matrix whose input is a hidden row has as many outputs as it has parameters divided by the hidden row's length; a
/// matrix that leads back to the hidden row has as many inputs. So the parameters of a layer that a token uses, divided
/// by that length, are the values that lie between its matrices.
fn width(layer: &Layer, hidden: u64) -> u64 {
    layer.active().parameters.div_ceil(hidden.max(1))
}
