//! The CPU device from outside: loading whole programs, and what it says when it cannot.

use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemorySpec, StepInputs};
use paceline_compute::program::{Buffer, CacheSpec, Op, Product, Program, RowSpace, StateSpec, WeightSpec, WeightUse};
use paceline_compute::{Device, Error, LoadedStage};
use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, KvType, TensorType};

const MEMORY: MemorySpec = MemorySpec {
    page_tokens: 4,
    pages: 4,
    slots: 2,
    key_type: KvType::F16,
    value_type: KvType::F32,
    rows: 4,
    wanted: 4,
    logs: LogSpec::NONE,
};

fn floats(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// `fused` is three matrices of `(2, 2)` in one: rows (1, 0), (0, 1), (2, 0), (0, 2), (3, 0), (0, 3).
fn model() -> Arc<Gguf> {
    let mut file = GgufWriter::new();
    let rows = [1.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 2.0, 3.0, 0.0, 0.0, 3.0];
    file.tensor("fused", TensorType::F32, &[2, 6], floats(rows));
    // Two experts of four rows.
    file.tensor("experts", TensorType::F32, &[2, 4, 2], floats((0..16).map(|value| value as f32)));
    file.tensor("bias", TensorType::F32, &[2], floats([0.5, -0.5]));
    Arc::new(Gguf::from_vec(file.to_vec(), "test").expect("the writer writes valid files"))
}

fn weight(tensor: &str, usage: WeightUse, rows: Option<std::ops::Range<usize>>) -> WeightSpec {
    WeightSpec { rows, ..WeightSpec::whole(tensor, usage) }
}

/// `output = rows 2 and 3 of fused · stream + bias`.
fn program(spec: WeightSpec, width: usize) -> (Program, Buffer) {
    let mut program = Program::default();
    let stream = program.buffer("stream", 2, RowSpace::Step);
    let output = program.buffer("output", width, RowSpace::Step);
    program.input = Some(stream);
    let weight_of = program.weight(spec);
    let bias = program.weight(weight("bias", WeightUse::Vector, None));
    let products = vec![Product { weight: weight_of, output, add: false }];
    program.record("product", Some(3), Op::Linear { input: stream, products });
    program.record("bias", Some(3), Op::AddBias { buffer: output, bias });
    (program, output)
}

fn load(program: Program, memory: MemorySpec) -> paceline_compute::Result<Box<dyn LoadedStage>> {
    CpuDevice::new(2, None)?.load(program, &model(), memory, &mut |_| ())
}

fn refusal(program: Program, memory: MemorySpec) -> Error {
    load(program, memory).err().expect("the program cannot be loaded")
}

#[test]
fn a_slice_of_a_fused_tensor_is_one_matrix() {
    let (program, output) = program(weight("fused", WeightUse::Matrix, Some(2..4)), 2);
    let mut stage = load(program, MEMORY).unwrap();
    let chunks = [ChunkRows { first_row: 0, rows: 2, start: 0, slot: 0, pages: &[], log: ChunkLog::default() }];
    let (vectors, positions) = ([1.0, 2.0, 3.0, 4.0], [[0; 4]; 2]);
    let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
    stage.run(&inputs).unwrap();
    let mut found = [0.0; 4];
    stage.read(output, 0..2, &mut found).unwrap();
    assert_eq!(found, [2.5, 3.5, 6.5, 7.5]);
}

#[test]
fn a_draft_model_is_loaded_from_the_model_it_drafts_for() {
    let mut file = GgufWriter::new();
    file.tensor("fused", TensorType::F32, &[2, 2], floats([0.0, 1.0, 1.0, 0.0]));
    file.tensor("bias", TensorType::F32, &[2], floats([10.0, 20.0]));
    let draft = Gguf::from_vec(file.to_vec(), "draft").expect("the writer writes valid files");
    let own = Arc::into_inner(model()).expect("nobody else has it");
    let joint = Arc::new(own.with_draft(draft));
    let device = CpuDevice::new(2, None).unwrap();
    let (of_model, output) = slice(2..4);
    let (of_draft, _) = slice(0..2);
    let of_draft = of_draft.with_prefix(paceline_gguf::DRAFT_PREFIX);
    let mut stages = [of_model, of_draft].map(|program| device.load(program, &joint, MEMORY, &mut |_| ()).unwrap());
    let found = [0, 1].map(|stage| run(stages[stage].as_mut(), output));
    assert_eq!(found, [[2.5, 3.5, 6.5, 7.5], [12.0, 21.0, 14.0, 23.0]]);
}

#[test]
fn progress_counts_the_bytes_of_tensors() {
    let (program, _) = program(weight("fused", WeightUse::Matrix, Some(2..4)), 2);
    let mut read = Vec::new();
    let device = CpuDevice::new(1, None).unwrap();
    device.load(program, &model(), MEMORY, &mut |bytes| read.push(bytes)).unwrap();
    assert_eq!(read, [48, 8]);
}

/// Columns of a matrix in each type are the matrix that has only these, bit for bit.
#[test]
fn columns_of_a_tensor_are_a_matrix() {
    let kinds = [(TensorType::F32, 4), (TensorType::Q8_0, 34)];
    for (kind, block_bytes) in kinds {
        let blocks = 96 / kind.block_len();
        // Scales of blocks are small positive numbers in half precision, floats are below 1.
        let byte =
            |row: usize, at: usize| if at % block_bytes == 1 { 0x20 } else { ((row * 31 + at * 7) % 0x3f) as u8 };
        let rows: Vec<Vec<u8>> =
            (0..3).map(|row| (0..blocks * block_bytes).map(|at| byte(row, at)).collect()).collect();
        let part = blocks / 3 * block_bytes..blocks * block_bytes;
        let mut file = GgufWriter::new();
        file.tensor("wide", kind, &[96, 3], rows.concat());
        file.tensor("part", kind, &[64, 3], rows.iter().flat_map(|row| row[part.clone()].to_vec()).collect());
        let model = Arc::new(Gguf::from_vec(file.to_vec(), "test").unwrap());
        let mut program = Program::default();
        let input = program.buffer("input", 64, RowSpace::Step);
        program.input = Some(input);
        let specs = [
            WeightSpec { columns: Some(32..96), ..WeightSpec::whole("wide", WeightUse::Matrix) },
            WeightSpec::whole("part", WeightUse::Matrix),
        ];
        let outputs = specs.map(|spec| {
            let (weight, output) = (program.weight(spec), program.buffer("output", 3, RowSpace::Step));
            program.record(
                "product",
                None,
                Op::Linear { input, products: vec![Product { weight, output, add: false }] },
            );
            output
        });
        let mut stage = CpuDevice::new(2, None).unwrap().load(program, &model, MEMORY, &mut |_| ()).unwrap();
        let chunks = [ChunkRows { first_row: 0, rows: 1, start: 0, slot: 0, pages: &[], log: ChunkLog::default() }];
        let (vectors, positions): (Vec<f32>, _) = ((0..64).map(|at| at as f32 - 30.0).collect(), [[0; 4]]);
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
        stage.run(&inputs).unwrap();
        let [found, expected] = outputs.map(|output| {
            let mut values = [0.0; 3];
            stage.read(output, 0..1, &mut values).unwrap();
            values
        });
        assert!(expected.iter().all(|value| value.is_normal()), "{expected:?}");
        assert_eq!(found.map(f32::to_bits), expected.map(f32::to_bits), "{kind}");
    }
}

#[test]
fn columns_that_are_not_there_or_no_whole_blocks_are_refused() {
    let refusal = |columns| {
        let mut file = GgufWriter::new();
        file.tensor("wide", TensorType::Q8_0, &[64, 2], vec![0; 136]);
        let model = Arc::new(Gguf::from_vec(file.to_vec(), "test").unwrap());
        let mut program = Program::default();
        program.weight(WeightSpec { columns: Some(columns), ..WeightSpec::whole("wide", WeightUse::Matrix) });
        let loaded = CpuDevice::new(1, None).unwrap().load(program, &model, MEMORY, &mut |_| ());
        loaded.err().expect("the columns are refused").to_string()
    };
    assert_eq!(refusal(32..96), "tensor wide is [64, 2], but the model's settings need at least 96 columns");
    assert_eq!(refusal(32..48), "48 values per row are not a multiple of the 32 values of a Q8_0 block");
    assert_eq!(refusal(16..64), "16 values per row are not a multiple of the 32 values of a Q8_0 block");
}

/// Runs two rows through a stage.
fn run(stage: &mut dyn LoadedStage, output: Buffer) -> [f32; 4] {
    let chunks = [ChunkRows { first_row: 0, rows: 2, start: 0, slot: 0, pages: &[], log: ChunkLog::default() }];
    let (vectors, positions) = ([1.0, 2.0, 3.0, 4.0], [[0; 4]; 2]);
    let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
    stage.run(&inputs).expect("the inputs fit");
    let mut found = [0.0; 4];
    stage.read(output, 0..2, &mut found).expect("the step had these rows");
    found
}

fn slice(rows: std::ops::Range<usize>) -> (Program, Buffer) {
    program(weight("fused", WeightUse::Matrix, Some(rows)), 2)
}

#[test]
fn weights_in_memory_are_shared_and_not_read_again() {
    let (device, model) = (CpuDevice::new(2, None).unwrap(), model());
    let load = |program: &Program, read: &mut u64| {
        device.load(program.clone(), &model, MEMORY, &mut |bytes| *read += bytes).unwrap()
    };
    let ((one, output), (other, _)) = (slice(2..4), slice(4..6));
    assert_eq!(device.keep(&one, &model).bytes(), 0, "nothing is there yet");
    let mut read = 0;
    let mut first = load(&one, &mut read);
    let mut second = load(&one, &mut read);
    assert_eq!(read, 48 + 8, "the second stage reads nothing");
    assert_eq!(device.keep(&one, &model).bytes(), first.memory_use().weights);
    assert_eq!(run(first.as_mut(), output), run(second.as_mut(), output));
    // Other rows of the same tensor are other weights; the bias is the same.
    assert_eq!(device.keep(&other, &model).bytes(), 8);
    drop(first);
    let expected = run(second.as_mut(), output);
    drop(second);
    assert_eq!(device.keep(&one, &model).bytes(), 0, "nobody has them any more");
    let mut again = load(&one, &mut read);
    assert_eq!((run(again.as_mut(), output), read), (expected, 2 * (48 + 8)));
}

#[test]
fn kept_weights_outlive_their_stage_for_this_model_only() {
    let (device, model) = (CpuDevice::new(1, None).unwrap(), model());
    let (program, output) = slice(0..2);
    let mut stage = device.load(program.clone(), &model, MEMORY, &mut |_| ()).unwrap();
    let expected = run(stage.as_mut(), output);
    let kept = device.keep(stage.program(), &model);
    let weights = stage.memory_use().weights;
    drop(stage);
    assert_eq!((kept.bytes(), device.keep(&program, &model).bytes()), (weights, weights));
    assert_eq!(device.keep(&program, &self::model()).bytes(), 0, "the same bytes of another file are not known");
    let mut again = device.load(program.clone(), &model, MEMORY, &mut |_| panic!("everything is there")).unwrap();
    assert_eq!(run(again.as_mut(), output), expected);
    drop((kept, again));
    assert_eq!(device.keep(&program, &model).bytes(), 0);
}

/// Experts whose gate and up rows are fused: each expert's rows are cut on their own.
#[test]
fn a_slice_of_fused_experts_is_cut_from_every_expert() {
    let mut program = Program::default();
    let stream = program.buffer("stream", 2, RowSpace::Step);
    let route = program.buffer("route", 2, RowSpace::Step);
    let logits = program.buffer("logits", 2, RowSpace::Step);
    let output = program.buffer("output", 2, RowSpace::Step);
    program.input = Some(stream);
    let router = program.weight(weight("fused", WeightUse::Matrix, Some(0..2)));
    let gate = program.weight(weight("experts", WeightUse::Experts, Some(0..2)));
    let up = program.weight(weight("experts", WeightUse::Experts, Some(2..4)));
    let down = program.weight(weight("experts", WeightUse::Experts, Some(1..3)));
    let products = vec![Product { weight: router, output: logits, add: false }];
    program.record("router", None, Op::Linear { input: stream, products });
    program.record("route", None, Op::Route { logits, used: 1, renormalize: true, scale: 1.0, output: route });
    program.record("experts", None, Op::Experts { input: stream, route, gate, up, down, output });
    let mut stage = load(program, MEMORY).unwrap();
    let chunks = [ChunkRows { first_row: 0, rows: 1, start: 0, slot: 0, pages: &[], log: ChunkLog::default() }];
    let (vectors, positions) = ([0.25, 1.0], [[0; 4]; 1]);
    let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
    stage.run(&inputs).unwrap();
    let mut found = [0.0; 2];
    stage.read(output, 0..1, &mut found).unwrap();
    // The second logit is larger, so expert 1: rows (8, 9) to (14, 15), of which gate has the first two,
    // up the last two, and down the middle two.
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let product = |row: [f64; 2], x: [f64; 2]| row[0] * x[0] + row[1] * x[1];
    let x = [0.25, 1.0];
    let hidden = [
        silu(product([8.0, 9.0], x)) * product([12.0, 13.0], x),
        silu(product([10.0, 11.0], x)) * product([14.0, 15.0], x),
    ];
    for (found, row) in found.iter().zip([[10.0, 11.0], [12.0, 13.0]]) {
        let expected = product(row, hidden);
        assert!((f64::from(*found) - expected).abs() <= 1e-6 * expected, "{found} is not {expected}");
    }
}

#[test]
fn tensors_that_do_not_fit_are_named() {
    let missing = refusal(program(weight("fusde", WeightUse::Matrix, None), 6).0, MEMORY);
    assert_eq!(missing.to_string(), "tensor fusde is missing from the model file");
    let wide = refusal(program(weight("fused", WeightUse::Matrix, None), 5).0, MEMORY);
    assert!(matches!(&wide, Error::WrongShape { tensor, .. } if tensor == "fused"), "{wide}");
    let rows = refusal(program(weight("fused", WeightUse::Matrix, Some(4..7)), 3).0, MEMORY);
    let expected = "tensor fused is [2, 6], but the model's settings need at least 7 rows";
    assert_eq!(rows.to_string(), expected);
}

#[test]
fn a_convolution_of_too_many_taps_is_refused() {
    let mut program = Program::default();
    let [input, output] = ["input", "output"].map(|name| program.buffer(name, 6, RowSpace::Step));
    let state = program.state(StateSpec { channels: 6, taps: 1000, value_heads: 1, head_dim: 1 });
    let weight = program.weight(weight("fused", WeightUse::Vector, None));
    program.record("conv", None, Op::Convolve { input, weight, state, output });
    assert!(matches!(refusal(program, MEMORY), Error::WrongShape { .. }));
}

#[test]
fn keys_and_values_that_cannot_be_stored_are_refused() {
    let (mut program, _) = program(weight("fused", WeightUse::Matrix, None), 6);
    program.cache(CacheSpec { key_value_heads: 1, key_dim: 32, value_dim: 48 });
    let error = refusal(program, MemorySpec { value_type: KvType::Q8_0, ..MEMORY });
    assert_eq!(error.to_string(), "48 values per row are not a multiple of the 32 values of a Q8_0 block");
}

/// Sizes come from metadata and flags: whatever they are, the answer is an error.
#[test]
fn memory_that_cannot_be_had_is_refused() {
    let huge = MemorySpec { pages: usize::MAX, ..MEMORY };
    let (mut with_cache, _) = program(weight("fused", WeightUse::Matrix, None), 6);
    with_cache.cache(CacheSpec { key_value_heads: 1, key_dim: 32, value_dim: 32 });
    assert!(matches!(refusal(with_cache, huge), Error::OutOfMemory { what: "pages", .. }));

    let (mut with_state, _) = program(weight("fused", WeightUse::Matrix, None), 6);
    with_state.state(StateSpec { channels: usize::MAX, taps: 9, value_heads: 1 << 40, head_dim: 1 << 40 });
    assert!(matches!(refusal(with_state, MEMORY), Error::OutOfMemory { what: "states", .. }));

    let (rows, _) = program(weight("fused", WeightUse::Matrix, None), 6);
    let error = refusal(rows, MemorySpec { rows: usize::MAX, ..MEMORY });
    assert!(matches!(error, Error::OutOfMemory { what: "buffers", .. }), "{error}");
}

#[test]
fn a_device_describes_itself() {
    let device = CpuDevice::new(3, Some(paceline_compute::cpu::simd::Isa::Scalar)).unwrap();
    let description = device.describe();
    assert_eq!((description.name.as_str(), description.detail.as_str()), ("cpu", "scalar, 3 threads"));
    assert!(CpuDevice::new(0, None).is_err());
}
