//! A program with its weights and memories in place, and the threads that run it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use paceline_gguf::Gguf;

use super::buffers::Rows;
use super::device::CpuDevice;
use super::ops::{Fused, Limits, Prepared, Scratch, ScratchSize, Step, prepare};
use super::pages::PagedCache;
use super::pool::{Member, Pool};
use super::shared::tell_of_huge_pages;
use super::simd::Isa;
use super::states::Recurrent;
use super::weights::Loaded;
use crate::checks::{Checks, exists};
use crate::device::{
    LoadedStage, MemoryOperation, MemoryPart, MemorySpec, MemoryUse, OperationTime, ReadBuffer, StepInputs,
};
use crate::program::{Buffer, Op, Program, RowSpace, Weight};
use crate::tensors::read_ahead;
use crate::{Error, Result};

/// How this device lays out pages and states; another number whenever that changes.
const FORM: &str = "cpu 2";

/// A loaded stage on the CPU.
pub(super) struct CpuStage {
    program: Program,
    /// The program's operations one by one, for observers.
    single: Vec<Fused>,
    /// The same, fused.
    fused: Vec<Fused>,
    weights: Vec<Arc<Loaded>>,
    buffers: Vec<Rows>,
    caches: Vec<PagedCache>,
    states: Vec<Recurrent>,
    scratch: Scratch,
    memory: MemorySpec,
    checks: Checks,
    pool: Arc<Pool>,
    isa: Isa,
    /// Whether keys and values in blocks are rotated.
    rotation: bool,
    /// Rows, and wanted rows, of the last step.
    last: [usize; 2],
}

impl CpuStage {
    pub(super) fn load(
        device: &CpuDevice,
        program: Program,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Self> {
        assert!(memory.page_tokens > 0, "a page holds at least one token");
        tell_of_huge_pages();
        // Memory first: when it cannot be had, that is known before long reading.
        let rows = |space| if space == RowSpace::Step { memory.rows } else { memory.wanted };
        let replayed = replayed_buffers(&program);
        let buffers = program.buffers.iter().enumerate().map(|(index, spec)| {
            let replays = if replayed.contains(&index) { memory.logs.rows() } else { 0 };
            Rows::reserve(spec, rows(spec.rows).saturating_add(replays))
        });
        let buffers = buffers.collect::<Result<Vec<_>>>()?;
        let caches = program.caches.iter().map(|spec| PagedCache::reserve(spec, &memory, device.rotation));
        let caches = caches.collect::<Result<Vec<_>>>()?;
        let states = program.states.iter().map(|spec| Recurrent::reserve(spec, memory.slots, memory.logs));
        let states = states.collect::<Result<Vec<_>>>()?;
        let weights = load_weights(device, &program, model, progress)?;
        let Prepared { single, fused } = prepare(&program, &weights)?;
        let (rows, replayed) = (memory.rows.max(memory.wanted), memory.logs.rows());
        let limits = Limits { rows, replayed, threads: device.pool.threads() };
        let sizes = single.iter().chain(&fused).map(|fused| fused.operation.scratch(&limits));
        let scratch = Scratch::reserve(&sizes.fold(ScratchSize::default(), ScratchSize::max))?;
        let shapes: Vec<[usize; 3]> = weights.iter().map(|tensor| tensor.shape()).collect();
        let checks = Checks::new(&program, &memory, &shapes)?;
        Ok(Self {
            program,
            single,
            fused,
            weights,
            buffers,
            caches,
            states,
            scratch,
            memory,
            checks,
            pool: Arc::clone(&device.pool),
            isa: device.isa,
            rotation: device.rotation,
            last: [0, 0],
        })
    }

    /// Accepts a step's inputs and takes in rows that come as vectors.
    fn begin(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<()> {
        self.checks.check(entry, inputs)?;
        self.last = [inputs.rows(), inputs.wanted.len()];
        if let (true, Some(input)) = (self.checks.copies_vectors(entry), self.program.input) {
            let rows = self.buffers[usize::from(input.0)].all_mut();
            rows[..inputs.vectors.len()].copy_from_slice(inputs.vectors);
        }
        Ok(())
    }

    /// Those operations that belong to one of the program's entries.
    fn entry<'a>(&self, operations: &'a [Fused], entry: usize) -> &'a [Fused] {
        let own = &self.program.entries()[entry];
        let place = |op: usize| operations.partition_point(|fused| fused.operations.start < op);
        &operations[place(own.start)..place(own.end)]
    }

    /// Runs some operations on all threads.
    fn execute(&self, inputs: &StepInputs<'_>, operations: &[Fused]) -> Result<()> {
        self.execute_marked(inputs, operations, |_| {})
    }

