//! What a device must do: load a stage program, keep its memories, and run it.
//!
//! [`Device`] is the factory (a CPU with some threads, a GPU), [`LoadedStage`] a program with its weights and
//! memories in place. Nothing above this trait knows how weights, activations or pages are stored.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use paceline_gguf::{Gguf, KvType};

use crate::Result;
use crate::program::{Buffer, Cache, Program, State, Weight};

/// The token id of a row that came as a vector instead (see [`StepInputs::vectors`]).
pub const NO_TOKEN: u32 = u32::MAX;

/// How much memory a stage reserves when it loads. Nothing grows later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemorySpec {
    /// Tokens per page.
    pub page_tokens: usize,
    /// Pages of keys and values, in every attention layer.
    pub pages: usize,
    /// State slots in every recurrent layer: one per running session, more for snapshots.
    pub slots: usize,
    /// How keys are stored.
    pub key_type: KvType,
    /// How values are stored.
    pub value_type: KvType,
    /// The most rows (tokens) of one step.
    pub rows: usize,
    /// The most rows of one step whose results are wanted.
    pub wanted: usize,
    /// Logs of uncertain tokens, in every recurrent layer.
    pub logs: LogSpec,
}

/// The logs that a stage reserves beside its states; none if nothing is ever uncertain.
///
/// A log holds the inputs of recurrent layers from tokens that may yet be rejected: a small part of a state for each.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogSpec {
    /// How many sessions may have uncertain tokens at once.
    pub sessions: usize,
    /// The most uncertain tokens of a session.
    pub tokens: usize,
}

impl LogSpec {
    /// No logs: nothing is ever uncertain.
    pub const NONE: Self = Self { sessions: 0, tokens: 0 };

    /// The most uncertain tokens of all sessions.
    pub fn rows(&self) -> usize {
        self.sessions.saturating_mul(self.tokens)
    }
}

/// Bytes that a loaded stage occupies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemoryUse {
    /// Weights as stored on the device.
    pub weights: u64,
    /// Keys and values.
    pub pages: u64,
    /// Recurrent memories.
    pub states: u64,
    /// Buffers and scratch space.
    pub buffers: u64,
}

/// Consecutive rows of one session in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChunkRows<'a> {
    /// First row of the chunk in the step; chunks follow one another without gaps.
    pub first_row: usize,
    /// How many rows.
    pub rows: usize,
    /// How many tokens of the session came before: the first row's index in its sequence.
    pub start: usize,
    /// The session's state slot.
    pub slot: usize,
    /// The session's pages: token `t` lies in `pages[t / page_tokens]`.
    pub pages: &'a [u32],
    /// Which of its tokens are uncertain.
    pub log: ChunkLog,
}

impl ChunkRows<'_> {
    /// Its rows and those that are replayed before them.
    pub fn replayed_and_rows(&self) -> usize {
        self.log.before + self.rows
    }

    /// How many of those the state has behind it after the step.
    pub fn certain(&self) -> usize {
        self.replayed_and_rows() - self.log.uncertain
    }

    /// Those that are logged in the step: uncertain rows of the chunk, counted from the first replayed one.
    pub fn newly_uncertain(&self) -> Range<usize> {
        self.certain().max(self.log.before)..self.replayed_and_rows()
    }

    /// The position of a row, counted from the first replayed one.
    pub fn position(&self, index: usize) -> usize {
        self.start - self.log.before + index
    }
}

/// Uncertain tokens around a chunk; the default is of a chunk that has none.
///
/// Before the step the state of the chunk's session is the one behind its token `start - before`, and its log holds the
/// tokens from there on, of which those from `start` on are forgotten. After the step the state is the one behind
/// its token `end - uncertain`, where the chunk ends with token `end`, and the log holds those from there on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChunkLog {
    /// Which of the logs is the session's: below [`LogSpec::sessions`], where anything is uncertain.
    pub place: usize,
    /// How many tokens before the chunk are logged and not in the state.
    pub before: usize,
    /// How many of the last tokens, at most `before` and the chunk's rows, may yet be rejected.
    pub uncertain: usize,
}

/// All that changes from step to step: uploaded once, read by every operation.
#[derive(Debug, Clone, Copy)]
pub struct StepInputs<'a> {
    /// The chunks, in row order.
    pub chunks: &'a [ChunkRows<'a>],
    /// First stage: one token id per row, or [`NO_TOKEN`]. Other stages: empty.
    pub tokens: &'a [u32],
    /// First stage: the rows without a token, in order. Other stages: all rows of [`Program::input`].
    pub vectors: &'a [f32],
    /// Each row's position, four components (text: `[p, p, p, 0]`).
    pub positions: &'a [[u32; 4]],
    /// Rows whose results are wanted, ascending.
    pub wanted: &'a [u32],
}

impl StepInputs<'_> {
    /// Rows in the step.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }
}

/// Work on a stage's memories, ordered with the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryOperation {
    /// Zeroes a state slot in every recurrent layer: a sequence begins.
    ClearState {
        /// The slot.
        slot: usize,
    },
    /// Copies a state slot in every recurrent layer: a snapshot is taken or restored.
    CopyState {
        /// From this slot.
        from: usize,
        /// To this slot.
        to: usize,
    },
    /// Copies a page in every attention layer.
    CopyPage {
        /// From this page.
        from: u32,
        /// To this page.
        to: u32,
    },
}

