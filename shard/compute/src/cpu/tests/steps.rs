//! Embedding, gathering, reading, and the refusal of steps that do not fit.

use super::*;
use crate::Error;
use crate::device::NO_TOKEN;
use crate::program::{CacheSpec, Heads, Queries, Rope, RopeStyle, Rotation, StateSpec};

const VOCABULARY: usize = 10;
const WIDTH: usize = 4;

/// A program that embeds and gathers; with `memories` it also has a cache and a state.
fn fixture(memories: bool) -> (Fixture, [Buffer; 2]) {
    let mut fixture = Fixture::new();
    let stream = fixture.buffer("stream", WIDTH);
    let hidden = fixture.program.buffer("hidden", WIDTH, RowSpace::Wanted);
    let values: Vec<f32> = (0..VOCABULARY * WIDTH).map(|value| value as f32).collect();
    let table = fixture.tensor("table", WeightUse::Table, &[WIDTH, VOCABULARY], &values);
    fixture.program.embeds = true;
    fixture.program.input = Some(stream);
    fixture.record(Op::Embed { table, output: stream });
    fixture.record(Op::Gather { input: stream, output: hidden });
    if memories {
        fixture.program.state(StateSpec { channels: 1, taps: 2, value_heads: 1, head_dim: 1 });
        fixture.program.cache(CacheSpec { key_value_heads: 1, key_dim: 4, value_dim: 4 });
    }
    fixture.page_tokens = 4;
    fixture.sessions = [8, 8].map(|rows| Session { rows, ..Session::default() }).into();
    (fixture, [stream, hidden])
}

/// A step that fits, of two chunks; the tests change one thing each.
#[derive(Clone)]
struct Step {
    chunks: Vec<ChunkRows<'static>>,
    tokens: Vec<u32>,
    vectors: Vec<f32>,
    positions: Vec<[u32; 4]>,
    wanted: Vec<u32>,
}

fn good() -> Step {
    Step {
        chunks: vec![
            ChunkRows { first_row: 0, rows: 3, start: 3, slot: 0, pages: &[0, 1], log: ChunkLog::default() },
            ChunkRows { first_row: 3, rows: 1, start: 0, slot: 1, pages: &[5], log: ChunkLog::default() },
        ],
        tokens: vec![7, NO_TOKEN, 2, NO_TOKEN],
        vectors: (100..108).map(|value| value as f32).collect(),
        positions: vec![[0; 4]; 4],
        wanted: vec![1, 2],
    }
}

impl Step {
    fn inputs(&self) -> StepInputs<'_> {
        StepInputs {
            chunks: &self.chunks,
            tokens: &self.tokens,
            vectors: &self.vectors,
            positions: &self.positions,
            wanted: &self.wanted,
        }
    }

    fn run(&self, stage: &mut CpuStage) -> crate::Result<()> {
        stage.run(&self.inputs())
    }
}

#[test]
fn rows_are_looked_up_copied_and_gathered() {
    let (fixture, [stream, hidden]) = fixture(true);
    for threads in [1, 3] {
        let mut stage = fixture.load(Isa::detect(), threads);
        good().run(&mut stage).unwrap();
        let mut rows = [0.0; 16];
        stage.read(stream, 0..4, &mut rows).unwrap();
        let expected = [28, 29, 30, 31, 100, 101, 102, 103, 8, 9, 10, 11, 104, 105, 106, 107];
        assert_eq!(rows, expected.map(|value| value as f32));
        let mut wanted = [0.0; 8];
        stage.read(hidden, 0..2, &mut wanted).unwrap();
        assert_eq!(wanted, rows[4..12]);
    }
}

type Change = fn(&mut Step);

