//! Small models with real bytes in them, some pieces long.

use std::path::{Path, PathBuf};

use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{TensorType, Value};

const WIDTH: u64 = 256;
const FEED_FORWARD: u64 = 1536;
const VOCABULARY: u64 = 10_000;

/// Layers of [`write`] and [`write_parts`]; each is a bit longer than a piece.
pub(super) const LAYERS: usize = 4;

/// Writes a model of 4 layers, some 40 MB, with these tensors beside the layers.
pub(super) fn write(folder: &Path, others: &[&str]) -> PathBuf {
    let mut writer = settings();
    write_others(&mut writer, others);
    (0..LAYERS).for_each(|layer| write_layer(&mut writer, layer));
    let path = folder.join("model.gguf");
    writer.write(&path).unwrap();
    path
}

/// Writes the model in three parts and returns the path of the first: settings alone, the first two layers, the rest.
pub(super) fn write_parts(folder: &Path) -> PathBuf {
    let mut parts = [settings(), GgufWriter::new(), GgufWriter::new()];
    for (index, part) in parts.iter_mut().enumerate() {
        part.metadata("split.no", Value::U16(index as u16)).metadata("split.count", Value::U16(3));
    }
    (0..2).for_each(|layer| write_layer(&mut parts[1], layer));
    (2..LAYERS).for_each(|layer| write_layer(&mut parts[2], layer));
    write_others(&mut parts[2], &["token_embd.weight", "output_norm.weight"]);
    let path = |index: usize| folder.join(format!("model-{:05}-of-00003.gguf", index + 1));
    parts.iter().enumerate().for_each(|(index, part)| part.write(&path(index)).unwrap());
    path(0)
}

/// Bytes of the one tensor of [`small`].
pub(super) const SMALL: u64 = 256 << 10;

/// A model of one piece.
pub(super) fn small(seed: u64) -> Vec<u8> {
    let mut writer = settings();
    writer.tensor("rope_freqs.weight", TensorType::F32, &[SMALL / 4], noise(SMALL as usize, seed));
    writer.to_vec()
}

fn settings() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "llama");
    let numbers = [
        ("block_count", LAYERS as u32),
        ("context_length", 4096),
        ("embedding_length", WIDTH as u32),
        ("feed_forward_length", FEED_FORWARD as u32),
        ("attention.head_count", 8),
        ("attention.head_count_kv", 4),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("rope.dimension_count", 32),
    ];
    for (key, number) in numbers {
        writer.metadata(format!("llama.{key}"), number);
    }
    writer.metadata("llama.attention.layer_norm_rms_epsilon", 1e-6_f32);
    writer
}

fn write_others(writer: &mut GgufWriter, names: &[&str]) {
    for &name in names {
        let dims: &[u64] = match name {
            "output_norm.weight" => &[WIDTH],
            "rope_freqs.weight" => &[16],
            _ => &[WIDTH, VOCABULARY],
        };
        write_tensor(writer, name.to_owned(), dims);
    }
}

fn write_layer(writer: &mut GgufWriter, layer: usize) {
    let tensors: [(&str, &[u64]); 9] = [
        ("attn_norm", &[WIDTH]),
        ("attn_q", &[WIDTH, 256]),
        ("attn_k", &[WIDTH, 128]),
        ("attn_v", &[WIDTH, 128]),
        ("attn_output", &[256, WIDTH]),
        ("ffn_norm", &[WIDTH]),
        ("ffn_gate", &[WIDTH, FEED_FORWARD]),
        ("ffn_up", &[WIDTH, FEED_FORWARD]),
        ("ffn_down", &[FEED_FORWARD, WIDTH]),
    ];
    for (name, dims) in tensors {
        write_tensor(writer, format!("blk.{layer}.{name}.weight"), dims);
    }
}

fn write_tensor(writer: &mut GgufWriter, name: String, dims: &[u64]) {
    let bytes = dims.iter().product::<u64>() * 4;
    let seed = name.bytes().fold(7, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
    writer.tensor(name, TensorType::F32, dims, noise(bytes as usize, seed));
}

/// Bytes without a pattern, so that a piece in the wrong place is seen.
fn noise(bytes: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(2) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    (0..bytes.div_ceil(8)).flat_map(|_| next()).take(bytes).collect()
}
