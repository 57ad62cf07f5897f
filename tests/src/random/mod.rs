//! Random models whose golden data are in `data/golden`: the reference drew them with NumPy from seed 1234, and they
//! are drawn here again, so that a hundred megabytes of noise need not be stored.

mod encode;
mod generator;
mod tokenizer;

use paceline_gguf::TensorType;
use paceline_gguf::testing::GgufWriter;

use self::generator::Generator;

const VOCABULARY: usize = 320;
const CONVOLUTION: usize = 4;
const EXPERTS: usize = 8;
const EXPERTS_USED: usize = 2;

/// The sizes of a random model.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    architecture: &'static str,
    layers: usize,
    width: usize,
    feed_forward: usize,
    head_dim: usize,
    rotating: usize,
    sections: [i32; 4],
    state: usize,
    key_heads: usize,
    value_heads: usize,
    shared_expert: usize,
    context: u32,
    base: f32,
    epsilon: f32,
    tied: bool,
    predicts: bool,
}

const HEADS: usize = 4;
const KEY_VALUE_HEADS: usize = 2;

const NANO: Preset = Preset {
    architecture: "qwen35",
    layers: 4,
    width: 64,
    feed_forward: 128,
    head_dim: 32,
    rotating: 8,
    sections: [2, 1, 1, 0],
    state: 16,
    key_heads: 2,
    value_heads: 4,
    shared_expert: 0,
    context: 4096,
    base: 1e7,
    epsilon: 1e-6,
    tied: true,
    predicts: false,
};

const NANO_MOE: Preset = Preset { architecture: "qwen35moe", feed_forward: 32, shared_expert: 64, tied: false, ..NANO };

const MINI: Preset = Preset {
    width: 256,
    feed_forward: 256,
    head_dim: 64,
    rotating: 16,
    sections: [3, 3, 2, 0],
    state: 32,
    key_heads: 4,
    value_heads: 8,
    context: 8192,
    ..NANO
};

const MINI_MOE: Preset = Preset { architecture: "qwen35moe", shared_expert: 256, tied: false, ..MINI };

const MINI_QWEN3: Preset =
    Preset { architecture: "qwen3", layers: 2, feed_forward: 512, rotating: 64, base: 1e6, ..MINI };

const MINI_LLAMA: Preset = Preset { architecture: "llama", base: 1e4, epsilon: 1e-5, tied: false, ..MINI_QWEN3 };

impl Preset {
    /// The sizes of the models whose names begin so; `nano16` is `nano` with 16 layers.
    pub fn named(name: &str) -> Option<Preset> {
        Some(match name {
            "nano" => NANO,
            "nano16" => Preset { layers: 16, ..NANO },
            "nano-mtp" => Preset { predicts: true, ..NANO },
            "nano-moe" => NANO_MOE,
            "nano-moe16" => Preset { layers: 16, ..NANO_MOE },
            "mini" => MINI,
            "mini16" => Preset { layers: 16, ..MINI },
            "mini-mtp" => Preset { predicts: true, ..MINI },
            "mini16-mtp" => Preset { layers: 16, predicts: true, ..MINI },
            "mini-moe" => MINI_MOE,
            "mini-qwen3" => MINI_QWEN3,
            "mini-llama" => MINI_LLAMA,
            _ => return None,
        })
    }

    /// Draws the model, with its matrices in `kind` and those of its experts in `experts`.
    pub fn model(self, kind: TensorType, experts: TensorType) -> GgufWriter {
        let mut artist = Artist { preset: self, kind, experts, numbers: Generator::new(), writer: GgufWriter::new() };
        artist.settings();
        tokenizer::write(&mut artist.writer, VOCABULARY);
        artist.tensors();
        artist.writer
    }

    fn is_hybrid(&self) -> bool {
        self.architecture.starts_with("qwen35")
    }

    fn has_experts(&self) -> bool {
        self.shared_expert > 0
    }

    /// Blocks, the one for multi-token prediction among them.
    fn blocks(&self) -> usize {
        self.layers + usize::from(self.predicts)
    }

    /// Deviation of the embeddings: it gives logits a deviation of 2.5.
    fn embedding_deviation(&self) -> f64 {
        2.5 / (self.width as f64).sqrt()
    }

    /// Gain of the matrices that add to the residual stream.
    fn residual_gain(&self) -> f64 {
        0.6 * self.embedding_deviation() * (8.0 / self.layers as f64).sqrt()
    }
}

/// Draws one model; the order of the draws is part of the model.
struct Artist {
    preset: Preset,
    kind: TensorType,
    experts: TensorType,
    numbers: Generator,
    writer: GgufWriter,
}

