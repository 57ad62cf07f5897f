//! Small programs with random tensors, and sessions that run them on both devices.

use std::ops::Range;
use std::sync::Arc;

use half::{bf16, f16};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemorySpec, StepInputs};
use paceline_compute::program::{Buffer, Op, Program, RowSpace, Weight, WeightSpec, WeightUse};
use paceline_compute::{Device, LoadedStage};
use paceline_cuda::CudaDevice;
use paceline_emulation::{EmulatedDriver, Order};
use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, KvType, TensorType};

/// A small generator (xorshift).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.next() as usize % end
    }

    /// A value between −`size` and `size`.
    pub(crate) fn value(&mut self, size: f32) -> f32 {
        ((self.next() % 20_001) as f32 / 10_000.0 - 1.0) * size
    }

    pub(crate) fn values(&mut self, count: usize, size: f32) -> Vec<f32> {
        (0..count).map(|_| self.value(size)).collect()
    }

    /// Blocks of any codes, with scales that make values of about one.
    pub(crate) fn weights(&mut self, kind: TensorType, values: usize) -> Vec<u8> {
        match kind {
            TensorType::F32 => return self.values(values, 1.0).into_iter().flat_map(f32::to_le_bytes).collect(),
            TensorType::F16 => return self.halves(values, |value| f16::from_f32(value).to_le_bytes()),
            TensorType::BF16 => return self.halves(values, |value| bf16::from_f32(value).to_le_bytes()),
            _ => {}
        }
        let mut bytes: Vec<u8> = (0..kind.bytes_for(values)).map(|_| self.next() as u8).collect();
        let (scales, size): (&[usize], _) = match kind {
            TensorType::Q2K => (&[80, 82], 0.03),
            TensorType::Q3K => (&[108], 0.01),
            TensorType::Q6K => (&[208], 0.0005),
            TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4K | TensorType::Q5K => (&[0, 2], 0.01),
            _ => (&[0], 0.01),
        };
        for block in bytes.chunks_exact_mut(kind.block_bytes()) {
            if kind == TensorType::Mxfp4 {
                // The two smallest exponents now and then, as they are read in another way.
                block[0] = if self.below(16) == 0 { self.below(2) as u8 } else { 115 + self.below(12) as u8 };
                continue;
            }
            for place in scales {
                block[*place..place + 2].copy_from_slice(&f16::from_f32(self.value(size)).to_le_bytes());
            }
        }
        bytes
    }

    fn halves(&mut self, count: usize, convert: impl Fn(f32) -> [u8; 2]) -> Vec<u8> {
        self.values(count, 1.0).into_iter().flat_map(convert).collect()
    }
}

/// A program that takes one buffer of vectors apart into the inputs of what is tested.
pub(crate) struct Case {
    pub(crate) program: Program,
    pub(crate) random: Random,
    pub(crate) outputs: Vec<Buffer>,
    pub(crate) kinds: [KvType; 2],
    pub(crate) page_tokens: usize,
    pub(crate) logs: LogSpec,
    file: GgufWriter,
    sessions: Vec<Session>,
}

struct Session {
    rows: usize,
    values: Vec<f32>,
    positions: Vec<[u32; 4]>,
}

/// One way to run all sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Way {
    /// The most rows of a session per step.
    pub(crate) chunk: usize,
    /// All sessions in one step, or one after another.
    pub(crate) together: bool,
}

/// All rows of a session in one chunk.
pub(crate) const WHOLE: usize = usize::MAX / 2;

/// How rows are cut where the cut must not matter.
pub(crate) const WAYS: [Way; 3] =
    [Way { chunk: WHOLE, together: true }, Way { chunk: 3, together: true }, Way { chunk: 1, together: false }];

