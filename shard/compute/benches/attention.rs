//! Speed of attention at depth: what a token, or a chunk of a prompt, costs with a long context behind it.
//!
//! For every type of keys and values, depth and number of rows: milliseconds per layer, GB/s of stored keys and
//! values read, and GMAC/s. Arguments: `THREADS` (default 1), then names of key and value types (default f16 and
//! q8_0), a shape (`0.8b` or `smollm2`), and an instruction set.
//!
//! `cargo bench -p paceline-compute --bench attention -- 2 q8_0 0.8b`

use std::sync::Arc;
use std::time::Instant;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemoryOperation, MemorySpec, ReadBuffer, StepInputs};
use paceline_compute::program::{
    CacheSpec, Heads, Op, Program, Queries, Recorded, Rope, RopeStyle, Rotation, RowSpace,
};
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, KvType};

const PAGE_TOKENS: usize = 64;
const REPEATS: usize = 12;
/// Rows of a step, and tokens that come before it.
const CASES: [(usize, usize); 7] = [(1, 8192), (1, 32_000), (4, 32_000), (8, 2048), (64, 512), (512, 0), (512, 8192)];

struct Shape {
    name: &'static str,
    heads: usize,
    key_value_heads: usize,
    dim: usize,
    layers: u16,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "0.8b", heads: 8, key_value_heads: 2, dim: 256, layers: 6 },
    Shape { name: "smollm2", heads: 9, key_value_heads: 3, dim: 64, layers: 30 },
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let threads = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(1);
    let isa = arguments.iter().find_map(|argument| Isa::parse(argument)).unwrap_or_else(Isa::detect);
    let mut kinds: Vec<KvType> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    if kinds.is_empty() {
        kinds = vec![KvType::F16, KvType::Q8_0];
    }
    let named = |shape: &&Shape| arguments.iter().any(|argument| argument == shape.name);
    let shape = SHAPES.iter().find(named).unwrap_or(&SHAPES[0]);
    println!("{}, {isa}, {threads} threads", shape.name);
    println!("type   rows  depth  ms/layer   GB/s  GMAC/s");
    for kind in kinds {
        measure(shape, kind, threads, isa);
    }
}

fn measure(shape: &Shape, kind: KvType, threads: usize, isa: Isa) {
    let device = CpuDevice::new(threads, Some(isa)).expect("the threads start");
    let pages = CASES.iter().map(|(rows, depth)| rows + depth).max().unwrap_or(0).div_ceil(PAGE_TOKENS);
    let memory = MemorySpec {
        page_tokens: PAGE_TOKENS,
        pages,
        slots: 1,
        key_type: kind,
        value_type: kind,
        rows: 512,
        wanted: 1,
        logs: LogSpec::NONE,
    };
    let model = Arc::new(Gguf::from_vec(GgufWriter::new().to_vec(), "empty").expect("the writer writes valid files"));
    let mut stage = device.load(program(shape), &model, memory, &mut |_| ()).expect("the memory can be had");
    fill(&mut *stage, pages);
    for (rows, depth) in CASES {
        let seconds = time(&mut *stage, rows, depth) / f64::from(shape.layers);
        let per_key = 2 * shape.key_value_heads * kind.bytes_for(shape.dim);
        let pairs = rows * depth + rows * (rows + 1) / 2;
        let products = 2 * pairs * shape.heads * shape.dim;
        println!(
            "{kind:6} {rows:4} {depth:6} {:9.3} {:6.1} {:7.1}",
            1e3 * seconds,
            ((depth + rows) * per_key) as f64 / 1e9 / seconds,
            products as f64 / 1e9 / seconds,
        );
    }
}

/// The attention of all layers of a model. Queries, keys and values are zero, which takes as long as others.
fn program(shape: &Shape) -> Program {
    let mut program = Program::default();
    let &Shape { heads, key_value_heads, dim, .. } = shape;
    let [query, output] = ["query", "output"].map(|name| program.buffer(name, heads * dim, RowSpace::Step));
    let [key, value] = ["key", "value"].map(|name| program.buffer(name, key_value_heads * dim, RowSpace::Step));
    let table = program.buffer("table", dim, RowSpace::Step);
    let style = RopeStyle::Neox;
    let (yarn, sections, divisors) = (None, None, None);
    let rope = Rope { style, dimensions: dim, base: 1e6, factor: 1.0, yarn, sections, divisors };
    program.record("table", None, Op::RopeTable { rope, output: table });
    let query_heads = Heads { count: heads, dim, stride: dim };
    for _ in 0..shape.layers {
        let cache = program.cache(CacheSpec { key_value_heads, key_dim: dim, value_dim: dim });
        let (key_norm, epsilon) = (None, 1e-6);
        program.record(
            "keys and values",
            None,
            Op::StoreKeysValues {
                queries: Some(Queries { buffer: query, heads: query_heads, norm: None }),
                key,
                value,
                key_norm,
                epsilon,
                rotation: Some(Rotation { style, table }),
                cache,
            },
        );
        let scale = 1.0 / (dim as f32).sqrt();
        program.record(
            "attention",
            None,
            Op::Attention { query, query_heads, gate_offset: None, scale, causal: true, cache, output },
        );
    }
    program
}

/// Writes every page, as memory that was never written is not read from memory.
fn fill(stage: &mut dyn LoadedStage, pages: usize) {
    time(stage, PAGE_TOKENS, 0);
    for to in 1..pages as u32 {
        stage.apply(MemoryOperation::CopyPage { from: 0, to }).expect("the pages exist");
    }
}

/// Runs a step some times over, and sums the shortest time of every attention: what a machine does that is
/// interrupted less often than that.
fn time(stage: &mut dyn LoadedStage, rows: usize, depth: usize) -> f64 {
    let pages: Vec<u32> = (0..(depth + rows).div_ceil(PAGE_TOKENS) as u32).collect();
    let chunks = [ChunkRows { first_row: 0, rows, start: depth, slot: 0, pages: &pages, log: ChunkLog::default() }];
    let positions: Vec<[u32; 4]> = (0..rows).map(|row| [(depth + row) as u32; 4]).collect();
    let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] };
    let mut shortest = vec![f64::INFINITY; stage.program().ops.len()];
    for _ in 0..REPEATS {
        let mut begun = Instant::now();
        let mut observe = |operation: usize, _: ReadBuffer<'_>| {
            shortest[operation] = shortest[operation].min(begun.elapsed().as_secs_f64());
            begun = Instant::now();
        };
        stage.run_observed(&inputs, &mut observe).expect("the step fits");
    }
    let attention = |(operation, _): &(&Recorded, f64)| matches!(operation.op, Op::Attention { .. });
    stage.program().ops.iter().zip(shortest).filter(attention).map(|(_, seconds)| seconds).sum()
}
