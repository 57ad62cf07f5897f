//! Small model files of every architecture, made of holes: shapes are true, weights are zero.

use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, TensorType, Value};

pub(super) const WIDTH: u64 = 32;
pub(super) const VOCABULARY: u64 = 40;
pub(super) const FEED_FORWARD: u64 = 48;
const HEADS: u64 = 4;
const KEY_VALUE_HEADS: u64 = 2;
const HEAD: u64 = 16;
const STATE: u64 = 8;
const KEY_HEADS: u64 = 2;
const VALUE_HEADS: u64 = 4;
const TAPS: u64 = 4;
const EXPERTS: u64 = 6;

/// A model file that tests change before they open it.
pub(super) struct ModelFile {
    pub(super) architecture: &'static str,
    pub(super) writer: GgufWriter,
}

impl ModelFile {
    /// A model with `blocks` blocks, of which the last `predicting` are for multi-token prediction.
    pub(super) fn new(architecture: &'static str, blocks: u32, predicting: u32) -> ModelFile {
        let mut file = ModelFile { architecture, writer: GgufWriter::new() };
        file.writer.metadata("general.architecture", architecture);
        file.common_settings(blocks);
        if file.is_hybrid() {
            file.hybrid_settings(predicting);
        }
        if architecture == "qwen35moe" {
            file.expert_settings();
        }
        file.tensor("token_embd.weight", &[WIDTH, VOCABULARY]);
        file.tensor("output_norm.weight", &[WIDTH]);
        for block in 0..blocks {
            let predicts = block >= blocks - predicting;
            file.block(u64::from(block), predicts);
        }
        file
    }

    /// A BERT model with a classifier.
    pub(super) fn bert(blocks: u32) -> ModelFile {
        let mut file = ModelFile { architecture: "bert", writer: GgufWriter::new() };
        file.writer.metadata("general.architecture", "bert");
        for (name, value) in [
            ("block_count", blocks),
            ("context_length", 64),
            ("embedding_length", WIDTH as u32),
            ("feed_forward_length", FEED_FORWARD as u32),
            ("attention.head_count", HEADS as u32),
            ("pooling_type", 1),
        ] {
            file.setting(name, value);
        }
        file.setting("attention.layer_norm_epsilon", 1e-12_f32);
        file.tensor("token_embd.weight", &[WIDTH, VOCABULARY]);
        file.tensor("position_embd.weight", &[WIDTH, 64]).tensor("token_types.weight", &[WIDTH, 2]);
        file.tensor("token_embd_norm.weight", &[WIDTH]).tensor("token_embd_norm.bias", &[WIDTH]);
        for block in 0..blocks {
            let mut tensor = |suffix: &str, dims: &[u64]| {
                file.tensor(format!("blk.{block}.{suffix}"), dims);
            };
            for part in ["attn_q", "attn_k", "attn_v", "attn_output"] {
                tensor(&format!("{part}.weight"), &[WIDTH, WIDTH]);
                tensor(&format!("{part}.bias"), &[WIDTH]);
            }
            tensor("ffn_up.weight", &[WIDTH, FEED_FORWARD]);
            tensor("ffn_up.bias", &[FEED_FORWARD]);
            tensor("ffn_down.weight", &[FEED_FORWARD, WIDTH]);
            for vector in ["ffn_down", "attn_output_norm", "layer_output_norm"] {
                tensor(&format!("{vector}.bias"), &[WIDTH]);
            }
            tensor("attn_output_norm.weight", &[WIDTH]);
            tensor("layer_output_norm.weight", &[WIDTH]);
        }
        for (name, width) in [("cls", WIDTH), ("cls.output", 1)] {
            file.tensor(format!("{name}.weight"), &[WIDTH, width]).tensor(format!("{name}.bias"), &[width]);
        }
        file
    }

    pub(super) fn is_hybrid(&self) -> bool {
        self.architecture.starts_with("qwen35")
    }

    /// Opens what was written.
    pub(super) fn open(&self) -> Gguf {
        Gguf::from_vec(self.writer.to_vec(), "test").expect("tests write files that can be opened")
    }

    /// Sets, replaces or (with `None`) removes a setting of the architecture.
    pub(super) fn set(&mut self, name: &str, value: Option<Value>) -> &mut ModelFile {
        let key = format!("{}.{name}", self.architecture);
        self.writer.entries.retain(|(known, _)| *known != key);
        if let Some(value) = value {
            self.writer.entries.push((key, value));
        }
        self
    }

    /// Adds a tensor.
    pub(super) fn tensor(&mut self, name: impl Into<String>, dims: &[u64]) -> &mut ModelFile {
        self.writer.hole(name, TensorType::F32, dims);
        self
    }

    /// Removes the tensors with one of these endings.
    pub(super) fn without(&mut self, endings: &[&str]) -> &mut ModelFile {
        self.writer.tensors.retain(|tensor| !endings.iter().any(|ending| tensor.name.ends_with(ending)));
        self
    }

    fn setting(&mut self, name: &str, value: impl Into<Value>) {
        self.set(name, Some(value.into()));
    }

