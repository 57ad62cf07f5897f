//! All that changes from step to step, as one block of words that is uploaded before the first launch.

use std::sync::Arc;

use paceline_compute::checks::Checks;
use paceline_compute::device::{ChunkRows, MemorySpec, NO_TOKEN, StepInputs};
use paceline_compute::program::{Buffer, Op, Program};
use paceline_compute::rotary::Rotary;
use paceline_compute::{Error, Result};

use crate::launch::Counts;
use crate::weights::Loaded;

/// Words of `Step` in `common.cuh`, up to whole lines of memory.
const HEAD_WORDS: usize = 16;
/// Words of `Chunk`.
const CHUNK_WORDS: usize = 8;
/// Keys per segment, as `SEGMENT` in `attention.cu`.
pub(crate) const SEGMENT: usize = 256;

/// What one entry of a program takes of a step.
pub(crate) struct Entry {
    /// Where rows that come as vectors go before the first operation.
    pub(crate) vectors_to: Option<Buffer>,
    /// The embedding table and the width of its rows; with `true` vectors stand in place of tokens.
    embedding: Option<(Arc<Loaded>, usize, bool)>,
    /// Rotations, in the order of their operations, and the dimensions of each.
    rotaries: Vec<(Rotary, usize)>,
}

impl Entry {
    /// Reads what an entry takes.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn new(program: &Program, entry: usize, checks: &Checks, weights: &[Arc<Loaded>]) -> Result<Self> {
        let mut found = Self { vectors_to: None, embedding: None, rotaries: Vec::new() };
        if checks.copies_vectors(entry) {
            found.vectors_to = program.input;
        }
        for recorded in &program.ops[program.entries()[entry].clone()] {
            match &recorded.op {
                Op::Embed { table, output } => {
                    let table = Arc::clone(&weights[table.0 as usize]);
                    let in_place_of_tokens = !checks.copies_vectors(entry);
                    found.embedding = Some((table, program.width(*output), in_place_of_tokens));
                }
                Op::RopeTable { rope, .. } => {
                    let divisors = rope.divisors.map(|weight| weights[weight.0 as usize].vector()).transpose()?;
                    found.rotaries.push((Rotary::new(rope, divisors.as_deref()), rope.dimensions));
                }
                _ => {}
            }
        }
        Ok(found)
    }
}

/// Values of a row of all that an entry brings along, at most.
fn row_words(program: &Program) -> usize {
    let of = |op: &Op| match op {
        Op::Embed { output, .. } => program.width(*output),
        Op::RopeTable { rope, .. } => rope.dimensions,
        _ => 0,
    };
    let entry = |ops: std::ops::Range<usize>| program.ops[ops].iter().map(|recorded| of(&recorded.op)).sum::<usize>();
    let most = program.entries().into_iter().map(entry).max().unwrap_or(0);
    most + program.input.map_or(0, |input| program.width(input))
}

/// The block of a step.
pub(crate) struct StepBlock {
    words: Vec<u32>,
    page_tokens: usize,
    most_chunks: usize,
    has_caches: bool,
}

impl StepBlock {
    /// For steps of a program.
    pub(crate) fn new(program: &Program, memory: &MemorySpec) -> Self {
        Self {
            words: Vec::new(),
            page_tokens: memory.page_tokens,
            most_chunks: most_chunks(program, memory),
            has_caches: !program.caches.is_empty(),
        }
    }

    /// Bytes of the largest block.
    pub(crate) fn most_bytes(program: &Program, memory: &MemorySpec) -> usize {
        let chunks = most_chunks(program, memory);
        let pages = if program.caches.is_empty() { 0 } else { chunks.saturating_mul(memory.pages) };
        let rows = memory.rows.saturating_mul(row_words(program).saturating_add(3));
        let words =
            [HEAD_WORDS, chunks.saturating_mul(CHUNK_WORDS), 2 * memory.logs.rows(), memory.wanted, pages, rows];
        words.into_iter().fold(0, usize::saturating_add).saturating_mul(size_of::<u32>())
    }

