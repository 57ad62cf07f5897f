//! Whether buffers and tensors have the shapes that operations need.
//!
//! Shapes of tensors come from a file, so a wrong one is an error. Shapes of buffers come from the
//! architecture that recorded the program, so a wrong one is a bug.

use std::collections::HashSet;

use crate::program::{
    Buffer, Cache, CacheSpec, Heads, Op, Product, Program, Queries, RowSpace, State, StateSpec, Weight,
};
use crate::{Error, Result};

/// The most taps of a convolution; the models have 4.
pub const MAX_TAPS: usize = 16;

/// A tensor as a program wants it.
#[derive(Debug, Clone, Copy)]
pub struct TensorShape<'a> {
    /// Its name in the model file.
    pub tensor: &'a str,
    /// `(columns, rows, matrices)`, of the rows and columns that are wanted.
    pub shape: [usize; 3],
}

/// A program, and the shapes of its tensors in the order of its weights.
#[derive(Debug, Clone, Copy)]
pub struct Shapes<'a> {
    /// The program.
    pub program: &'a Program,
    /// Its tensors.
    pub tensors: &'a [TensorShape<'a>],
}

impl Shapes<'_> {
    /// Checks one operation, which the architecture calls `name`.
    ///
    /// # Errors
    /// A tensor of another shape.
    ///
    /// # Panics
    /// If its buffers do not fit one another.
    pub fn check(&self, op: &Op, name: &str) -> Result<()> {
        self.check_buffers(op, name);
        self.check_shapes(op, name)
    }

    /// The buffers of an operation are distinct, which parallel borrows rely on, and have rows that match.
    fn check_buffers(&self, op: &Op, name: &str) {
        let buffers = buffers_of(op);
        let distinct: HashSet<Buffer> = buffers.iter().copied().collect();
        assert_eq!(distinct.len(), buffers.len(), "{name} uses a buffer twice: {op:?}");
        let spaces = buffers.iter().map(|buffer| self.program.buffers[usize::from(buffer.0)].rows);
        let spaces: Vec<RowSpace> = spaces.collect();
        match op {
            Op::Gather { .. } => assert_eq!(spaces, [RowSpace::Step, RowSpace::Wanted], "{name}: rows"),
            _ => assert!(spaces.windows(2).all(|pair| pair[0] == pair[1]), "{name} mixes rows of two kinds"),
        }
        if needs_step_rows(op) {
            assert_eq!(spaces[0], RowSpace::Step, "{name} works on the rows of the step");
        }
    }

    fn check_shapes(&self, op: &Op, name: &str) -> Result<()> {
        match op {
            Op::Embed { table, output } => self.expect_columns(*table, self.program.width(*output)),
            Op::RopeTable { rope, output } => {
                self.assert_width(*output, rope.dimensions, name);
                assert_eq!(rope.dimensions % 2, 0, "{name}: rotating dimensions come in pairs");
                rope.divisors.map_or(Ok(()), |divisors| self.expect_vector(divisors, rope.dimensions / 2))
            }
            Op::Norm { input, weight, output, .. } => {
                self.assert_width(*output, self.program.width(*input), name);
                self.expect_vector(*weight, self.program.width(*input))
            }
            Op::AddEmbedding { table, component, output } => {
                assert!(*component < 4, "{name}: positions have four components");
                self.expect_columns(*table, self.program.width(*output))
            }
            Op::LayerNorm { buffer, weight, bias, .. } => {
                self.expect_vector(*weight, self.program.width(*buffer))?;
                self.expect_vector(*bias, self.program.width(*buffer))
            }
            Op::Gelu { .. } | Op::Tanh { .. } => Ok(()),
            Op::Linear { input, products } => self.check_products(*input, products),
            Op::StoreKeysValues { .. } => self.check_keys_values(op, name),
            Op::Attention { .. } => {
                self.check_attention(op, name);
                Ok(())
            }
            Op::Convolve { input, weight, state, output } => {
                let StateSpec { channels, taps, .. } = *self.state(*state);
                self.assert_width(*input, channels, name);
                self.assert_width(*output, channels, name);
                self.check_taps(*weight, channels, taps)
            }
            Op::DeltaRule { .. } => self.check_delta_rule(op, name),
            Op::GatedNorm { buffer, gate, weight, head_dim, .. } => {
                self.assert_width(*gate, self.program.width(*buffer), name);
                assert_eq!(self.program.width(*buffer) % head_dim, 0, "{name}: whole heads");
                self.expect_vector(*weight, *head_dim)
            }
            Op::SwiGlu { gate, up } => {
                self.assert_width(*up, self.program.width(*gate), name);
                Ok(())
            }
            Op::Route { logits, used, output, .. } => {
                self.assert_width(*output, 2 * used, name);
                assert!(*used <= self.program.width(*logits), "{name} uses more experts than there are");
                Ok(())
            }
            Op::Experts { .. } => self.check_experts(op, name),
            Op::AddGated { input, gate, output } => {
                self.assert_width(*input, self.program.width(*output), name);
                self.assert_width(*gate, 1, name);
                Ok(())
            }
            Op::AddBias { buffer, bias } => self.expect_vector(*bias, self.program.width(*buffer)),
            Op::Join { first, second, output } => {
                self.assert_width(*output, self.program.width(*first) + self.program.width(*second), name);
                Ok(())
            }
            Op::Split { input, first, second } => {
                self.assert_width(*input, self.program.width(*first) + self.program.width(*second), name);
                Ok(())
            }
            Op::Gather { input, output } => {
                self.assert_width(*output, self.program.width(*input), name);
                Ok(())
            }
        }
    }

    fn check_products(&self, input: Buffer, products: &[Product]) -> Result<()> {
        products.iter().try_for_each(|product| {
            self.expect_matrix(product.weight, self.program.width(product.output), self.program.width(input))
        })
    }

    fn check_keys_values(&self, op: &Op, name: &str) -> Result<()> {
        let Op::StoreKeysValues { queries, key, value, key_norm, rotation, cache, .. } = op else {
            unreachable!("checked by the caller")
        };
        let CacheSpec { key_value_heads, key_dim, value_dim } = *self.cache(*cache);
        self.assert_width(*key, key_value_heads * key_dim, name);
        self.assert_width(*value, key_value_heads * value_dim, name);
        let shortest = queries.map_or(key_dim, |queries| queries.heads.dim.min(key_dim));
        let rotating = rotation.map_or(0, |rotation| self.program.width(rotation.table));
        assert!(rotating <= shortest, "{name} rotates more than a head has");
        if let Some(Queries { buffer, heads, norm }) = queries {
            self.assert_heads(*buffer, heads, name);
            norm.map_or(Ok(()), |weight| self.expect_vector(weight, heads.dim))?;
        }
        key_norm.map_or(Ok(()), |weight| self.expect_vector(weight, key_dim))
    }

    fn check_attention(&self, op: &Op, name: &str) {
        let Op::Attention { query, query_heads, gate_offset, cache, output, .. } = op else {
            unreachable!("checked by the caller")
        };
        let CacheSpec { key_value_heads, key_dim, value_dim } = *self.cache(*cache);
        self.assert_heads(*query, query_heads, name);
        assert_eq!(query_heads.dim, key_dim, "{name}: queries are as long as keys");
        assert!(key_value_heads > 0 && query_heads.count % key_value_heads == 0, "{name}: whole groups of heads");
        self.assert_width(*output, query_heads.count * value_dim, name);
        let Some(offset) = gate_offset else { return };
        let last = Heads { dim: offset + value_dim, ..*query_heads };
        self.assert_heads(*query, &last, name);
    }

    fn check_taps(&self, weight: Weight, channels: usize, taps: usize) -> Result<()> {
        let loaded = self.tensor(weight);
        if taps == 0 || taps > MAX_TAPS {
            return Err(loaded.wrong_shape(format!("1 to {MAX_TAPS} taps")));
        }
        loaded.expect([taps, channels, 1])
    }

    fn check_delta_rule(&self, op: &Op, name: &str) -> Result<()> {
        let Op::DeltaRule { input, alpha, beta, time_bias, decay, key_heads, state, output, .. } = op else {
            unreachable!("checked by the caller")
        };
        let StateSpec { value_heads, head_dim, .. } = *self.state(*state);
        assert!(*key_heads > 0, "{name} has key heads");
        self.assert_width(*input, (2 * key_heads + value_heads) * head_dim, name);
        self.assert_width(*alpha, value_heads, name);
        self.assert_width(*beta, value_heads, name);
        self.assert_width(*output, value_heads * head_dim, name);
        self.expect_vector(*time_bias, value_heads)?;
        self.expect_vector(*decay, value_heads)
    }

    fn check_experts(&self, op: &Op, name: &str) -> Result<()> {
        let Op::Experts { input, route, gate, up, down, output } = op else { unreachable!("checked by the caller") };
        let width = self.program.width(*input);
        self.assert_width(*output, width, name);
        assert_eq!(self.program.width(*route) % 2, 0, "{name}: an index and a weight per expert");
        let [_, hidden, experts] = self.tensor(*gate).shape;
        if experts < self.program.width(*route) / 2 {
            return Err(self.tensor(*gate).wrong_shape("more experts".to_owned()));
        }
        self.tensor(*gate).expect([width, hidden, experts])?;
        self.tensor(*up).expect([width, hidden, experts])?;
        self.tensor(*down).expect([hidden, width, experts])
    }

    /// The shape of a tensor.
    pub fn tensor(&self, weight: Weight) -> &TensorShape<'_> {
        &self.tensors[weight.0 as usize]
    }

    /// What an attention layer stores.
    pub fn cache(&self, cache: Cache) -> &CacheSpec {
        &self.program.caches[usize::from(cache.0)]
    }

    /// What a recurrent layer remembers.
    pub fn state(&self, state: State) -> &StateSpec {
        &self.program.states[usize::from(state.0)]
    }

    fn assert_width(&self, buffer: Buffer, width: usize, name: &str) {
        let found = self.program.width(buffer);
        let what = self.program.buffers[usize::from(buffer.0)].name;
        assert_eq!(found, width, "{name}: width of {what}");
    }

    fn assert_heads(&self, buffer: Buffer, heads: &Heads, name: &str) {
        assert!(heads.count > 0 && heads.dim > 0, "{name} has heads");
        let end = (heads.count - 1) * heads.stride + heads.dim;
        assert!(heads.dim <= heads.stride || heads.count == 1, "{name}: heads overlap");
        assert!(end <= self.program.width(buffer), "{name}: heads end behind the row");
    }

    fn expect_vector(&self, weight: Weight, length: usize) -> Result<()> {
        self.tensor(weight).expect([length, 1, 1])
    }

    fn expect_matrix(&self, weight: Weight, rows: usize, columns: usize) -> Result<()> {
        self.tensor(weight).expect([columns, rows, 1])
    }

    fn expect_columns(&self, weight: Weight, columns: usize) -> Result<()> {
        let [_, rows, _] = self.tensor(weight).shape;
        self.expect_matrix(weight, rows, columns)
    }
}

