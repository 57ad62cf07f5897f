//! A program with its weights and memories on a GPU, and the launches that run it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use paceline_compute::checks::{Checks, exists};
use paceline_compute::device::{
    LoadedStage, MemoryOperation, MemoryPart, MemorySpec, MemoryUse, OperationTime, ReadBuffer, StepInputs,
};
use paceline_compute::program::{Buffer, Op, Program, RowSpace, Weight};
use paceline_compute::shapes::{Shapes, TensorShape};
use paceline_compute::tensors::Source;
use paceline_compute::{Error, Result};
use paceline_gguf::Gguf;
use zerocopy::IntoBytes;

use crate::device::CudaDevice;
use crate::driver::Driver;
use crate::inputs::{Entry, StepBlock};
use crate::launch::{Counts, Launch};
use crate::layout::{Pages, Slots};
use crate::memory::{Arena, Layout, Section};
use crate::prepare::{Places, Preparation, constant_bytes, scratch_bytes};
use crate::weights::{Loaded, load_all};

/// How this device lays out pages and states; another number whenever that changes.
const FORM: &str = "cuda 1";

/// A loaded stage on a GPU.
pub(crate) struct CudaStage {
    program: Program,
    memory: MemorySpec,
    weights: Vec<Arc<Loaded>>,
    arena: Arena,
    places: Places,
    /// The launches of each operation.
    operations: Vec<Vec<Launch>>,
    entries: Vec<Entry>,
    /// What brings rows that come as vectors to where the program expects them.
    vectors: Option<Launch>,
    block: StepBlock,
    checks: Checks,
    driver: Arc<dyn Driver>,
    rotation: bool,
    /// Rows, and wanted rows, of the last step.
    last: [usize; 2],
}

impl CudaStage {
    /// Reserves memories, brings weights to the device, and makes all launches ready.
    ///
    /// # Errors
    /// A tensor that is missing or has the wrong shape; memory that cannot be had; kernels that cannot be made ready.
    pub(crate) fn load(
        device: &CudaDevice,
        program: Program,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        assert!(memory.page_tokens > 0, "a page holds at least one token");
        let driver = &device.driver;
        let tensors = program.weights.iter().map(|spec| {
            let shape = Source::find(spec, model)?.shape();
            Ok(TensorShape { tensor: &spec.tensor, shape })
        });
        let tensors = tensors.collect::<Result<Vec<TensorShape<'_>>>>()?;
        let shapes = Shapes { program: &program, tensors: &tensors };
        program.ops.iter().try_for_each(|recorded| shapes.check(&recorded.op, recorded.name))?;
        // Memory first: when it cannot be had, that is known before long reading.
        let (places, layout) = place(&shapes, &memory, device.rotation)?;
        let arena = Arena::reserve(driver, layout)?;
        let weights = load_all(&device.shelf, driver, &program, model, progress)?;
        let dims: Vec<[usize; 3]> = tensors.iter().map(|tensor| tensor.shape).collect();
        let checks = Checks::new(&program, &memory, &dims)?;
        let entries = 0..program.entries().len();
        let entries =
            entries.map(|entry| Entry::new(&program, entry, &checks, &weights)).collect::<Result<Vec<_>>>()?;
        let mut preparation = Preparation::new(shapes, &weights, &memory, &arena, &places, driver.as_ref());
        let operations = preparation.operations()?;
        let vectors = program.input.map(|input| preparation.vectors_to(input)).transpose()?;
        arena.memory.write(places.constants.at, preparation.constants().as_bytes())?;
        let block = StepBlock::new(&program, &memory);
        let (driver, rotation, last) = (Arc::clone(driver), device.rotation, [0, 0]);
        Ok(Self {
            memory,
            arena,
            places,
            operations,
            entries,
            vectors,
            block,
            checks,
            driver,
            rotation,
            last,
            weights,
            program,
        })
    }

