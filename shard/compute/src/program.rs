//! Stage programs: what a stage computes, written down once as data.
//!
//! An architecture *records* a [`Program`] (a list of [`Op`]s over buffers, weights and memories) and never
//! runs anything itself. A device loads the program and runs it for one step after another; all that changes
//! from step to step is the one block of [`StepInputs`](crate::device::StepInputs). No operation returns a
//! value to the host or branches on one, so that a device may turn the list into a captured graph.
//!
//! Read [`Program`] first, then [`Op`].

mod heads;

use std::ops::Range;

pub use heads::{Heads, Queries, Rope, RopeStyle, Rotation, Yarn};

/// A matrix of `f32` rows that lives on the device for the duration of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Buffer(pub u16);

/// A tensor of the model, as an operation uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Weight(pub u32);

/// The paged keys and values of one attention layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cache(pub u16);

/// The recurrent memory of one gated-delta-net layer, for every state slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State(pub u16);

/// What one layer remembers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LayerMemory {
    /// An attention layer: keys and values.
    Cache(Cache),
    /// A recurrent layer: states.
    State(State),
}

/// How many rows a buffer has in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowSpace {
    /// One row per token of the step.
    Step,
    /// One row per token whose result is wanted (see [`Op::Gather`]).
    Wanted,
}

/// The shape of a buffer: `(rows of its space, width)` of `f32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// What it holds, in the field's words; for error messages and observers.
    pub name: &'static str,
    /// Values per row.
    pub width: usize,
    /// Which rows it has.
    pub rows: RowSpace,
}

/// How a tensor is used, which decides how a device stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightUse {
    /// A matrix that rows are multiplied with: `(rows = outputs, columns = inputs)`.
    Matrix,
    /// A matrix per expert: `(experts, rows, columns)`.
    Experts,
    /// A table whose rows are looked up by token id.
    Table,
    /// A vector (or small matrix) of `f32`.
    Vector,
}

/// A tensor of the model file and how it is used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct WeightSpec {
    /// The tensor's name in the model file.
    pub tensor: String,
    /// How operations use it.
    pub usage: WeightUse,
    /// Only these rows of it (of every expert): some files store several matrices fused into one.
    pub rows: Option<Range<usize>>,
    /// Only these columns of a [`WeightUse::Matrix`], whole blocks: those that meet one part of its input.
    pub columns: Option<Range<usize>>,
}

impl WeightSpec {
    /// A whole tensor.
    pub fn whole(tensor: impl Into<String>, usage: WeightUse) -> Self {
        Self { tensor: tensor.into(), usage, rows: None, columns: None }
    }
}

/// Widths of the keys and values that one attention layer stores per token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheSpec {
    /// Heads that are stored.
    pub key_value_heads: usize,
    /// Values per key head.
    pub key_dim: usize,
    /// Values per value head.
    pub value_dim: usize,
}

/// Sizes of the recurrent memory of one gated-delta-net layer, per state slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Channels of the causal convolution.
    pub channels: usize,
    /// Taps of the convolution; it remembers `taps - 1` inputs.
    pub taps: usize,
    /// Heads that have a matrix.
    pub value_heads: usize,
    /// Rows and columns of each head's matrix.
    pub head_dim: usize,
}

/// One product of [`Op::Linear`]: `output = weight · input`, or added to what `output` holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// `(width of output, width of input)`.
    pub weight: Weight,
    /// Where it goes.
    pub output: Buffer,
    /// Add to the output instead of replacing it (a residual connection).
    pub add: bool,
}