impl Artist {
    fn settings(&mut self) {
        let preset = self.preset;
        self.writer.metadata("general.architecture", preset.architecture);
        let mut set = |name: &str, value: usize| {
            let value = u32::try_from(value).expect("sizes are small");
            self.writer.metadata(format!("{}.{name}", preset.architecture), value);
        };
        set("block_count", preset.blocks());
        set("context_length", preset.context as usize);
        set("embedding_length", preset.width);
        set("attention.head_count", HEADS);
        set("attention.head_count_kv", KEY_VALUE_HEADS);
        set("attention.key_length", preset.head_dim);
        set("attention.value_length", preset.head_dim);
        set("rope.dimension_count", preset.rotating);
        if preset.is_hybrid() {
            set("ssm.conv_kernel", CONVOLUTION);
            set("ssm.state_size", preset.state);
            set("ssm.group_count", preset.key_heads);
            set("ssm.time_step_rank", preset.value_heads);
            set("ssm.inner_size", preset.state * preset.value_heads);
            set("full_attention_interval", 4);
        }
        if preset.predicts {
            set("nextn_predict_layers", 1);
        }
        if preset.has_experts() {
            set("expert_count", EXPERTS);
            set("expert_used_count", EXPERTS_USED);
            set("expert_feed_forward_length", preset.feed_forward);
            set("expert_shared_feed_forward_length", preset.shared_expert);
        } else {
            set("feed_forward_length", preset.feed_forward);
        }
        let key = |name: &str| format!("{}.{name}", preset.architecture);
        self.writer.metadata(key("rope.freq_base"), preset.base);
        self.writer.metadata(key("attention.layer_norm_rms_epsilon"), preset.epsilon);
        if preset.is_hybrid() {
            self.writer.metadata(key("rope.dimension_sections"), preset.sections.as_slice());
        }
    }

    fn tensors(&mut self) {
        let preset = self.preset;
        let deviation = preset.embedding_deviation() as f32;
        let embeddings: Vec<f32> =
            self.normals(VOCABULARY * preset.width).iter().map(|value| value * deviation).collect();
        self.add("token_embd.weight", &[preset.width, VOCABULARY], &embeddings, self.kind);
        self.signed_norm("output_norm.weight");
        if !preset.tied {
            self.matrix("output.weight", VOCABULARY, preset.width, 2.5);
        }
        for block in 0..preset.blocks() {
            self.block(block);
        }
        if preset.predicts {
            let name = |suffix: &str| format!("blk.{}.nextn.{suffix}.weight", preset.layers);
            self.matrix(&name("eh_proj"), preset.width, 2 * preset.width, 1.0);
            self.norm(&name("enorm"), preset.width, 1.0);
            self.norm(&name("hnorm"), preset.width, 1.0);
            self.signed_norm(&name("shared_head_norm"));
        }
    }

    fn block(&mut self, block: usize) {
        let preset = self.preset;
        let name = |suffix: &str| format!("blk.{block}.{suffix}");
        self.norm(&name("attn_norm.weight"), preset.width, 1.0);
        if preset.is_hybrid() {
            self.norm(&name("post_attention_norm.weight"), preset.width, 1.0);
        } else {
            self.norm(&name("ffn_norm.weight"), preset.width, 1.0);
        }
        if preset.is_hybrid() && !(block + 1).is_multiple_of(4) && block < preset.layers {
            self.delta_net(&name);
        } else {
            self.attention(&name);
        }
        if preset.has_experts() {
            self.experts(&name);
        } else {
            self.matrix(&name("ffn_gate.weight"), preset.feed_forward, preset.width, 1.0);
            self.matrix(&name("ffn_up.weight"), preset.feed_forward, preset.width, 1.0);
            self.matrix(&name("ffn_down.weight"), preset.width, preset.feed_forward, preset.residual_gain());
        }
    }

    fn attention(&mut self, name: &impl Fn(&str) -> String) {
        let Preset { width, head_dim, .. } = self.preset;
        let gates = if self.preset.is_hybrid() { 2 } else { 1 };
        self.matrix(&name("attn_q.weight"), HEADS * head_dim * gates, width, 1.0);
        self.matrix(&name("attn_k.weight"), KEY_VALUE_HEADS * head_dim, width, 1.0);
        self.matrix(&name("attn_v.weight"), KEY_VALUE_HEADS * head_dim, width, 1.0);
        self.matrix(&name("attn_output.weight"), width, HEADS * head_dim, self.preset.residual_gain());
        if self.preset.architecture != "llama" {
            self.norm(&name("attn_q_norm.weight"), head_dim, 1.3);
            self.norm(&name("attn_k_norm.weight"), head_dim, 1.3);
        }
    }