/// Operations that follow sequences, or use the step's inputs row by row.
fn needs_step_rows(op: &Op) -> bool {
    use Op::{AddEmbedding, Attention, Convolve, DeltaRule, Embed, RopeTable, StoreKeysValues};
    matches!(
        op,
        Embed { .. }
            | AddEmbedding { .. }
            | RopeTable { .. }
            | StoreKeysValues { .. }
            | Attention { .. }
            | Convolve { .. }
            | DeltaRule { .. }
    )
}

/// The buffers that an operation reads or writes.
fn buffers_of(op: &Op) -> Vec<Buffer> {
    match *op {
        Op::Embed { output, .. } | Op::RopeTable { output, .. } | Op::AddEmbedding { output, .. } => vec![output],
        Op::LayerNorm { buffer, .. } | Op::Gelu { buffer } | Op::Tanh { buffer } => vec![buffer],
        Op::Norm { input, output, .. } | Op::Convolve { input, output, .. } | Op::Gather { input, output } => {
            vec![input, output]
        }
        Op::Linear { input, ref products } => {
            std::iter::once(input).chain(products.iter().map(|product| product.output)).collect()
        }
        Op::StoreKeysValues { queries, key, value, rotation, .. } => {
            let table = rotation.map(|rotation| rotation.table);
            queries.map(|queries| queries.buffer).into_iter().chain([key, value]).chain(table).collect()
        }
        Op::Attention { query, output, .. } => vec![query, output],
        Op::DeltaRule { input, alpha, beta, output, .. } => vec![input, alpha, beta, output],
        Op::GatedNorm { buffer, gate, .. } => vec![buffer, gate],
        Op::SwiGlu { gate, up } => vec![gate, up],
        Op::Route { logits, output, .. } => vec![logits, output],
        Op::Experts { input, route, output, .. } => vec![input, route, output],
        Op::AddGated { input, gate, output } => vec![input, gate, output],
        Op::Join { first, second, output: joined } | Op::Split { input: joined, first, second } => {
            vec![first, second, joined]
        }
        Op::AddBias { buffer, .. } => vec![buffer],
    }
}

impl TensorShape<'_> {
    /// Refuses a tensor whose shape `(columns, rows, matrices)` is another.
    fn expect(&self, shape: [usize; 3]) -> Result<()> {
        if self.shape == shape {
            return Ok(());
        }
        Err(self.wrong_shape(format!("{shape:?}")))
    }

    fn wrong_shape(&self, expected: String) -> Error {
        Error::WrongShape { tensor: self.tensor.to_owned(), found: format!("{:?}", self.shape), expected }
    }
}
