//! Runs a model as a row of stages would, without the row: any split of its layers, any cut of prompts into chunks,
//! any sessions together in a step.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use paceline_compute::device::{ChunkLog, ChunkRows, LogSpec, MemoryOperation, MemorySpec, NO_TOKEN, StepInputs};
use paceline_compute::program::{Buffer, Program, Recorded};
use paceline_compute::{Device, LoadedStage};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_model::{Overrides, StageLayers};

use crate::{Error, Result};

/// How a model is laid out and how much it can hold.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Layers of each stage, in order; none for one stage with all.
    pub splits: Vec<Range<usize>>,
    /// How keys and values are stored.
    pub key_value_types: [KvType; 2],
    /// Tokens per page.
    pub page_tokens: usize,
    /// The longest sequence.
    pub context: usize,
    /// The most sessions.
    pub sessions: usize,
    /// The most rows of a step.
    pub rows: usize,
    /// The most rows of a step whose logits are wanted.
    pub wanted: usize,
    /// The most tokens of a session that may yet be rejected.
    pub uncertain: usize,
    /// What is changed of the file's settings.
    pub overrides: Overrides,
}

impl Default for Layout {
    fn default() -> Layout {
        Layout {
            splits: Vec::new(),
            key_value_types: [KvType::F32; 2],
            page_tokens: 16,
            context: 256,
            sessions: 4,
            rows: 64,
            wanted: 64,
            uncertain: 0,
            overrides: Overrides::default(),
        }
    }
}

/// Consecutive rows of one session.
#[derive(Debug, Clone)]
pub struct Chunk {
    /// Whose rows they are; a new number begins a new session.
    pub session: u32,
    /// One token per row, or [`NO_TOKEN`].
    pub tokens: Vec<u32>,
    /// The rows without a token.
    pub vectors: Vec<f32>,
    /// Where the rows are, if not one after another.
    pub positions: Option<Vec<[u32; 4]>>,
    /// How many of the last rows may yet be rejected; see [`ModelRun::reject`].
    pub uncertain: usize,
}

impl Chunk {
    /// Rows of text.
    pub fn text(session: u32, tokens: &[u32]) -> Chunk {
        Chunk { session, tokens: tokens.to_vec(), vectors: Vec::new(), positions: None, uncertain: 0 }
    }

    /// Rows of vectors, such as an image.
    pub fn vectors(session: u32, vectors: &[f32], positions: Vec<[u32; 4]>) -> Chunk {
        let tokens = vec![NO_TOKEN; positions.len()];
        Chunk { session, tokens, vectors: vectors.to_vec(), positions: Some(positions), uncertain: 0 }
    }
}

/// One session's place in the memories.
#[derive(Debug)]
struct Session {
    slot: usize,
    pages: Vec<u32>,
    /// Where its next token goes.
    tokens: usize,
    /// How many of its last tokens are in the log, and not yet in its state.
    logged: usize,
}

/// A model in place, and the sessions that it is running.
pub struct ModelRun {
    stages: Vec<Box<dyn LoadedStage>>,
    layout: Layout,
    sessions: HashMap<u32, Session>,
    free_pages: Vec<u32>,
}

impl ModelRun {
    /// Loads every stage of `model` on `device`.
    ///
    /// # Errors
    /// A stage that cannot be recorded or loaded.
    pub fn new(device: &dyn Device, model: &Arc<Gguf>, layout: Layout) -> Result<ModelRun> {
        ModelRun::on(&[device], model, layout)
    }

