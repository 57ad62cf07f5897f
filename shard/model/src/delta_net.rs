//! The gated delta net, the recurrent layer of the hybrids.

use paceline_compute::program::{Buffer, Op, StateSpec};
use paceline_gguf::LayerKind;

use crate::Result;
use crate::recorder::{Recorder, product};
use crate::settings::Settings;

/// The most taps of a causal convolution that make sense; published models have 4.
const MAX_TAPS: usize = 64;

/// The sizes of the gated delta net in one layer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct DeltaNet {
    /// Query and key heads; value head `h` uses key head `h mod key_heads`.
    key_heads: usize,
    /// Value heads, each with a matrix.
    value_heads: usize,
    /// Values of a head of any kind; the matrices are square.
    head_dim: usize,
    /// Channels of the convolution: queries, keys and values.
    channels: usize,
    /// Taps of the convolution.
    taps: usize,
}

impl DeltaNet {
    /// The delta net of a recurrent layer.
    ///
    /// # Panics
    /// If the layer has attention instead.
    pub(crate) fn of(settings: &Settings<'_>, layer: usize) -> Result<DeltaNet> {
        let LayerKind::Recurrent { conv_channels, conv_kernel, key_heads, value_heads, state_size } =
            settings.kind(layer)
        else {
            panic!("layer {layer} is not recurrent");
        };
        if !(2..=MAX_TAPS).contains(&conv_kernel) {
            return Err(settings.bad("ssm.conv_kernel", &conv_kernel, format!("2 to {MAX_TAPS} taps are possible")));
        }
        let (head_dim, channels, taps) = (state_size, conv_channels, conv_kernel);
        Ok(DeltaNet { key_heads, value_heads, head_dim, channels, taps })
    }

    /// Records `stream += output · delta_net(input)`.
    pub(crate) fn record(&self, recorder: &mut Recorder<'_>, input: Buffer) -> Result<()> {
        let state = recorder.program().state(StateSpec {
            channels: self.channels,
            taps: self.taps,
            value_heads: self.value_heads,
            head_dim: self.head_dim,
        });
        let [mixed, gate, beta, alpha] = self.project(recorder, input)?;

        let convolved = recorder.scratch("conv_output_silu", self.channels);
        let weight = recorder.vector("ssm_conv1d.weight")?;
        recorder.record("conv_output_silu", Op::Convolve { input: mixed, weight, state, output: convolved });

        // (rows, value_heads · head_dim)
        let output = recorder.scratch("delta_output", self.value_dim());
        let rule = Op::DeltaRule {
            input: convolved,
            alpha,
            beta,
            time_bias: recorder.vector("ssm_dt.bias")?,
            decay: recorder.vector("ssm_a")?,
            key_heads: self.key_heads,
            epsilon: recorder.epsilon(),
            state,
            output,
        };
        recorder.record("attn_output", rule);

        let weight = recorder.vector("ssm_norm.weight")?;
        let epsilon = recorder.epsilon();
        let norm = Op::GatedNorm { buffer: output, gate, weight, head_dim: self.head_dim, epsilon };
        recorder.record("final_output", norm);

        let weight = recorder.matrix("ssm_out.weight")?;
        recorder.add_to_stream("attn_residual", weight, output);
        Ok(())
    }

    /// Records the four projections: queries, keys and values for the convolution, the output gate `z`, and the two
    /// numbers per head that write and decay.
    fn project(&self, recorder: &mut Recorder<'_>, input: Buffer) -> Result<[Buffer; 4]> {
        let outputs = [
            recorder.scratch("linear_attn_qkv_mixed", self.channels),
            recorder.scratch("z", self.value_dim()),
            recorder.scratch("beta", self.value_heads),
            recorder.scratch("alpha", self.value_heads),
        ];
        let [mixed, gate, beta, alpha] = outputs;
        let products = vec![
            product(recorder.matrix("attn_qkv.weight")?, mixed),
            product(recorder.matrix("attn_gate.weight")?, gate),
            product(recorder.matrix("ssm_beta.weight")?, beta),
            product(recorder.matrix("ssm_alpha.weight")?, alpha),
        ];
        recorder.linear("linear_attn_qkv_mixed", input, products);
        Ok(outputs)
    }

    /// Values of all value heads.
    fn value_dim(&self) -> usize {
        self.value_heads * self.head_dim
    }
}
