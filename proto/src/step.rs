//! Steps: micro-batches that travel the row of stages together, and what comes back of them.

use serde::{Deserialize, Serialize};

use crate::ids::{Epoch, PageId, SessionId, Slot, StepId};
use crate::sampling::SamplingSettings;
use crate::tiers::Ticket;

/// The chunks of several sessions that every stage runs together, and the memory operations before them.
///
/// Every stage sees the same steps in the same order, so memory operations need no locks: a page that a
/// step releases may be granted by the next.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// The placement it belongs to.
    pub epoch: Epoch,
    /// Its number.
    pub id: StepId,
    /// Applied in order before the chunks run.
    pub operations: Vec<Operation>,
    /// Run together; at most one chunk per session.
    pub chunks: Vec<Chunk>,
}

/// Work on every stage's memory, and at the tail on its sampling state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Operation {
    /// A session begins: its slot's state is zeroed, its page table is empty.
    Open {
        /// Whose.
        session: SessionId,
        /// Where its recurrent state lives.
        slot: Slot,
        /// How the tail chooses tokens.
        sampling: Box<SamplingSettings>,
        /// The tokens before this position are its prompt's. Those from there on count as generated, also where it is
        /// given them as input, because the row that generated them is gone.
        generated_from: u32,
        /// What the tail must know of tokens that are not run.
        reused: Reused,
    },
    /// Appends pages to a session's page table.
    Grant {
        /// Whose.
        session: SessionId,
        /// In order.
        pages: Vec<PageId>,
    },
    /// A session ends: slot and page table are forgotten. The coordinator may reuse both at once.
    Close {
        /// Whose.
        session: SessionId,
    },
    /// Copies a page in every attention layer.
    CopyPage {
        /// From this page.
        from: PageId,
        /// To this page.
        to: PageId,
    },
    /// Copies a state: takes or restores a snapshot.
    CopyState {
        /// From this slot.
        from: Slot,
        /// To this slot.
        to: Slot,
    },
    /// Writes what every stage has staged under a ticket into its memories; it is then staged no more.
    Install {
        /// The ticket of the [`TierTask::Fetch`](crate::TierTask::Fetch).
        ticket: Ticket,
        /// Where the pages go, from the one of the first entry's first token to that of the last one's last.
        pages: Vec<PageId>,
        /// Where the state goes, if one was fetched.
        slot: Option<Slot>,
    },
}

/// The first tokens of a session, where their pages and their state come from elsewhere and nobody runs them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reused {
    /// How many: the session's first chunk starts here.
    pub tokens: u32,
    /// The last of them, as many as the session's penalties look at; see [`SamplingSettings::tokens_seen`].
    pub last: Vec<u32>,
}

/// Consecutive tokens of one session that run in one step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Chunk {
    /// Whose.
    pub session: SessionId,
    /// How many of the session's tokens came before.
    pub start: u32,
    /// What the rows are.
    pub input: ChunkInput,
    /// What is wanted of the last row.
    pub wanted: Wanted,
    /// The session was cancelled: the chunk travels on, but nobody computes it any more.
    pub void: bool,
}

/// The rows of a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ChunkInput {
    /// Tokens at consecutive positions.
    Tokens(Vec<u32>),
    /// Vectors in place of token embeddings, with four-component positions; they travel as the frame's rows.
    Rows {
        /// One per row: time, height, width, and a fourth that is 0.
        positions: Vec<[u32; 4]>,
    },
    /// One row: the token that the tail sampled for this session in an earlier step. Lets a step be sent before
    /// the result of the one before it is back.
    Sampled {
        /// The step whose result it is.
        step: StepId,
    },
}

impl ChunkInput {
    /// How many rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Rows { positions } => positions.len(),
            Self::Sampled { .. } => 1,
        }
    }
}

/// What the tail makes of a chunk's last row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// Nothing: more of the prompt follows.
    Nothing,
    /// The next token.
    Sample,
    /// The hidden row after the last norm, as an embedding.
    Vector,
    /// The tokens that follow, as far as the tail agrees with drafts that the chunk brings along; see [`Verify`].
    Verify(Verify),
}

impl Wanted {
    /// How many of the session's tokens up to the chunk's end may yet be rejected.
    pub fn drafts(self) -> u32 {
        match self {
            Self::Verify(verify) => verify.drafts,
            Self::Nothing | Self::Sample | Self::Vector => 0,
        }
    }

