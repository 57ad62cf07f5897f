//! Checks a program against its weights and makes its operations ready to run.

mod fusion;

use std::sync::Arc;

use super::attention::Attention;
use super::convolve::Convolve;
use super::delta_rule::DeltaRule;
use super::elementwise::{AddBias, AddGated, Function, Gather, Join, Pointwise, Split, SwiGlu};
use super::embed::{AddEmbedding, Embed};
use super::experts::{Experts, Sizes};
use super::keys_values::StoreKeysValues;
use super::layer_norm::LayerNorm;
use super::linear::Linear;
use super::norm::{GatedNorm, Norm};
use super::rope::RopeTable;
use super::route::Route;
use super::{Fused, Operation};
use crate::Result;
use crate::cpu::weights::Loaded;
use crate::program::{Cache, CacheSpec, Op, Program, Recorded, State, StateSpec, Weight};
use crate::rotary::Rotary;
use crate::shapes::{Shapes, TensorShape};

/// All operations of a program, in order.
pub(crate) struct Prepared {
    /// Every operation alone.
    pub(crate) single: Vec<Fused>,
    /// Fused where we know how.
    pub(crate) fused: Vec<Fused>,
}

/// Checks a program and makes it ready.
pub(crate) fn prepare(program: &Program, weights: &[Arc<Loaded>]) -> Result<Prepared> {
    let tensors: Vec<TensorShape<'_>> = weights.iter().map(|tensor| tensor.shape_of()).collect();
    let preparation = Preparation { program, weights, shapes: Shapes { program, tensors: &tensors } };
    let single = |(index, recorded)| {
        let operation = preparation.operation(recorded)?;
        Ok(Fused { operations: index..index + 1, main: index, operation })
    };
    let single = program.ops.iter().enumerate().map(single).collect::<Result<Vec<_>>>()?;
    Ok(Prepared { single, fused: preparation.fuse() })
}

struct Preparation<'a> {
    program: &'a Program,
    weights: &'a [Arc<Loaded>],
    shapes: Shapes<'a>,
}

impl Preparation<'_> {
    fn loaded(&self, weight: Weight) -> &Loaded {
        &self.weights[weight.0 as usize]
    }

    fn cache(&self, cache: Cache) -> &CacheSpec {
        self.shapes.cache(cache)
    }

    fn state(&self, state: State) -> &StateSpec {
        self.shapes.state(state)
    }

    fn operation(&self, recorded: &Recorded) -> Result<Box<dyn Operation>> {
        let Recorded { op, name, .. } = recorded;
        self.shapes.check(op, name)?;
        Ok(self.ready(op))
    }

    /// An operation that was checked.
    fn ready(&self, op: &Op) -> Box<dyn Operation> {
        match *op {
            Op::Embed { table, output } => Box::new(Embed { table, output }),
            Op::RopeTable { ref rope, output } => {
                let divisors = rope.divisors.map(|weight| self.loaded(weight).vector());
                Box::new(RopeTable { rotary: Rotary::new(rope, divisors), output })
            }
            Op::Norm { input, weight, epsilon, output } => Box::new(Norm { input, weight, epsilon, output }),
            Op::AddEmbedding { table, component, output } => Box::new(AddEmbedding { table, component, output }),
            Op::LayerNorm { buffer, weight, bias, epsilon } => Box::new(LayerNorm { buffer, weight, bias, epsilon }),
            Op::Gelu { buffer } => Box::new(Pointwise { buffer, function: Function::Gelu }),
            Op::Tanh { buffer } => Box::new(Pointwise { buffer, function: Function::Tanh }),
            Op::Linear { input, ref products } => {
                Box::new(Linear { input, width: self.program.width(input), products: products.clone() })
            }
            Op::StoreKeysValues { .. } | Op::Attention { .. } | Op::Convolve { .. } | Op::DeltaRule { .. } => {
                self.sequence_operation(op)
            }
            Op::GatedNorm { buffer, gate, weight, head_dim, epsilon } => {
                Box::new(GatedNorm { buffer, gate, weight, head_dim, epsilon })
            }
            Op::SwiGlu { gate, up } => Box::new(SwiGlu { gate, up }),
            Op::Route { logits, used, renormalize, scale, output } => {
                let experts = self.program.width(logits);
                Box::new(Route { logits, experts, used, renormalize, scale, output })
            }
            Op::Experts { input, route, gate, up, down, output } => {
                let [width, hidden, experts] = self.loaded(gate).shape();
                let sizes = Sizes { experts, used: self.program.width(route) / 2, width, hidden };
                Box::new(Experts { input, route, gate, up, down, output, sizes })
            }
            Op::AddGated { input, gate, output } => Box::new(AddGated { input, gate, output }),
            Op::AddBias { buffer, bias } => Box::new(AddBias { buffer, bias }),
            Op::Join { first, second, output } => Box::new(Join { inputs: [first, second], output }),
            Op::Split { input, first, second } => Box::new(Split { input, outputs: [first, second] }),
            Op::Gather { input, output } => Box::new(Gather { input, output }),
        }
    }

    /// The operations that have a memory.
    fn sequence_operation(&self, op: &Op) -> Box<dyn Operation> {
        match *op {
            Op::StoreKeysValues { queries, key, value, key_norm, epsilon, rotation, cache } => {
                let key_value_heads = self.cache(cache).key_value_heads;
                Box::new(StoreKeysValues { queries, key, value, key_norm, epsilon, rotation, cache, key_value_heads })
            }
            Op::Attention { query, query_heads, gate_offset, scale, causal, cache, output } => {
                let spec = *self.cache(cache);
                Box::new(Attention { query, query_heads, gate_offset, scale, causal, cache, output, spec })
            }
            Op::Convolve { input, weight, state, output } => {
                Box::new(Convolve::new(input, self.loaded(weight).vector(), self.state(state).taps, state, output))
            }
            Op::DeltaRule { input, alpha, beta, time_bias, decay, key_heads, epsilon, state, output } => {
                let spec = *self.state(state);
                Box::new(DeltaRule { input, alpha, beta, time_bias, decay, key_heads, epsilon, state, output, spec })
            }
            _ => unreachable!("only operations with a memory come here"),
        }
    }
}
