//! Checks a step's inputs before anything is computed, so that a bad step changes nothing.

use crate::device::{ChunkLog, ChunkRows, MemorySpec, NO_TOKEN, StepInputs};
use crate::program::{Op, Program, Recorded};
use crate::{Error, Result};

/// What a loaded program accepts.
pub struct Checks {
    memory: MemorySpec,
    entries: Vec<Entry>,
    has_caches: bool,
    has_states: bool,
    /// The step that last wrote each page, each slot, and each log.
    page_marks: Vec<u64>,
    slot_marks: Vec<u64>,
    log_marks: Vec<u64>,
    step: u64,
}

/// What one entry of the program takes.
struct Entry {
    /// Rows of the embedding table, where there is one.
    vocabulary: Option<usize>,
    /// Values of a row that comes as a vector.
    vector: usize,
    /// Are vectors rows in place of tokens? Else every row has one beside its token, if it has a token.
    embeds: bool,
    /// Components of positions that are looked up in a table of so many rows.
    looked_up: Vec<(usize, usize)>,
}

impl Entry {
    fn new(program: &Program, ops: &[Recorded], shapes: &[[usize; 3]]) -> Self {
        let embedding = ops.iter().find_map(|recorded| match recorded.op {
            Op::Embed { table, output } => Some((table, output)),
            _ => None,
        });
        let embeds = program.embeds && embedding.is_some();
        let looked_up = |recorded: &Recorded| match recorded.op {
            Op::AddEmbedding { table, component, .. } => Some((component, shapes[table.0 as usize][1])),
            _ => None,
        };
        let into = if embeds { embedding.map(|(_, output)| output) } else { program.input };
        Self {
            vocabulary: embedding.map(|(table, _)| shapes[table.0 as usize][1]),
            vector: into.map_or(0, |buffer| program.width(buffer)),
            embeds,
            looked_up: ops.iter().filter_map(looked_up).collect(),
        }
    }

    fn check_positions(&self, inputs: &StepInputs<'_>) -> Result<()> {
        self.looked_up.iter().try_for_each(|&(component, count)| {
            inputs.positions.iter().try_for_each(|position| exists("position", position[component] as usize, count))
        })
    }

    fn check_tokens(&self, inputs: &StepInputs<'_>) -> Result<()> {
        let Some(vocabulary) = self.vocabulary else {
            equal("tokens", inputs.tokens.len(), 0)?;
            return equal("values in vectors", inputs.vectors.len(), inputs.rows() * self.vector);
        };
        equal("tokens", inputs.tokens.len(), inputs.rows())?;
        if !self.embeds {
            equal("values in vectors", inputs.vectors.len(), inputs.rows() * self.vector)?;
            return inputs.tokens.iter().try_for_each(|token| exists("token", *token as usize, vocabulary));
        }
        let mut vectors = 0;
        for token in inputs.tokens {
            match *token {
                NO_TOKEN => vectors += 1,
                token => exists("token", token as usize, vocabulary)?,
            }
        }
        equal("values in vectors", inputs.vectors.len(), vectors * self.vector)
    }
}