    /// Loads every stage of `model` on one of the devices, which are dealt out in turn.
    ///
    /// # Errors
    /// As [`ModelRun::new`].
    ///
    /// # Panics
    /// If there is no device.
    pub fn on(devices: &[&dyn Device], model: &Arc<Gguf>, layout: Layout) -> Result<ModelRun> {
        let layers = ModelShape::read(model)?.layers.len();
        let splits =
            if layout.splits.is_empty() { std::slice::from_ref(&(0..layers)).to_vec() } else { layout.splits.clone() };
        let pages_per_session = layout.context.div_ceil(layout.page_tokens);
        let pages = layout.sessions.saturating_mul(pages_per_session);
        let [key_type, value_type] = layout.key_value_types;
        let memory = MemorySpec {
            page_tokens: layout.page_tokens,
            pages,
            slots: layout.sessions,
            key_type,
            value_type,
            rows: layout.rows,
            wanted: layout.wanted,
            logs: LogSpec { sessions: layout.sessions, tokens: layout.uncertain },
        };
        let mut stages = Vec::with_capacity(splits.len());
        for (layers_of_stage, device) in splits.into_iter().zip(devices.iter().cycle()) {
            let stage = StageLayers::of(layers_of_stage, layers);
            let program = paceline_model::record_with(model, &stage, &layout.overrides)?;
            stages.push(device.load(program, model, memory, &mut |_| {})?);
        }
        // Every third page first: consecutive pages of a session never lie side by side.
        let free_pages = (0..3).flat_map(|first| (first..pages as u32).step_by(3)).collect();
        Ok(ModelRun { stages, layout, sessions: HashMap::new(), free_pages })
    }

    /// Runs one step and returns the logits of every row, in order.
    ///
    /// # Errors
    /// A step that does not fit, or that a stage refuses.
    pub fn step(&mut self, chunks: &[Chunk]) -> Result<Vec<Vec<f32>>> {
        self.step_wanting(chunks, 0..rows_of(chunks))
    }

    /// Runs one step and returns the logits of some of its rows.
    ///
    /// # Errors
    /// As [`ModelRun::step`].
    pub fn step_wanting(&mut self, chunks: &[Chunk], wanted: Range<usize>) -> Result<Vec<Vec<f32>>> {
        let count = wanted.len();
        self.run(chunks, wanted, None)?;
        self.results(count, |program| program.logits)
    }

    /// The final hidden rows of the last step, of which `rows` rows were wanted.
    ///
    /// # Errors
    /// If there was no such step.
    pub fn hidden(&mut self, rows: usize) -> Result<Vec<Vec<f32>>> {
        self.results(rows, |program| program.hidden)
    }

    /// Runs one step and shows every operation of every stage with the buffers as it left them.
    ///
    /// # Errors
    /// As [`ModelRun::step`].
    pub fn observe(
        &mut self,
        chunks: &[Chunk],
        mut observe: impl FnMut(&Program, &Recorded, &dyn Fn(Buffer) -> Vec<f32>),
    ) -> Result<()> {
        self.run(chunks, 0..rows_of(chunks), Some(&mut observe))
    }

    /// Runs a session's next tokens in chunks of at most `chunk` and returns the logits of every row.
    ///
    /// # Errors
    /// As [`ModelRun::step`].
    pub fn text(&mut self, session: u32, tokens: &[u32], chunk: usize) -> Result<Vec<Vec<f32>>> {
        let mut rows = Vec::with_capacity(tokens.len());
        for tokens in tokens.chunks(chunk) {
            rows.extend(self.step(&[Chunk::text(session, tokens)])?);
        }
        Ok(rows)
    }

    /// As [`ModelRun::text`], but only the logits of the last row are wanted: what comes next. None without tokens.
    ///
    /// # Errors
    /// As [`ModelRun::step`].
    pub fn next(&mut self, session: u32, tokens: &[u32], chunk: usize) -> Result<Option<Vec<f32>>> {
        let mut last = None;
        for tokens in tokens.chunks(chunk) {
            last = self.step_wanting(&[Chunk::text(session, tokens)], tokens.len() - 1..tokens.len())?.pop();
        }
        Ok(last)
    }