    fn delta_net(&mut self, name: &impl Fn(&str) -> String) {
        let Preset { width, state, key_heads, value_heads, .. } = self.preset;
        let inner = state * value_heads;
        let channels = 2 * state * key_heads + inner;
        self.matrix(&name("attn_qkv.weight"), channels, width, 1.0);
        self.matrix(&name("attn_gate.weight"), inner, width, 1.0);
        let taps: Vec<f32> = self.normals(channels * CONVOLUTION).iter().map(|value| value * 0.6).collect();
        self.add(&name("ssm_conv1d.weight"), &[CONVOLUTION, channels], &taps, TensorType::F32);
        let steps: Vec<f32> = self.uniforms(value_heads, 1e-3, 1e-1).into_iter().map(inverse_softplus).collect();
        self.add(&name("ssm_dt.bias"), &[value_heads], &steps, TensorType::F32);
        let rates: Vec<f32> = self.uniforms(value_heads, 1.0, 16.0).iter().map(|rate| -rate).collect();
        self.add(&name("ssm_a"), &[value_heads], &rates, TensorType::F32);
        self.matrix(&name("ssm_beta.weight"), value_heads, width, 1.0);
        self.matrix(&name("ssm_alpha.weight"), value_heads, width, 1.0);
        self.norm(&name("ssm_norm.weight"), state, 1.0);
        self.matrix(&name("ssm_out.weight"), width, inner, self.preset.residual_gain());
    }

    fn experts(&mut self, name: &impl Fn(&str) -> String) {
        let Preset { width, feed_forward, shared_expert, .. } = self.preset;
        let gain = self.preset.residual_gain();
        self.tensor(&name("ffn_gate_inp.weight"), &[width, EXPERTS], 1.5, TensorType::F32);
        self.tensor(&name("ffn_gate_exps.weight"), &[width, feed_forward, EXPERTS], 1.0, self.experts);
        self.tensor(&name("ffn_up_exps.weight"), &[width, feed_forward, EXPERTS], 1.0, self.experts);
        self.tensor(&name("ffn_down_exps.weight"), &[feed_forward, width, EXPERTS], gain, self.experts);
        self.tensor(&name("ffn_gate_inp_shexp.weight"), &[width], 1.0, TensorType::F32);
        self.matrix(&name("ffn_gate_shexp.weight"), shared_expert, width, 1.0);
        self.matrix(&name("ffn_up_shexp.weight"), shared_expert, width, 1.0);
        self.matrix(&name("ffn_down_shexp.weight"), width, shared_expert, gain);
    }

    fn matrix(&mut self, name: &str, rows: usize, columns: usize, gain: f64) {
        self.tensor(name, &[columns, rows], gain, self.kind);
    }

    /// A tensor of normal numbers with deviation `gain / sqrt(columns)`.
    fn tensor(&mut self, name: &str, dims: &[usize], gain: f64, kind: TensorType) {
        let deviation = (gain / (dims[0] as f64).sqrt()) as f32;
        let values: Vec<f32> = self.normals(dims.iter().product()).iter().map(|value| value * deviation).collect();
        self.add(name, dims, &values, kind);
    }

    /// Weights of a norm, near `mean`.
    fn norm(&mut self, name: &str, length: usize, mean: f32) {
        let values: Vec<f32> = self.normals(length).iter().map(|value| mean + 0.1 * value).collect();
        self.add(name, &[length], &values, TensorType::F32);
    }

    /// Weights of a norm near 1 and -1: with a tied head and positive weights the model would repeat its input.
    fn signed_norm(&mut self, name: &str) {
        let width = self.preset.width;
        let signs: Vec<f32> = (0..width).map(|_| self.numbers.sign()).collect();
        let sizes = self.normals(width);
        let values: Vec<f32> = signs.iter().zip(sizes).map(|(sign, size)| sign * (1.0 + 0.1 * size)).collect();
        self.add(name, &[width], &values, TensorType::F32);
    }

    fn normals(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.numbers.normal()).collect()
    }

    /// Numbers whose logarithms are uniform.
    fn uniforms(&mut self, count: usize, low: f64, high: f64) -> Vec<f32> {
        (0..count).map(|_| self.numbers.uniform(low.ln(), high.ln()).exp() as f32).collect()
    }

    fn add(&mut self, name: &str, dims: &[usize], values: &[f32], kind: TensorType) {
        let dims: Vec<u64> = dims.iter().map(|length| *length as u64).collect();
        self.writer.tensor(name, kind, &dims, encode::encode(values, kind));
    }
}

/// The number whose softplus is `step`.
fn inverse_softplus(step: f32) -> f32 {
    step + (-(-step).exp_m1()).ln()
}

#[cfg(test)]
mod tests {
    use paceline_gguf::Gguf;

    use super::*;
    use crate::golden::Golden;

    /// The reference looked up the embeddings of the golden prompt: the same rows, bit by bit.
    #[test]
    fn a_model_is_drawn_to_the_last_bit() {
        for name in ["nano", "nano-moe"] {
            let golden = Golden::named(&format!("{name}-f32"));
            let writer = Preset::named(name).unwrap().model(TensorType::F32, TensorType::F32);
            let model = Gguf::from_vec(writer.to_vec(), name).unwrap();
            let table = model.tensor("token_embd.weight").unwrap();
            let rows = golden.tokens("prompt_tokens").into_iter().map(|token| token as usize);
            let drawn: Vec<u8> = rows.flat_map(|row| table.rows(row..row + 1)).copied().collect();
            let expected = golden.f32("layers/model.input_embed").values;
            assert_eq!(drawn, encode::encode(&expected, TensorType::F32), "{name}");
        }
    }
}
