//! What a stage reads, multiplies and sends in a step, and how long that takes on a device.
//!
//! A step takes as long as the slower of reading memory and multiplying (a roofline), and a fixed time besides.
//! Speeds that were measured in whole steps make these times right; rows of a step and tokens of context scale them.

use std::{iter::Sum, ops::Add, ops::Range};

use paceline_gguf::{KvType, Layer, LayerKind, ModelShape};
use serde::Serialize;

use super::device::Speed;

/// Multiply-adds per element of a recurrent state and row: decay, read by the key, update, read by the query.
const STATE_PRODUCTS: u64 = 4;
/// Bytes of a sampled token as it returns to the head.
const RESULT_BYTES: f64 = 64.0;

/// What a step holds, as far as its time depends on it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StepShape {
    /// Rows, of prompts and of answers.
    pub rows: usize,
    /// Rows of which a token or a vector is wanted.
    pub wanted: usize,
    /// Sessions with rows in the step.
    pub sessions: usize,
    /// Tokens that each row attends to, summed over the rows.
    pub context_tokens: u64,
}

impl StepShape {
    /// One row of each of so many sessions, which attends to `depth` tokens before it and to itself.
    pub fn decode(sessions: usize, depth: usize) -> Self {
        let tokens = (depth as u64).saturating_add(1).saturating_mul(sessions as u64);
        Self { rows: sessions, wanted: sessions, sessions, context_tokens: tokens }
    }

    /// So many rows of one prompt after `depth` tokens; none is wanted.
    pub fn prefill(rows: usize, depth: usize) -> Self {
        let rows_wide = rows as u64;
        let own = rows_wide.saturating_mul(rows_wide.saturating_add(1)) / 2;
        let tokens = rows_wide.saturating_mul(depth as u64).saturating_add(own);
        Self { rows, wanted: 0, sessions: rows.min(1), context_tokens: tokens }
    }
}

/// Experts of layers that choose alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct ExpertCost {
    /// How many a layer has.
    pub count: usize,
    /// How many a row uses.
    pub used: usize,
    /// Bytes of all of them, in all these layers.
    pub bytes: u64,
}

impl ExpertCost {
    /// Bytes read by a step of so many rows. Rows choose independently here: text that is alike reads less.
    fn read(&self, rows: usize) -> f64 {
        let unused = 1.0 - self.used as f64 / self.count.max(1) as f64;
        self.bytes as f64 * (1.0 - unused.powf(rows as f64))
    }
}

/// What some layers cost per step, per row and per token of context. Costs of neighbours add up.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct StageCost {
    /// Bytes of weights that every step reads: the layers without their routed experts.
    pub weights: u64,
    /// Routed experts, of which a step reads those that its rows choose.
    pub experts: Vec<ExpertCost>,
    /// Bytes of the embedding that each row reads; only in the first stage.
    pub embedding: u64,
    /// Bytes of the head, read by a step that wants anything; only in the last stage.
    pub head: u64,
    /// Multiply-adds per row.
    pub products: u64,
    /// Multiply-adds per row that wants a token.
    pub head_products: u64,
    /// Bytes of keys and values per token of context. Rows of one session that follow each other read them once.
    pub key_value: u64,
    /// Multiply-adds per row and token that it attends to.
    pub key_value_products: u64,
    /// Bytes of recurrent states per session, which a step reads and writes.
    pub states: u64,
    /// Bytes per row that go to the next stage.
    pub sent: u64,
}

impl StageCost {
    /// The cost of some layers, the first with the embedding and the last with the head.
    pub fn of(
        shape: &ModelShape,
        layers: Range<usize>,
        first: bool,
        last: bool,
        key_type: KvType,
        value_type: KvType,
    ) -> Self {
        let mut cost: Self = shape.layers[layers].iter().map(|layer| Self::of_layer(layer, key_type, value_type)).sum();
        if first {
            cost.embedding = shape.embedding.bytes / shape.vocabulary.max(1) as u64;
        }
        if last {
            let head = shape.head();
            (cost.head, cost.head_products) = (head.bytes, head.parameters);
        }
        cost.sent = if last { 0 } else { shape.sent_row_bytes() };
        cost
    }

