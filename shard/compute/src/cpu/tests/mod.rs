//! Every operation against a plain reference in double precision, and against itself: the same bits on every
//! instruction set, with any number of threads, in any chunks, alone or among other sessions.

mod attention;
mod fused;
mod logs;
mod memory;
mod mixture;
mod recurrent;
mod rotation;
mod rows;
mod steps;

use std::sync::Arc;

use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, KvType, TensorType};

use super::device::CpuDevice;
use super::simd::Isa;
use super::stage::CpuStage;
use crate::device::{ChunkLog, ChunkRows, LoadedStage, LogSpec, MemorySpec, StepInputs};
use crate::program::{Buffer, Op, Program, RowSpace, Weight, WeightSpec, WeightUse};

/// A small generator (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// Values between −`size` and `size`.
    fn values(&mut self, count: usize, size: f32) -> Vec<f32> {
        let unit = |bits: u64| (bits % 20_001) as f32 / 10_000.0 - 1.0;
        (0..count).map(|_| unit(self.next()) * size).collect()
    }
}

/// A program, its tensors, and the sessions that run it.
pub(super) struct Fixture {
    program: Program,
    file: GgufWriter,
    sessions: Vec<Session>,
    page_tokens: usize,
    kinds: [KvType; 2],
    rotated: bool,
}

/// What one session feeds, for all its rows.
#[derive(Default)]
pub(super) struct Session {
    rows: usize,
    /// What buffers hold before each step.
    buffers: Vec<(Buffer, Vec<f32>)>,
    /// Positions, where they are not simply counted.
    positions: Vec<[u32; 4]>,
}

/// One way to run all sessions.
#[derive(Debug, Clone, Copy)]
struct Way {
    isa: Isa,
    threads: usize,
    /// The most rows of a session per step.
    chunk: usize,
    /// All sessions in one step, or one after another.
    together: bool,
}

/// All rows of a session in one chunk.
const WHOLE: usize = usize::MAX / 2;

impl Fixture {
    fn new() -> Self {
        Self {
            program: Program::default(),
            file: GgufWriter::new(),
            sessions: Vec::new(),
            page_tokens: 16,
            kinds: [KvType::F32; 2],
            rotated: true,
        }
    }

    fn buffer(&mut self, name: &'static str, width: usize) -> Buffer {
        self.program.buffer(name, width, RowSpace::Step)
    }

    /// A tensor of 32-bit floats; dimensions as in the file, contiguous first.
    fn tensor(&mut self, name: &str, usage: WeightUse, dims: &[usize], values: &[f32]) -> Weight {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor_of(name, usage, TensorType::F32, dims, bytes)
    }

    fn tensor_of(&mut self, name: &str, usage: WeightUse, kind: TensorType, dims: &[usize], bytes: Vec<u8>) -> Weight {
        let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
        self.file.tensor(name, kind, &dims, bytes);
        self.program.weight(WeightSpec::whole(name, usage))
    }

    fn vector(&mut self, name: &str, values: &[f32]) -> Weight {
        self.tensor(name, WeightUse::Vector, &[values.len()], values)
    }

    fn record(&mut self, op: Op) {
        self.program.record("op", None, op);
    }

    fn model(&self) -> Arc<Gguf> {
        Arc::new(Gguf::from_vec(self.file.to_vec(), "test").unwrap())
    }

    /// Adds sessions with these numbers of rows and random values in `buffers`.
    fn sessions(&mut self, rows: &[usize], buffers: &[(Buffer, f32)], random: &mut Random) {
        for rows in rows {
            let fill =
                |(buffer, size): &(Buffer, f32)| (*buffer, random.values(rows * self.program.width(*buffer), *size));
            let buffers = buffers.iter().map(fill).collect();
            self.sessions.push(Session { rows: *rows, buffers, positions: Vec::new() });
        }
    }

    /// What session `session` has in `buffer`.
    fn given(&self, session: usize, buffer: Buffer) -> &[f32] {
        let buffers = &self.sessions[session].buffers;
        &buffers.iter().find(|(given, _)| *given == buffer).expect("the session feeds the buffer").1
    }

    fn memory(&self) -> MemorySpec {
        let rows: usize = self.sessions.iter().map(|session| session.rows).sum();
        MemorySpec {
            page_tokens: self.page_tokens,
            pages: (rows / self.page_tokens + 1) * self.sessions.len(),
            slots: self.sessions.len(),
            key_type: self.kinds[0],
            value_type: self.kinds[1],
            rows,
            wanted: rows,
            logs: LogSpec::NONE,
        }
    }

    fn load(&self, isa: Isa, threads: usize) -> CpuStage {
        let device = CpuDevice::new(threads, Some(isa)).unwrap();
        let device = if self.rotated { device } else { device.without_rotation() };
        CpuStage::load(&device, self.program.clone(), &self.model(), self.memory(), &mut |_| ()).unwrap()
    }