/// One operation on all rows of a step.
///
/// Shapes are given as `(rows, width)`; `rows` is the number of tokens in the step.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// Looks up each token's row of `table`; rows that came as vectors are copied. First stage only.
    Embed {
        /// `(vocabulary, width)`.
        table: Weight,
        /// `(rows, width)`.
        output: Buffer,
    },
    /// Cosines and sines of every row's rotation, once per step.
    RopeTable {
        /// The rotation.
        rope: Rope,
        /// `(rows, dimensions)`: first the cosines of all pairs, then the sines.
        output: Buffer,
    },
    /// `output = input / sqrt(mean(input²) + epsilon) ⊙ weight`.
    Norm {
        /// `(rows, width)`.
        input: Buffer,
        /// `(width)`.
        weight: Weight,
        /// Added to the mean.
        epsilon: f32,
        /// `(rows, width)`.
        output: Buffer,
    },
    /// `output += table[i]`, where `i` is one of the components of the row's position: learned positions, kinds of
    /// tokens.
    AddEmbedding {
        /// `(as many as there are values of the component, width)`.
        table: Weight,
        /// Which of the four components.
        component: usize,
        /// `(rows, width)`.
        output: Buffer,
    },
    /// `buffer = (buffer - mean) / sqrt(variance + epsilon) ⊙ weight + bias` (arXiv 1607.06450), in place.
    LayerNorm {
        /// `(rows, width)`.
        buffer: Buffer,
        /// `(width)`.
        weight: Weight,
        /// `(width)`.
        bias: Weight,
        /// Added to the variance.
        epsilon: f32,
    },
    /// Matrix products that share an input.
    Linear {
        /// `(rows, columns of every weight)`.
        input: Buffer,
        /// What to compute from it.
        products: Vec<Product>,
    },
    /// Prepares attention: optional norm of each query and key head, rotation, and writing keys and
    /// values into the pages of each row's session. The query and key buffers are changed in place.
    StoreKeysValues {
        /// The rows' queries; none where keys and values are stored for later steps alone.
        queries: Option<Queries>,
        /// `(rows, key heads · key_dim)`.
        key: Buffer,
        /// `(rows, key heads · value_dim)`.
        value: Buffer,
        /// Weight of the norm of every key head, `(head dim)`.
        key_norm: Option<Weight>,
        /// Added to the mean of squares.
        epsilon: f32,
        /// How queries and keys rotate; not at all where positions are part of the embeddings.
        rotation: Option<Rotation>,
        /// Where they are stored.
        cache: Cache,
    },
    /// Attention of every row over the stored keys and values of its session, its own included.
    Attention {
        /// `(rows, query heads)`.
        query: Buffer,
        /// Layout of `query`; a group of `count / key_value_heads` heads shares a key head.
        query_heads: Heads,
        /// If set, each head's result is multiplied by the sigmoid of `dim` values that lie this far
        /// behind the head's start in `query`.
        gate_offset: Option<usize>,
        /// Scale of the scores.
        scale: f32,
        /// Does a row see only the rows before it? Else all rows of its chunk.
        causal: bool,
        /// The keys and values.
        cache: Cache,
        /// `(rows, query heads · value_dim)`.
        output: Buffer,
    },
    /// Causal depthwise convolution over each session's rows, then SiLU; remembers the last inputs.
    Convolve {
        /// `(rows, channels)`.
        input: Buffer,
        /// `(channels, taps)`, the last tap multiplies the current row.
        weight: Weight,
        /// The remembered inputs.
        state: State,
        /// `(rows, channels)`.
        output: Buffer,
    },
    /// The gated delta rule, one token after another: gates, L2 norms, decay, read, write, output.
    DeltaRule {
        /// `(rows, 2 · key_heads · head_dim + value_heads · head_dim)`: queries, keys, values.
        input: Buffer,
        /// `(rows, value_heads)`, before the softplus.
        alpha: Buffer,
        /// `(rows, value_heads)`, before the sigmoid.
        beta: Buffer,
        /// `(value_heads)`, added to `alpha`.
        time_bias: Weight,
        /// `(value_heads)`, negative rates of decay.
        decay: Weight,
        /// Key heads; value head `h` uses key head `h mod key_heads`.
        key_heads: usize,
        /// Of the L2 norm of queries and keys.
        epsilon: f32,
        /// The matrices.
        state: State,
        /// `(rows, value_heads · head_dim)`.
        output: Buffer,
    },
    /// Per head `input / rms(input) ⊙ weight ⊙ silu(gate)`, in place.
    GatedNorm {
        /// `(rows, heads · head_dim)`.
        buffer: Buffer,
        /// `(rows, heads · head_dim)`.
        gate: Buffer,
        /// `(head_dim)`.
        weight: Weight,
        /// Values per head.
        head_dim: usize,
        /// Added to the mean of squares.
        epsilon: f32,
    },
    /// `gate = silu(gate) ⊙ up`, in place.
    SwiGlu {
        /// `(rows, width)`.
        gate: Buffer,
        /// `(rows, width)`.
        up: Buffer,
    },
    /// `buffer = buffer ⊙ Φ(buffer)` with the normal distribution's Φ, `x · (1 + erf(x / √2)) / 2` (arXiv 1606.08415), in
    /// place.
    Gelu {
        /// `(rows, width)`.
        buffer: Buffer,
    },
    /// `buffer = tanh(buffer)`, in place.
    Tanh {
        /// `(rows, width)`.
        buffer: Buffer,
    },
    /// Softmax over all experts, the `used` most probable (ties: lower index first), renormalized.
    Route {
        /// `(rows, experts)`: the router's products.
        logits: Buffer,
        /// How many experts a row uses.
        used: usize,
        /// Divide the weights by their sum.
        renormalize: bool,
        /// Factor on the weights.
        scale: f32,
        /// `(rows, 2 · used)`: expert indices as whole numbers, then their weights.
        output: Buffer,
    },
    /// `output += Σ weight · down(silu(gate · input) ⊙ (up · input))` over each row's experts, in router order.
    Experts {
        /// `(rows, width)`.
        input: Buffer,
        /// `(rows, 2 · used)` from [`Op::Route`].
        route: Buffer,
        /// `(experts, hidden, width)`.
        gate: Weight,
        /// `(experts, hidden, width)`.
        up: Weight,
        /// `(experts, width, hidden)`.
        down: Weight,
        /// `(rows, width)`.
        output: Buffer,
    },
    /// `output += sigmoid(gate) · input`, one gate per row.
    AddGated {
        /// `(rows, width)`.
        input: Buffer,
        /// `(rows, 1)`.
        gate: Buffer,
        /// `(rows, width)`.
        output: Buffer,
    },
    /// `buffer += bias` in every row.
    AddBias {
        /// `(rows, width)`.
        buffer: Buffer,
        /// `(width)`.
        bias: Weight,
    },
    /// `output = [first, second]`, row by row.
    Join {
        /// `(rows, width of first)`.
        first: Buffer,
        /// `(rows, width of second)`.
        second: Buffer,
        /// `(rows, both widths)`.
        output: Buffer,
    },
    /// `[first, second] = input`, row by row.
    Split {
        /// `(rows, both widths)`.
        input: Buffer,
        /// `(rows, width of first)`.
        first: Buffer,
        /// `(rows, width of second)`.
        second: Buffer,
    },
    /// Copies the wanted rows of a [`RowSpace::Step`] buffer into a [`RowSpace::Wanted`] one.
    Gather {
        /// `(rows, width)`.
        input: Buffer,
        /// `(wanted rows, width)`.
        output: Buffer,
    },
}

