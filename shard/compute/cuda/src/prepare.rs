//! Turns the operations of a program into launches.
//!
//! Read [`Preparation::operations`] first. Grids follow what a step has; all other arguments are addresses and sizes that
//! stay as long as the stage.

mod layers;
mod products;
mod scratch;

use std::sync::Arc;

use paceline_compute::blocks::is_quantized;
use paceline_compute::device::MemorySpec;
use paceline_compute::program::{Buffer, Op, Program, RowSpace, Weight};
use paceline_compute::shapes::Shapes;
use paceline_compute::{Error, Result};
use paceline_gguf::TensorType;

pub(crate) use scratch::{constant_bytes, scratch_bytes};

use crate::driver::{Address, Driver};
use crate::launch::{Count, Extent, Launch, When};
use crate::layout::{BLOCK, Pages, Slots};
use crate::memory::{Arena, Section};
use crate::weights::Loaded;

/// Threads of blocks in which every thread has a value of its own.
const THREADS: usize = 256;
/// Threads that norm a row or a head, as `NORM_THREADS` in `common.cuh`.
const NORM_THREADS: usize = 64;

/// Where everything lies in a stage's arena.
pub(crate) struct Places {
    /// The program's buffers.
    pub(crate) buffers: Vec<Section>,
    /// Attention layers.
    pub(crate) pages: Vec<Pages>,
    /// Recurrent layers.
    pub(crate) slots: Vec<Slots>,
    /// Space that belongs to one operation from its start to its end.
    pub(crate) scratch: Section,
    /// What a step uploads.
    pub(crate) step: Section,
    /// Tables that stay the same.
    pub(crate) constants: Section,
}

/// All that launches are made from.
pub(crate) struct Preparation<'a> {
    shapes: Shapes<'a>,
    weights: &'a [Arc<Loaded>],
    memory: &'a MemorySpec,
    arena: &'a Arena,
    places: &'a Places,
    driver: &'a dyn Driver,
    constants: Vec<u32>,
    /// Dimensions of the rotations of the entry so far.
    rotated: usize,
    /// Does the operation leave its results in blocks for the next one?
    rounds_for_next: bool,
    /// Did the one before?
    is_rounded: bool,
}

impl<'a> Preparation<'a> {
    /// For a program whose shapes have been checked.
    pub(crate) fn new(
        shapes: Shapes<'a>,
        weights: &'a [Arc<Loaded>],
        memory: &'a MemorySpec,
        arena: &'a Arena,
        places: &'a Places,
        driver: &'a dyn Driver,
    ) -> Self {
        let (constants, rotated, rounds_for_next, is_rounded) = (Vec::new(), 0, false, false);
        Self { shapes, weights, memory, arena, places, driver, constants, rotated, rounds_for_next, is_rounded }
    }

    /// The launches of each operation.
    ///
    /// # Errors
    /// Kernels that cannot be made ready.
    pub(crate) fn operations(&mut self) -> Result<Vec<Vec<Launch>>> {
        let (cuts, weights) = (&self.program().cuts, self.weights);
        let kinds = |weight: Weight| weights[weight.0 as usize].kind();
        let all = self.program().ops.iter().enumerate();
        all.map(|(index, recorded)| {
            if cuts.contains(&index) {
                self.rotated = 0;
            }
            self.rounds_for_next = rounds_for_next(self.program(), index, &kinds);
            self.is_rounded = index > 0 && rounds_for_next(self.program(), index - 1, &kinds);
            self.operation(&recorded.op)
        })
        .collect()
    }

    /// Where an operation leaves its results in blocks, or nowhere: at the start of scratch, where products look for them.
    fn blocks_for_next(&self) -> Address {
        if self.rounds_for_next { self.arena.address(self.places.scratch) } else { 0 }
    }

    /// The tables that kernels read, to be written to the constants' section.
    pub(crate) fn constants(&self) -> &[u32] {
        &self.constants
    }

    /// Brings rows that come as vectors into a buffer.
    ///
    /// # Errors
    /// A kernel that cannot be made ready.
    pub(crate) fn vectors_to(&self, buffer: Buffer) -> Result<Launch> {
        self.load_rows(buffer, false)
    }

