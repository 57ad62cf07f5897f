//! What layers need in memory, in a form that adds up from layer to layer.

use std::{collections::BTreeSet, iter::Sum, ops::Add};

use paceline_gguf::{Layer, LayerKind, ModelShape, Weights};

use super::Wishes;
use crate::limits::CREDITS_PER_STAGE;

/// Activations are in single precision.
const ELEMENT_BYTES: u64 = 4;
/// Bytes of 32 values of an input as products read it: codes, a scale, sums.
const QUANTIZED_BYTES: u64 = 48;
const QUANTIZED_VALUES: u64 = 32;
/// Widths that differ by less than this come from norms and biases that were counted as matrices.
const SAME_WIDTH: u64 = 16;

/// Layers added up. Layers with results of one width share their buffers; so these are kept by width.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Footprint {
    /// All weights.
    pub(super) weights: Weights,
    /// Bytes of keys and values per token.
    pub(super) key_value: u64,
    /// Bytes of states per session.
    pub(super) states: u64,
    /// Bytes of what logs hold of a token.
    pub(super) logs: u64,
    /// Values per row inside attention, gated delta nets and feed-forward parts.
    attention: Widths,
    recurrent: Widths,
    feed_forward: Widths,
    /// Values per row of the widest input of a product.
    input: u64,
    /// Values per row that one operation works with.
    scratch: u64,
}

/// Distinct widths. What they add up to must not depend on the order in which layers were added, so all are kept and
/// compared only in the end.
#[derive(Debug, Clone, Default, PartialEq)]
struct Widths(BTreeSet<u64>);

impl Widths {
    fn of(width: u64) -> Self {
        Self([width].into())
    }

    /// The largest of each group of like widths, added up.
    fn sum(&self) -> u64 {
        let mut group = None;
        let starts_a_group = |width: &&u64| {
            let is_like = group.is_some_and(|largest: u64| largest - **width < SAME_WIDTH);
            group = if is_like { group } else { Some(**width) };
            !is_like
        };
        self.0.iter().rev().filter(starts_a_group).fold(0, |sum, width| sum.saturating_add(*width))
    }
}

impl Add for Widths {
    type Output = Self;

    fn add(mut self, mut other: Self) -> Self {
        self.0.append(&mut other.0);
        self
    }
}

impl Footprint {
    /// One layer.
    pub(super) fn of(layer: &Layer, shape: &ModelShape, wishes: &Wishes) -> Self {
        Self::of_layer(layer, shape.embedding_length, shape.architecture.is_hybrid(), wishes)
    }

    /// One layer of a model with hidden rows of that length, whose queries may be gated.
    pub(super) fn of_layer(layer: &Layer, embedding_length: usize, gated: bool, wishes: &Wishes) -> Self {
        let hidden = embedding_length as u64;
        let mixer = Mixer::of(layer.kind, hidden, gated);
        let feed_forward = FeedForward::of(layer, hidden, mixer.parameters);
        let (attention, recurrent) = match layer.kind {
            LayerKind::Attention { .. } => (Widths::of(mixer.width), Widths::default()),
            LayerKind::Recurrent { .. } => (Widths::default(), Widths::of(mixer.width)),
        };
        Self {
            weights: layer.held(),
            key_value: layer.key_value_bytes_per_token(wishes.key_type, wishes.value_type),
            states: layer.state_bytes(),
            logs: layer.log_bytes_per_token(),
            attention,
            recurrent,
            feed_forward: Widths::of(feed_forward.width),
            input: hidden.max(mixer.input).max(feed_forward.input),
            scratch: mixer.scratch.max(feed_forward.scratch),
        }
    }

    /// An upper estimate of what these layers compute with besides weights and caches.
    ///
    /// Of each row of a step: the residual stream, its norm, the results inside layers, and what one operation works
    /// with. Of each row wanted: two hidden rows and the logits. In a row of stages also the frames that may be in
    /// flight.
    pub(super) fn buffers(&self, shape: &ModelShape, (first, last): (bool, bool), wishes: &Wishes) -> u64 {
        let hidden = shape.embedding_length as u64;
        let frames = if first && last { 0 } else { CREDITS_PER_STAGE as u64 };
        // The sum that a draft model reads, alone and as it travels beside the residual stream.
        let read = shape.dflash.as_ref().map_or(0, |draft| draft.embedding_length as u64);
        let read = if read == 0 { 0 } else { hidden + (2 + frames) * read };
        let inside = [&self.attention, &self.recurrent, &self.feed_forward].map(Widths::sum);
        let values = inside.into_iter().fold(hidden * (2 + frames) + read, u64::saturating_add);
        let row = values
            .saturating_add(self.scratch)
            .saturating_mul(ELEMENT_BYTES)
            .saturating_add(self.input.div_ceil(QUANTIZED_VALUES).saturating_mul(QUANTIZED_BYTES));
        let wanted_row = if last { (2 * hidden + shape.vocabulary as u64).saturating_mul(ELEMENT_BYTES) } else { 0 };
        let step = row.saturating_mul(wishes.step_rows as u64);
        // What is logged is replayed beside the rows of the step.
        let replayed_row = self.recurrent.sum().saturating_add(self.scratch).saturating_mul(ELEMENT_BYTES);
        let replayed = if self.logs == 0 { 0 } else { replayed_row.saturating_mul(wishes.logs.rows() as u64) };
        step.saturating_add(wanted_row.saturating_mul(wishes.step_wanted as u64)).saturating_add(replayed)
    }
}