    /// Takes the last `count` tokens of a session back, which were uncertain.
    ///
    /// # Errors
    /// If there is no such session, or not that many of its tokens are uncertain.
    pub fn reject(&mut self, session: u32, count: usize) -> Result<()> {
        let known = self.sessions.get_mut(&session).ok_or(Error::UnknownSession { session })?;
        let left = known.logged.checked_sub(count).ok_or(Error::Certain { session, count })?;
        (known.tokens, known.logged) = (known.tokens - count, left);
        Ok(())
    }

    /// Begins a session that goes on from where another is, as a cache does it: its full pages are shared, its state and
    /// its last page, if that is partly filled, are copied.
    ///
    /// # Errors
    /// If there is no such session, if tokens of it are not in its state, or if there is no room for another.
    pub fn fork(&mut self, session: u32, copy: u32) -> Result<()> {
        let Session { slot: from, pages, tokens, logged } =
            self.sessions.get(&session).ok_or(Error::UnknownSession { session })?;
        if *logged > 0 {
            return Err(Error::Uncertain { session, count: *logged });
        }
        let (from, tokens, mut pages) = (*from, *tokens, pages.clone());
        let slot = self.begin(copy)?;
        let mut operations = vec![MemoryOperation::CopyState { from, to: slot }];
        pages.truncate(tokens.div_ceil(self.layout.page_tokens));
        if !tokens.is_multiple_of(self.layout.page_tokens)
            && let Some(partly_filled) = pages.last_mut()
        {
            let limit = self.layout.context;
            let to = self.free_pages.pop().ok_or(Error::NoRoom { what: "a copy of a page", limit })?;
            operations.push(MemoryOperation::CopyPage { from: std::mem::replace(partly_filled, to), to });
        }
        for stage in &mut self.stages {
            for operation in &operations {
                stage.apply(*operation)?;
            }
        }
        self.sessions.insert(copy, Session { slot, pages, tokens, logged: 0 });
        Ok(())
    }

    /// Ends a session; its slot, and its pages that no other session shares, are used again.
    ///
    /// # Errors
    /// If there is no such session.
    pub fn end(&mut self, session: u32) -> Result<()> {
        let ended = self.sessions.remove(&session).ok_or(Error::UnknownSession { session })?;
        let shared = |page: &u32| self.sessions.values().any(|other| other.pages.contains(page));
        let free: Vec<u32> = ended.pages.into_iter().filter(|page| !shared(page)).collect();
        self.free_pages.extend(free);
        Ok(())
    }

    fn run(&mut self, chunks: &[Chunk], wanted: Range<usize>, mut observe: Option<Observer<'_>>) -> Result<()> {
        for chunk in chunks {
            self.make_room(chunk.session, chunk.tokens.len())?;
        }
        let rows = rows_of(chunks);
        let tokens: Vec<u32> = chunks.iter().flat_map(|chunk| chunk.tokens.iter().copied()).collect();
        let vectors: Vec<f32> = chunks.iter().flat_map(|chunk| chunk.vectors.iter().copied()).collect();
        let positions: Vec<[u32; 4]> = chunks.iter().flat_map(|chunk| self.positions(chunk)).collect();
        let wanted: Vec<u32> = (wanted.start as u32..wanted.end as u32).collect();
        let chunk_rows = chunk_rows(&self.sessions, chunks);
        let first = StepInputs {
            chunks: &chunk_rows,
            tokens: &tokens,
            vectors: &vectors,
            positions: &positions,
            wanted: &wanted,
        };
        let mut stream = Vec::new();
        for stage in &mut self.stages {
            let later = StepInputs { tokens: &[], vectors: &stream, ..first };
            let inputs = if stage.program().embeds { first } else { later };
            match &mut observe {
                None => stage.run(&inputs)?,
                Some(observe) => run_observed(stage.as_mut(), &inputs, observe)?,
            }
            stream = read(stage.as_mut(), |program| program.output, rows)?.concat();
        }
        for chunk in chunks {
            if let Some(session) = self.sessions.get_mut(&chunk.session) {
                session.tokens += chunk.tokens.len();
                session.logged = chunk.uncertain;
            }
        }
        Ok(())
    }

