//! Checks that a recorded program is consistent: every width fits, every weight has the shape that its use needs, and
//! nothing is read before it is written.

use std::collections::HashSet;

use paceline_compute::program::{Buffer, Heads, Op, Program, Queries, Rotation, RowSpace, Weight, WeightUse};
use paceline_gguf::{Gguf, Tensor};

/// Checks `program` against the file it was recorded from.
///
/// # Panics
/// At the first inconsistency, with the operation's name and layer.
pub(super) fn check(program: &Program, model: &Gguf) {
    let mut checker = Checker { program, model, written: HashSet::new(), place: String::new() };
    if !program.embeds {
        checker.written.extend(program.input);
    }
    for recorded in &program.ops {
        checker.place = format!("{} of layer {:?}", recorded.name, recorded.layer);
        checker.operation(&recorded.op);
    }
    let results = program.stream.into_iter().chain(program.output).chain(program.hidden).chain(program.logits);
    for buffer in results {
        assert!(checker.written.contains(&buffer), "result {buffer:?} is never written");
    }
    assert!(program.hidden.is_some() || program.logits.is_none());
    checker.memories();
}

struct Checker<'a> {
    program: &'a Program,
    model: &'a Gguf,
    written: HashSet<Buffer>,
    place: String,
}

impl Checker<'_> {
    fn reads(&self, buffer: Buffer, width: usize) {
        assert!(self.written.contains(&buffer), "{}: {buffer:?} is read before it is written", self.place);
        self.width(buffer, width);
    }

    fn writes(&mut self, buffer: Buffer, width: usize) {
        self.width(buffer, width);
        self.written.insert(buffer);
    }

    fn width(&self, buffer: Buffer, width: usize) {
        let spec = &self.program.buffers[usize::from(buffer.0)];
        assert_eq!(spec.width, width, "{}: width of {}", self.place, spec.name);
    }

    fn rows(&self, buffer: Buffer) -> RowSpace {
        self.program.buffers[usize::from(buffer.0)].rows
    }

    fn width_of(&self, buffer: Buffer) -> usize {
        self.program.width(buffer)
    }

    fn tensor(&self, weight: Weight, usage: WeightUse) -> Tensor<'_> {
        let spec = &self.program.weights[weight.0 as usize];
        assert_eq!(spec.usage, usage, "{}: use of {}", self.place, spec.tensor);
        self.model.tensor(&spec.tensor).expect("every weight is in the file")
    }

    /// `(rows, columns)` of a matrix, or of each expert's matrix.
    fn matrix(&self, weight: Weight, usage: WeightUse, matrices: usize) -> (usize, usize) {
        let tensor = self.tensor(weight, usage);
        let rows = tensor.shape.rows() / matrices;
        assert_eq!(tensor.shape.rows(), rows * matrices, "{}: matrices of {}", self.place, tensor.name);
        let part = self.program.weights[weight.0 as usize].rows.clone().unwrap_or(0..rows);
        assert!(part.start < part.end && part.end <= rows, "{}: rows {part:?} of {rows}", self.place);
        (part.len(), tensor.shape.columns())
    }

    fn vector(&self, weight: Weight, elements: usize) {
        let tensor = self.tensor(weight, WeightUse::Vector);
        assert_eq!(tensor.shape.elements(), elements, "{}: elements of {}", self.place, tensor.name);
    }

    fn heads(&self, buffer: Buffer, heads: Heads, gate_offset: Option<usize>) {
        assert!(heads.dim <= heads.stride, "{}: {heads:?}", self.place);
        self.reads(buffer, heads.count * heads.stride);
        if let Some(offset) = gate_offset {
            assert!(offset >= heads.dim && offset + heads.dim <= heads.stride, "{}: gate at {offset}", self.place);
        }
    }

    fn operation(&mut self, op: &Op) {
        match op {
            Op::Embed { table, output } => {
                let (_, columns) = self.matrix(*table, WeightUse::Table, 1);
                self.writes(*output, columns);
            }
            Op::RopeTable { rope, output } => {
                if let Some(divisors) = rope.divisors {
                    self.vector(divisors, rope.dimensions / 2);
                }
                self.writes(*output, rope.dimensions);
            }
            Op::Norm { input, weight, output, .. } => {
                let width = self.width_of(*input);
                self.vector(*weight, width);
                self.reads(*input, width);
                self.writes(*output, width);
                assert_eq!(self.rows(*input), self.rows(*output), "{}", self.place);
            }
            Op::Linear { input, products } => {
                for product in products {
                    let (rows, columns) = self.matrix(product.weight, WeightUse::Matrix, 1);
                    self.reads(*input, columns);
                    if product.add {
                        self.reads(product.output, rows);
                    }
                    self.writes(product.output, rows);
                    assert_eq!(self.rows(*input), self.rows(product.output), "{}", self.place);
                }
            }
            Op::StoreKeysValues { .. } | Op::Attention { .. } => self.attention(op),
            Op::Convolve { .. } | Op::DeltaRule { .. } | Op::GatedNorm { .. } => self.delta_net(op),
            Op::Route { .. } | Op::Experts { .. } | Op::AddGated { .. } => self.experts(op),
            Op::SwiGlu { gate, up } => {
                self.reads(*gate, self.width_of(*up));
                self.reads(*up, self.width_of(*gate));
            }
            Op::AddEmbedding { table, output, .. } => {
                let width = self.width_of(*output);
                assert_eq!(self.tensor(*table, WeightUse::Vector).shape.columns(), width, "{}", self.place);
                self.reads(*output, width);
            }
            Op::LayerNorm { buffer, weight, bias, .. } => {
                self.vector(*weight, self.width_of(*buffer));
                self.vector(*bias, self.width_of(*buffer));
                self.reads(*buffer, self.width_of(*buffer));
            }
            Op::Gelu { buffer } | Op::Tanh { buffer } => self.reads(*buffer, self.width_of(*buffer)),
            Op::AddBias { buffer, bias } => {
                self.vector(*bias, self.width_of(*buffer));
                self.reads(*buffer, self.width_of(*buffer));
            }
            Op::Join { first, second, output } => {
                let [left, right] = [*first, *second].map(|input| self.width_of(input));
                self.reads(*first, left);
                self.reads(*second, right);
                self.writes(*output, left + right);
            }
            Op::Split { input, first, second } => {
                let [left, right] = [*first, *second].map(|output| self.width_of(output));
                self.reads(*input, left + right);
                self.writes(*first, left);
                self.writes(*second, right);
            }
            Op::Gather { input, output } => {
                assert_eq!((self.rows(*input), self.rows(*output)), (RowSpace::Step, RowSpace::Wanted));
                self.reads(*input, self.width_of(*output));
                self.writes(*output, self.width_of(*input));
            }
        }
    }

    fn attention(&mut self, op: &Op) {
        match op {
            Op::StoreKeysValues { queries, key, value, key_norm, rotation, cache, .. } => {
                let cache = self.program.caches[usize::from(cache.0)];
                self.reads(*key, cache.key_value_heads * cache.key_dim);
                self.reads(*value, cache.key_value_heads * cache.value_dim);
                if let Some(Queries { buffer, heads, .. }) = queries {
                    self.heads(*buffer, *heads, None);
                    assert_eq!(heads.dim, cache.key_dim);
                }
                if let Some(Rotation { table, .. }) = rotation {
                    assert!(self.written.contains(table) && self.width_of(*table) <= cache.key_dim, "{}", self.place);
                }
                for norm in queries.and_then(|queries| queries.norm).into_iter().chain(*key_norm) {
                    self.vector(norm, cache.key_dim);
                }
            }
            Op::Attention { query, query_heads, gate_offset, scale, cache, output, .. } => {
                let cache = self.program.caches[usize::from(cache.0)];
                self.heads(*query, *query_heads, *gate_offset);
                assert!(query_heads.count.is_multiple_of(cache.key_value_heads), "{}", self.place);
                assert!(scale.is_finite(), "{}", self.place);
                self.writes(*output, query_heads.count * cache.value_dim);
            }
            _ => unreachable!("not attention: {op:?}"),
        }
    }

    fn delta_net(&mut self, op: &Op) {
        match op {
            Op::Convolve { input, weight, state, output } => {
                let state = self.program.states[usize::from(state.0)];
                self.vector(*weight, state.channels * state.taps);
                self.reads(*input, state.channels);
                self.writes(*output, state.channels);
            }
            Op::DeltaRule { input, alpha, beta, time_bias, decay, key_heads, state, output, .. } => {
                let state = self.program.states[usize::from(state.0)];
                assert!(state.value_heads.is_multiple_of(*key_heads), "{}", self.place);
                let value_dim = state.value_heads * state.head_dim;
                self.reads(*input, 2 * key_heads * state.head_dim + value_dim);
                self.reads(*alpha, state.value_heads);
                self.reads(*beta, state.value_heads);
                self.vector(*time_bias, state.value_heads);
                self.vector(*decay, state.value_heads);
                self.writes(*output, value_dim);
            }
            Op::GatedNorm { buffer, gate, weight, head_dim, .. } => {
                assert!(self.width_of(*buffer).is_multiple_of(*head_dim), "{}", self.place);
                self.vector(*weight, *head_dim);
                self.reads(*buffer, self.width_of(*gate));
                self.reads(*gate, self.width_of(*buffer));
            }
            _ => unreachable!("not of a delta net: {op:?}"),
        }
    }

    fn experts(&mut self, op: &Op) {
        match op {
            Op::Route { logits, used, scale, output, .. } => {
                assert!(*used <= self.width_of(*logits) && scale.is_finite(), "{}", self.place);
                self.reads(*logits, self.width_of(*logits));
                self.writes(*output, 2 * used);
            }
            Op::Experts { input, route, gate, up, down, output } => {
                self.reads(*route, self.width_of(*route));
                let count =
                    *self.tensor(*down, WeightUse::Experts).shape.dims().last().expect("a shape has dimensions");
                let (hidden, width) = self.matrix(*gate, WeightUse::Experts, count);
                assert_eq!(self.matrix(*up, WeightUse::Experts, count), (hidden, width), "{}", self.place);
                assert_eq!(self.matrix(*down, WeightUse::Experts, count), (width, hidden), "{}", self.place);
                self.reads(*input, width);
                self.reads(*output, width);
            }
            Op::AddGated { input, gate, output } => {
                self.reads(*gate, 1);
                self.reads(*input, self.width_of(*output));
                self.reads(*output, self.width_of(*input));
            }
            _ => unreachable!("not of experts: {op:?}"),
        }
    }

    /// Every memory belongs to exactly one layer.
    fn memories(&self) {
        let ops = self.program.ops.iter().map(|recorded| &recorded.op);
        let stores: Vec<_> = ops
            .clone()
            .filter_map(|op| if let Op::StoreKeysValues { cache, .. } = op { Some(usize::from(cache.0)) } else { None })
            .collect();
        let rules: Vec<_> = ops
            .filter_map(|op| if let Op::DeltaRule { state, .. } = op { Some(usize::from(state.0)) } else { None })
            .collect();
        assert!(stores.into_iter().eq(0..self.program.caches.len()), "caches are used once, in order");
        assert!(rules.into_iter().eq(0..self.program.states.len()), "states are used once, in order");
    }
}