#[test]
fn steps_that_do_not_fit_are_refused_and_change_nothing() {
    let changes: [(&str, Change); 19] = [
        ("the step has 17 rows, but 16 were reserved", |step| step.positions = vec![[0; 4]; 17]),
        ("the step has 17 wanted rows, but 16 were reserved", |step| step.wanted = vec![0; 17]),
        ("wanted row 4 does not exist; there are 4", |step| step.wanted = vec![1, 4]),
        ("wanted rows, which ascend, are 1, expected 2", |step| step.wanted = vec![1, 1]),
        ("tokens are 3, expected 4", |step| step.tokens.truncate(3)),
        ("token 10 does not exist; there are 10", |step| step.tokens[0] = 10),
        ("values in vectors are 7, expected 8", |step| step.vectors.truncate(7)),
        ("values in vectors are 8, expected 12", |step| step.tokens[0] = NO_TOKEN),
        ("first row of a chunk are 4, expected 3", |step| step.chunks[1].first_row = 4),
        ("rows in chunks are 3, expected 4", |step| step.chunks.truncate(1)),
        ("the step has 5 rows in chunks, but 4", |step| step.chunks[1].rows = 2),
        ("the step has 18446744073709551615 rows in chunks", |step| step.chunks[1].rows = usize::MAX),
        ("state slot 2 does not exist; there are 2", |step| step.chunks[1].slot = 2),
        ("state slot 0 is written twice", |step| step.chunks[1].slot = 0),
        ("page 10 does not exist; there are 10", |step| step.chunks[1].pages = &[10]),
        ("page 1 is written twice", |step| step.chunks[1].pages = &[1]),
        ("page 1 is written twice", |step| step.chunks[0].pages = &[1, 1]),
        ("pages of a chunk are 2, expected 3", |step| step.chunks[0].start = 6),
        ("pages of a chunk are 2, expected 4611686018427387904", |step| step.chunks[0].start = usize::MAX),
    ];
    let (fixture, [stream, _]) = fixture(true);
    let mut stage = fixture.load(Isa::detect(), 2);
    good().run(&mut stage).unwrap();
    let mut before = [0.0; 16];
    stage.read(stream, 0..4, &mut before).unwrap();
    for (expected, change) in changes {
        let mut step = good();
        change(&mut step);
        let error = step.run(&mut stage).unwrap_err().to_string();
        assert!(error.contains(expected), "{error} instead of {expected}");
        let mut after = [0.0; 16];
        stage.read(stream, 0..4, &mut after).unwrap();
        assert_eq!(before, after, "{expected}");
    }
    good().run(&mut stage).unwrap();
}

/// A page that two sessions only read may be shared.
#[test]
fn prefixes_may_be_shared() {
    let (fixture, _) = fixture(true);
    let mut stage = fixture.load(Isa::detect(), 1);
    let mut step = good();
    step.chunks[0] = ChunkRows { start: 4, pages: &[3, 1], ..step.chunks[0] };
    step.chunks[1] = ChunkRows { start: 4, pages: &[3, 2], ..step.chunks[1] };
    step.run(&mut stage).unwrap();
}

#[test]
fn programs_without_memories_need_no_pages_and_slots() {
    let (fixture, _) = fixture(false);
    let mut stage = fixture.load(Isa::detect(), 1);
    let mut step = good();
    step.chunks = vec![ChunkRows { first_row: 0, rows: 4, start: 99, slot: 99, pages: &[], log: ChunkLog::default() }];
    step.run(&mut stage).unwrap();
}

#[test]
fn an_empty_step_is_a_step() {
    let (fixture, _) = fixture(true);
    let mut stage = fixture.load(Isa::detect(), 2);
    let nothing = Step { chunks: vec![], tokens: vec![], vectors: vec![], positions: vec![], wanted: vec![] };
    nothing.run(&mut stage).unwrap();
}

#[test]
fn later_stages_take_rows_of_the_stream() {
    let mut fixture = Fixture::new();
    let stream = fixture.buffer("stream", WIDTH);
    let bias = fixture.vector("bias", &[1.0; WIDTH]);
    fixture.program.input = Some(stream);
    fixture.record(Op::AddBias { buffer: stream, bias });
    fixture.sessions = vec![Session { rows: 8, ..Session::default() }];
    let mut stage = fixture.load(Isa::detect(), 2);
    let mut step = good();
    assert!(step.run(&mut stage).unwrap_err().to_string().contains("tokens are 4, expected 0"));
    step.tokens = Vec::new();
    assert!(step.run(&mut stage).unwrap_err().to_string().contains("values in vectors are 8, expected 16"));
    step.vectors = (0..16).map(|value| value as f32).collect();
    step.run(&mut stage).unwrap();
    let mut rows = [0.0; 8];
    stage.read(stream, 2..4, &mut rows).unwrap();
    assert_eq!(rows, [9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0]);
}