    fn operation(&mut self, op: &Op) -> Result<Vec<Launch>> {
        match op {
            Op::Embed { output, .. } => Ok(vec![self.load_rows(*output, true)?]),
            Op::RopeTable { rope, output } => {
                let before = self.rotated;
                self.rotated += rope.dimensions;
                let grid = self.values(Count::Rows, rope.dimensions);
                let arguments = [self.buffer(*output), rope.dimensions as u64, before as u64];
                Ok(vec![self.launch("load_rotations", grid, THREADS, &arguments)?])
            }
            Op::Norm { input, weight, epsilon, output } => {
                let (count, width) = (self.count(*output), self.width(*output));
                let [input, output] = [*input, *output].map(|buffer| self.buffer(buffer));
                let weight = self.weight(*weight);
                let blocks = self.blocks_for_next();
                let arguments = [count.place(), input, weight, float(*epsilon), output, blocks, width as u64];
                Ok(vec![self.launch("norm_rows", rows(count), NORM_THREADS, &arguments)?])
            }
            Op::Linear { input, products } => self.linear(*input, products),
            Op::StoreKeysValues { .. } => self.store_keys_values(op),
            Op::Attention { .. } => self.attention(op),
            Op::Convolve { input, weight, state, output } => self.convolve(*input, *weight, *state, *output),
            Op::DeltaRule { .. } => self.delta_rule(op),
            Op::GatedNorm { buffer, gate, weight, head_dim, epsilon } => {
                let (count, width) = (self.count(*buffer), self.width(*buffer));
                let [buffer, gate] = [*buffer, *gate].map(|buffer| self.buffer(buffer));
                let weight = self.weight(*weight);
                let sizes = [*head_dim as u64, width as u64];
                let blocks = self.blocks_for_next();
                let arguments = [count.place(), buffer, gate, weight, float(*epsilon), blocks, sizes[0], sizes[1]];
                let grid = [Extent::fixed(width / head_dim), Extent::each(count), Extent::ONE];
                Ok(vec![self.launch("gated_norm", grid, NORM_THREADS, &arguments)?])
            }
            Op::Route { logits, used, renormalize, scale, output } => {
                let (count, experts) = (self.count(*output), self.width(*logits));
                let [logits, output] = [*logits, *output].map(|buffer| self.buffer(buffer));
                let sizes = [experts, *used, usize::from(*renormalize)].map(|size| size as u64);
                let arguments = [count.place(), logits, output, sizes[0], sizes[1], sizes[2], float(*scale)];
                let launch = self.launch("route", rows(count), 32, &arguments)?;
                Ok(vec![launch.with_shared(experts * size_of::<f32>())])
            }
            Op::Experts { .. } => self.experts(op),
            Op::SwiGlu { .. }
            | Op::AddGated { .. }
            | Op::AddBias { .. }
            | Op::Join { .. }
            | Op::Split { .. }
            | Op::Gather { .. } => Ok(vec![self.elementwise(op)?]),
            Op::AddEmbedding { .. } | Op::LayerNorm { .. } | Op::Gelu { .. } | Op::Tanh { .. } => Err(no_encoders()),
        }
    }

    /// Operations in which every value depends on values at the same place.
    fn elementwise(&self, op: &Op) -> Result<Launch> {
        let place = |buffer: Buffer| self.count(buffer).place();
        let (name, main, arguments) = match *op {
            Op::SwiGlu { gate, up } => {
                let buffers = [gate, up].map(|buffer| self.buffer(buffer));
                ("swiglu", gate, [&[place(gate)], &buffers[..], &[self.blocks_for_next()]].concat())
            }
            Op::AddGated { input, gate, output } => {
                let buffers = [input, gate, output].map(|buffer| self.buffer(buffer));
                ("add_gated", output, [&[place(output)], &buffers[..]].concat())
            }
            Op::AddBias { buffer, bias } => {
                ("add_bias", buffer, vec![place(buffer), self.buffer(buffer), self.weight(bias)])
            }
            Op::Join { first, second, output } => {
                let buffers = [first, second, output].map(|buffer| self.buffer(buffer));
                ("join", output, [&[place(output)], &buffers[..], &[self.width(first) as u64]].concat())
            }
            Op::Split { input, first, second } => {
                let buffers = [input, first, second].map(|buffer| self.buffer(buffer));
                ("split", input, [&[place(input)], &buffers[..], &[self.width(first) as u64]].concat())
            }
            Op::Gather { input, output } => ("gather", output, vec![self.buffer(input), self.buffer(output)]),
            _ => unreachable!("only these come here"),
        };
        let width = self.width(main);
        let arguments = [&arguments[..], &[width as u64]].concat();
        self.launch(name, self.values(self.count(main), width), THREADS, &arguments)
    }

