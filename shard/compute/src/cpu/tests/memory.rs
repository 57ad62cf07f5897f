//! Clearing and copying states, copying pages.

use super::*;
use crate::Error;
use crate::device::{MemoryOperation, MemoryPart};
use crate::program::{Cache, CacheSpec, Heads, Queries, Rope, RopeStyle, Rotation, State, StateSpec};

/// A convolution and an attention whose keys and values are their inputs.
fn fixture() -> (Fixture, [Buffer; 3]) {
    let mut fixture = Fixture::new();
    let [input, convolved, query, key, value, output, table] =
        [("input", 4), ("convolved", 4), ("query", 4), ("key", 4), ("value", 4), ("output", 4), ("table", 2)]
            .map(|(name, width)| fixture.buffer(name, width));
    let weight = fixture.tensor("taps", WeightUse::Vector, &[3, 4], &[0.5; 12]);
    let state = fixture.program.state(StateSpec { channels: 4, taps: 3, value_heads: 1, head_dim: 4 });
    let cache = fixture.program.cache(CacheSpec { key_value_heads: 1, key_dim: 4, value_dim: 4 });
    let rope = Rope {
        style: RopeStyle::Neox,
        dimensions: 2,
        base: 10.0,
        factor: 1.0,
        yarn: None,
        sections: None,
        divisors: None,
    };
    let query_heads = Heads { count: 1, dim: 4, stride: 4 };
    fixture.record(Op::Convolve { input, weight, state, output: convolved });
    fixture.record(Op::RopeTable { rope, output: table });
    fixture.record(Op::StoreKeysValues {
        queries: Some(Queries { buffer: query, heads: query_heads, norm: None }),
        key,
        value,
        key_norm: None,
        epsilon: 1e-6,
        rotation: Some(Rotation { style: RopeStyle::Neox, table }),
        cache,
    });
    fixture.record(Op::Attention { query, query_heads, gate_offset: None, scale: 1.0, causal: true, cache, output });
    let mut random = Random(9);
    fixture.page_tokens = 4;
    fixture.sessions(&[8, 8], &[(input, 1.0), (query, 1.0), (key, 1.0), (value, 1.0)], &mut random);
    (fixture, [input, convolved, output])
}

/// Runs rows of the first session's data with a slot and pages of choice.
fn step(stage: &mut CpuStage, fixture: &Fixture, rows: std::ops::Range<usize>, slot: usize, pages: &[u32]) {
    for (buffer, values) in &fixture.sessions[0].buffers {
        stage.buffer_mut(*buffer)[..rows.len() * 4].copy_from_slice(&values[rows.start * 4..rows.end * 4]);
    }
    let positions: Vec<[u32; 4]> = rows.clone().map(|row| [row as u32; 4]).collect();
    let chunks =
        [ChunkRows { first_row: 0, rows: rows.len(), start: rows.start, slot, pages, log: ChunkLog::default() }];
    let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] };
    stage.run(&inputs).unwrap();
}

fn read(stage: &mut CpuStage, buffers: &[Buffer]) -> Vec<Vec<f32>> {
    let read = |buffer: &Buffer| {
        let mut values = [0.0; 8];
        stage.read(*buffer, 0..2, &mut values).unwrap();
        values.to_vec()
    };
    buffers.iter().map(read).collect()
}

#[test]
fn copies_go_on_like_their_originals() {
    let (fixture, [_, convolved, output]) = fixture();
    let mut stage = fixture.load(Isa::detect(), 2);
    step(&mut stage, &fixture, 0..6, 0, &[0, 1]);
    stage.apply(MemoryOperation::CopyState { from: 0, to: 1 }).unwrap();
    stage.apply(MemoryOperation::CopyPage { from: 1, to: 3 }).unwrap();
    step(&mut stage, &fixture, 6..8, 0, &[0, 1]);
    let original = read(&mut stage, &[convolved, output]);
    step(&mut stage, &fixture, 6..8, 1, &[0, 3]);
    assert_eq!(read(&mut stage, &[convolved, output]), original);
}

/// Moves a page or slot from one stage to another.
fn carry(from: &mut CpuStage, to: &mut CpuStage, part: MemoryPart) {
    let mut bytes = vec![0xa5; from.part_bytes(part).unwrap()];
    from.read_part(part, &mut bytes).unwrap();
    to.write_part(part, &bytes).unwrap();
}

#[test]
fn memories_go_on_in_a_stage_of_any_kernels() {
    let isas: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    for kinds in [[KvType::F32, KvType::F16], [KvType::BF16, KvType::F32]] {
        for (from, to) in isas.iter().flat_map(|from| isas.iter().map(move |to| (*from, *to))) {
            let (mut fixture, [_, convolved, output]) = fixture();
            fixture.kinds = kinds;
            let (mut old, mut new) = (fixture.load(from, 2), fixture.load(to, 1));
            assert_eq!(old.memory_form(), new.memory_form());
            step(&mut old, &fixture, 0..6, 1, &[3, 1]);
            for page in [1, 3] {
                carry(&mut old, &mut new, MemoryPart::Page { cache: Cache(0), page });
            }
            carry(&mut old, &mut new, MemoryPart::Slot { state: State(0), slot: 1 });
            step(&mut old, &fixture, 6..8, 1, &[3, 1]);
            step(&mut new, &fixture, 6..8, 1, &[3, 1]);
            let expected = read(&mut old, &[convolved, output]);
            assert!(read(&mut new, &[convolved, output]) == expected, "{kinds:?} from {from} to {to}");
        }
    }
}