impl Checks {
    /// For a program whose tensors have these shapes, `(columns, rows, matrices)`.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(program: &Program, memory: &MemorySpec, shapes: &[[usize; 3]]) -> Result<Self> {
        let entries = program.entries().into_iter().map(|ops| Entry::new(program, &program.ops[ops], shapes));
        Ok(Self {
            memory: *memory,
            entries: entries.collect(),
            has_caches: !program.caches.is_empty(),
            has_states: !program.states.is_empty(),
            page_marks: marks(memory.pages)?,
            slot_marks: marks(memory.slots)?,
            log_marks: marks(memory.logs.sessions)?,
            step: 0,
        })
    }

    /// Are vectors of this entry copied into the program's input?
    pub fn copies_vectors(&self, entry: usize) -> bool {
        !self.entries[entry].embeds
    }

    /// Bytes of the tables it keeps.
    pub fn bytes(&self) -> u64 {
        (size_of::<u64>() * (self.page_marks.len() + self.slot_marks.len() + self.log_marks.len())) as u64
    }

    /// Accepts or refuses a step of one of the entries.
    ///
    /// # Errors
    /// Inputs that do not fit the reserved memory or one another; an entry that the program does not have.
    pub fn check(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<()> {
        exists("entry", entry, self.entries.len())?;
        self.step += 1;
        within("rows", inputs.rows(), self.memory.rows)?;
        within("wanted rows", inputs.wanted.len(), self.memory.wanted)?;
        self.entries[entry].check_tokens(inputs)?;
        self.entries[entry].check_positions(inputs)?;
        check_wanted(inputs)?;
        let mut rows = 0;
        for chunk in inputs.chunks {
            equal("first row of a chunk", chunk.first_row, rows)?;
            rows = chunk.first_row.saturating_add(chunk.rows);
            within("rows in chunks", rows, inputs.rows())?;
            self.check_slot(chunk)?;
            self.check_log(chunk)?;
            self.check_pages(chunk)?;
        }
        equal("rows in chunks", rows, inputs.rows())
    }

    fn check_slot(&mut self, chunk: &ChunkRows<'_>) -> Result<()> {
        if !self.has_states {
            return Ok(());
        }
        exists("state slot", chunk.slot, self.memory.slots)?;
        mark(&mut self.slot_marks[chunk.slot], self.step, "state slot", chunk.slot)
    }

    fn check_log(&mut self, chunk: &ChunkRows<'_>) -> Result<()> {
        let (ChunkLog { place, before, uncertain }, logs) = (chunk.log, self.memory.logs);
        within("replayed tokens", before, logs.tokens.min(chunk.start))?;
        within("uncertain tokens", uncertain, logs.tokens.min(before.saturating_add(chunk.rows)))?;
        if before + uncertain == 0 || !self.has_states {
            return Ok(());
        }
        exists("log", place, logs.sessions)?;
        mark(&mut self.log_marks[place], self.step, "log", place)
    }

    fn check_pages(&mut self, chunk: &ChunkRows<'_>) -> Result<()> {
        if !self.has_caches {
            return Ok(());
        }
        let page_tokens = self.memory.page_tokens;
        let end = chunk.start.saturating_add(chunk.rows);
        let needed = end.div_ceil(page_tokens);
        if chunk.pages.len() < needed {
            return Err(Error::Inconsistent { what: "pages of a chunk", found: chunk.pages.len(), expected: needed });
        }
        for page in chunk.pages {
            exists("page", *page as usize, self.memory.pages)?;
        }
        let written = if chunk.rows == 0 { 0..0 } else { chunk.start / page_tokens..needed };
        for page in &chunk.pages[written] {
            mark(&mut self.page_marks[*page as usize], self.step, "page", *page as usize)?;
        }
        Ok(())
    }
}

fn check_wanted(inputs: &StepInputs<'_>) -> Result<()> {
    let mut next = 0;
    for row in inputs.wanted {
        let row = *row as usize;
        exists("wanted row", row, inputs.rows())?;
        if row < next {
            return Err(Error::Inconsistent { what: "wanted rows, which ascend,", found: row, expected: next });
        }
        next = row + 1;
    }
    Ok(())
}

fn marks(count: usize) -> Result<Vec<u64>> {
    let mut marks = Vec::new();
    let refused = |_| Error::OutOfMemory { what: "page tables", bytes: (count as u64).saturating_mul(8) };
    marks.try_reserve_exact(count).map_err(refused)?;
    marks.resize(count, 0);
    Ok(marks)
}

/// Notes that a page or slot is written in this step, once.
fn mark(last: &mut u64, step: u64, what: &'static str, id: usize) -> Result<()> {
    if *last == step {
        return Err(Error::WrittenTwice { what, id });
    }
    *last = step;
    Ok(())
}

fn within(what: &'static str, found: usize, limit: usize) -> Result<()> {
    if found > limit {
        return Err(Error::OverLimit { what, found, limit });
    }
    Ok(())
}

fn equal(what: &'static str, found: usize, expected: usize) -> Result<()> {
    if found != expected {
        return Err(Error::Inconsistent { what, found, expected });
    }
    Ok(())
}

/// Refuses an id that is not below `count`.
///
/// # Errors
/// [`Error::Unknown`].
pub fn exists(what: &'static str, id: usize, count: usize) -> Result<()> {
    if id >= count {
        return Err(Error::Unknown { what, id, count });
    }
    Ok(())
}