    /// Accepts a step's inputs and brings them to the device.
    fn begin(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<Counts> {
        self.checks.check(entry, inputs)?;
        let (words, counts) = self.block.build(inputs, &self.entries[entry])?;
        self.arena.memory.write(self.places.step.at, words.as_bytes())?;
        self.last = [inputs.rows(), inputs.wanted.len()];
        if let (Some(launch), Some(_)) = (&self.vectors, self.entries[entry].vectors_to) {
            self.start(launch, &counts)?;
        }
        Ok(counts)
    }

    fn execute(&self, operations: Range<usize>, counts: &Counts) -> Result<()> {
        let mut launches = self.operations[operations].iter().flatten();
        launches.try_for_each(|launch| self.start(launch, counts))
    }

    #[expect(unsafe_code, reason = "kernels trust their arguments")]
    fn start(&self, launch: &Launch, counts: &Counts) -> Result<()> {
        // SAFETY: `prepare` gives every kernel its arguments: sections of the arena and weights, which live as long as
        // the stage and are as large as the limits that each step was checked against.
        unsafe { launch.start(self.driver.as_ref(), counts) }
    }

    /// All rows of a buffer, as the operations before left them.
    fn rows_of(&self, buffer: Buffer) -> Result<Vec<f32>> {
        let width = self.program.width(buffer);
        let mut values = vec![0.0; self.row_count(buffer) * width];
        self.arena.memory.read(self.places.buffers[usize::from(buffer.0)].at, values.as_mut_bytes())?;
        Ok(values)
    }

    fn row_count(&self, buffer: Buffer) -> usize {
        match self.program.buffers[usize::from(buffer.0)].rows {
            RowSpace::Step => self.last[0],
            RowSpace::Wanted => self.last[1],
        }
    }

    /// Where a part of the memories lies in the arena.
    fn part(&self, part: MemoryPart) -> Result<Section> {
        let MemorySpec { pages, slots, logs, .. } = self.memory;
        Ok(match part {
            MemoryPart::Page { cache, page } => {
                exists("attention layer", cache.0.into(), self.places.pages.len())?;
                exists("page", page as usize, pages)?;
                let layer = &self.places.pages[usize::from(cache.0)];
                let bytes = layer.page_bytes();
                Section { at: layer.section.at + page as usize * bytes, bytes }
            }
            MemoryPart::Slot { state, slot } => {
                exists("recurrent layer", state.0.into(), self.places.slots.len())?;
                exists("state slot", slot, slots)?;
                let layer = &self.places.slots[usize::from(state.0)];
                let bytes = layer.slot_bytes();
                Section { at: layer.section.at + slot * bytes, bytes }
            }
            MemoryPart::Logged { state, place, position } => {
                exists("recurrent layer", state.0.into(), self.places.slots.len())?;
                exists("log", place, logs.sessions)?;
                exists("token of a log", 0, logs.tokens)?;
                let layer = &self.places.slots[usize::from(state.0)];
                let bytes = layer.logged_bytes();
                let row = place * logs.tokens + position % logs.tokens;
                Section { at: layer.logs.at + row * bytes, bytes }
            }
        })
    }

    /// The same, for something of so many bytes.
    fn part_of(&self, part: MemoryPart, bytes: usize) -> Result<usize> {
        let section = self.part(part)?;
        if bytes != section.bytes {
            let expected = section.bytes;
            return Err(Error::Inconsistent { what: "bytes of a part of the memories", found: bytes, expected });
        }
        Ok(section.at)
    }

    /// Copies a slot or page over another, in every layer.
    fn copy(&self, from: impl Fn(usize) -> MemoryPart, to: impl Fn(usize) -> MemoryPart, layers: usize) -> Result<()> {
        for layer in 0..layers {
            let (from, to) = (self.part(from(layer))?, self.part(to(layer))?);
            self.arena.memory.copy(from.at, to.at, from.bytes)?;
        }
        Ok(())
    }
}

fn slot_part(slot: usize) -> impl Fn(usize) -> MemoryPart {
    move |layer| MemoryPart::Slot { state: paceline_compute::program::State(layer as u16), slot }
}

fn page_part(page: u32) -> impl Fn(usize) -> MemoryPart {
    move |layer| MemoryPart::Page { cache: paceline_compute::program::Cache(layer as u16), page }
}

impl LoadedStage for CudaStage {
    fn program(&self) -> &Program {
        &self.program
    }

    fn memory(&self) -> MemorySpec {
        self.memory
    }

    fn memory_use(&self) -> MemoryUse {
        let of = |bytes: usize, count: usize| bytes as u64 * count as u64;
        let pages = self.places.pages.iter().map(|layer| of(layer.page_bytes(), self.memory.pages)).sum();
        let states =
            self.places.slots.iter().map(|layer| {
                of(layer.slot_bytes(), self.memory.slots) + of(layer.logged_bytes(), self.memory.logs.rows())
            });
        let states = states.sum();
        MemoryUse {
            weights: self.weights.iter().map(|tensor| tensor.bytes()).sum(),
            pages,
            states,
            buffers: self.arena.memory.bytes() as u64 - pages - states + self.checks.bytes(),
        }
    }

    fn weight_bytes(&self, weight: Weight) -> u64 {
        self.weights[weight.0 as usize].bytes()
    }

    fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        let MemorySpec { pages, slots, .. } = self.memory;
        match operation {
            MemoryOperation::ClearState { slot } => {
                exists("state slot", slot, slots)?;
                for layer in 0..self.places.slots.len() {
                    let Section { at, bytes } = self.part(slot_part(slot)(layer))?;
                    self.arena.memory.fill(at..at + bytes, 0)?;
                }
                Ok(())
            }
            MemoryOperation::CopyState { from, to } => {
                exists("state slot", from, slots)?;
                exists("state slot", to, slots)?;
                self.copy(slot_part(from), slot_part(to), self.places.slots.len())
            }
            MemoryOperation::CopyPage { from, to } => {
                exists("page", from as usize, pages)?;
                exists("page", to as usize, pages)?;
                self.copy(page_part(from), page_part(to), self.places.pages.len())
            }
        }
    }