impl Case {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            program: Program::default(),
            random: Random(seed),
            outputs: Vec::new(),
            kinds: [KvType::F32; 2],
            page_tokens: 16,
            logs: LogSpec::NONE,
            file: GgufWriter::new(),
            sessions: Vec::new(),
        }
    }

    /// Buffers of these widths, which the vectors of each row fill.
    pub(crate) fn inputs<const COUNT: usize>(&mut self, widths: [usize; COUNT]) -> [Buffer; COUNT] {
        let total: usize = widths.iter().sum();
        let mut rest = self.program.buffer("vectors", total, RowSpace::Step);
        self.program.input = Some(rest);
        let mut left = total;
        widths.map(|width| {
            let first = self.program.buffer("part", width, RowSpace::Step);
            left -= width;
            let second = self.program.buffer("rest", left, RowSpace::Step);
            self.program.record("split", None, Op::Split { input: rest, first, second });
            rest = second;
            first
        })
    }

    pub(crate) fn output(&mut self, width: usize) -> Buffer {
        let buffer = self.program.buffer("output", width, RowSpace::Step);
        self.outputs.push(buffer);
        buffer
    }

    /// A tensor; dimensions as in the file, contiguous first.
    pub(crate) fn tensor(&mut self, usage: WeightUse, kind: TensorType, dims: &[usize], bytes: Vec<u8>) -> Weight {
        let name = format!("tensor {}", self.program.weights.len());
        let dims: Vec<u64> = dims.iter().map(|dim| *dim as u64).collect();
        self.file.tensor(&name, kind, &dims, bytes);
        self.program.weight(WeightSpec::whole(name, usage))
    }

    /// A vector of random values.
    pub(crate) fn vector(&mut self, length: usize, size: f32) -> Weight {
        let values = self.random.values(length, size);
        self.vector_of(&[length], &values)
    }

    pub(crate) fn vector_of(&mut self, dims: &[usize], values: &[f32]) -> Weight {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.tensor(WeightUse::Vector, TensorType::F32, dims, bytes)
    }

    pub(crate) fn record(&mut self, op: Op) {
        self.program.record("op", None, op);
    }

    /// Adds sessions of so many rows, with random vectors.
    pub(crate) fn sessions(&mut self, rows: &[usize], size: f32) {
        let width = self.program.width(self.program.input.expect("the case has inputs"));
        for rows in rows {
            let values = self.random.values(rows * width, size);
            let component = |random: &mut Random| random.below(300) as u32;
            let positions = (0..*rows).map(|_| std::array::from_fn(|_| component(&mut self.random))).collect();
            self.sessions.push(Session { rows: *rows, values, positions });
        }
    }

    pub(crate) fn rows_of(&self, session: usize) -> usize {
        self.sessions[session].rows
    }

    pub(crate) fn model(&self) -> Arc<Gguf> {
        Arc::new(Gguf::from_vec(self.file.to_vec(), "test").expect("the writer writes valid files"))
    }

    pub(crate) fn memory(&self) -> MemorySpec {
        let rows: usize = self.sessions.iter().map(|session| session.rows + 4).sum();
        MemorySpec {
            page_tokens: self.page_tokens,
            pages: (rows / self.page_tokens + 2) * self.sessions.len(),
            slots: self.sessions.len(),
            key_type: self.kinds[0],
            value_type: self.kinds[1],
            rows,
            wanted: rows,
            logs: self.logs,
        }
    }

    pub(crate) fn load(&self, device: &dyn Device) -> Box<dyn LoadedStage> {
        device.load(self.program.clone(), &self.model(), self.memory(), &mut |_| ()).expect("the case is sound")
    }

    /// Runs all sessions; the bits of all outputs, session by session.
    pub(crate) fn run(&self, device: &dyn Device, way: Way) -> Vec<Vec<u32>> {
        let mut stage = self.load(device);
        let mut results = vec![Vec::new(); self.sessions.len() * self.outputs.len()];
        let mut done = vec![0; self.sessions.len()];
        loop {
            let left = self.sessions.iter().zip(&done).enumerate().filter(|(_, (session, done))| **done < session.rows);
            let parts = left.map(|(index, (session, done))| (index, *done..session.rows.min(done + way.chunk)));
            let parts: Vec<_> = parts.take(if way.together { usize::MAX } else { 1 }).collect();
            if parts.is_empty() {
                return results;
            }
            self.step(stage.as_mut(), &parts);
            let mut first = 0;
            for (session, rows) in parts {
                for (index, output) in self.outputs.iter().enumerate() {
                    let bits = self.read(stage.as_mut(), *output, first..first + rows.len());
                    results[session * self.outputs.len() + index].extend(bits);
                }
                first += rows.len();
                done[session] = rows.end;
            }
        }
    }

    pub(crate) fn read(&self, stage: &mut dyn LoadedStage, output: Buffer, rows: Range<usize>) -> Vec<u32> {
        let mut values = vec![0.0; rows.len() * self.program.width(output)];
        stage.read(output, rows, &mut values).expect("the case is sound");
        values.into_iter().map(f32::to_bits).collect()
    }

    fn step(&self, stage: &mut dyn LoadedStage, parts: &[(usize, Range<usize>)]) {
        let parts: Vec<_> =
            parts.iter().map(|(session, rows)| (*session, rows.clone(), 0, ChunkLog::default())).collect();
        self.step_with(stage, &parts);
    }

    /// One step of some rows of sessions; each with wrong rows behind them, and what is uncertain.
    pub(crate) fn step_with(&self, stage: &mut dyn LoadedStage, parts: &[(usize, Range<usize>, usize, ChunkLog)]) {
        let width = self.program.width(self.program.input.expect("the case has inputs"));
        let count = self.sessions.len() as u32;
        let pages_each = self.memory().pages as u32 / count;
        let pages: Vec<Vec<u32>> =
            (0..count).map(|session| (0..pages_each).rev().map(|page| page * count + session).collect()).collect();
        let (mut chunks, mut positions, mut vectors, mut first_row) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for (session, rows, wrong, log) in parts {
            let own = &self.sessions[*session];
            vectors.extend(&own.values[rows.start * width..rows.end * width]);
            vectors.extend(own.values.iter().rev().take(wrong * width).map(|value| 0.5 - value));
            positions.extend(&own.positions[rows.clone()]);
            positions.extend((0..*wrong).map(|row| [row as u32; 4]));
            let all = rows.len() + wrong;
            let (start, slot, pages) = (rows.start, *session, &pages[*session]);
            chunks.push(ChunkRows { first_row, rows: all, start, slot, pages, log: *log });
            first_row += all;
        }
        let inputs = StepInputs { chunks: &chunks, tokens: &[], vectors: &vectors, positions: &positions, wanted: &[] };
        stage.run(&inputs).expect("the case is sound");
    }

    /// Asserts that the kernels give the bits of the CPU device in every way.
    pub(crate) fn check(&self, ways: &[Way]) {
        self.check_on(&cpu(), &emulated(Order::Forwards), ways);
        self.check_on(&cpu(), &emulated(Order::Backwards), &ways[..1]);
    }

    pub(crate) fn check_on(&self, cpu: &CpuDevice, cuda: &CudaDevice, ways: &[Way]) {
        let expected = self.run(cpu, Way { chunk: WHOLE, together: false });
        for way in ways {
            let found = self.run(cuda, *way);
            for (index, (found, expected)) in found.iter().zip(&expected).enumerate() {
                assert_eq!(found.len(), expected.len());
                let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
                if let Some(place) = wrong {
                    let values = [found[place], expected[place]].map(f32::from_bits);
                    panic!("{way:?}: value {place} of {} of output {index} is {values:?}", found.len());
                }
            }
        }
    }
}

pub(crate) fn cpu() -> CpuDevice {
    CpuDevice::new(1, None).expect("a thread")
}

pub(crate) fn emulated(order: Order) -> CudaDevice {
    CudaDevice::new(Arc::new(EmulatedDriver::new(order)))
}
