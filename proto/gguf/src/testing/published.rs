//! Header-only files with the hyperparameters of published hybrids, as a 4-bit K-quant mix stores them.

use super::GgufWriter;
use crate::TensorType::{self, F32, Q4K, Q6K};

const HEAD_DIM: u64 = 256;
const STATE_SIZE: u64 = 128;
const CONV_KERNEL: u64 = 4;
const VOCABULARY: u64 = 248_320;
const ATTENTION_INTERVAL: u64 = 4;

/// What differs between the published sizes of a hybrid.
#[derive(Clone, Copy, Debug)]
pub struct PublishedShape {
    /// Main layers.
    pub layers: u64,
    /// The length of a hidden row.
    pub embedding_length: u64,
    /// The width of the feed-forward part, or of one expert.
    pub feed_forward_length: u64,
    /// Query heads.
    pub query_heads: u64,
    /// Cached heads.
    pub key_value_heads: u64,
    /// Value heads of recurrent layers; key heads are always 16.
    pub value_heads: u64,
    /// Whether the embedding serves as the head.
    pub tied: bool,
    /// Experts and how many are used; zeros in a dense model.
    pub experts: (u64, u64),
    /// Blocks that predict further tokens.
    pub mtp_blocks: u64,
}

const KEY_HEADS: u64 = 16;

impl PublishedShape {
    /// The smallest: 0.8 billion parameters, 24 layers.
    pub const B0_8: PublishedShape = PublishedShape {
        layers: 24,
        embedding_length: 1024,
        feed_forward_length: 3584,
        query_heads: 8,
        key_value_heads: 2,
        value_heads: 16,
        tied: true,
        experts: (0, 0),
        mtp_blocks: 0,
    };

    /// The dense 27B with 64 layers.
    pub const B27: PublishedShape = PublishedShape {
        layers: 64,
        embedding_length: 5120,
        feed_forward_length: 17408,
        query_heads: 24,
        key_value_heads: 4,
        value_heads: 48,
        tied: false,
        experts: (0, 0),
        mtp_blocks: 0,
    };

    /// The 35B-A3B with 256 experts in each of 40 layers.
    pub const B35_A3: PublishedShape = PublishedShape {
        layers: 40,
        embedding_length: 2048,
        feed_forward_length: 512,
        query_heads: 16,
        key_value_heads: 2,
        value_heads: 32,
        tied: false,
        experts: (256, 8),
        mtp_blocks: 0,
    };

    /// The same model with MTP blocks appended.
    pub fn with_mtp(self, mtp_blocks: u64) -> PublishedShape {
        PublishedShape { mtp_blocks, ..self }
    }

    /// A file with this shape: all keys that loading needs except a tokenizer, and holes for data.
    ///
    /// Write it to a path; in memory the holes would be full size.
    pub fn writer(&self) -> GgufWriter {
        let mut writer = GgufWriter::new();
        self.write_keys(&mut writer);
        let Shapes { hidden, .. } = self.shapes();
        writer.hole("token_embd.weight", Q6K, &[hidden, VOCABULARY]);
        writer.hole("output_norm.weight", F32, &[hidden]);
        if !self.tied {
            writer.hole("output.weight", Q6K, &[hidden, VOCABULARY]);
        }
        for block in 0..self.layers + self.mtp_blocks {
            self.write_block(&mut writer, block);
        }
        writer
    }

