//! What an operation of a program has to do: the bytes that it touches and the multiplications that it makes,
//! from its shapes and from the weights as the device stores them.

use std::ops::Add;

use paceline_compute::LoadedStage;
use paceline_compute::device::MemorySpec;
use paceline_compute::program::{Buffer, Cache, Op, Product, RowSpace, State, Weight, WeightUse};
use paceline_gguf::{Gguf, TensorType};

use super::step::Step;

/// The work of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Cost {
    /// Weights, keys and values, states and buffers, each read or written once.
    pub(super) bytes: u64,
    /// Multiplications with an addition, of floats or of bytes.
    pub(super) macs: u64,
    /// Those of `macs` that the integer dot product can do.
    pub(super) integer_macs: u64,
}

impl Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            macs: self.macs + other.macs,
            integer_macs: self.integer_macs + other.integer_macs,
        }
    }
}

/// What the costs of a step depend on.
pub(super) struct Costs<'a> {
    pub(super) model: &'a Gguf,
    pub(super) stage: &'a dyn LoadedStage,
    pub(super) memory: &'a MemorySpec,
    pub(super) step: &'a Step,
}

impl Costs<'_> {
    /// The work of one operation.
    pub(super) fn of(&self, op: &Op) -> Cost {
        match op {
            Op::Embed { output, .. } => self.moved(&[*output, *output]),
            Op::RopeTable { output, .. } => self.moved(&[*output]),
            Op::Join { first, second, output: joined } | Op::Split { input: joined, first, second } => {
                self.moved(&[*first, *second, *joined])
            }
            Op::Norm { input, output, .. } | Op::Gather { input, output } => self.moved(&[*input, *output]),
            Op::Linear { input, products } => self.linear(*input, products),
            Op::StoreKeysValues { queries, key, value, cache, .. } => {
                let stored = self.step.all_rows() * self.token_bytes(*cache);
                let queries = queries.map_or(Cost::default(), |queries| self.moved(&[queries.buffer, queries.buffer]));
                queries + self.moved(&[*key, *value]) + bytes(stored)
            }
            Op::Attention { query, query_heads, cache, output, .. } => {
                self.moved(&[*query, *output]) + self.attention(query_heads.count, *cache)
            }
            Op::Convolve { input, state, output, .. } => self.moved(&[*input, *output]) + self.convolve(*state),
            Op::DeltaRule { input, alpha, beta, state, output, .. } => {
                self.moved(&[*input, *alpha, *beta, *output]) + self.delta_rule(*state)
            }
            Op::GatedNorm { buffer, gate, .. } => self.moved(&[*buffer, *buffer, *gate]),
            Op::SwiGlu { gate, up } => self.moved(&[*gate, *gate, *up]),
            Op::Route { logits, output, .. } => self.moved(&[*logits, *output]),
            Op::Experts { input, route, gate, up, down, output } => {
                let used = self.width(*route) / 2;
                let experts = [*gate, *up, *down].map(|weight| self.experts(weight, used));
                experts.into_iter().fold(self.moved(&[*input, *route, *output, *output]), Cost::add)
            }
            Op::AddGated { input, gate, output } => self.moved(&[*input, *gate, *output, *output]),
            Op::AddEmbedding { output: buffer, .. }
            | Op::LayerNorm { buffer, .. }
            | Op::Gelu { buffer }
            | Op::Tanh { buffer }
            | Op::AddBias { buffer, .. } => self.moved(&[*buffer, *buffer]),
        }
    }

    /// Reading or writing whole buffers, one that is listed twice is read and written.
    fn moved(&self, buffers: &[Buffer]) -> Cost {
        bytes(buffers.iter().map(|buffer| self.rows(*buffer) * self.width(*buffer) * size_of::<f32>()).sum())
    }

    fn linear(&self, input: Buffer, products: &[Product]) -> Cost {
        let mut cost = self.moved(&[input]);
        for Product { weight, output, add } in products {
            let macs = self.rows(input) * self.width(input) * self.width(*output);
            cost = cost + self.moved(&[*output, *output][usize::from(!add)..]);
            cost = cost + bytes(self.stage.weight_bytes(*weight) as usize) + self.products(*weight, macs);
        }
        cost
    }

    /// As if no two rows of the step used the same expert: the most that can be touched.
    fn experts(&self, weight: Weight, used: usize) -> Cost {
        let spec = &self.stage.program().weights[weight.0 as usize];
        assert_eq!(spec.usage, WeightUse::Experts, "{} holds experts", spec.tensor);
        let dims = self.model.tensor(&spec.tensor).map_or_else(Vec::new, |tensor| tensor.shape.dims().to_vec());
        let count: usize = dims.get(2..).map_or(1, |rest| rest.iter().product());
        let rows = spec.rows.as_ref().map_or_else(|| dims.get(1).copied().unwrap_or(1), ExactSizeIterator::len);
        let pairs = self.step.all_rows() * used;
        let stored = self.stage.weight_bytes(weight) as usize / count.max(1) * pairs.min(count);
        bytes(stored) + self.products(weight, pairs * rows * dims.first().copied().unwrap_or(0))
    }

    fn products(&self, weight: Weight, macs: usize) -> Cost {
        let floats = [TensorType::F32, TensorType::F16, TensorType::BF16];
        let is_float = self.kind(weight).is_some_and(|kind| floats.contains(&kind));
        Cost { bytes: 0, macs: macs as u64, integer_macs: if is_float { 0 } else { macs as u64 } }
    }

    /// The type of a tensor in the file.
    pub(super) fn kind(&self, weight: Weight) -> Option<TensorType> {
        let spec = &self.stage.program().weights[weight.0 as usize];
        self.model.tensor(&spec.tensor).map(|tensor| tensor.kind)
    }

    /// Keys and values of all tokens so far, and two dot products per pair of tokens and head.
    fn attention(&self, query_heads: usize, cache: Cache) -> Cost {
        let Step { start, rows, .. } = *self.step;
        let spec = &self.stage.program().caches[usize::from(cache.0)];
        let pairs = rows * start + rows * (rows + 1) / 2;
        let macs = self.step.sessions() * pairs * query_heads * (spec.key_dim + spec.value_dim);
        let read = self.step.sessions() * (start + rows) * self.token_bytes(cache);
        Cost { macs: macs as u64, ..bytes(read) }
    }

    /// Keys and values of one token.
    fn token_bytes(&self, cache: Cache) -> usize {
        let spec = &self.stage.program().caches[usize::from(cache.0)];
        let MemorySpec { key_type, value_type, .. } = self.memory;
        spec.key_value_heads * (key_type.bytes_for(spec.key_dim) + value_type.bytes_for(spec.value_dim))
    }

    fn convolve(&self, state: State) -> Cost {
        let spec = &self.stage.program().states[usize::from(state.0)];
        let remembered = 2 * self.step.sessions() * (spec.taps - 1) * spec.channels * size_of::<f32>();
        Cost { macs: (self.step.all_rows() * spec.taps * spec.channels) as u64, ..bytes(remembered) }
    }

    /// Matrices are read and written once per session, and for each row multiplied with the key, changed by an
    /// outer product, and multiplied with the query.
    fn delta_rule(&self, state: State) -> Cost {
        let spec = &self.stage.program().states[usize::from(state.0)];
        let matrices = spec.value_heads * spec.head_dim * spec.head_dim;
        let moved = 2 * self.step.sessions() * matrices * size_of::<f32>();
        Cost { macs: (3 * self.step.all_rows() * matrices) as u64, ..bytes(moved) }
    }

    fn rows(&self, buffer: Buffer) -> usize {
        match self.stage.program().buffers[usize::from(buffer.0)].rows {
            RowSpace::Step => self.step.all_rows(),
            RowSpace::Wanted => self.step.wanted.len(),
        }
    }

    fn width(&self, buffer: Buffer) -> usize {
        self.stage.program().width(buffer)
    }
}

fn bytes(count: usize) -> Cost {
    Cost { bytes: count as u64, ..Cost::default() }
}
