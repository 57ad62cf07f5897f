//! Grouped-query attention, with the optional parts that the architectures choose from: head norms, biases, an
//! output gate.

use paceline_compute::program::{Buffer, Cache, CacheSpec, Heads, Op, Queries, Rotation, Weight};
use paceline_gguf::LayerKind;

use crate::Result;
use crate::recorder::{Recorder, product};
use crate::settings::Settings;

/// What an architecture's attention has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// A norm of every query and key head.
    pub(crate) head_norms: bool,
    /// A gate on every query head's result, which comes with the query.
    pub(crate) gated: bool,
    /// Rows of a chunk see the ones behind them too.
    pub(crate) bidirectional: bool,
}

/// The sizes and options of attention in one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Attention {
    /// Query heads.
    heads: usize,
    /// Key and value heads; `heads / key_value_heads` query heads share one.
    key_value_heads: usize,
    /// Values of a query or key head.
    key_dim: usize,
    /// Values of a value head.
    value_dim: usize,
    /// What it has.
    options: Options,
    /// Scale of the scores.
    scale: f32,
}

impl Attention {
    /// The attention of a layer that is not recurrent.
    ///
    /// # Panics
    /// If the layer is recurrent.
    pub(crate) fn of(settings: &Settings<'_>, layer: usize, options: Options) -> Result<Attention> {
        let LayerKind::Attention { query_heads: heads, key_value_heads, key_dim, value_dim } = settings.kind(layer)
        else {
            panic!("layer {layer} has no attention");
        };
        if heads == 0 {
            return Err(settings.bad("attention.head_count", &heads, format!("layer {layer} needs at least 1")));
        }
        if options.gated && value_dim != key_dim {
            let expected = format!("gated heads are as long as the keys: {key_dim}");
            return Err(settings.bad("attention.value_length", &value_dim, expected));
        }
        let scale = match settings.optional_number("attention.scale")? {
            None | Some(0.0) => 1.0 / (key_dim as f32).sqrt(),
            Some(scale) => scale,
        };
        Ok(Attention { heads, key_value_heads, key_dim, value_dim, options, scale })
    }

    /// Records `stream += output · attention(input)`, with keys and values of its own.
    pub(crate) fn record(&self, recorder: &mut Recorder<'_>, input: Buffer, rotation: Option<Rotation>) -> Result<()> {
        let cache = self.cache(recorder);
        self.record_in(cache, recorder, input, rotation)
    }

    /// Adds the layer's memory to the program.
    pub(crate) fn cache(&self, recorder: &mut Recorder<'_>) -> Cache {
        recorder.program().cache(CacheSpec {
            key_value_heads: self.key_value_heads,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        })
    }

    /// Records `stream += output · attention(input)` over what is stored in `cache`, the input's own included.
    pub(crate) fn record_in(
        &self,
        cache: Cache,
        recorder: &mut Recorder<'_>,
        input: Buffer,
        rotation: Option<Rotation>,
    ) -> Result<()> {
        // (rows, heads · dim), where a gated head is followed by its gate: (rows, heads, 2, dim)
        let query_heads = Heads { count: self.heads, dim: self.key_dim, stride: self.query_stride() };
        let query = recorder.scratch("Qcur_full", self.heads * self.query_stride());
        let [key, value] = self.keys_and_values(recorder);
        project(recorder, input, 0, &[("attn_q", query), ("attn_k", key), ("attn_v", value)])?;
        let norm = self.head_norm(recorder, "attn_q_norm.weight")?;
        let queries = Some(Queries { buffer: query, heads: query_heads, norm });
        self.record_store(cache, recorder, queries, rotation)?;

        // (rows, heads · value_dim)
        let output = recorder.scratch("attn_gated", self.heads * self.value_dim);
        let gate_offset = self.options.gated.then_some(self.key_dim);
        let (scale, causal) = (self.scale, !self.options.bidirectional);
        let attend = Op::Attention { query, query_heads, gate_offset, scale, causal, cache, output };
        recorder.record("attn_gated", attend);

        let weight = recorder.matrix("attn_output.weight")?;
        recorder.add_to_stream("attn_residual", weight, output);
        Ok(())
    }

    /// Records that keys and values of `input` are stored in `cache`, for rows to come.
    pub(crate) fn store(
        &self,
        cache: Cache,
        recorder: &mut Recorder<'_>,
        input: Buffer,
        rotation: Option<Rotation>,
    ) -> Result<()> {
        let [key, value] = self.keys_and_values(recorder);
        project(recorder, input, self.heads * self.query_stride(), &[("attn_k", key), ("attn_v", value)])?;
        self.record_store(cache, recorder, None, rotation)
    }

    /// `(rows, key_value_heads · dim)` each.
    fn keys_and_values(&self, recorder: &mut Recorder<'_>) -> [Buffer; 2] {
        [("Kcur", self.key_dim), ("Vcur", self.value_dim)]
            .map(|(name, dim)| recorder.scratch(name, self.key_value_heads * dim))
    }

    fn head_norm(&self, recorder: &mut Recorder<'_>, suffix: &str) -> Result<Option<Weight>> {
        self.options.head_norms.then(|| recorder.vector(suffix)).transpose()
    }

    fn record_store(
        &self,
        cache: Cache,
        recorder: &mut Recorder<'_>,
        queries: Option<Queries>,
        rotation: Option<Rotation>,
    ) -> Result<()> {
        let [key, value] = self.keys_and_values(recorder);
        let (key_norm, epsilon) = (self.head_norm(recorder, "attn_k_norm.weight")?, recorder.epsilon());
        let store = Op::StoreKeysValues { queries, key, value, key_norm, epsilon, rotation, cache };
        recorder.record(if queries.is_some() { "Qcur" } else { "Kcur" }, store);
        Ok(())
    }

    /// Distance between two query heads.
    fn query_stride(&self) -> usize {
        if self.options.gated { 2 * self.key_dim } else { self.key_dim }
    }
}

/// Records the projections to queries, keys and values, from a matrix each or from one that holds all three, of whose
/// rows the `first` ones are left out, and their biases.
fn project(
    recorder: &mut Recorder<'_>,
    input: Buffer,
    mut first: usize,
    parts: &[(&'static str, Buffer)],
) -> Result<()> {
    let fused = recorder.has("attn_qkv.weight");
    let mut products = Vec::with_capacity(parts.len());
    for &(name, output) in parts {
        let end = first + recorder.program().width(output);
        let weight = match fused {
            true => recorder.matrix_rows("attn_qkv.weight", first..end)?,
            false => recorder.matrix(&format!("{name}.weight"))?,
        };
        products.push(product(weight, output));
        first = end;
    }
    recorder.linear("Qcur_full", input, products);
    for &(name, buffer) in parts {
        if let Some(bias) = recorder.optional_vector(&format!("{name}.bias")) {
            recorder.record(name, Op::AddBias { buffer, bias });
        }
    }
    Ok(())
}