    fn memory_form(&self) -> String {
        let MemorySpec { page_tokens, key_type, value_type, .. } = self.memory;
        let plain = if self.rotation { "" } else { ", not rotated" };
        format!("{FORM}, pages of {page_tokens} tokens, keys {key_type}, values {value_type}{plain}")
    }

    fn part_bytes(&self, part: MemoryPart) -> Result<usize> {
        Ok(self.part(part)?.bytes)
    }

    fn read_part(&mut self, part: MemoryPart, into: &mut [u8]) -> Result<()> {
        let at = self.part_of(part, into.len())?;
        self.arena.memory.read(at, into)
    }

    fn write_part(&mut self, part: MemoryPart, from: &[u8]) -> Result<()> {
        let at = self.part_of(part, from.len())?;
        self.arena.memory.write(at, from)
    }

    fn run_entry(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<()> {
        let counts = self.begin(entry, inputs)?;
        self.execute(self.program.entries()[entry].clone(), &counts)
    }

    fn read(&mut self, buffer: Buffer, rows: Range<usize>, into: &mut [f32]) -> Result<()> {
        let count = self.row_count(buffer);
        if rows.end > count {
            return Err(Error::Unknown { what: "row", id: rows.end - 1, count });
        }
        assert!(rows.start <= rows.end, "rows are counted upwards");
        let width = self.program.width(buffer);
        let expected = rows.len() * width;
        if into.len() != expected {
            return Err(Error::Inconsistent { what: "values to read into", found: into.len(), expected });
        }
        let section = self.places.buffers[usize::from(buffer.0)];
        self.arena.memory.read(section.at + rows.start * width * size_of::<f32>(), into.as_mut_bytes())
    }

    fn run_observed(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(usize, ReadBuffer<'_>)) -> Result<()> {
        let counts = self.begin(0, inputs)?;
        for index in self.program.entries()[0].clone() {
            self.execute(index..index + 1, &counts)?;
            // What went wrong is told here, and not by whoever reads.
            self.driver.synchronize()?;
            observe(index, &|buffer| self.rows_of(buffer).expect("the device answered just now"));
        }
        Ok(())
    }

    fn run_measured(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(OperationTime)) -> Result<()> {
        let counts = self.begin(0, inputs)?;
        self.driver.synchronize()?;
        for index in self.program.entries()[0].clone() {
            let start = Instant::now();
            self.execute(index..index + 1, &counts)?;
            self.driver.synchronize()?;
            observe(OperationTime { operations: index..index + 1, main: index, time: start.elapsed() });
        }
        Ok(())
    }
}

impl Drop for CudaStage {
    fn drop(&mut self) {
        if cfg!(debug_assertions) && !std::thread::panicking() {
            assert!(self.arena.is_whole().unwrap_or(true), "a kernel wrote outside of its memory");
        }
    }
}

/// Where everything lies in an arena that is not reserved yet.
fn place(shapes: &Shapes<'_>, memory: &MemorySpec, rotation: bool) -> Result<(Places, Layout)> {
    let program = shapes.program;
    let mut layout = Layout::default();
    let replayed = replayed_buffers(program);
    let buffers = program.buffers.iter().enumerate().map(|(index, spec)| {
        let rows = if spec.rows == RowSpace::Step { memory.rows } else { memory.wanted };
        let replays = if replayed.contains(&index) { memory.logs.rows() } else { 0 };
        let values = rows.saturating_add(replays).saturating_mul(spec.width);
        layout.section(values.saturating_mul(size_of::<f32>()))
    });
    let buffers = buffers.collect();
    let mut pages = Vec::with_capacity(program.caches.len());
    for spec in &program.caches {
        let mut layer = Pages::new(*spec, memory, rotation)?;
        layer.section = layout.section(layer.page_bytes().saturating_mul(memory.pages));
        pages.push(layer);
    }
    let slots = program.states.iter().map(|spec| {
        let mut layer = Slots::new(*spec);
        layer.section = layout.section(layer.slot_bytes().saturating_mul(memory.slots));
        layer.logs = layout.section(layer.logged_bytes().saturating_mul(memory.logs.rows()));
        layer
    });
    let slots = slots.collect();
    let places = Places {
        buffers,
        pages,
        slots,
        scratch: layout.section(scratch_bytes(shapes, memory)),
        step: layout.section(StepBlock::most_bytes(program, memory)),
        constants: layout.section(constant_bytes(program)),
    };
    Ok((places, layout))
}

/// Buffers that hold replayed rows behind those of a step: what recurrent layers convolve, and what comes out of them.
fn replayed_buffers(program: &Program) -> Vec<usize> {
    let of = |op: &Op| match op {
        Op::Convolve { output, .. } => vec![usize::from(output.0)],
        Op::DeltaRule { input, output, .. } => vec![usize::from(input.0), usize::from(output.0)],
        _ => Vec::new(),
    };
    program.ops.iter().flat_map(|recorded| of(&recorded.op)).collect()
}
