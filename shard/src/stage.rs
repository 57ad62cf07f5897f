//! One stage of the row: takes a frame, runs its layers on the device, and passes the frame on.
//!
//! The order is always the same: check the step's number, apply its memory operations, void what was cancelled,
//! run the rest, and hand on activations or, at the tail, results. A stage has no clock but the stopwatch that
//! tells the scheduler what a step took.

use std::sync::{Arc, Mutex, PoisonError};

use paceline_compute::LoadedStage;
use paceline_compute::device::{ChunkRows, MemoryUse, StepInputs};
use paceline_grammar::Speller;
use paceline_proto::{
    Chunk, ChunkInput, ChunkResult, Epoch, Frame, Operation, Payload, Step, StepDone, StepId, Wanted,
};
use tracing::warn;

use crate::checks::check_chunks;
use crate::drafts::{self, Drafter};
use crate::feedback::Feedback;
use crate::open_sessions::OpenSessions;
use crate::rows::Rows;
use crate::sessions::SessionTable;
use crate::stopwatch::Stopwatch;
use crate::tail::Tail;
use crate::tiers::StageStaging;
use crate::{Error, Result};

pub(crate) mod memories;
pub(crate) mod tier;

/// Where a stage stands in its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Counted from the head, which is 0.
    pub index: usize,
    /// The head embeds.
    pub first: bool,
    /// The tail samples.
    pub last: bool,
    /// The placement in force.
    pub epoch: Epoch,
}

/// What comes out of a stage for a frame.
#[derive(Debug)]
pub enum Passed {
    /// The frame for the next stage.
    On(Frame),
    /// The tail's results.
    Done(StepDone),
}

/// A loaded stage and all that it remembers between steps.
pub struct Stage {
    place: Place,
    loaded: Box<dyn LoadedStage>,
    sessions: SessionTable,
    open: OpenSessions,
    tail: Tail,
    /// What makes drafts, at a tail that has a draft model.
    drafter: Option<Box<dyn Drafter>>,
    feedback: Feedback,
    next: StepId,
    rows: Rows,
    watch: Stopwatch,
    /// A frame has failed.
    failed: bool,
    /// What waits to be installed, where there is a lower tier.
    staging: Option<StageStaging>,
}

/// A stage that its thread shares with whoever moves its memories: one has it at a time.
#[derive(Clone)]
pub struct SharedStage {
    place: Place,
    open: OpenSessions,
    stage: Arc<Mutex<Option<Stage>>>,
    /// Held while waiting for the stage: whoever had it last cannot have it again before those who wait.
    turn: Arc<Mutex<()>>,
}

impl SharedStage {
    /// A stage to share.
    pub fn new(stage: Stage) -> Self {
        Self {
            place: stage.place,
            open: stage.open.clone(),
            stage: Arc::new(Mutex::new(Some(stage))),
            turn: Arc::default(),
        }
    }

    /// Where it stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its open sessions, for whoever cancels them.
    pub fn open_sessions(&self) -> OpenSessions {
        self.open.clone()
    }

    /// Does something with the stage, when nobody else does.
    ///
    /// # Errors
    /// Those of the work; [`Error::Stopped`] when the stage is gone, or somebody panicked while he had it.
    pub fn with<T>(&self, work: impl FnOnce(&mut Stage) -> Result<T>) -> Result<T> {
        let turn = self.turn.lock().map_err(|_| Error::Stopped)?;
        let mut stage = self.stage.lock().map_err(|_| Error::Stopped)?;
        drop(turn);
        work(stage.as_mut().ok_or(Error::Stopped)?)
    }