impl Add for Footprint {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weights: self.weights + other.weights,
            key_value: self.key_value.saturating_add(other.key_value),
            states: self.states.saturating_add(other.states),
            logs: self.logs.saturating_add(other.logs),
            attention: self.attention + other.attention,
            recurrent: self.recurrent + other.recurrent,
            feed_forward: self.feed_forward + other.feed_forward,
            input: self.input.max(other.input),
            scratch: self.scratch.max(other.scratch),
        }
    }
}

impl Sum for Footprint {
    fn sum<I: Iterator<Item = Self>>(layers: I) -> Self {
        layers.fold(Self::default(), Add::add)
    }
}

/// What mixes tokens: values per row.
struct Mixer {
    /// Of all results.
    width: u64,
    /// Of the input of its last product.
    input: u64,
    /// That one operation works with.
    scratch: u64,
    /// Parameters of its matrices.
    parameters: u64,
}

impl Mixer {
    fn of(kind: LayerKind, hidden: u64, gated: bool) -> Self {
        match kind {
            LayerKind::Attention { query_heads, key_value_heads, key_dim, value_dim } => {
                let heads = |count: usize, dim: usize| (count as u64).saturating_mul(dim as u64);
                // A gate is as long as its query.
                let queries = heads(query_heads, key_dim).saturating_mul(if gated { 2 } else { 1 });
                let keys_values = heads(key_value_heads, key_dim).saturating_add(heads(key_value_heads, value_dim));
                let output = heads(query_heads, value_dim);
                let matrices = queries.saturating_add(keys_values).saturating_add(output);
                // The rotation's table is no longer than a key.
                let width = matrices.saturating_add(key_dim as u64);
                Self { width, input: output, scratch: 0, parameters: hidden.saturating_mul(matrices) }
            }
            LayerKind::Recurrent { conv_channels, conv_kernel, key_heads, value_heads, state_size } => {
                let (channels, gates) = (conv_channels as u64, 2 * value_heads as u64);
                let output = (value_heads as u64).saturating_mul(state_size as u64);
                let both = channels.saturating_add(output).saturating_add(gates);
                let taps = channels.saturating_mul(conv_kernel as u64);
                Self {
                    width: both.saturating_add(channels).saturating_add(output),
                    input: output,
                    scratch: (key_heads as u64).saturating_mul(2 * state_size as u64).saturating_add(gates),
                    parameters: hidden.saturating_mul(both.saturating_add(output)).saturating_add(taps),
                }
            }
        }
    }
}

/// The feed-forward part: values per row.
struct FeedForward {
    width: u64,
    input: u64,
    scratch: u64,
}

impl FeedForward {
    /// Sizes of what the file's header has no sizes of: a matrix has as many parameters as the hidden row is long, for
    /// each value that it makes of it or takes to it. Three matrices (gate, up, down) share a width; two of them make
    /// results.
    fn of(layer: &Layer, hidden: u64, mixer_parameters: u64) -> Self {
        let hidden = hidden.max(1);
        let Some(experts) = layer.experts else {
            let width = layer.weights.parameters.saturating_sub(mixer_parameters) / (3 * hidden);
            return Self { width: width.saturating_mul(2), input: width, scratch: 0 };
        };
        let (count, used) = (experts.count as u64, experts.used as u64);
        let routed = experts.weights.parameters;
        // What is left is the router and the expert that every row uses.
        let left = layer.weights.parameters.saturating_sub(routed).saturating_sub(mixer_parameters);
        let shared = left.saturating_sub(count.saturating_mul(hidden)) / (3 * hidden);
        let inside = (routed / count.max(1)).div_ceil(3 * hidden);
        Self {
            width: count.saturating_add(2 * used + 1 + hidden).saturating_add(2 * shared),
            input: shared.max(used.saturating_mul(inside)),
            scratch: used.saturating_mul((2 * inside).saturating_add(hidden + 4)),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn added(widths: &[u64]) -> Widths {
        widths.iter().copied().map(Widths::of).fold(Widths::default(), Add::add)
    }

    #[test]
    fn like_widths_share_the_largest() {
        assert_eq!(added(&[]).sum(), 0);
        assert_eq!(added(&[100, 110, 100]).sum(), 110);
        assert_eq!(added(&[100, 115, 130]).sum(), 130 + 100, "100 is not like 130");
        assert_eq!(added(&[100, 116]).sum(), 216);
    }

    proptest! {
        #[test]
        fn sums_do_not_depend_on_the_order(widths in prop::collection::vec(0u64..200, 0..20), cut in 0usize..20) {
            let all = added(&widths).sum();
            let (front, back) = widths.split_at(cut.min(widths.len()));
            prop_assert_eq!((added(front) + added(back)).sum(), all);
            prop_assert_eq!((added(back) + added(front)).sum(), all);
        }
    }
}