    fn architecture(&self) -> &'static str {
        if self.experts.0 > 0 { "qwen35moe" } else { "qwen35" }
    }

    fn shapes(&self) -> Shapes {
        let inner = self.value_heads * STATE_SIZE;
        Shapes {
            hidden: self.embedding_length,
            queries: self.query_heads * HEAD_DIM,
            key_values: self.key_value_heads * HEAD_DIM,
            inner,
            channels: 2 * KEY_HEADS * STATE_SIZE + inner,
        }
    }

    fn write_keys(&self, writer: &mut GgufWriter) {
        let architecture = self.architecture();
        let mut set = |key: &str, value: u64| {
            writer.metadata(format!("{architecture}.{key}"), value as u32);
        };
        set("block_count", self.layers + self.mtp_blocks);
        set("context_length", 262_144);
        set("embedding_length", self.embedding_length);
        set("attention.head_count", self.query_heads);
        set("attention.head_count_kv", self.key_value_heads);
        set("attention.key_length", HEAD_DIM);
        set("attention.value_length", HEAD_DIM);
        set("rope.dimension_count", HEAD_DIM / 4);
        set("ssm.conv_kernel", CONV_KERNEL);
        set("ssm.state_size", STATE_SIZE);
        set("ssm.group_count", KEY_HEADS);
        set("ssm.time_step_rank", self.value_heads);
        set("ssm.inner_size", self.value_heads * STATE_SIZE);
        set("full_attention_interval", ATTENTION_INTERVAL);
        let (experts, used) = self.experts;
        if experts == 0 {
            set("feed_forward_length", self.feed_forward_length);
        } else {
            set("expert_count", experts);
            set("expert_used_count", used);
            set("expert_feed_forward_length", self.feed_forward_length);
            set("expert_shared_feed_forward_length", self.feed_forward_length);
        }
        if self.mtp_blocks > 0 {
            set("nextn_predict_layers", self.mtp_blocks);
        }
        writer.metadata("general.architecture", architecture);
        writer.metadata(format!("{architecture}.attention.layer_norm_rms_epsilon"), 1e-6);
        writer.metadata(format!("{architecture}.rope.freq_base"), 1e7);
        writer.metadata(format!("{architecture}.rope.dimension_sections"), &[11, 11, 10, 0_i32][..]);
    }

    fn write_block(&self, writer: &mut GgufWriter, block: u64) {
        let is_mtp = block >= self.layers;
        let mut hole = |name: &str, kind: TensorType, dims: &[u64]| {
            writer.hole(format!("blk.{block}.{name}"), kind, dims);
        };
        let hidden = self.embedding_length;
        hole("attn_norm.weight", F32, &[hidden]);
        if is_mtp || (block + 1).is_multiple_of(ATTENTION_INTERVAL) {
            self.write_attention(&mut hole, self.mixed(block));
        } else {
            self.write_recurrent(&mut hole, self.mixed(block));
        }
        hole("post_attention_norm.weight", F32, &[hidden]);
        self.write_feed_forward(&mut hole, self.mixed(block));
        if is_mtp {
            hole("nextn.eh_proj.weight", Q4K, &[2 * hidden, hidden]);
            for name in ["enorm", "hnorm", "shared_head_norm"] {
                hole(&format!("nextn.{name}.weight"), F32, &[hidden]);
            }
        }
    }

    fn write_attention(&self, hole: &mut impl FnMut(&str, TensorType, &[u64]), mixed: TensorType) {
        let Shapes { hidden, queries, key_values, .. } = self.shapes();
        // Queries come with a gate of the same length.
        hole("attn_q.weight", Q4K, &[hidden, 2 * queries]);
        hole("attn_k.weight", Q4K, &[hidden, key_values]);
        hole("attn_v.weight", mixed, &[hidden, key_values]);
        hole("attn_output.weight", Q4K, &[queries, hidden]);
        hole("attn_q_norm.weight", F32, &[HEAD_DIM]);
        hole("attn_k_norm.weight", F32, &[HEAD_DIM]);
    }

    fn write_recurrent(&self, hole: &mut impl FnMut(&str, TensorType, &[u64]), mixed: TensorType) {
        let Shapes { hidden, inner, channels, .. } = self.shapes();
        hole("attn_qkv.weight", mixed, &[hidden, channels]);
        hole("attn_gate.weight", Q4K, &[hidden, inner]);
        hole("ssm_conv1d.weight", F32, &[CONV_KERNEL, channels]);
        hole("ssm_dt.bias", F32, &[self.value_heads]);
        hole("ssm_a", F32, &[self.value_heads]);
        hole("ssm_beta.weight", Q4K, &[hidden, self.value_heads]);
        hole("ssm_alpha.weight", Q4K, &[hidden, self.value_heads]);
        hole("ssm_norm.weight", F32, &[STATE_SIZE]);
        hole("ssm_out.weight", Q4K, &[inner, hidden]);
    }

    fn write_feed_forward(&self, hole: &mut impl FnMut(&str, TensorType, &[u64]), mixed: TensorType) {
        let (hidden, width, experts) = (self.embedding_length, self.feed_forward_length, self.experts.0);
        if experts == 0 {
            hole("ffn_gate.weight", Q4K, &[hidden, width]);
            hole("ffn_up.weight", Q4K, &[hidden, width]);
            hole("ffn_down.weight", mixed, &[width, hidden]);
            return;
        }
        hole("ffn_gate_inp.weight", F32, &[hidden, experts]);
        hole("ffn_gate_inp_shexp.weight", F32, &[hidden]);
        hole("ffn_gate_exps.weight", Q4K, &[hidden, width, experts]);
        hole("ffn_up_exps.weight", Q4K, &[hidden, width, experts]);
        hole("ffn_down_exps.weight", mixed, &[width, hidden, experts]);
        hole("ffn_gate_shexp.weight", Q4K, &[hidden, width]);
        hole("ffn_up_shexp.weight", Q4K, &[hidden, width]);
        hole("ffn_down_shexp.weight", mixed, &[width, hidden]);
    }

    /// The mix keeps value and down projections at six bits in the first and last eighth and every third layer between.
    fn mixed(&self, block: u64) -> TensorType {
        let eighth = self.layers / 8;
        let more = block < eighth || block >= 7 * self.layers / 8 || (block - eighth) % 3 == 2;
        if more { Q6K } else { Q4K }
    }
}

/// Lengths that follow from the hyperparameters.
struct Shapes {
    hidden: u64,
    queries: u64,
    key_values: u64,
    inner: u64,
    channels: u64,
}