    /// Writes down a step that was checked.
    ///
    /// # Errors
    /// More chunks than the block has room for.
    pub(crate) fn build(&mut self, inputs: &StepInputs<'_>, entry: &Entry) -> Result<(&[u32], Counts)> {
        let working = |chunk: &&ChunkRows<'_>| chunk.replayed_and_rows() > 0;
        let chunks: Vec<&ChunkRows<'_>> = inputs.chunks.iter().filter(working).collect();
        if chunks.len() > self.most_chunks {
            return Err(Error::OverLimit { what: "chunks", found: chunks.len(), limit: self.most_chunks });
        }
        self.words.clear();
        self.words.resize(HEAD_WORDS, 0);
        let tables = [
            self.table(|block| block.chunks(&chunks)),
            self.table(|block| {
                let rows = chunks.iter().enumerate();
                block.words.extend(rows.flat_map(|(index, chunk)| std::iter::repeat_n(index as u32, chunk.rows)));
            }),
            self.table(|block| {
                for (chunk, rows) in chunks.iter().enumerate() {
                    let sequence = (0..rows.replayed_and_rows()).flat_map(|index| [chunk as u32, index as u32]);
                    block.words.extend(sequence);
                }
            }),
            self.table(|block| block.words.extend(inputs.wanted)),
            self.table(|block| block.pages(&chunks)),
            self.table(|block| {
                if entry.vectors_to.is_some() {
                    block.words.extend(inputs.vectors.iter().map(|value| value.to_bits()));
                }
            }),
            self.table(|block| block.embedded(inputs, entry)),
            self.table(|block| block.rotations(inputs, entry)),
        ];
        let longest = chunks.iter().map(|chunk| chunk.start + chunk.rows).max().unwrap_or(0);
        let counts = Counts {
            rows: inputs.rows() as u32,
            wanted: inputs.wanted.len() as u32,
            chunks: chunks.len() as u32,
            sequence: chunks.iter().map(|chunk| chunk.replayed_and_rows() as u32).sum(),
            segments: longest.div_ceil(SEGMENT) as u32,
        };
        let Counts { rows, wanted, chunks, sequence, segments } = counts;
        let head = [rows, wanted, chunks, sequence, segments].into_iter().chain(tables);
        self.words.iter_mut().zip(head).for_each(|(word, value)| *word = value);
        Ok((&self.words, counts))
    }

    /// Appends a table and says at which word it begins.
    fn table(&mut self, fill: impl FnOnce(&mut Self)) -> u32 {
        let first = self.words.len() as u32;
        fill(self);
        first
    }

    fn chunks(&mut self, chunks: &[&ChunkRows<'_>]) {
        let mut page = 0;
        for chunk in chunks {
            let ChunkRows { first_row, rows, start, slot, log, .. } = **chunk;
            let fields = [first_row, rows, start, slot, page, log.place, log.before, log.uncertain];
            self.words.extend(fields.map(|field| field as u32));
            page += self.pages_of(chunk);
        }
    }

    fn pages(&mut self, chunks: &[&ChunkRows<'_>]) {
        for chunk in chunks {
            self.words.extend(&chunk.pages[..self.pages_of(chunk)]);
        }
    }

    /// How many of its pages a chunk reads or writes.
    fn pages_of(&self, chunk: &ChunkRows<'_>) -> usize {
        if self.has_caches { (chunk.start + chunk.rows).div_ceil(self.page_tokens) } else { 0 }
    }

    /// Rows of the embedding table, and vectors that come in their place.
    fn embedded(&mut self, inputs: &StepInputs<'_>, entry: &Entry) {
        let Some((table, width, in_place_of_tokens)) = &entry.embedding else { return };
        let mut row = vec![0.0; *width];
        let mut vectors = inputs.vectors.chunks_exact((*width).max(1));
        for token in inputs.tokens {
            if *token == NO_TOKEN && *in_place_of_tokens {
                row.copy_from_slice(vectors.next().expect("vectors are counted with the inputs"));
            } else {
                table.table().read(*token as usize, &mut row);
            }
            self.words.extend(row.iter().map(|value| value.to_bits()));
        }
    }

    fn rotations(&mut self, inputs: &StepInputs<'_>, entry: &Entry) {
        for (rotary, dimensions) in &entry.rotaries {
            let mut row = vec![0.0; *dimensions];
            for position in inputs.positions {
                rotary.fill(*position, &mut row);
                self.words.extend(row.iter().map(|value| value.to_bits()));
            }
        }
    }
}

/// The most chunks of a step that do anything: each has a row, or replays a log of its own; where there are states, each
/// has a slot of its own.
fn most_chunks(program: &Program, memory: &MemorySpec) -> usize {
    let chunks = memory.rows.saturating_add(memory.logs.sessions);
    if program.states.is_empty() { chunks } else { chunks.min(memory.slots) }
}
