//! Every named activation of every layer equals the reference implementation's.

use paceline_compute::program::{Buffer, Heads, Op, Program, Recorded};
use paceline_tests::golden::{Golden, distance};
use paceline_tests::model_run::{Chunk, Layout, ModelRun, cpu};
use paceline_tests::models::model;

/// Activations of single precision models, whose values are near 1, agree this closely.
const TOLERANCE: f32 = 1e-4;

/// Activations compared in a recurrent layer, an attention layer, for a layer's experts, and outside the layers.
const RECURRENT: usize = 10;
const ATTENTION: usize = 8;
const EXPERTS: usize = 6;
const OUTSIDE: usize = 2;

/// Compares the activations of a golden prompt.
struct Comparer {
    golden: Golden,
    compared: usize,
}

#[test]
fn a_hybrid_layer_by_layer() {
    assert_eq!(check("nano-f32"), 3 * RECURRENT + ATTENTION + OUTSIDE);
}

#[test]
fn a_hybrid_with_experts_layer_by_layer() {
    assert_eq!(check("nano-moe-f32"), 3 * RECURRENT + ATTENTION + 4 * EXPERTS + OUTSIDE);
}

/// Runs the golden prompt on two stages and returns how many activations were compared.
fn check(name: &str) -> usize {
    let golden = Golden::named(name);
    let prompt = Chunk::text(1, &golden.tokens("prompt_tokens"));
    let mut comparer = Comparer { golden, compared: 0 };
    let layout = Layout { splits: vec![0..2, 2..4], ..Layout::default() };
    let mut run = ModelRun::new(&cpu(), &model(name), layout);
    run.observe(&[prompt], |program, recorded, read| comparer.operation(program, recorded, read));
    comparer.compared
}

impl Comparer {
    /// Compares what an operation has written, if the reference has a name for it.
    fn operation(&mut self, program: &Program, recorded: &Recorded, read: &dyn Fn(Buffer) -> Vec<f32>) {
        let name = |name: &str| match recorded.layer {
            Some(layer) => format!("{name}-{layer}"),
            None => name.to_owned(),
        };
        match &recorded.op {
            Op::Linear { products, .. } => {
                for product in products {
                    let buffer = program.buffers[usize::from(product.output.0)].name;
                    self.product(&name, if product.add { recorded.name } else { buffer }, read(product.output));
                }
            }
            Op::StoreKeysValues { queries: Some(queries), .. } => {
                self.same(&name("Qcur"), &heads_of(&read(queries.buffer), queries.heads));
            }
            Op::Attention { output, .. } => {
                let [result, gate] = ["attn_pregate", "gate_sigmoid"].map(|part| self.expected(&name(part)));
                let gated: Vec<f32> = result.iter().zip(gate).map(|(result, gate)| result * gate).collect();
                self.close(&name("attn_gated"), &read(*output), &gated);
            }
            Op::Route { output, used, .. } => self.route(&name, &read(*output), *used),
            Op::Experts { output, .. } => {
                let [before, change] = ["attn_residual", "ffn_moe_out"].map(|part| self.expected(&name(part)));
                let sum: Vec<f32> = before.iter().zip(change).map(|(before, change)| before + change).collect();
                self.close(&name("ffn_moe_out"), &read(*output), &sum);
            }
            Op::Embed { output, .. }
            | Op::Norm { output, .. }
            | Op::Convolve { output, .. }
            | Op::DeltaRule { output, .. }
            | Op::GatedNorm { buffer: output, .. }
            | Op::AddGated { output, .. } => self.same(&name(recorded.name), &read(*output)),
            Op::AddEmbedding { .. }
            | Op::LayerNorm { .. }
            | Op::Gelu { .. }
            | Op::Tanh { .. }
            | Op::RopeTable { .. }
            | Op::StoreKeysValues { queries: None, .. }
            | Op::SwiGlu { .. }
            | Op::AddBias { .. }
            | Op::Join { .. }
            | Op::Split { .. }
            | Op::Gather { .. } => {}
        }
    }

    /// Compares a matrix product, some of which the reference names only after the next step.
    fn product(&mut self, name: &dyn Fn(&str) -> String, what: &str, values: Vec<f32>) {
        match what {
            "beta" => self.same(&name("beta_sigmoid"), &sigmoid(values)),
            "shared_expert_gate" => self.same(&name("shared_expert_gate_sigmoid"), &sigmoid(values)),
            "ffn_moe_logits" => {
                let probabilities = self.expected(&name("ffn_moe_probs"));
                let experts = values.len() / 64;
                self.close(&name("ffn_moe_probs"), &softmax(&values, experts), &probabilities);
            }
            _ if self.golden.has(&format!("layers/{}", name(what))) => self.same(&name(what), &values),
            _ => {}
        }
    }

    /// Compares which experts each row uses, and their weights.
    fn route(&mut self, name: &dyn Fn(&str) -> String, route: &[f32], used: usize) {
        let (mut experts, mut weights) = (Vec::new(), Vec::new());
        for row in route.chunks_exact(2 * used) {
            experts.extend(row[..used].iter().map(|expert| *expert as i32));
            weights.extend_from_slice(&row[used..]);
        }
        assert_eq!(experts, self.golden.i32(&format!("layers/{}", name("ffn_moe_topk"))).values);
        self.compared += 1;
        self.same(&name("ffn_moe_weights_norm"), &weights);
    }

    fn same(&mut self, name: &str, found: &[f32]) {
        let expected = self.expected(name);
        self.close(name, found, &expected);
    }

    fn close(&mut self, name: &str, found: &[f32], expected: &[f32]) {
        let distance = distance(found, expected);
        let largest = expected.iter().fold(1.0_f32, |largest, value| largest.max(value.abs()));
        println!("{name}: {:.1e} of {largest:.1}", distance.max);
        assert!(distance.max <= TOLERANCE * largest, "{name}: {distance:?} of {largest}");
        self.compared += 1;
    }

    fn expected(&self, name: &str) -> Vec<f32> {
        self.golden.f32(&format!("layers/{name}")).values
    }
}

/// The heads alone, without the gates between them.
fn heads_of(values: &[f32], heads: Heads) -> Vec<f32> {
    values.chunks_exact(heads.stride).flat_map(|head| &head[..heads.dim]).copied().collect()
}

fn sigmoid(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| 1.0 / (1.0 + (-value).exp())).collect()
}

/// The probabilities of each row.
fn softmax(logits: &[f32], width: usize) -> Vec<f32> {
    let row = |logits: &[f32]| -> Vec<f32> {
        let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
        logits.iter().map(|logit| logit.exp() / sum).collect()
    };
    logits.chunks_exact(width).flat_map(row).collect()
}
