//! Memory operations, parts that move to other stages, and what a device says when something is wrong.

use std::sync::Arc;

use paceline_compute::device::{ChunkLog, LogSpec, MemoryOperation, MemoryPart, MemorySpec};
use paceline_compute::program::{Cache, CacheSpec, Heads, Op, Rope, RopeStyle, Rotation, State, StateSpec};
use paceline_compute::{Device, Error, LoadedStage};
use paceline_cuda::CudaDevice;
use paceline_cuda::driver::{Driver, Shape};
use paceline_cuda::roof::{Roof, Sample};
use paceline_emulation::{EmulatedDriver, Order};
use paceline_gguf::KvType;

use crate::harness::{Case, cpu, emulated};

/// A convolution and attention, for sessions that only differ in what they remember.
fn remembering() -> Case {
    let mut case = Case::new(31);
    case.kinds = [KvType::Q8_0, KvType::F16];
    case.page_tokens = 4;
    case.logs = LogSpec { sessions: 1, tokens: 3 };
    let [input, query, key, value] = case.inputs([8, 32, 32, 32]);
    let state = case.program.state(StateSpec { channels: 8, taps: 4, value_heads: 1, head_dim: 2 });
    let weight_values = case.random.values(32, 1.0);
    let weight = case.vector_of(&[4, 8], &weight_values);
    let output = case.output(8);
    case.program.record("convolve", Some(0), Op::Convolve { input, weight, state, output });
    let rope = case.output(4);
    let (style, dimensions) = (RopeStyle::Neox, 4);
    let rotation = Rope { style, dimensions, base: 100.0, factor: 1.0, yarn: None, sections: None, divisors: None };
    case.record(Op::RopeTable { rope: rotation, output: rope });
    let cache = case.program.cache(CacheSpec { key_value_heads: 1, key_dim: 32, value_dim: 32 });
    let store = Op::StoreKeysValues {
        queries: None,
        key,
        value,
        key_norm: None,
        epsilon: 1e-6,
        rotation: Some(Rotation { style, table: rope }),
        cache,
    };
    case.record(store);
    let query_heads = Heads { count: 1, dim: 32, stride: 32 };
    let output = case.output(32);
    case.record(Op::Attention { query, query_heads, gate_offset: None, scale: 0.2, causal: true, cache, output });
    case.sessions(&[6, 6], 1.0);
    case
}

fn run(case: &Case, stage: &mut dyn LoadedStage, session: usize, rows: std::ops::Range<usize>) -> Vec<Vec<u32>> {
    case.step_with(stage, &[(session, rows.clone(), 0, ChunkLog::default())]);
    let outputs = case.outputs.iter().copied();
    outputs.map(|output| case.read(stage, output, 0..rows.len())).collect()
}

fn part(stage: &mut dyn LoadedStage, part: MemoryPart) -> Vec<u8> {
    let mut bytes = vec![0; stage.part_bytes(part).expect("the part is there")];
    stage.read_part(part, &mut bytes).expect("the part is there");
    bytes
}

/// Pages of a session in the order of its tokens, as the harness deals them out.
fn pages(case: &Case, session: u32) -> Vec<u32> {
    let count = 2;
    (0..case.memory().pages as u32 / count).rev().map(|page| page * count + session).collect()
}

#[test]
fn slots_and_pages_are_cleared_and_copied() {
    let case = remembering();
    let mut stage = case.load(&emulated(Order::Forwards));
    let stage = stage.as_mut();
    let slot = |slot| MemoryPart::Slot { state: State(0), slot };
    run(&case, stage, 0, 0..5);
    assert!(part(stage, slot(0)).iter().any(|byte| *byte != 0) && part(stage, slot(1)).iter().all(|byte| *byte == 0));
    // The other session goes on from where this one is.
    stage.apply(MemoryOperation::CopyState { from: 0, to: 1 }).unwrap();
    for (from, to) in pages(&case, 0).into_iter().zip(pages(&case, 1)) {
        stage.apply(MemoryOperation::CopyPage { from, to }).unwrap();
    }
    assert_eq!(part(stage, slot(0)), part(stage, slot(1)));
    let page = |page| MemoryPart::Page { cache: Cache(0), page };
    assert_eq!(part(stage, page(pages(&case, 0)[0])), part(stage, page(pages(&case, 1)[0])));
    stage.apply(MemoryOperation::ClearState { slot: 0 }).unwrap();
    assert!(part(stage, slot(0)).iter().all(|byte| *byte == 0) && part(stage, slot(1)).iter().any(|byte| *byte != 0));
    for operation in [MemoryOperation::ClearState { slot: 2 }, MemoryOperation::CopyPage { from: 0, to: 99 }] {
        assert!(matches!(stage.apply(operation), Err(Error::Unknown { .. })), "{operation:?}");
    }
}

