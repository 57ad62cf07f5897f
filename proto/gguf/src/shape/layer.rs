//! One layer: its kind, its weights, and what a session costs in it.

use std::{iter::Sum, ops::Add};

use crate::{KvType, Tensor};

/// Recurrent states and logs are kept in single precision.
const STATE_ELEMENT_BYTES: u64 = 4;

/// Some tensors taken together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Weights {
    /// How many tensors.
    pub tensors: usize,
    /// How many elements they have.
    pub parameters: u64,
    /// Their bytes as stored in the file, without padding.
    pub bytes: u64,
    /// Their bytes as a device packs them; see [`TensorType::packed_block_bytes`](crate::TensorType::packed_block_bytes).
    pub packed: u64,
}

impl From<Tensor<'_>> for Weights {
    fn from(tensor: Tensor<'_>) -> Weights {
        let bytes = tensor.data.len() as u64;
        let packed = bytes / tensor.kind.block_bytes() as u64 * tensor.kind.packed_block_bytes() as u64;
        Weights { tensors: 1, parameters: tensor.shape.elements() as u64, bytes, packed }
    }
}

impl Add for Weights {
    type Output = Weights;

    fn add(self, other: Weights) -> Weights {
        Weights {
            tensors: self.tensors + other.tensors,
            parameters: self.parameters + other.parameters,
            bytes: self.bytes + other.bytes,
            packed: self.packed + other.packed,
        }
    }
}

impl Sum for Weights {
    fn sum<I: Iterator<Item = Weights>>(weights: I) -> Weights {
        weights.fold(Weights::default(), Add::add)
    }
}

/// What mixes the tokens of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Attention over all earlier tokens: memory grows with each.
    Attention {
        /// Heads that ask.
        query_heads: usize,
        /// Heads that are cached.
        key_value_heads: usize,
        /// The length of a key (and of a query).
        key_dim: usize,
        /// The length of a value.
        value_dim: usize,
    },
    /// A gated delta net: a convolution window and a matrix per head, of fixed size.
    Recurrent {
        /// Channels of the convolution: all queries, keys and values.
        conv_channels: usize,
        /// Taps of the convolution; the window holds one position fewer.
        conv_kernel: usize,
        /// Heads of queries and keys.
        key_heads: usize,
        /// Heads of values, each with its own matrix and two gates.
        value_heads: usize,
        /// The matrix of a head has as many rows and columns, which is also the length of a head.
        state_size: usize,
    },
}

/// The routed experts of a layer; a shared expert is not among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Experts {
    /// How many there are; at least one.
    pub count: usize,
    /// How many a token uses; one to `count`.
    pub used: usize,
    /// The weights of all of them; a part of the layer's weights.
    pub weights: Weights,
}

/// One layer of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// What mixes its tokens.
    pub kind: LayerKind,
    /// All its tensors, experts included.
    pub weights: Weights,
    /// The routed experts, if it has any.
    pub experts: Option<Experts>,
    /// What a draft model multiplies the layer's input with; none of the file's own tensors.
    pub tap: Weights,
}

impl Layer {
    /// Whether it is an attention layer.
    pub fn is_attention(&self) -> bool {
        matches!(self.kind, LayerKind::Attention { .. })
    }

    /// What one token reads: all weights but those of the experts it does not use. Counts tensors as a whole.
    pub fn active(&self) -> Weights {
        let all = self.held();
        let Some(Experts { count, used, weights }) = self.experts else { return all };
        let unused = |of: u64| of / count as u64 * (count - used) as u64;
        Weights {
            tensors: all.tensors,
            parameters: all.parameters - unused(weights.parameters),
            bytes: all.bytes - unused(weights.bytes),
            packed: all.packed - unused(weights.packed),
        }
    }

    /// What a stage with this layer holds: its tensors, and what a draft model reads its input with.
    pub fn held(&self) -> Weights {
        self.weights + self.tap
    }

    /// Bytes of keys and values that one token adds; a head takes whole blocks. None in recurrent layers.
    pub fn key_value_bytes_per_token(&self, key: KvType, value: KvType) -> u64 {
        match self.kind {
            LayerKind::Attention { key_value_heads, key_dim, value_dim, .. } => {
                key_value_heads as u64 * (key.bytes_for(key_dim) + value.bytes_for(value_dim)) as u64
            }
            LayerKind::Recurrent { .. } => 0,
        }
    }

    /// Bytes of one session's state: the convolution window and the matrices. None in attention layers.
    pub fn state_bytes(&self) -> u64 {
        match self.kind {
            LayerKind::Attention { .. } => 0,
            LayerKind::Recurrent { conv_channels, conv_kernel, value_heads, state_size, .. } => {
                let window = (conv_kernel - 1) * conv_channels;
                let matrices = state_size * state_size * value_heads;
                (window + matrices) as u64 * STATE_ELEMENT_BYTES
            }
        }
    }

    /// Bytes of what one token feeds into the state: the convolution's inputs and two gates per value head.
    pub fn log_bytes_per_token(&self) -> u64 {
        match self.kind {
            LayerKind::Attention { .. } => 0,
            LayerKind::Recurrent { conv_channels, value_heads, .. } => {
                (conv_channels + 2 * value_heads) as u64 * STATE_ELEMENT_BYTES
            }
        }
    }
}
