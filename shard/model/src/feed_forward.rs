//! Feed-forward networks: one dense SwiGLU network, or experts that a router chooses from (spec section 3.4).

use paceline_compute::program::{Buffer, Op, Weight};

use crate::Result;
use crate::recorder::{Recorder, product};
use crate::settings::Settings;

/// Records `stream += down · (silu(gate · input) ⊙ (up · input))`; the networks are `width` wide inside.
pub(crate) fn dense(recorder: &mut Recorder<'_>, input: Buffer, width: usize) -> Result<()> {
    let names = ["ffn_gate.weight", "ffn_up.weight"];
    let hidden = swiglu(recorder, input, ["ffn_gate", "ffn_up"], names, width)?;
    let down = recorder.matrix("ffn_down.weight")?;
    recorder.add_to_stream("l_out", down, hidden);
    Ok(())
}

/// Records `silu(gate · input) ⊙ (up · input)`; `(rows, width)`.
fn swiglu(
    recorder: &mut Recorder<'_>,
    input: Buffer,
    buffers: [&'static str; 2],
    tensors: [&str; 2],
    width: usize,
) -> Result<Buffer> {
    let [gate, up] = buffers.map(|name| recorder.scratch(name, width));
    let products = vec![product(recorder.matrix(tensors[0])?, gate), product(recorder.matrix(tensors[1])?, up)];
    recorder.linear(buffers[0], input, products);
    recorder.record("ffn_swiglu", Op::SwiGlu { gate, up });
    Ok(gate)
}

/// The sizes of a mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Experts {
    /// Experts to choose from.
    count: usize,
    /// Experts that a row uses.
    used: usize,
    /// Width inside one expert.
    width: usize,
    /// Factor on the experts' weights.
    scale: f32,
    /// Width inside the expert that every row uses, if there is one.
    shared: Option<usize>,
}

impl Experts {
    /// The experts of a layer; the key of their width differs between architectures.
    pub(crate) fn of(settings: &Settings<'_>, layer: usize, width_key: &str) -> Result<Experts> {
        let (count, used) = settings.experts(layer)?;
        let scale = match settings.optional_number("expert_weights_scale")? {
            None | Some(0.0) => 1.0,
            Some(scale) => scale,
        };
        let width = settings.count_at(width_key, layer)?;
        let shared = settings.optional_count("expert_shared_feed_forward_length")?;
        Ok(Experts { count, used, width, scale, shared })
    }

    /// Records `stream += Σ weight · expert(input)` over the experts that the router chooses for each row, and the
    /// shared expert.
    pub(crate) fn record(&self, recorder: &mut Recorder<'_>, input: Buffer) -> Result<()> {
        let logits = recorder.scratch("ffn_moe_logits", self.count);
        let router = recorder.matrix("ffn_gate_inp.weight")?;
        recorder.linear("ffn_moe_logits", input, vec![product(router, logits)]);

        // (rows, 2 · used): which experts, and their weights
        let route = recorder.scratch("ffn_moe_topk", 2 * self.used);
        let choose = Op::Route { logits, used: self.used, renormalize: true, scale: self.scale, output: route };
        recorder.record("ffn_moe_topk", choose);

        let (gate, up) = self.gate_and_up(recorder)?;
        let down = recorder.experts("ffn_down_exps.weight", None)?;
        let experts = Op::Experts { input, route, gate, up, down, output: recorder.stream() };
        match self.shared {
            None => recorder.record("l_out", experts),
            Some(width) => {
                recorder.record("ffn_moe_out", experts);
                shared_expert(recorder, input, width)?;
            }
        }
        Ok(())
    }

    /// The experts' first two matrices: two tensors, or one with each expert's gate rows before its up rows.
    fn gate_and_up(&self, recorder: &mut Recorder<'_>) -> Result<(Weight, Weight)> {
        let fused = "ffn_gate_up_exps.weight";
        if recorder.has(fused) {
            let gate = recorder.experts(fused, Some(0..self.width))?;
            let up = recorder.experts(fused, Some(self.width..2 * self.width))?;
            return Ok((gate, up));
        }
        Ok((recorder.experts("ffn_gate_exps.weight", None)?, recorder.experts("ffn_up_exps.weight", None)?))
    }
}

/// Records `stream += sigmoid(gate · input) · expert(input)` for the expert that every row uses.
fn shared_expert(recorder: &mut Recorder<'_>, input: Buffer, width: usize) -> Result<()> {
    // (rows, 1)
    let gate = recorder.scratch("shared_expert_gate", 1);
    let weight = recorder.matrix("ffn_gate_inp_shexp.weight")?;
    recorder.linear("shared_expert_gate", input, vec![product(weight, gate)]);

    let names = ["ffn_gate_shexp.weight", "ffn_up_shexp.weight"];
    let hidden = swiglu(recorder, input, ["ffn_gate_shexp", "ffn_up_shexp"], names, width)?;
    let output = recorder.scratch("ffn_shexp", recorder.width());
    let down = recorder.matrix("ffn_down_shexp.weight")?;
    recorder.linear("ffn_shexp", hidden, vec![product(down, output)]);
    recorder.record("l_out", Op::AddGated { input: output, gate, output: recorder.stream() });
    Ok(())
}