/// One entry takes vectors, the other tokens; a run executes the operations of one of them.
#[test]
fn entries_are_run_apart() {
    let (mut fixture, [stream, _]) = fixture(false);
    let (taken, bias) = (fixture.buffer("taken", 2), fixture.vector("bias", &[1.0; 2]));
    let scale = fixture.vector("scale", &[1.0; WIDTH]);
    fixture.program.input = Some(taken);
    fixture.program.cuts.push(fixture.program.ops.len());
    fixture.record(Op::AddBias { buffer: taken, bias });
    fixture.program.cuts.push(fixture.program.ops.len());
    fixture.record(Op::AddBias { buffer: stream, bias: scale });
    let mut stage = fixture.load(Isa::detect(), 2);
    let step = good();
    let inputs = step.inputs();
    let read = |stage: &mut CpuStage, buffer, width| {
        let mut values = vec![0.0; width];
        stage.read(buffer, 1..2, &mut values).unwrap();
        values
    };
    stage.run_entry(0, &inputs).unwrap();
    assert_eq!(read(&mut stage, stream, WIDTH), [100.0, 101.0, 102.0, 103.0]);
    let later = StepInputs { tokens: &[], ..inputs };
    assert!(stage.run_entry(1, &inputs).unwrap_err().to_string().contains("tokens are 4, expected 0"));
    assert!(stage.run_entry(0, &later).unwrap_err().to_string().contains("tokens are 0, expected 4"));
    stage.run_entry(1, &later).unwrap();
    assert_eq!(read(&mut stage, taken, 2), [103.0, 104.0]);
    assert_eq!(read(&mut stage, stream, WIDTH), [100.0, 101.0, 102.0, 103.0], "the other entry's stay");
    stage.run_entry(2, &later).unwrap();
    assert_eq!(read(&mut stage, stream, WIDTH), [101.0, 102.0, 103.0, 104.0]);
    assert!(matches!(stage.run_entry(3, &inputs), Err(Error::Unknown { what: "entry", id: 3, count: 3 })));
}

#[test]
fn only_rows_of_the_last_step_can_be_read() {
    let (fixture, [stream, hidden]) = fixture(true);
    let mut stage = fixture.load(Isa::detect(), 1);
    good().run(&mut stage).unwrap();
    let mut values = [0.0; WIDTH];
    assert!(matches!(stage.read(stream, 4..5, &mut values), Err(Error::Unknown { what: "row", id: 4, count: 4 })));
    assert!(matches!(stage.read(hidden, 2..3, &mut values), Err(Error::Unknown { what: "row", id: 2, count: 2 })));
    let error = stage.read(stream, 0..2, &mut values).unwrap_err();
    assert!(matches!(error, Error::Inconsistent { found: 4, expected: 8, .. }), "{error}");
}

#[test]
fn observers_see_every_operation() {
    let (fixture, [stream, hidden]) = fixture(true);
    let mut stage = fixture.load(Isa::detect(), 2);
    let step = good();
    let mut seen = Vec::new();
    let inputs = step.inputs();
    stage.run_observed(&inputs, &mut |index, read| seen.push((index, read(stream)[0], read(hidden).len()))).unwrap();
    assert_eq!(seen, [(0, 28.0, 8), (1, 28.0, 8)]);
}

#[test]
#[should_panic(expected = "uses a buffer twice")]
fn operations_in_place_must_be_recorded_as_such() {
    let (mut fixture, [stream, _]) = fixture(false);
    let weight = fixture.vector("weight", &[1.0; WIDTH]);
    fixture.record(Op::Norm { input: stream, weight, epsilon: 1e-6, output: stream });
    fixture.load(Isa::detect(), 1);
}

/// Only a page's own tokens are read: what another session left in the rest of a page has no effect.
#[test]
fn what_a_page_held_before_has_no_effect() {
    let mut fixture = Fixture::new();
    let [query, key, value, output] = ["query", "key", "value", "output"].map(|name| fixture.buffer(name, 4));
    let table = fixture.buffer("table", 2);
    let cache = fixture.program.cache(CacheSpec { key_value_heads: 1, key_dim: 4, value_dim: 4 });
    let rope = Rope {
        style: RopeStyle::Adjacent,
        dimensions: 2,
        base: 10.0,
        factor: 1.0,
        yarn: None,
        sections: None,
        divisors: None,
    };
    let (query_heads, style) = (Heads { count: 1, dim: 4, stride: 4 }, RopeStyle::Adjacent);
    fixture.record(Op::RopeTable { rope, output: table });
    fixture.record(Op::StoreKeysValues {
        queries: Some(Queries { buffer: query, heads: query_heads, norm: None }),
        key,
        value,
        key_norm: None,
        epsilon: 1e-6,
        rotation: Some(Rotation { style, table }),
        cache,
    });
    fixture.record(Op::Attention { query, query_heads, gate_offset: None, scale: 1.0, causal: true, cache, output });
    fixture.sessions = vec![Session { rows: 16, ..Session::default() }];
    let mut stage = fixture.load(Isa::detect(), 1);
    let mut run = |rows: usize, fill: f32| {
        for (buffer, size) in [(query, 1.0), (key, fill), (value, fill)] {
            stage.buffer_mut(buffer)[..4 * rows].fill(size);
        }
        let chunks = [ChunkRows { first_row: 0, rows, start: 0, slot: 0, pages: &[0], log: ChunkLog::default() }];
        let positions = vec![[0; 4]; rows];
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] };
        stage.run(&inputs).unwrap();
        let mut values = [0.0; 4];
        stage.read(output, rows - 1..rows, &mut values).unwrap();
        values
    };
    let clean = run(5, 1.0);
    run(16, f32::NAN);
    assert_eq!(run(5, 1.0), clean);
}