    /// Runs some operations on all threads; every member calls `mark` before the first and after each of them.
    fn execute_marked(
        &self,
        inputs: &StepInputs<'_>,
        operations: &[Fused],
        mark: impl Fn(&Member<'_>) + Sync,
    ) -> Result<()> {
        let step = Step {
            isa: self.isa,
            inputs,
            buffers: &self.buffers,
            weights: &self.weights,
            caches: &self.caches,
            states: &self.states,
            scratch: &self.scratch,
            memory: self.memory,
        };
        self.pool.run(&|member| {
            mark(member);
            for fused in operations {
                fused.operation.run(&step, member);
                member.wait();
                mark(member);
            }
        })
    }

    /// Rows of a buffer as the last step left them; nothing runs between steps.
    #[expect(unsafe_code, reason = "reads what no thread writes")]
    fn rows_of(&self, buffer: Buffer, rows: Range<usize>) -> &[f32] {
        // SAFETY: buffers are written by `execute`, which has returned, and by `&mut self`.
        unsafe { self.buffers[usize::from(buffer.0)].rows(rows) }
    }

    /// A part of the memories as it is stored, piece by piece, which together have so many bytes.
    fn part_mut(&mut self, part: MemoryPart, bytes: usize) -> Result<Vec<&mut [u8]>> {
        let expected = self.part_bytes(part)?;
        if bytes != expected {
            return Err(Error::Inconsistent { what: "bytes of a part of the memories", found: bytes, expected });
        }
        Ok(match part {
            MemoryPart::Page { cache, page } => self.caches[usize::from(cache.0)].page_mut(page),
            MemoryPart::Slot { state, slot } => self.states[usize::from(state.0)].slot_mut(slot),
            MemoryPart::Logged { state, place, position } => {
                vec![self.states[usize::from(state.0)].logged_mut(place, position)]
            }
        })
    }

    /// Runs operations one by one from now on.
    #[cfg(test)]
    pub(super) fn unfuse(&mut self) {
        std::mem::swap(&mut self.fused, &mut self.single);
    }

    /// Bytes of states and logs that steps read or wrote.
    #[cfg(test)]
    pub(super) fn moved_bytes(&self) -> usize {
        self.states.iter().map(Recurrent::moved_bytes).sum()
    }

    /// How many operations a step runs.
    #[cfg(test)]
    pub(super) fn operation_count(&self) -> usize {
        self.fused.len()
    }

    /// What a buffer holds before a step.
    #[cfg(test)]
    pub(super) fn buffer_mut(&mut self, buffer: Buffer) -> &mut [f32] {
        self.buffers[usize::from(buffer.0)].all_mut()
    }

    fn row_count(&self, buffer: Buffer) -> usize {
        match self.buffers[usize::from(buffer.0)].space {
            RowSpace::Step => self.last[0],
            RowSpace::Wanted => self.last[1],
        }
    }
}

impl LoadedStage for CpuStage {
    fn program(&self) -> &Program {
        &self.program
    }

    fn memory(&self) -> MemorySpec {
        self.memory
    }

    fn memory_use(&self) -> MemoryUse {
        let buffers: u64 = self.buffers.iter().map(Rows::bytes).sum();
        MemoryUse {
            weights: self.weights.iter().map(|tensor| tensor.bytes()).sum(),
            pages: self.caches.iter().map(PagedCache::bytes).sum(),
            states: self.states.iter().map(Recurrent::bytes).sum(),
            buffers: buffers + self.scratch.bytes() + self.checks.bytes(),
        }
    }

    fn weight_bytes(&self, weight: Weight) -> u64 {
        self.weights[weight.0 as usize].bytes()
    }

    fn apply(&mut self, operation: MemoryOperation) -> Result<()> {
        match operation {
            MemoryOperation::ClearState { slot } => {
                exists("state slot", slot, self.memory.slots)?;
                self.states.iter_mut().for_each(|state| state.clear(slot));
            }
            MemoryOperation::CopyState { from, to } => {
                exists("state slot", from, self.memory.slots)?;
                exists("state slot", to, self.memory.slots)?;
                self.states.iter_mut().for_each(|state| state.copy(from, to));
            }
            MemoryOperation::CopyPage { from, to } => {
                exists("page", from as usize, self.memory.pages)?;
                exists("page", to as usize, self.memory.pages)?;
                self.caches.iter_mut().for_each(|cache| cache.copy_page(from, to));
            }
        }
        Ok(())
    }

    fn memory_form(&self) -> String {
        let MemorySpec { page_tokens, key_type, value_type, .. } = self.memory;
        let plain = if self.rotation { "" } else { ", not rotated" };
        // Kernels of all instruction sets read and write the same layout.
        format!("{FORM}, pages of {page_tokens} tokens, keys {key_type}, values {value_type}{plain}")
    }