    fn common_settings(&mut self, blocks: u32) {
        self.setting("block_count", blocks);
        self.setting("context_length", 4096);
        self.setting("embedding_length", WIDTH as u32);
        self.setting("feed_forward_length", FEED_FORWARD as u32);
        self.setting("attention.head_count", HEADS as u32);
        self.setting("attention.head_count_kv", KEY_VALUE_HEADS as u32);
        self.setting("attention.key_length", HEAD as u32);
        self.setting("attention.value_length", HEAD as u32);
        self.setting("attention.layer_norm_rms_epsilon", 1e-6_f32);
        self.setting("rope.freq_base", 10_000.0_f32);
        self.setting("rope.dimension_count", HEAD as u32);
    }

    fn hybrid_settings(&mut self, predicting: u32) {
        self.setting("rope.dimension_count", 8);
        self.setting("rope.dimension_sections", [2_i32, 1, 1, 0].as_slice());
        self.setting("ssm.conv_kernel", TAPS as u32);
        self.setting("ssm.state_size", STATE as u32);
        self.setting("ssm.group_count", KEY_HEADS as u32);
        self.setting("ssm.time_step_rank", VALUE_HEADS as u32);
        self.setting("ssm.inner_size", (VALUE_HEADS * STATE) as u32);
        self.setting("full_attention_interval", 4);
        self.setting("nextn_predict_layers", predicting);
    }

    pub(super) fn expert_settings(&mut self) {
        self.setting("expert_count", EXPERTS as u32);
        self.setting("expert_used_count", 2);
        if self.is_hybrid() {
            self.setting("expert_feed_forward_length", FEED_FORWARD as u32);
            self.setting("expert_shared_feed_forward_length", FEED_FORWARD as u32);
        }
    }

    fn block(&mut self, block: u64, predicts: bool) {
        let name = |suffix: &str| format!("blk.{block}.{suffix}");
        let second_norm = if self.is_hybrid() { "post_attention_norm.weight" } else { "ffn_norm.weight" };
        self.tensor(name("attn_norm.weight"), &[WIDTH]).tensor(name(second_norm), &[WIDTH]);
        if self.is_hybrid() && !(block + 1).is_multiple_of(4) && !predicts {
            self.delta_net(&name);
        } else {
            self.attention(&name);
        }
        if self.architecture == "qwen35moe" {
            self.experts(block).shared_expert(&name);
        } else {
            self.tensor(name("ffn_gate.weight"), &[WIDTH, FEED_FORWARD]);
            self.tensor(name("ffn_up.weight"), &[WIDTH, FEED_FORWARD]);
            self.tensor(name("ffn_down.weight"), &[FEED_FORWARD, WIDTH]);
        }
        if predicts {
            self.tensor(name("nextn.eh_proj.weight"), &[2 * WIDTH, WIDTH]);
        }
    }

    fn attention(&mut self, name: &impl Fn(&str) -> String) {
        let query = if self.is_hybrid() { 2 * HEADS * HEAD } else { HEADS * HEAD };
        self.tensor(name("attn_q.weight"), &[WIDTH, query]);
        self.tensor(name("attn_k.weight"), &[WIDTH, KEY_VALUE_HEADS * HEAD]);
        self.tensor(name("attn_v.weight"), &[WIDTH, KEY_VALUE_HEADS * HEAD]);
        self.tensor(name("attn_output.weight"), &[HEADS * HEAD, WIDTH]);
        if self.architecture != "llama" {
            self.tensor(name("attn_q_norm.weight"), &[HEAD]).tensor(name("attn_k_norm.weight"), &[HEAD]);
        }
    }

    fn delta_net(&mut self, name: &impl Fn(&str) -> String) {
        let inner = VALUE_HEADS * STATE;
        let channels = 2 * KEY_HEADS * STATE + inner;
        self.tensor(name("attn_qkv.weight"), &[WIDTH, channels]);
        self.tensor(name("attn_gate.weight"), &[WIDTH, inner]);
        self.tensor(name("ssm_conv1d.weight"), &[TAPS, channels]);
        self.tensor(name("ssm_dt.bias"), &[VALUE_HEADS]).tensor(name("ssm_a"), &[VALUE_HEADS]);
        self.tensor(name("ssm_beta.weight"), &[WIDTH, VALUE_HEADS]);
        self.tensor(name("ssm_alpha.weight"), &[WIDTH, VALUE_HEADS]);
        self.tensor(name("ssm_norm.weight"), &[STATE]).tensor(name("ssm_out.weight"), &[inner, WIDTH]);
    }

    /// Adds a router and experts to a block.
    pub(super) fn experts(&mut self, block: u64) -> &mut ModelFile {
        let name = |suffix: &str| format!("blk.{block}.{suffix}");
        self.tensor(name("ffn_gate_inp.weight"), &[WIDTH, EXPERTS]);
        self.tensor(name("ffn_gate_exps.weight"), &[WIDTH, FEED_FORWARD, EXPERTS]);
        self.tensor(name("ffn_up_exps.weight"), &[WIDTH, FEED_FORWARD, EXPERTS]);
        self.tensor(name("ffn_down_exps.weight"), &[FEED_FORWARD, WIDTH, EXPERTS])
    }

    fn shared_expert(&mut self, name: &impl Fn(&str) -> String) {
        self.tensor(name("ffn_gate_inp_shexp.weight"), &[WIDTH]);
        self.tensor(name("ffn_gate_shexp.weight"), &[WIDTH, FEED_FORWARD]);
        self.tensor(name("ffn_up_shexp.weight"), &[WIDTH, FEED_FORWARD]);
        self.tensor(name("ffn_down_shexp.weight"), &[FEED_FORWARD, WIDTH]);
    }
}
