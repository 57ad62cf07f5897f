//! What a decode step costs before anything is loaded: launches, and bytes that cross the bus of a card's memory.
//!
//! It reckons with one row. What activations are is left out: they stay in caches.

use std::sync::Arc;

use paceline_compute::Result;
use paceline_compute::blocks::is_quantized;
use paceline_compute::device::MemorySpec;
use paceline_compute::program::{Op, Program, Weight};
use paceline_compute::tensors::Source;
use paceline_gguf::{Gguf, TensorType};

use crate::inputs::SEGMENT;
use crate::layout::{Pages, Slots};
use crate::prepare::{no_encoders, rounds_for_next};

/// What an operation costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cost {
    /// What kind of operation it is, such as `linear`.
    pub operation: &'static str,
    /// Launches of kernels.
    pub launches: usize,
    /// Bytes read and written.
    pub bytes: u64,
}

/// A tensor as the file's header describes it.
struct Tensor {
    kind: TensorType,
    shape: [usize; 3],
}

impl Tensor {
    fn takes_blocks(&self) -> bool {
        is_quantized(self.kind)
    }

    /// Bytes of all its matrices.
    fn bytes(&self) -> u64 {
        let [columns, rows, matrices] = self.shape;
        (self.kind.bytes_for(columns) * rows * matrices) as u64
    }
}

/// The cost of each operation of a program's first entry, in a step of one row that has `context` tokens before it. Only
/// the header of the model is read.
///
/// # Errors
/// A tensor that is missing or too small; keys and values that cannot be stored.
pub fn decode(program: &Program, model: &Arc<Gguf>, memory: &MemorySpec, context: usize) -> Result<Vec<Cost>> {
    let tensors = program.weights.iter().map(|spec| {
        let source = Source::find(spec, model)?;
        Ok(Tensor { kind: source.kind(), shape: source.shape() })
    });
    let reckoning = Reckoning { program, tensors: tensors.collect::<Result<_>>()?, memory, context };
    let vectors = program.input.filter(|_| !program.embeds);
    let brought = vectors.map(|_| Cost { operation: "vectors", launches: 1, bytes: 0 });
    let own = program.entries()[0].clone().map(|index| reckoning.cost(index, &program.ops[index].op));
    brought.into_iter().map(Ok).chain(own).collect()
}

struct Reckoning<'a> {
    program: &'a Program,
    tensors: Vec<Tensor>,
    memory: &'a MemorySpec,
    context: usize,
}

impl Reckoning<'_> {
    fn tensor(&self, weight: Weight) -> &Tensor {
        &self.tensors[weight.0 as usize]
    }

    fn cost(&self, index: usize, op: &Op) -> Result<Cost> {
        let cost = |operation, launches, bytes| Ok(Cost { operation, launches, bytes });
        match op {
            Op::Embed { .. } => cost("embed", 1, 0),
            Op::RopeTable { .. } => cost("rope table", 1, 0),
            Op::Norm { .. } => cost("norm", 1, 0),
            Op::Linear { products, .. } => {
                let weights = products.iter().map(|product| self.tensor(product.weight));
                let kind = |weight: Weight| self.tensor(weight).kind;
                let is_rounded = index > 0 && rounds_for_next(self.program, index - 1, &kind);
                let rounds = !is_rounded && weights.clone().any(Tensor::takes_blocks);
                let mut kinds: Vec<u32> = weights.clone().map(|weight| weight.kind.id()).collect();
                kinds.sort_unstable();
                kinds.dedup();
                cost("linear", kinds.len() + usize::from(rounds), weights.map(Tensor::bytes).sum())
            }
            Op::StoreKeysValues { cache, .. } => cost("store keys and values", 2, self.pages(cache.0)?.token_bytes()),
            Op::Attention { cache, .. } => {
                let tokens = self.context + 1;
                let launches = if tokens > SEGMENT { 2 } else { 1 };
                cost("attention", launches, self.pages(cache.0)?.token_bytes() * tokens as u64)
            }
            Op::Convolve { .. } => cost("convolve", 2, 0),
            Op::DeltaRule { state, .. } => {
                let slot = Slots::new(self.program.states[usize::from(state.0)]).slot_bytes() as u64;
                cost("delta rule", 3 + usize::from(self.memory.logs.rows() > 0), 2 * slot)
            }
            Op::GatedNorm { .. } => cost("gated norm", 1, 0),
            Op::Route { .. } => cost("route", 1, 0),
            Op::Experts { route, gate, up, down, .. } => {
                let used = self.program.width(*route) as u64 / 2;
                let [gate, up, down] = [gate, up, down].map(|weight| self.tensor(*weight));
                let all = gate.bytes() + up.bytes() + down.bytes();
                let rounds = usize::from(gate.takes_blocks() || up.takes_blocks());
                cost("experts", 5 + rounds, all * used / (gate.shape[2] as u64).max(1))
            }
            Op::SwiGlu { .. }
            | Op::AddGated { .. }
            | Op::AddBias { .. }
            | Op::Join { .. }
            | Op::Split { .. }
            | Op::Gather { .. } => cost("values", 1, 0),
            Op::AddEmbedding { .. } | Op::LayerNorm { .. } | Op::Gelu { .. } | Op::Tanh { .. } => Err(no_encoders()),
        }
    }

    fn pages(&self, cache: u16) -> Result<Pages> {
        Pages::new(self.program.caches[usize::from(cache)], self.memory, true)
    }
}