/// An operation and what it computes, for observers and error messages.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The operation.
    pub op: Op,
    /// What it computes, as the reference implementations name it.
    pub name: &'static str,
    /// The model's layer it belongs to.
    pub layer: Option<usize>,
}

/// What a stage computes in a step.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Program {
    /// The operations in order.
    pub ops: Vec<Recorded>,
    /// Where further entries begin. A run executes the operations of one; all have the same buffers and memories.
    pub cuts: Vec<usize>,
    /// Shapes of the buffers; `Buffer(i)` is `buffers[i]`.
    pub buffers: Vec<BufferSpec>,
    /// The tensors; `Weight(i)` is `weights[i]`.
    pub weights: Vec<WeightSpec>,
    /// The attention layers' memories; `Cache(i)` is `caches[i]`.
    pub caches: Vec<CacheSpec>,
    /// The recurrent layers' memories; `State(i)` is `states[i]`.
    pub states: Vec<StateSpec>,
    /// The residual stream `(rows, width)`.
    pub stream: Option<Buffer>,
    /// Where rows that come in as vectors go, before an entry's first operation.
    pub input: Option<Buffer>,
    /// The rows that are the next stage's input; not on the last stage.
    pub output: Option<Buffer>,
    /// Do vectors stand in place of tokens in entries with an [`Op::Embed`]? Else rows may have both.
    pub embeds: bool,
    /// What a draft model reads of all tokens, `(rows, width)`; last stage only, where there is one.
    pub features: Option<Buffer>,
    /// The final hidden rows after the last norm, `(wanted rows, width)`; last stage only.
    pub hidden: Option<Buffer>,
    /// `(wanted rows, vocabulary)`; last stage only.
    pub logits: Option<Buffer>,
}

