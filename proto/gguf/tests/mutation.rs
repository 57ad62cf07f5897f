//! Files with random faults are read or refused: no panic, and no more memory than a file of their size deserves.
//!
//! Alone in its program, because it looks at the memory of the whole process.

use std::fs;

use paceline_gguf::{Array, Gguf, ModelShape, TensorType, Value, testing::GgufWriter};
use proptest::{prelude::*, sample::Index};

const CASES: u32 = 20_000;
/// The address space that all cases together may add; the files have a few kilobytes.
const MEMORY_LIMIT_KIB: u64 = 8 << 10;

/// A file with every type of value and everything a shape is read from.
fn valid_file() -> GgufWriter {
    let mut writer = GgufWriter::new();
    writer.metadata("general.architecture", "qwen35").metadata("general.alignment", 32_u32);
    for (key, value) in [
        ("block_count", 3),
        ("nextn_predict_layers", 1),
        ("context_length", 128),
        ("embedding_length", 32),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 32),
        ("attention.value_length", 32),
        ("full_attention_interval", 2),
        ("ssm.conv_kernel", 4),
        ("ssm.state_size", 8),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 4),
        ("ssm.inner_size", 32),
    ] {
        writer.metadata(format!("qwen35.{key}"), value);
    }
    let strings = ["a", "é", ""].into_iter().collect();
    let arrays = Array::Arrays(vec![Array::U16([1, 2].into()), Array::Strings(strings), Array::Arrays(vec![])]);
    for (key, value) in [
        ("a", Value::U8(1)),
        ("b", Value::I64(-1)),
        ("c", Value::F64(0.1)),
        ("d", Value::Bool(true)),
        ("e", arrays.into()),
        ("f", Array::F32([0.5; 7].into()).into()),
        ("g", Array::Bools([true, false].into()).into()),
    ] {
        writer.metadata(key, value);
    }
    writer.hole("token_embd.weight", TensorType::Q8_0, &[32, 10]).hole("output_norm.weight", TensorType::F32, &[32]);
    for block in 0..3 {
        let mut hole = |name: &str, dims: &[u64]| {
            writer.hole(format!("blk.{block}.{name}"), TensorType::F32, dims);
        };
        hole("attn_norm.weight", &[32]);
        if block == 0 {
            hole("attn_qkv.weight", &[32, 64]);
            hole("ssm_conv1d.weight", &[4, 64]);
            hole("ssm_a", &[4]);
        } else {
            hole("attn_k.weight", &[32, 64]);
            hole("attn_v.weight", &[32, 64]);
        }
    }
    writer
}

/// Does with a file what the program does, reading every tensor as well.
fn read_all(bytes: Vec<u8>) -> bool {
    let Ok(gguf) = Gguf::from_vec(bytes, "mutated") else { return false };
    assert!(gguf.tensor_bytes() <= gguf.file_bytes(), "tensors overlap");
    let sum: usize = gguf.tensors().flat_map(|tensor| tensor.data).map(|&byte| usize::from(byte)).sum();
    std::hint::black_box(sum);
    match ModelShape::read(&gguf) {
        Ok(shape) => {
            assert_eq!(shape.total().bytes, gguf.tensor_bytes());
            assert_eq!(shape.blocks().last().map(|block| block.end), Some(shape.layers.len()));
            let _ = shape.state_bytes(0..shape.layers.len());
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[derive(Clone, Debug)]
enum Mutation {
    Byte(Index, u8),
    Number(Index, u64),
    Truncate(Index),
    Remove(Index, Index),
    Repeat(Index, Index),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let numbers = prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|shift| 1 << shift),
        (0..64_u32).prop_map(|shift| u64::MAX >> shift),
        0..300_u64,
    ];
    prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Mutation::Byte(at, byte)),
        4 => (any::<Index>(), numbers).prop_map(|(at, number)| Mutation::Number(at, number)),
        1 => any::<Index>().prop_map(Mutation::Truncate),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Remove(from, to)),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Mutation::Repeat(from, to)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let length = bytes.len();
    if length < 9 {
        return;
    }
    let ordered = |a: &Index, b: &Index| {
        let (a, b) = (a.index(length), b.index(length));
        a.min(b)..a.max(b)
    };
    match mutation {
        Mutation::Byte(at, byte) => bytes[at.index(length)] = *byte,
        Mutation::Number(at, number) => {
            let at = at.index(length - 8);
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        Mutation::Truncate(at) => bytes.truncate(at.index(length)),
        Mutation::Remove(from, to) => drop(bytes.drain(ordered(from, to))),
        Mutation::Repeat(from, to) => bytes.extend_from_within(ordered(from, to)),
    }
}

/// The largest address space that this process has had, where the system tells.
fn peak_memory_kib() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmPeak:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[test]
fn mutated_files_neither_panic_nor_exhaust_memory() {
    let valid = valid_file().to_vec();
    assert!(read_all(valid.clone()), "the file to be mutated must be good");
    for length in 0..valid.len() {
        assert!(!read_all(valid[..length].to_vec()), "cut at {length}");
    }
    let header_length = valid_file().header().len();
    let before = peak_memory_kib();
    let strategy = proptest::collection::vec(mutation(), 1..4);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(CASES));
    let outcome = runner.run(&strategy, |mutations| {
        let mut bytes = valid.clone();
        let data = bytes.split_off(header_length);
        for mutation in &mutations {
            mutate(&mut bytes, mutation);
        }
        bytes.extend(data);
        read_all(bytes);
        Ok(())
    });
    outcome.expect("no mutation may panic");
    if let (Some(before), Some(after)) = (before, peak_memory_kib()) {
        assert!(after - before < MEMORY_LIMIT_KIB, "memory grew from {before} to {after} KiB");
    }
}