    fn load_rows(&self, buffer: Buffer, embedded: bool) -> Result<Launch> {
        let width = self.width(buffer);
        let arguments = [self.buffer(buffer), width as u64, u64::from(embedded)];
        self.launch("load_rows", self.values(Count::Rows, width), THREADS, &arguments)
    }

    /// A launch whose first argument is the step.
    fn launch(&self, name: &str, grid: [Extent; 3], block: usize, arguments: &[u64]) -> Result<Launch> {
        let kernel = self.driver.kernel(name)?;
        let step = self.arena.address(self.places.step);
        let arguments = [&[step], arguments].concat();
        Ok(Launch { kernel, grid, block: block as u32, shared_bytes: 0, arguments, when: When::Always })
    }

    /// Enough blocks for a thread per value.
    #[expect(clippy::unused_self, reason = "reads as the other questions do")]
    fn values(&self, count: Count, width: usize) -> [Extent; 3] {
        [Extent::each(count).times(width).per(THREADS), Extent::ONE, Extent::ONE]
    }

    /// Keeps a table of words among the constants and says where it is.
    fn constant(&mut self, words: &[u32]) -> Address {
        let address = self.arena.address(self.places.constants) + 4 * self.constants.len() as u64;
        self.constants.extend(words);
        self.constants.resize(self.constants.len().next_multiple_of(4), 0);
        assert!(4 * self.constants.len() <= self.places.constants.bytes, "constants are counted before");
        address
    }

    fn program(&self) -> &'a Program {
        self.shapes.program
    }

    /// What counts a buffer's rows.
    fn count(&self, buffer: Buffer) -> Count {
        match self.program().buffers[usize::from(buffer.0)].rows {
            RowSpace::Step => Count::Rows,
            RowSpace::Wanted => Count::Wanted,
        }
    }

    fn width(&self, buffer: Buffer) -> usize {
        self.program().width(buffer)
    }

    fn buffer(&self, buffer: Buffer) -> Address {
        self.arena.address(self.places.buffers[usize::from(buffer.0)])
    }

    fn loaded(&self, weight: Weight) -> &'a Loaded {
        &self.weights[weight.0 as usize]
    }

    fn weight(&self, weight: Weight) -> Address {
        self.loaded(weight).address()
    }

    /// Where the parts of an operation's scratch lie.
    fn scratch<const PARTS: usize>(&self, op: &Op) -> [Address; PARTS] {
        let parts = scratch::parts(&self.shapes, self.memory, op);
        let mut next = self.arena.address(self.places.scratch);
        let mut addresses = [0; PARTS];
        for (address, bytes) in addresses.iter_mut().zip(parts) {
            *address = next;
            next += scratch::aligned(bytes) as u64;
        }
        addresses
    }
}

impl Launch {
    fn with_shared(self, bytes: usize) -> Self {
        Self { shared_bytes: bytes as u32, ..self }
    }

    fn when(self, when: When) -> Self {
        Self { when, ..self }
    }
}

/// Does an operation leave its results in blocks, because products of weights in blocks with just these come next?
pub(crate) fn rounds_for_next(program: &Program, index: usize, kind: &dyn Fn(Weight) -> TensorType) -> bool {
    let Some(Op::Linear { input, products }) = program.ops.get(index + 1).map(|recorded| &recorded.op) else {
        return false;
    };
    let (made, piece) = match program.ops[index].op {
        Op::Norm { output, .. } => (output, program.width(output)),
        Op::GatedNorm { buffer, head_dim, .. } => (buffer, head_dim),
        Op::SwiGlu { gate, .. } => (gate, program.width(gate)),
        Op::Attention { cache, output, .. } => (output, program.caches[usize::from(cache.0)].value_dim),
        _ => return false,
    };
    let takes_blocks = products.iter().any(|product| is_quantized(kind(product.weight)));
    let is_same_entry = !program.cuts.contains(&(index + 1));
    made == *input && piece.is_multiple_of(BLOCK) && takes_blocks && is_same_entry
}

/// A block for each row.
fn rows(count: Count) -> [Extent; 3] {
    [Extent::each(count), Extent::ONE, Extent::ONE]
}

/// A number as the word of an argument.
fn float(value: f32) -> u64 {
    u64::from(value.to_bits())
}

/// What only models that read texts as a whole need, which have no kernels here.
pub(crate) fn no_encoders() -> Error {
    let reason = "it runs on processors only; use --device cpu for it".to_owned();
    Error::Device {
        device: "a GPU".to_owned(),
        operation: "run a model that makes vectors of texts".to_owned(),
        reason,
    }
}