impl Program {
    /// Adds a buffer.
    pub fn buffer(&mut self, name: &'static str, width: usize, rows: RowSpace) -> Buffer {
        let index = u16::try_from(self.buffers.len()).expect("a program has a few dozen buffers");
        self.buffers.push(BufferSpec { name, width, rows });
        Buffer(index)
    }

    /// Adds a tensor, or finds it when the same use of it is there already.
    pub fn weight(&mut self, spec: WeightSpec) -> Weight {
        let found = self.weights.iter().position(|known| *known == spec);
        let index = found.unwrap_or_else(|| {
            self.weights.push(spec);
            self.weights.len() - 1
        });
        Weight(u32::try_from(index).expect("a model has some thousand tensors"))
    }

    /// The same program with other names of its tensors: `prefix`, then what they were called.
    #[must_use]
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        for weight in &mut self.weights {
            weight.tensor.insert_str(0, prefix);
        }
        self
    }

    /// Adds an attention layer's memory.
    pub fn cache(&mut self, spec: CacheSpec) -> Cache {
        self.caches.push(spec);
        Cache(u16::try_from(self.caches.len() - 1).expect("a model has some hundred layers"))
    }

    /// Adds a recurrent layer's memory.
    pub fn state(&mut self, spec: StateSpec) -> State {
        self.states.push(spec);
        State(u16::try_from(self.states.len() - 1).expect("a model has some hundred layers"))
    }

    /// The operations of each entry.
    pub fn entries(&self) -> Vec<Range<usize>> {
        let starts = std::iter::once(0).chain(self.cuts.iter().copied());
        let ends = self.cuts.iter().copied().chain(std::iter::once(self.ops.len()));
        starts.zip(ends).map(|(start, end)| start..end).collect()
    }

    /// Appends an operation.
    pub fn record(&mut self, name: &'static str, layer: Option<usize>, op: Op) {
        self.ops.push(Recorded { op, name, layer });
    }

    /// The memories of the model's layers, in the order of the operations that write them.
    pub fn memories(&self) -> Vec<(usize, LayerMemory)> {
        let memory = |recorded: &Recorded| match recorded.op {
            Op::StoreKeysValues { cache, .. } => Some((recorded.layer?, LayerMemory::Cache(cache))),
            Op::DeltaRule { state, .. } => Some((recorded.layer?, LayerMemory::State(state))),
            _ => None,
        };
        self.ops.iter().filter_map(memory).collect()
    }

    /// Values per row of `buffer`.
    pub fn width(&self, buffer: Buffer) -> usize {
        self.buffers[usize::from(buffer.0)].width
    }
}