    /// Frees the stage's memory, whoever may still share it.
    pub fn close(&self) {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Stage {
    /// A stage at `place`, around what a device loaded. Head and tail are given the two ends of
    /// [`feedback`](crate::feedback()), or a stage that is both [`Feedback::own`].
    pub fn new(place: Place, loaded: Box<dyn LoadedStage>, feedback: Feedback) -> Self {
        let tail = Tail::new(loaded.program());
        let (sessions, open) = (SessionTable::new(loaded.memory()), OpenSessions::default());
        let (rows, watch) = (Rows::default(), Stopwatch::default());
        Self {
            place,
            loaded,
            sessions,
            open,
            tail,
            drafter: None,
            feedback,
            next: StepId(0),
            rows,
            watch,
            failed: false,
            staging: None,
        }
    }

    /// The same stage, a tail, with a draft model that has run nothing yet. The tail's program must have the
    /// [`features`](paceline_compute::program::Program::features) that it reads.
    ///
    /// # Errors
    /// When this is not the tail, or its program has no such features.
    pub fn with_drafter(self, drafter: Box<dyn Drafter>) -> Result<Self> {
        if !self.place.last {
            return Err(Error::NotTail);
        }
        let program = self.loaded.program();
        let found = program.features.map_or(0, |features| program.width(features));
        match drafter.features() {
            Some(wanted) if found != wanted => Err(Error::Features { found, wanted }),
            _ => Ok(Self { drafter: Some(drafter), ..self }),
        }
    }

    /// Does it make drafts?
    pub fn has_drafter(&self) -> bool {
        self.drafter.is_some()
    }

    /// Bytes that it occupies, its draft model's among them.
    pub fn memory_use(&self) -> MemoryUse {
        let (own, drafter) = (self.loaded.memory_use(), self.drafter.as_ref().map(|drafter| drafter.memory_use()));
        let MemoryUse { weights, pages, states, buffers } = drafter.unwrap_or_default();
        MemoryUse {
            weights: own.weights + weights,
            pages: own.pages + pages,
            states: own.states + states,
            buffers: own.buffers + buffers,
        }
    }

    /// Lets the tail hold answers to a grammar: `speller` knows how the model's tokens are spelled.
    #[must_use]
    pub fn with_speller(mut self, speller: Arc<Speller>) -> Self {
        self.tail.know(speller);
        self
    }

    /// Where it stands.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Its open sessions, for whoever cancels them.
    pub fn open_sessions(&self) -> OpenSessions {
        self.open.clone()
    }

    /// What is loaded.
    pub fn loaded(&self) -> &dyn LoadedStage {
        self.loaded.as_ref()
    }

    /// The logits of the last step's wanted rows, `(wanted rows, vocabulary)`; at the tail only.
    ///
    /// # Errors
    /// When this is not the tail.
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        let rows = self.rows.wanted.len();
        self.tail.read_logits(self.loaded.as_mut(), rows)
    }

    /// Runs one frame.
    ///
    /// # Errors
    /// A frame that contradicts itself or what this stage knows, or a device that fails. Afterwards every frame is
    /// refused with [`Error::Stopped`]: the stage's memory may disagree with the other stages'.
    pub fn run(&mut self, frame: Frame) -> Result<Passed> {
        if self.failed {
            return Err(Error::Stopped);
        }
        self.failed = true;
        let passed = self.run_frame(frame)?;
        self.failed = false;
        Ok(passed)
    }

    fn run_frame(&mut self, mut frame: Frame) -> Result<Passed> {
        self.watch.begin();
        self.check(&frame.step)?;
        for operation in &frame.step.operations {
            self.apply(operation)?;
        }
        // What becomes void here is among what the frame carries.
        let carried = frame.step.chunks.iter().map(|chunk| self.place.carried(chunk)).collect();
        let is_cancelled = |session| self.open.is_cancelled(session);
        check_chunks(&mut frame.step, self.place, &mut self.sessions, &self.loaded.memory(), is_cancelled)?;
        self.feedback.drain();
        self.feedback.keep(|session| self.sessions.has(session));
        self.collect(&mut frame, carried)?;
        self.compute(&frame.step)?;
        let passed = if self.place.last { self.finish(frame)? } else { self.pass_on(frame)? };
        self.next = StepId(self.next.0 + 1);
        self.watch.free();
        Ok(passed)
    }

    /// What the last step made is on its way: from here on the stage waits.
    pub(crate) fn sent(&mut self) {
        self.watch.free();
    }

    fn check(&self, step: &Step) -> Result<()> {
        if step.epoch != self.place.epoch {
            return Err(Error::Epoch { found: step.epoch, expected: self.place.epoch });
        }
        if step.id != self.next {
            return Err(Error::Order { found: step.id, expected: self.next });
        }
        Ok(())
    }

    fn apply(&mut self, operation: &Operation) -> Result<()> {
        if let Some(work) = self.sessions.apply(operation)? {
            self.loaded.apply(work)?;
            if let Some(drafter) = &mut self.drafter {
                drafter.apply(work)?;
            }
        }
        match operation {
            Operation::Open { session, sampling, generated_from, reused, .. } => {
                self.open.open(*session);
                if self.place.last {
                    self.tail.open(*session, sampling, *generated_from, reused)?;
                }
            }
            Operation::Close { session } => {
                self.open.close(*session);
                self.tail.close(*session);
            }
            Operation::Install { ticket, pages, slot } => self.install(*ticket, pages, *slot)?,
            _ => {}
        }
        Ok(())
    }

    /// Lays out the rows of all chunks that are still wanted, and voids the others. `rows` says how many of the frame's
    /// rows belong to each.
    fn collect(&mut self, frame: &mut Frame, rows: Vec<usize>) -> Result<()> {
        let program = self.loaded.program();
        let width = program.input.map_or(0, |input| program.width(input));
        let mut carried = self.rows.begin(&frame.payload, width)?;
        for (chunk, rows) in frame.step.chunks.iter_mut().zip(rows) {
            let vectors = carried.take(rows)?;
            chunk.void |= self.open.is_cancelled(chunk.session);
            if !chunk.void && self.place.first {
                resolve(chunk, &self.sessions, &mut self.feedback)?;
            }
            if !chunk.void {
                self.rows.add(chunk, self.place, vectors)?;
            }
            // The tail tells the head what becomes of it, void or not.
            if chunk.wanted == Wanted::Sample && self.sessions.has(chunk.session) {
                self.sessions.get_mut(chunk.session)?.sampled_in = Some(frame.step.id);
            }
        }
        carried.finish()
    }

    fn compute(&mut self, step: &Step) -> Result<()> {
        if self.rows.positions.is_empty() {
            return Ok(());
        }
        let mut first_row = 0;
        let mut chunks = Vec::with_capacity(step.chunks.len());
        for chunk in step.chunks.iter().filter(|chunk| !chunk.void) {
            let memory = self.sessions.get(chunk.session)?;
            let (rows, start) = (chunk.input.rows(), chunk.start as usize);
            let log = memory.log_of(start, chunk.wanted.drafts() as usize);
            chunks.push(ChunkRows { first_row, rows, start, slot: memory.slot, pages: &memory.pages, log });
            first_row += rows;
        }
        self.loaded.run(&StepInputs {
            chunks: &chunks,
            tokens: &self.rows.tokens,
            vectors: &self.rows.vectors,
            positions: &self.rows.positions,
            wanted: &self.rows.wanted,
        })?;
        for chunk in step.chunks.iter().filter(|chunk| !chunk.void) {
            let memory = self.sessions.get_mut(chunk.session)?;
            memory.uncertain = chunk.wanted.drafts() as usize;
            memory.certain = chunk.start as usize + chunk.input.rows() - memory.uncertain;
        }
        Ok(())
    }

    fn pass_on(&mut self, mut frame: Frame) -> Result<Passed> {
        let rows = self.rows.positions.len();
        frame.payload = Payload::empty();
        if rows > 0 {
            let buffer = self.loaded.program().output.expect("every stage but the last hands rows on");
            let width = self.loaded.program().width(buffer);
            let stream = self.rows.stream(rows * width);
            self.loaded.read(buffer, 0..rows, stream)?;
            frame.payload = Payload::from_rows(width, stream);
        }
        let Payload::Host { rows: sent, .. } = &frame.payload;
        frame.times.push(self.watch.time(self.feedback.take_waited(), sent.len()));
        Ok(Passed::On(frame))
    }

    fn finish(&mut self, frame: Frame) -> Result<Passed> {
        let Step { epoch, id, chunks, .. } = &frame.step;
        let mut results = self.tail.results(self.loaded.as_mut(), *id, chunks, &mut self.feedback)?;
        if let Err(error) = self.draft(chunks, &mut results) {
            warn!(%error, "the draft model fails: it goes on without drafts");
            self.drafter = None;
        }
        let mut times = frame.times;
        times.push(self.watch.time(self.feedback.take_waited(), 0));
        Ok(Passed::Done(StepDone { epoch: *epoch, step: *id, results, times }))
    }
}

impl Stage {
    /// Lets the draft model, if there is one, read what the step has made certain and guess on.
    fn draft(&mut self, chunks: &[Chunk], results: &mut [ChunkResult]) -> Result<()> {
        let Some(drafter) = &mut self.drafter else { return Ok(()) };
        let rows = self.rows.positions.len();
        if rows == 0 {
            return Ok(());
        }
        let mut values = &[][..];
        if let (Some(width), Some(features)) = (drafter.features(), self.loaded.program().features) {
            let read = self.rows.stream(rows * width);
            self.loaded.read(features, 0..rows, read)?;
            values = read;
        }
        drafts::follow(drafter.as_mut(), values, chunks, results, &self.sessions)
    }
}

impl Place {
    /// How many rows of the payload of a frame that arrives belong to a chunk.
    fn carried(self, chunk: &Chunk) -> usize {
        match &chunk.input {
            _ if chunk.void => 0,
            ChunkInput::Rows { positions } => positions.len(),
            _ if self.first => 0,
            input => input.rows(),
        }
    }
}

/// Replaces "the token of step n" by that token, so that later stages and the tail see what it was. Only the session's
/// last one is known, and only that is waited for.
fn resolve(chunk: &mut Chunk, sessions: &SessionTable, feedback: &mut Feedback) -> Result<()> {
    if let ChunkInput::Sampled { step } = chunk.input {
        if sessions.get(chunk.session)?.sampled_in != Some(step) {
            return Err(Error::NotSampled { session: chunk.session, step });
        }
        match feedback.ask(chunk.session, step)? {
            Some(token) => chunk.input = ChunkInput::Tokens(vec![token]),
            None => chunk.void = true,
        }
    }
    Ok(())
}