    fn part_bytes(&self, part: MemoryPart) -> Result<usize> {
        let MemorySpec { pages, slots, .. } = self.memory;
        let (bytes, count) = match part {
            MemoryPart::Page { cache, page } => {
                exists("attention layer", cache.0.into(), self.caches.len())?;
                exists("page", page as usize, pages)?;
                (self.caches[usize::from(cache.0)].bytes(), pages)
            }
            MemoryPart::Slot { state, slot } => {
                exists("recurrent layer", state.0.into(), self.states.len())?;
                exists("state slot", slot, slots)?;
                (self.states[usize::from(state.0)].slot_bytes(), slots)
            }
            MemoryPart::Logged { state, place, .. } => {
                exists("recurrent layer", state.0.into(), self.states.len())?;
                exists("log", place, self.memory.logs.sessions)?;
                exists("token of a log", 0, self.memory.logs.tokens)?;
                (self.states[usize::from(state.0)].logged_bytes(), 1)
            }
        };
        Ok(bytes as usize / count)
    }

    fn read_part(&mut self, part: MemoryPart, mut into: &mut [u8]) -> Result<()> {
        for piece in self.part_mut(part, into.len())? {
            let (head, rest) = into.split_at_mut(piece.len());
            head.copy_from_slice(piece);
            into = rest;
        }
        Ok(())
    }

    fn write_part(&mut self, part: MemoryPart, mut from: &[u8]) -> Result<()> {
        for piece in self.part_mut(part, from.len())? {
            let (head, rest) = from.split_at(piece.len());
            piece.copy_from_slice(head);
            from = rest;
        }
        Ok(())
    }

    fn run_entry(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<()> {
        self.begin(entry, inputs)?;
        self.execute(inputs, self.entry(&self.fused, entry))
    }

    fn read(&mut self, buffer: Buffer, rows: Range<usize>, into: &mut [f32]) -> Result<()> {
        let count = self.row_count(buffer);
        if rows.end > count {
            return Err(Error::Unknown { what: "row", id: rows.end - 1, count });
        }
        assert!(rows.start <= rows.end, "rows are counted upwards");
        let values = rows.len() * self.program.width(buffer);
        if into.len() != values {
            return Err(Error::Inconsistent { what: "values to read into", found: into.len(), expected: values });
        }
        into.copy_from_slice(self.rows_of(buffer, rows));
        Ok(())
    }

    fn run_observed(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(usize, ReadBuffer<'_>)) -> Result<()> {
        self.begin(0, inputs)?;
        for (index, operation) in self.entry(&self.single, 0).iter().enumerate() {
            self.execute(inputs, std::slice::from_ref(operation))?;
            observe(index, &|buffer| self.rows_of(buffer, 0..self.row_count(buffer)).to_vec());
        }
        Ok(())
    }

    fn run_measured(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(OperationTime)) -> Result<()> {
        self.begin(0, inputs)?;
        let operations = self.entry(&self.fused, 0);
        let marks = Mutex::new(Vec::with_capacity(operations.len() + 1));
        self.execute_marked(inputs, operations, |member| {
            if member.index() == 0 {
                marks.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
            }
        })?;
        let marks = marks.into_inner().unwrap_or_else(PoisonError::into_inner);
        for (Fused { operations, main, .. }, pair) in operations.iter().zip(marks.windows(2)) {
            observe(OperationTime { operations: operations.clone(), main: *main, time: pair[1] - pair[0] });
        }
        Ok(())
    }
}

/// All tensors of a program: those that are in memory already, and the others, which are read.
fn load_weights(
    device: &CpuDevice,
    program: &Program,
    model: &Arc<Gguf>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<Arc<Loaded>>> {
    let mut found = device.shelf.find(program, model);
    for (index, spec) in program.weights.iter().enumerate() {
        if found[index].is_some() {
            continue;
        }
        if let Some(next) = program.weights.get(index + 1).filter(|_| found[index + 1].is_none()) {
            read_ahead(next, model);
        }
        let tensor = Arc::new(Loaded::load(spec, model, &device.pool)?);
        device.shelf.put(spec, model, &tensor);
        found[index] = Some(tensor);
        progress(model.tensor(&spec.tensor).map_or(0, |tensor| tensor.data.len() as u64));
    }
    Ok(found.into_iter().flatten().collect())
}

/// Buffers that hold replayed rows behind those of a step: what recurrent layers convolve, and what comes out of them.
fn replayed_buffers(program: &Program) -> Vec<usize> {
    let results = program.ops.iter().filter_map(|recorded| match recorded.op {
        Op::Convolve { output, .. } | Op::DeltaRule { output, .. } => Some(usize::from(output.0)),
        _ => None,
    });
    results.collect()
}