/// What a stage remembers goes to another one, which goes on with the same bits.
#[test]
fn parts_move_to_another_stage() {
    let case = remembering();
    let (mut first, mut second) = (case.load(&emulated(Order::Forwards)), case.load(&emulated(Order::Backwards)));
    run(&case, first.as_mut(), 0, 0..5);
    let pages = (0..case.memory().pages as u32).map(|page| MemoryPart::Page { cache: Cache(0), page });
    let slots = (0..2).map(|slot| MemoryPart::Slot { state: State(0), slot });
    let logged = (0..3).map(|position| MemoryPart::Logged { state: State(0), place: 0, position });
    assert_eq!(first.memory_form(), second.memory_form());
    for moved in pages.chain(slots).chain(logged) {
        let bytes = part(first.as_mut(), moved);
        second.write_part(moved, &bytes).unwrap();
        assert_eq!(part(second.as_mut(), moved), bytes);
    }
    assert_eq!(run(&case, first.as_mut(), 0, 5..6), run(&case, second.as_mut(), 0, 5..6));
    let wrong = MemoryPart::Slot { state: State(0), slot: 0 };
    assert!(matches!(second.write_part(wrong, &[0; 3]), Err(Error::Inconsistent { .. })));
    assert!(second.part_bytes(MemoryPart::Slot { state: State(1), slot: 0 }).is_err());
}

#[test]
fn observers_see_what_the_cpu_shows_them() {
    let case = remembering();
    let see = |device: &dyn Device| {
        let mut stage = case.load(device);
        let mut seen = Vec::new();
        let inputs = paceline_compute::device::StepInputs {
            chunks: &[paceline_compute::device::ChunkRows {
                first_row: 0,
                rows: 2,
                start: 0,
                slot: 0,
                pages: &[1],
                log: ChunkLog::default(),
            }],
            tokens: &[],
            vectors: &[0.25; 2 * 104],
            positions: &[[0; 4], [1; 4]],
            wanted: &[],
        };
        let mut observe = |index: usize, read: &dyn Fn(paceline_compute::program::Buffer) -> Vec<f32>| {
            let buffers = case.outputs.iter().map(|output| read(*output));
            seen.push((index, buffers.map(|values| values.len()).collect::<Vec<_>>(), read(case.outputs[2])));
        };
        stage.run_observed(&inputs, &mut observe).unwrap();
        let mut measured = Vec::new();
        stage.run_measured(&inputs, &mut |time| measured.extend(time.operations)).unwrap();
        assert_eq!(measured, (0..case.program.ops.len()).collect::<Vec<_>>());
        seen
    };
    assert_eq!(see(&emulated(Order::Forwards)).last(), see(&cpu()).last());
}

#[test]
fn weights_are_shared_and_memory_is_given_back() {
    let case = remembering();
    let driver = Arc::new(EmulatedDriver::new(Order::Forwards));
    let device = CudaDevice::new(Arc::clone(&driver) as Arc<dyn Driver>);
    let model = case.model();
    let mut read = 0;
    let mut load = || device.load(case.program.clone(), &model, case.memory(), &mut |bytes| read += bytes).unwrap();
    let (first, second) = (load(), load());
    assert_eq!(read, 128, "the second stage reads nothing");
    let kept = device.keep(&case.program, &model);
    assert_eq!(kept.bytes(), first.memory_use().weights);
    let use_of = |stage: &dyn LoadedStage| {
        let used = stage.memory_use();
        used.pages + used.states + used.buffers
    };
    let both = use_of(first.as_ref()) + use_of(second.as_ref());
    assert!(driver.used_bytes() <= both + kept.bytes());
    drop((first, second));
    assert_eq!(driver.used_bytes(), kept.bytes());
    drop(kept);
    assert_eq!(driver.used_bytes(), 0);
}

#[test]
fn memory_that_cannot_be_had_is_refused() {
    let case = remembering();
    let huge = [
        MemorySpec { pages: usize::MAX, ..case.memory() },
        MemorySpec { rows: usize::MAX, ..case.memory() },
        MemorySpec { slots: usize::MAX, ..case.memory() },
    ];
    let small: Arc<dyn Driver> = Arc::new(EmulatedDriver::new(Order::Forwards).with_memory(4096));
    let small = CudaDevice::new(small);
    let large = emulated(Order::Forwards);
    let loads = huge.iter().map(|memory| (&large, *memory)).chain([(&small, case.memory())]);
    for (device, memory) in loads {
        let refused = device.load(case.program.clone(), &case.model(), memory, &mut |_| ()).err();
        assert!(matches!(refused, Some(Error::OutOfMemory { .. })), "{memory:?}: {refused:?}");
    }
}

#[test]
fn what_cannot_run_is_an_error() {
    let driver = EmulatedDriver::new(Order::Forwards);
    let unknown = driver.kernel("linear_q1_0").unwrap_err().to_string();
    assert_eq!(unknown, "emulated cannot find a kernel: there is no linear_q1_0");
    let kernel = driver.kernel("swiglu").unwrap();
    let shape = Shape { grid: [1; 3], block: 2048, shared_bytes: 0 };
    // SAFETY: it is refused before it begins.
    #[expect(unsafe_code, reason = "a launch")]
    let refused = unsafe { driver.launch(kernel, shape, &[0; 6]) };
    assert!(refused.is_err());
}

#[test]
fn a_device_is_measured() {
    let driver: Arc<dyn Driver> = Arc::new(EmulatedDriver::new(Order::Forwards));
    let sample = Sample { bytes: 1 << 16, rows: 9, columns: 64, repeat: 2 };
    let Roof { read, products } = Roof::measure(&driver, &sample).unwrap();
    assert!(read > 0.0 && read.is_finite() && products > 0.0 && products.is_finite());
}