    /// Of how many of a chunk's `rows`, its last ones, the logits or the hidden row are needed.
    pub fn wanted_rows(self, rows: usize) -> usize {
        match self {
            Self::Nothing => 0,
            Self::Sample | Self::Vector => 1,
            Self::Verify(verify) => rows.min((verify.drafts as usize).saturating_add(1)),
        }
    }
}

/// Speculation: several tokens of a session in one step, of which the last are guesses.
///
/// A chunk that ends with token `end` of its session leaves the tokens from `end - drafts` on *uncertain*. All before
/// are certain from now on. Recurrent layers commit their states up to there, and keep the inputs of the uncertain
/// tokens in a log. The `start` of the session's next chunk says how many of them were right: what is logged before it
/// is replayed from the log, what is logged from there on is forgotten; keys and values are overwritten.
/// A `start` before the certain tokens' end, or behind the last logged one, is refused.
///
/// The usual chunk has `1 + drafts` rows: the token that is known to come next, and drafts behind it. The tail samples
/// from the last certain row on, row after row with the session's own sampler, for as long as the token that it chose is
/// the draft that follows. So texts are the same as without drafts.
///
/// *A chunk sent ahead*, before the result of the chunk before it is back, has no certain rows: it assumes that all
/// drafts before it are accepted, and that the token sampled behind them is its first one. Its `drafts` counts its own
/// rows and the uncertain ones before it, so that no stage takes those for certain. If the assumption fails, the tail
/// answers [`Outcome::Void`] by itself, and nothing that the chunk did to any memory matters: the session's next chunk
/// starts where the truth ends. So a stage may also find that the rows before a chunk sent ahead are not there, because
/// they were void: then that chunk is void too.
///
/// A log belongs to its session and is not part of its state: [`Operation::CopyState`] from the slot of a session is
/// refused while tokens of it are uncertain. A snapshot is taken behind a chunk without drafts. Logs travel along with
/// memories that move, and are lost with a stage: a session that is replayed is replayed with tokens that are certain.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verify {
    /// Uncertain tokens up to the chunk's end. 0: the chunk brings no drafts, like [`Wanted::Sample`].
    pub drafts: u32,
    /// How many drafts the tail shall make behind the token that it samples last; 0 for none. It makes fewer where it
    /// doubts them, where the session's pages end, and none where it has nothing to make them with.
    pub propose: u32,
    /// Drafts end before the first one that is less probable than this, in thousandths.
    pub least_probability: u16,
}

/// The results of a step, from the tail to the coordinator.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepDone {
    /// As in the step.
    pub epoch: Epoch,
    /// As in the step.
    pub step: StepId,
    /// One per chunk, in order.
    pub results: Vec<ChunkResult>,
    /// What each stage took, in row order.
    pub times: Vec<StageTime>,
}

/// What one stage did for a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageTime {
    /// Microseconds of computing.
    pub busy: u64,
    /// Microseconds that the stage waited for the step after it had done the one before; 0 for its first.
    pub idle: u64,
    /// Bytes of activations that it passed on; 0 at the tail.
    pub sent: u64,
}

/// What became of one chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChunkResult {
    /// Whose.
    pub session: SessionId,
    /// What came out.
    pub outcome: Outcome,
}

/// The outcome of a chunk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Outcome {
    /// Its keys, values and states are stored; nothing else was wanted.
    Stored,
    /// The next token.
    Sampled(SampledToken),
    /// The next tokens, of a chunk that wanted [`Wanted::Verify`].
    Verified(Verified),
    /// The hidden row.
    Vector(Vec<f32>),
    /// Cancelled before it was computed, or sent ahead on an assumption that turned out wrong.
    Void,
    /// No token can be chosen for this session; others are not concerned.
    Failed(String),
}

/// What the tail made of a chunk with drafts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// At least one, at most one more than the chunk had drafts: those that the tail agreed with, and one that is new
    /// and not yet run.
    pub tokens: Vec<SampledToken>,
    /// The tail's own guesses at what follows the last token, as many as it was asked for or fewer.
    pub drafted: Vec<Drafted>,
}

/// A guess at a token.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Drafted {
    /// Its id.
    pub token: u32,
    /// How probable the draft model thinks it is.
    pub probability: f32,
}

/// A token that the tail chose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SampledToken {
    /// Its id.
    pub token: u32,
    /// Its log probability and the most probable tokens', where asked for.
    pub logprobs: Option<Box<Logprobs>>,
}

/// Log probabilities of one position, before temperature and filters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Of the chosen token.
    pub chosen: f32,
    /// The most probable tokens, most probable first.
    pub top: Vec<TokenLogprob>,
}

/// A token and its log probability.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TokenLogprob {
    /// The token.
    pub token: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}
