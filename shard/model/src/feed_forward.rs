//! Feed-forward networks: one dense SwiGLU network, or experts that a router chooses from.

use paceline_compute::program::{Buffer, Op, Product, Weight};

use crate::Result;
use crate::recorder::{Recorder, product};
use crate::settings::Settings;

/// Records `stream += down · (silu(gate · input) ⊙ (up · input))`; the networks are `width` wide inside.
pub(crate) fn dense(recorder: &mut Recorder<'_>, input: Buffer, width: usize) -> Result<()> {
    let names = ["ffn_gate.weight", "ffn_up.weight"];
    let [gate, up] = gate_and_up(recorder, ["ffn_gate", "ffn_up"], names, width)?;
    recorder.linear("ffn_gate", input, vec![gate, up]);
    recorder.record("ffn_swiglu", Op::SwiGlu { gate: gate.output, up: up.output });
    let down = recorder.matrix("ffn_down.weight")?;
    recorder.add_to_stream("l_out", down, gate.output);
    Ok(())
}

/// The products `gate · input` and `up · input`, both `(rows, width)`.
fn gate_and_up(
    recorder: &mut Recorder<'_>,
    buffers: [&'static str; 2],
    tensors: [&str; 2],
    width: usize,
) -> Result<[Product; 2]> {
    let [gate, up] = buffers.map(|name| recorder.scratch(name, width));
    Ok([product(recorder.matrix(tensors[0])?, gate), product(recorder.matrix(tensors[1])?, up)])
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
    /// shared expert. Its first products are computed along with the router's, from the same input.
    pub(crate) fn record(&self, recorder: &mut Recorder<'_>, input: Buffer) -> Result<()> {
        let logits = recorder.scratch("ffn_moe_logits", self.count);
        let mut products = vec![product(recorder.matrix("ffn_gate_inp.weight")?, logits)];
        let shared = self.shared.map(|width| SharedExpert::of(recorder, width)).transpose()?;
        products.extend(shared.iter().flat_map(|shared| [shared.switch, shared.gate, shared.up]));
        recorder.linear("ffn_moe_logits", input, products);
        if let Some(SharedExpert { gate, up, .. }) = &shared {
            recorder.record("ffn_swiglu", Op::SwiGlu { gate: gate.output, up: up.output });
        }

        // (rows, 2 · used): which experts, and their weights
        let route = recorder.scratch("ffn_moe_topk", 2 * self.used);
        let choose = Op::Route { logits, used: self.used, renormalize: true, scale: self.scale, output: route };
        recorder.record("ffn_moe_topk", choose);

        let (gate, up) = self.weights(recorder)?;
        let down = recorder.experts("ffn_down_exps.weight", None)?;
        let experts = Op::Experts { input, route, gate, up, down, output: recorder.stream() };
        match shared {
            None => recorder.record("l_out", experts),
            Some(shared) => {
                recorder.record("ffn_moe_out", experts);
                shared.add_to_stream(recorder)?;
            }
        }
        Ok(())
    }

    /// The experts' first two matrices: two tensors, or one with each expert's gate rows before its up rows.
    fn weights(&self, recorder: &mut Recorder<'_>) -> Result<(Weight, Weight)> {
        let fused = "ffn_gate_up_exps.weight";
        if recorder.has(fused) {
            let gate = recorder.experts(fused, Some(0..self.width))?;
            let up = recorder.experts(fused, Some(self.width..2 * self.width))?;
            return Ok((gate, up));
        }
        Ok((recorder.experts("ffn_gate_exps.weight", None)?, recorder.experts("ffn_up_exps.weight", None)?))
    }
}

/// The expert that every row uses: `stream += sigmoid(switch · input) · down(silu(gate · input) ⊙ (up · input))`.
struct SharedExpert {
    /// `(rows, 1)`
    switch: Product,
    /// `(rows, width)`
    gate: Product,
    /// `(rows, width)`
    up: Product,
}

impl SharedExpert {
    fn of(recorder: &mut Recorder<'_>, width: usize) -> Result<SharedExpert> {
        let output = recorder.scratch("shared_expert_gate", 1);
        let switch = product(recorder.matrix("ffn_gate_inp_shexp.weight")?, output);
        let names = ["ffn_gate_shexp.weight", "ffn_up_shexp.weight"];
        let [gate, up] = gate_and_up(recorder, ["ffn_gate_shexp", "ffn_up_shexp"], names, width)?;
        Ok(SharedExpert { switch, gate, up })
    }

    /// Records the rest, after the gate and up products were made one.
    fn add_to_stream(&self, recorder: &mut Recorder<'_>) -> Result<()> {
        let output = recorder.scratch("ffn_shexp", recorder.width());
        let down = recorder.matrix("ffn_down_shexp.weight")?;
        recorder.linear("ffn_shexp", self.gate.output, vec![product(down, output)]);
        let (gate, stream) = (self.switch.output, recorder.stream());
        recorder.record("l_out", Op::AddGated { input: output, gate, output: stream });
        Ok(())
    }
}
