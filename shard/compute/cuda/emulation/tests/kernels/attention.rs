//! Keys and values in pages, and attention over them, for every type.

use paceline_compute::program::{CacheSpec, Heads, Op, Queries, Rope, RopeStyle, Rotation};
use paceline_emulation::Order;
use paceline_gguf::KvType;
use proptest::prelude::*;

use crate::harness::{Case, WAYS, WHOLE, Way, cpu, emulated};

#[derive(Debug, Clone, Copy)]
struct Sizes {
    key_heads: usize,
    group: usize,
    key_dim: usize,
    value_dim: usize,
    gated: bool,
    causal: bool,
    adjacent: bool,
    normed: bool,
}

const SIZES: Sizes = Sizes {
    key_heads: 2,
    group: 2,
    key_dim: 64,
    value_dim: 96,
    gated: true,
    causal: true,
    adjacent: false,
    normed: true,
};

fn attention(sizes: Sizes, kinds: [KvType; 2], rows: &[usize], page_tokens: usize, seed: u64) -> Case {
    let Sizes { key_heads, group, key_dim, value_dim, gated, causal, adjacent, normed } = sizes;
    let mut case = Case::new(seed);
    (case.kinds, case.page_tokens) = (kinds, page_tokens);
    let (gate, heads) = (if gated { value_dim } else { 0 }, key_heads * group);
    let stride = key_dim + gate;
    let [query, key, value] = case.inputs([heads * stride, key_heads * key_dim, key_heads * value_dim]);
    let dimensions = (key_dim / 2).next_multiple_of(2).min(key_dim / 2 * 2);
    let style = if adjacent { RopeStyle::Adjacent } else { RopeStyle::Neox };
    let rope = case.output(dimensions);
    let rotation = Rope { style, dimensions, base: 10_000.0, factor: 1.0, yarn: None, sections: None, divisors: None };
    case.record(Op::RopeTable { rope: rotation, output: rope });
    let cache = case.program.cache(CacheSpec { key_value_heads: key_heads, key_dim, value_dim });
    let query_heads = Heads { count: heads, dim: key_dim, stride };
    let [norm, key_norm] = [(); 2].map(|()| normed.then(|| case.vector(key_dim, 1.5)));
    let queries = Some(Queries { buffer: query, heads: query_heads, norm });
    case.record(Op::StoreKeysValues {
        queries,
        key,
        value,
        key_norm,
        epsilon: 1e-6,
        rotation: Some(Rotation { style, table: rope }),
        cache,
    });
    let output = case.output(heads * value_dim);
    let gate_offset = gated.then_some(key_dim);
    case.record(Op::Attention { query, query_heads, gate_offset, scale: 0.125, causal, cache, output });
    case.outputs.extend([query, key]);
    case.sessions(rows, 2.0);
    case
}

#[test]
fn every_type_of_keys_and_values() {
    for (index, kind) in KvType::ALL.into_iter().enumerate() {
        let other = KvType::ALL[(index + 3) % KvType::ALL.len()];
        for kinds in [[kind; 2], [kind, other]] {
            attention(SIZES, kinds, &[5, 20], 16, 1 + index as u64).check(&WAYS);
        }
    }
}

/// Past one segment, where few rows are split over blocks, and many are not.
#[test]
fn long_contexts() {
    for (kinds, seed) in [([KvType::F16, KvType::Q8_0], 3), ([KvType::Q4_0, KvType::F32], 4)] {
        let sizes = Sizes { key_dim: 32, value_dim: 32, key_heads: 1, ..SIZES };
        let case = attention(sizes, kinds, &[600, 7], 32, seed);
        case.check(&[Way { chunk: WHOLE, together: true }, Way { chunk: 250, together: true }]);
    }
}

#[test]
fn rows_in_blocks_need_not_be_rotated() {
    let case = attention(SIZES, [KvType::Q4_0, KvType::Q8_0], &[9], 16, 5);
    case.check_on(&cpu().without_rotation(), &emulated(Order::Forwards).without_rotation(), &WAYS);
}

fn kv_type() -> impl Strategy<Value = KvType> {
    prop::sample::select(KvType::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn attends(
        kinds in prop::array::uniform2(kv_type()),
        rows in prop::collection::vec(1usize..24, 1..4),
        heads in [1usize..3, 1usize..4],
        dims in [1usize..5, 1usize..5],
        flags in prop::array::uniform4(any::<bool>()),
        page_tokens in 1usize..40,
        seed in 1u64..,
    ) {
        let [gated, causal, adjacent, normed] = flags;
        // Whole blocks where they are needed, else any even length.
        let dim = |kind: KvType, dim: usize| match kind {
            KvType::F32 | KvType::F16 | KvType::BF16 => 14 * dim,
            _ => 32 * dim,
        };
        let (key_dim, value_dim) = (dim(kinds[0], dims[0]), dim(kinds[1], dims[1]));
        let sizes = Sizes { key_heads: heads[0], group: heads[1], key_dim, value_dim, gated, causal, adjacent, normed };
        let case = attention(sizes, kinds, &rows, page_tokens, seed);
        // Where rows see the rest of their chunk, the cut into chunks is part of the question.
        case.check(if causal { &WAYS } else { &WAYS[..1] });
    }
}