    fn of_layer(layer: &Layer, key_type: KvType, value_type: KvType) -> Self {
        let (key_value_products, state_products) = match layer.kind {
            LayerKind::Attention { query_heads, key_dim, value_dim, .. } => {
                ((query_heads as u64).saturating_mul(key_dim as u64 + value_dim as u64), 0)
            }
            LayerKind::Recurrent { value_heads, state_size, .. } => {
                let matrix = (state_size as u64).saturating_mul(state_size as u64);
                (0, matrix.saturating_mul(value_heads as u64).saturating_mul(STATE_PRODUCTS))
            }
        };
        let routed = layer.experts.map_or(0, |experts| experts.weights.bytes);
        let experts = layer.experts.map(|experts| ExpertCost {
            count: experts.count,
            used: experts.used,
            bytes: experts.weights.bytes,
        });
        Self {
            weights: layer.weights.bytes.saturating_sub(routed),
            experts: experts.into_iter().collect(),
            products: layer.active().parameters.saturating_add(state_products),
            key_value: layer.key_value_bytes_per_token(key_type, value_type),
            key_value_products,
            states: layer.state_bytes(),
            ..Self::default()
        }
    }

    /// What a step moves and multiplies here.
    pub fn work(&self, step: &StepShape) -> Work {
        if step.rows == 0 {
            return Work::default();
        }
        let rows = step.rows as f64;
        let context = step.context_tokens as f64;
        // A session's rows share one reading of what they attend to.
        let context_read = context * (step.sessions as f64 / rows).min(1.0);
        let experts: f64 = self.experts.iter().map(|experts| experts.read(step.rows)).sum();
        let head = if step.wanted > 0 { self.head as f64 } else { 0.0 };
        let states = 2.0 * self.states as f64 * step.sessions as f64;
        Work {
            bytes: self.weights as f64
                + experts
                + self.embedding as f64 * rows
                + head
                + self.key_value as f64 * context_read
                + states,
            products: self.products as f64 * rows
                + self.head_products as f64 * step.wanted as f64
                + self.key_value_products as f64 * context,
        }
    }

    /// Seconds that a device of this speed takes for a step.
    pub fn seconds(&self, speed: &Speed, step: &StepShape) -> f64 {
        self.work(step).seconds(speed)
    }

    /// Bytes that a step sends on: rows to the next stage, results from the last.
    pub fn sent_bytes(&self, step: &StepShape) -> f64 {
        if self.sent > 0 { self.sent as f64 * step.rows as f64 } else { RESULT_BYTES * step.wanted as f64 }
    }
}

impl Add for StageCost {
    type Output = Self;

    fn add(mut self, other: Self) -> Self {
        for more in other.experts {
            match self.experts.iter_mut().find(|known| (known.count, known.used) == (more.count, more.used)) {
                Some(known) => known.bytes = known.bytes.saturating_add(more.bytes),
                None => self.experts.push(more),
            }
        }
        Self {
            weights: self.weights.saturating_add(other.weights),
            experts: self.experts,
            embedding: self.embedding.saturating_add(other.embedding),
            head: self.head.saturating_add(other.head),
            products: self.products.saturating_add(other.products),
            head_products: self.head_products.saturating_add(other.head_products),
            key_value: self.key_value.saturating_add(other.key_value),
            key_value_products: self.key_value_products.saturating_add(other.key_value_products),
            states: self.states.saturating_add(other.states),
            sent: other.sent,
        }
    }
}

impl Sum for StageCost {
    fn sum<I: Iterator<Item = Self>>(parts: I) -> Self {
        parts.fold(Self::default(), Add::add)
    }
}

/// What a step moves and multiplies on one device.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Work {
    /// Bytes read or written.
    pub bytes: f64,
    /// Multiply-adds.
    pub products: f64,
}

impl Work {
    /// Seconds that a device of this speed takes for it: the slower of reading and multiplying, and what a step costs
    /// besides. Nothing takes no time.
    pub fn seconds(&self, speed: &Speed) -> f64 {
        if *self == Self::default() {
            return 0.0;
        }
        (self.bytes / speed.read).max(self.products / speed.products) + speed.step_overhead
    }
}

impl Add for Work {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { bytes: self.bytes + other.bytes, products: self.products + other.products }
    }
}