#[test]
fn parts_are_all_of_the_memory_and_no_more() {
    let (mut fixture, _) = fixture();
    for kinds in [[KvType::F32; 2], [KvType::F16, KvType::BF16]] {
        fixture.kinds = kinds;
        let mut stage = fixture.load(Isa::detect(), 1);
        let (pages, slots) = (fixture.memory().pages as u64, fixture.memory().slots as u64);
        let (page, slot) = (
            MemoryPart::Page { cache: Cache(0), page: pages as u32 - 1 },
            MemoryPart::Slot { state: State(0), slot: slots as usize - 1 },
        );
        let used = stage.memory_use();
        assert_eq!(stage.part_bytes(page).unwrap() as u64 * pages, used.pages);
        assert_eq!(stage.part_bytes(slot).unwrap() as u64 * slots, used.states);
        for part in [page, slot] {
            let bytes = stage.part_bytes(part).unwrap();
            for wrong in [0, bytes - 1, bytes + 1] {
                assert!(matches!(stage.write_part(part, &vec![0; wrong]), Err(Error::Inconsistent { .. })));
                assert!(matches!(stage.read_part(part, &mut vec![0; wrong]), Err(Error::Inconsistent { .. })));
            }
        }
        for part in [
            MemoryPart::Page { cache: Cache(0), page: pages as u32 },
            MemoryPart::Page { cache: Cache(0), page: u32::MAX },
            MemoryPart::Page { cache: Cache(1), page: 0 },
            MemoryPart::Slot { state: State(0), slot: slots as usize },
            MemoryPart::Slot { state: State(u16::MAX), slot: 0 },
        ] {
            assert!(matches!(stage.part_bytes(part), Err(Error::Unknown { .. })), "{part:?}");
            assert!(matches!(stage.write_part(part, &[]), Err(Error::Unknown { .. })), "{part:?}");
        }
    }
}

#[test]
fn other_layouts_have_other_forms() {
    let (mut fixture, _) = fixture();
    let form = |fixture: &Fixture| fixture.load(Isa::detect(), 1).memory_form();
    let one = form(&fixture);
    fixture.kinds = [KvType::F16, KvType::F32];
    let other = form(&fixture);
    fixture.page_tokens = 8;
    assert!(one != other && other != form(&fixture) && one.starts_with("cpu"));
}

#[test]
fn a_cleared_state_begins_anew() {
    let (fixture, [_, convolved, _]) = fixture();
    let mut stage = fixture.load(Isa::detect(), 1);
    step(&mut stage, &fixture, 0..2, 1, &[0]);
    let first = read(&mut stage, &[convolved]);
    step(&mut stage, &fixture, 0..2, 1, &[0]);
    assert_ne!(read(&mut stage, &[convolved]), first, "the window remembers");
    stage.apply(MemoryOperation::ClearState { slot: 1 }).unwrap();
    step(&mut stage, &fixture, 0..2, 1, &[0]);
    assert_eq!(read(&mut stage, &[convolved]), first);
}

#[test]
fn slots_and_pages_that_do_not_exist_are_refused() {
    let (fixture, _) = fixture();
    let mut stage = fixture.load(Isa::detect(), 1);
    let pages = fixture.memory().pages as u32;
    for operation in [
        MemoryOperation::ClearState { slot: 2 },
        MemoryOperation::CopyState { from: 0, to: 2 },
        MemoryOperation::CopyState { from: 2, to: 0 },
        MemoryOperation::CopyPage { from: 0, to: pages },
        MemoryOperation::CopyPage { from: u32::MAX, to: 0 },
    ] {
        assert!(matches!(stage.apply(operation), Err(Error::Unknown { .. })), "{operation:?}");
    }
}

#[test]
fn memory_use_counts_everything_reserved() {
    let (fixture, _) = fixture();
    let stage = fixture.load(Isa::detect(), 1);
    let used = stage.memory_use();
    let pages = fixture.memory().pages as u64;
    // Keys and values of 4 tokens, padded to 16 numbers.
    assert_eq!(used.pages, pages * 2 * 4 * 16 * 4);
    // Two slots of a window of two taps and a matrix of four rows, padded to 16 columns.
    assert_eq!(used.states, 2 * (2 * 4 + 4 * 16) * 4);
    assert_eq!(used.weights, 12 * 4);
    assert!(used.buffers >= 16 * (6 * 4 + 2) * 4);
}