/// A part of a stage's memories, as it is taken from one stage to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryPart {
    /// A page of one attention layer, keys and values.
    Page {
        /// The layer's memory.
        cache: Cache,
        /// The page.
        page: u32,
    },
    /// A state slot of one recurrent layer.
    Slot {
        /// The layer's memory.
        state: State,
        /// The slot.
        slot: usize,
    },
    /// What the log of one recurrent layer holds of one token.
    Logged {
        /// The layer's memory.
        state: State,
        /// Which of the logs.
        place: usize,
        /// The token's position in its session.
        position: usize,
    },
}

/// What a device is, for tables and errors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// `cpu`, `cuda:0`.
    pub name: String,
    /// What kernels it runs: `avx512, 2 threads`.
    pub detail: String,
}

/// Weights that stay in memory as long as this is held, whatever becomes of the stages that use them.
pub struct KeptWeights {
    bytes: u64,
    _weights: Box<dyn Any + Send + Sync>,
}

impl KeptWeights {
    /// What a device keeps, and how many bytes that occupies.
    pub fn new(bytes: u64, weights: impl Any + Send + Sync) -> Self {
        Self { bytes, _weights: Box::new(weights) }
    }

    /// Bytes they occupy, beside the model file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl fmt::Debug for KeptWeights {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "KeptWeights({} bytes)", self.bytes)
    }
}

/// A place where stages can be loaded.
pub trait Device: Send + Sync {
    /// What it is.
    fn describe(&self) -> Description;

    /// Keeps those weights of the program that are in memory: of a stage of this very `model` that is loaded, or that
    /// has been and whose weights were kept.
    fn keep(&self, program: &Program, model: &Arc<Gguf>) -> KeptWeights;

    /// Loads the program's weights from `model`, reserves its memories, and makes it ready to run. Weights that are
    /// in memory, as [`keep`](Self::keep) says, are shared and not read again. A device that can read the file's own
    /// bytes while it runs (the table of embeddings) keeps the model open. `progress` is called with the bytes of
    /// each tensor read from the file.
    ///
    /// # Errors
    /// A tensor that is missing or has the wrong shape; memory that cannot be had.
    fn load(
        &self,
        program: Program,
        model: &Arc<Gguf>,
        memory: MemorySpec,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Box<dyn LoadedStage>>;
}

/// Reads all rows of a buffer between two operations of a step.
pub type ReadBuffer<'a> = &'a dyn Fn(Buffer) -> Vec<f32>;

/// How long an operation took, or several that the device runs as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationTime {
    /// Their indices in the program.
    pub operations: Range<usize>,
    /// The one among them that does most of the work.
    pub main: usize,
    /// From the first thread's beginning to the last one's end.
    pub time: Duration,
}

/// A stage program with its weights and memories on a device.
pub trait LoadedStage: Send {
    /// The program it runs.
    fn program(&self) -> &Program;

    /// What it reserved when it was loaded: the limits of every step.
    fn memory(&self) -> MemorySpec;

    /// Bytes it occupies.
    fn memory_use(&self) -> MemoryUse;

    /// Bytes that one tensor of the program occupies as it is stored here.
    fn weight_bytes(&self, weight: Weight) -> u64;

    /// Applies one memory operation, after all steps run before it.
    ///
    /// # Errors
    /// A slot or page that does not exist.
    fn apply(&mut self, operation: MemoryOperation) -> Result<()>;

    /// How memories are stored here. Parts can be taken to any stage whose form is the same, also on another host.
    fn memory_form(&self) -> String;

    /// Bytes of a part of the memories.
    ///
    /// # Errors
    /// A part that does not exist.
    fn part_bytes(&self, part: MemoryPart) -> Result<usize>;

    /// Reads a part of the memories as it is stored, after all steps run before.
    ///
    /// # Errors
    /// A part that does not exist, or that has another number of bytes.
    fn read_part(&mut self, part: MemoryPart, into: &mut [u8]) -> Result<()>;

    /// Replaces a part of the memories by what was read from another stage of the same form.
    ///
    /// # Errors
    /// As [`read_part`](Self::read_part).
    fn write_part(&mut self, part: MemoryPart, from: &[u8]) -> Result<()>;

    /// Runs the program for one step, or the first entry of one that has several.
    ///
    /// # Errors
    /// Inputs that do not fit the reserved memory or one another; nothing is changed then.
    fn run(&mut self, inputs: &StepInputs<'_>) -> Result<()> {
        self.run_entry(0, inputs)
    }

    /// Runs the operations of one entry for one step. Buffers that only other entries write are as those left them.
    ///
    /// # Errors
    /// As [`LoadedStage::run`]; an entry that the program does not have.
    fn run_entry(&mut self, entry: usize, inputs: &StepInputs<'_>) -> Result<()>;

    /// Reads rows of a buffer as the last step left them, `(rows.len(), width)` into `into`.
    ///
    /// # Errors
    /// Rows that the last step did not have.
    fn read(&mut self, buffer: Buffer, rows: Range<usize>, into: &mut [f32]) -> Result<()>;

    /// Runs a step as [`LoadedStage::run`] does, and calls `observe` after every operation with its index in the program, when all
    /// buffers can be read. For tests that compare layer by layer.
    ///
    /// # Errors
    /// As [`LoadedStage::run`].
    fn run_observed(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(usize, ReadBuffer<'_>)) -> Result<()>;

    /// Runs a step as [`LoadedStage::run`] does, and then tells `observe`, in order, how long all threads together took for each operation.
    ///
    /// # Errors
    /// As [`LoadedStage::run`].
    fn run_measured(&mut self, inputs: &StepInputs<'_>, observe: &mut dyn FnMut(OperationTime)) -> Result<()>;
}