    /// Begins the session if it is new, and gives it the pages that `more` tokens need.
    fn make_room(&mut self, session: u32, more: usize) -> Result<()> {
        if !self.sessions.contains_key(&session) {
            let slot = self.begin(session)?;
            for stage in &mut self.stages {
                stage.apply(MemoryOperation::ClearState { slot })?;
            }
        }
        let session = self.sessions.get_mut(&session).ok_or(Error::UnknownSession { session })?;
        while session.pages.len() * self.layout.page_tokens < session.tokens + more {
            let limit = self.layout.context;
            session.pages.push(self.free_pages.pop().ok_or(Error::NoRoom { what: "more tokens", limit })?);
        }
        Ok(())
    }

    /// Gives a new session a slot.
    fn begin(&mut self, session: u32) -> Result<usize> {
        let taken: Vec<usize> = self.sessions.values().map(|session| session.slot).collect();
        let limit = self.layout.sessions;
        let slot = (0..limit).find(|slot| !taken.contains(slot));
        let slot = slot.ok_or(Error::NoRoom { what: "one more session", limit })?;
        self.sessions.insert(session, Session { slot, pages: Vec::new(), tokens: 0, logged: 0 });
        Ok(slot)
    }

    fn positions(&self, chunk: &Chunk) -> Vec<[u32; 4]> {
        let start = self.sessions[&chunk.session].tokens as u32;
        let one_after_another = || (start..).take(chunk.tokens.len()).map(|at| [at, at, at, 0]).collect();
        chunk.positions.clone().unwrap_or_else(one_after_another)
    }

    fn results(&mut self, rows: usize, buffer: fn(&Program) -> Option<Buffer>) -> Result<Vec<Vec<f32>>> {
        match self.stages.last_mut() {
            Some(last) => read(last.as_mut(), buffer, rows),
            None => Ok(Vec::new()),
        }
    }
}

/// Sees a program, an operation of it, and the buffers after the operation.
type Observer<'a> = &'a mut dyn FnMut(&Program, &Recorded, &dyn Fn(Buffer) -> Vec<f32>);

fn run_observed(stage: &mut dyn LoadedStage, inputs: &StepInputs<'_>, observe: &mut Observer<'_>) -> Result<()> {
    let program = stage.program().clone();
    let mut show = |index: usize, buffers: &dyn Fn(Buffer) -> Vec<f32>| observe(&program, &program.ops[index], buffers);
    Ok(stage.run_observed(inputs, &mut show)?)
}

/// The chunks as a stage sees them.
fn chunk_rows<'a>(sessions: &'a HashMap<u32, Session>, chunks: &[Chunk]) -> Vec<ChunkRows<'a>> {
    let mut first_row = 0;
    let place = |chunk: &Chunk| {
        let session = &sessions[&chunk.session];
        let rows = chunk.tokens.len();
        let placed = ChunkRows {
            first_row,
            rows,
            start: session.tokens,
            slot: session.slot,
            pages: &session.pages,
            log: ChunkLog { place: session.slot, before: session.logged, uncertain: chunk.uncertain },
        };
        first_row += rows;
        placed
    };
    chunks.iter().map(place).collect()
}

fn rows_of(chunks: &[Chunk]) -> usize {
    chunks.iter().map(|chunk| chunk.tokens.len()).sum()
}

/// Rows of a result, if the stage has it.
fn read(stage: &mut dyn LoadedStage, buffer: fn(&Program) -> Option<Buffer>, rows: usize) -> Result<Vec<Vec<f32>>> {
    let Some(buffer) = buffer(stage.program()) else { return Ok(Vec::new()) };
    let width = stage.program().width(buffer);
    let mut values = vec![0.0; rows * width];
    stage.read(buffer, 0..rows, &mut values)?;
    Ok(values.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect())
}