    /// Runs all sessions and reads `outputs`: per session and output, all rows.
    fn run(&self, way: Way, outputs: &[Buffer]) -> Vec<Vec<Vec<f32>>> {
        let mut stage = self.load(way.isa, way.threads);
        let mut results = vec![vec![Vec::new(); outputs.len()]; self.sessions.len()];
        let mut done = vec![0; self.sessions.len()];
        loop {
            let chunks = self.next_chunks(way, &done);
            if chunks.is_empty() {
                return results;
            }
            self.step(&mut stage, &chunks);
            let mut first = 0;
            for (session, rows) in chunks {
                for (output, result) in outputs.iter().zip(&mut results[session]) {
                    let mut values = vec![0.0; rows.len() * self.program.width(*output)];
                    stage.read(*output, first..first + rows.len(), &mut values).unwrap();
                    result.extend(values);
                }
                first += rows.len();
                done[session] = rows.end;
            }
        }
    }

    /// Sessions and their rows in the next step.
    fn next_chunks(&self, way: Way, done: &[usize]) -> Vec<(usize, std::ops::Range<usize>)> {
        let left = self.sessions.iter().zip(done).enumerate().filter(|(_, (session, done))| **done < session.rows);
        let chunks = left.map(|(index, (session, done))| (index, *done..session.rows.min(done + way.chunk)));
        chunks.take(if way.together { usize::MAX } else { 1 }).collect()
    }

    fn step(&self, stage: &mut CpuStage, parts: &[(usize, std::ops::Range<usize>)]) {
        let count = self.sessions.len() as u32;
        let pages_each = self.memory().pages as u32 / count;
        let pages: Vec<Vec<u32>> =
            (0..count).map(|session| (0..pages_each).rev().map(|page| page * count + session).collect()).collect();
        let (mut chunks, mut positions, mut first_row) = (Vec::new(), Vec::new(), 0);
        for (session, rows) in parts {
            let Session { buffers, positions: given, .. } = &self.sessions[*session];
            for (buffer, values) in buffers {
                let width = self.program.width(*buffer);
                let values = &values[rows.start * width..rows.end * width];
                stage.buffer_mut(*buffer)[first_row * width..][..values.len()].copy_from_slice(values);
            }
            for row in rows.clone() {
                let counted = row as u32;
                positions.push(given.get(row).copied().unwrap_or([counted, counted, counted, 0]));
            }
            let (start, pages) = (rows.start, &pages[*session]);
            chunks.push(ChunkRows {
                first_row,
                rows: rows.len(),
                start,
                slot: *session,
                pages,
                log: ChunkLog::default(),
            });
            first_row += rows.len();
        }
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &[], positions: &positions, wanted: &[] };
        stage.run(&inputs).unwrap();
    }

    /// Runs in many ways, asserts that all give the same bits, and returns them.
    fn run_in_all_ways(&self, outputs: &[Buffer]) -> Vec<Vec<Vec<f32>>> {
        self.run_in_ways(&[(1, WHOLE, true), (2, 1, true), (3, 3, false), (2, 7, true), (3, WHOLE, false)], outputs)
    }

    /// The same for what depends on the cut into chunks.
    fn run_whole_in_all_ways(&self, outputs: &[Buffer]) -> Vec<Vec<Vec<f32>>> {
        self.run_in_ways(&[(1, WHOLE, true), (2, WHOLE, true), (3, WHOLE, false)], outputs)
    }

    /// Runs with so many threads, rows of a chunk, and sessions together or not.
    fn run_in_ways(&self, ways: &[(usize, usize, bool)], outputs: &[Buffer]) -> Vec<Vec<Vec<f32>>> {
        let expected = self.run(Way { isa: Isa::Scalar, threads: 1, chunk: WHOLE, together: false }, outputs);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for &(threads, chunk, together) in ways {
                let way = Way { isa, threads, chunk, together };
                assert_eq!(bits(&self.run(way, outputs)), bits(&expected), "{way:?}");
            }
        }
        expected
    }
}

fn bits(results: &[Vec<Vec<f32>>]) -> Vec<u32> {
    results.iter().flatten().flatten().map(|value| value.to_bits()).collect()
}

/// Asserts that values are within `bound` of the exact ones.
fn assert_close(found: &[f32], exact: &[f64], bound: f64) {
    assert_eq!(found.len(), exact.len());
    for (index, (found, exact)) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        assert!(error <= bound, "value {index} is {found}, not {exact} ± {bound:e}");
    }
}

fn exact(values: &[f32]) -> Vec<f64> {
    values.iter().map(|value| f64::from(*value)).collect()
}

fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |largest, value| value.abs().max(largest))
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

fn rms_norm(values: &[f64], weight: &[f64], epsilon: f32) -> Vec<f64> {
    let mean = values.iter().map(|value| value * value).sum::<f64>() / values.len() as f64;
    let scale = 1.0 / (mean + f64::from(epsilon)).sqrt();
    values.iter().zip(weight).map(|(value, weight)| value * scale * weight).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}
