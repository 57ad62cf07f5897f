//! The planner's answer.

use std::{fmt, ops::Range};

use paceline_gguf::{KvType, ModelShape};
use serde::{Serialize, Serializer};

use super::{
    Host, Memory, Wishes,
    cut::{Stage, divide_threads},
    memory::read_per_token,
};

/// Which stage holds what, and what the whole is good for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Placement {
    /// The model's name, where its file has one.
    pub model: Option<String>,
    /// The stages in the order of the row.
    pub stages: Vec<StagePlan>,
    /// Tokens of one session.
    pub context: usize,
    /// Sessions of that length that run at once.
    pub sessions: usize,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Pages, on every stage.
    pub pages: usize,
    /// State slots, on every stage: one per session, and those for snapshots.
    pub slots: usize,
    /// The most rows of a step.
    pub step_rows: usize,
    /// The most rows of a step of which a token or a vector is wanted.
    pub step_wanted: usize,
    /// How keys are cached.
    #[serde(serialize_with = "type_name")]
    pub key_type: KvType,
    /// How values are cached.
    #[serde(serialize_with = "type_name")]
    pub value_type: KvType,
    /// Bytes of keys and values of one token on all stages.
    pub key_value_per_token: u64,
    /// Bytes of one session's recurrent states on all stages.
    pub state_per_session: u64,
    /// Bytes the host has for all of this.
    pub available: u64,
    /// What the user should know.
    pub notes: Vec<Note>,
}

impl Placement {
    /// What all stages need together.
    pub fn memory(&self) -> Memory {
        self.stages.iter().map(|stage| stage.memory).sum()
    }

    /// Bytes of weights that the slowest stage reads per token.
    pub fn bottleneck(&self) -> u64 {
        self.stages.iter().map(|stage| stage.read_per_token).max().unwrap_or(0)
    }
}

/// What one stage holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StagePlan {
    /// Its layers, of the main layers.
    pub layers: Range<usize>,
    /// It embeds tokens.
    pub first: bool,
    /// It makes logits and samples.
    pub last: bool,
    /// Layers with attention.
    pub attention_layers: usize,
    /// Layers with recurrent states.
    pub recurrent_layers: usize,
    /// Bytes it reserves.
    #[serde(flatten)]
    pub memory: Memory,
    /// Bytes of weights that it reads for one token.
    pub read_per_token: u64,
    /// Threads that compute for it.
    pub threads: usize,
}

/// Something unusual about a placement that is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub enum Note {
    /// The context is longer than the trained one; positions are stretched.
    StretchedContext {
        /// Tokens of one session.
        context: usize,
        /// Tokens trained for.
        trained: usize,
    },
    /// There are fewer threads than stages, so that stages take turns.
    SharedThreads {
        /// Stages, each with one thread.
        stages: usize,
        /// Threads of the host.
        threads: usize,
    },
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::StretchedContext { context, trained } => {
                write!(f, "a context of {context} tokens is longer than the {trained} that the model was trained for")
            }
            Self::SharedThreads { stages, threads } => {
                write!(f, "{stages} stages share {threads} threads and take turns: fewer shards would be faster")
            }
        }
    }
}

/// Writes a type by its name.
fn type_name<S: Serializer>(kind: &KvType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

/// Describes a division of the model that fits.
pub(super) fn describe(shape: &ModelShape, stages: &[Stage], wishes: &Wishes, host: &Host) -> Placement {
    let all = 0..shape.layers.len();
    Placement {
        model: shape.name.clone(),
        stages: describe_stages(shape, stages, wishes, host),
        context: wishes.context,
        sessions: wishes.sessions,
        page_tokens: wishes.page_tokens,
        pages: wishes.pages(),
        slots: wishes.slots(),
        step_rows: wishes.step_rows,
        step_wanted: wishes.step_wanted,
        key_type: wishes.key_type,
        value_type: wishes.value_type,
        key_value_per_token: shape.key_value_bytes_per_token(all.clone(), wishes.key_type, wishes.value_type),
        state_per_session: shape.state_bytes(all),
        available: host.memory_bytes,
        notes: notes(shape, wishes, host),
    }
}

fn describe_stages(shape: &ModelShape, stages: &[Stage], wishes: &Wishes, host: &Host) -> Vec<StagePlan> {
    let costs: Vec<u64> = stages.iter().map(|stage| read_per_token(shape, stage)).collect();
    let threads = divide_threads(&costs, host.threads);
    let describe = |((stage, &read_per_token), threads): ((&Stage, &u64), usize)| {
        let layers = &shape.layers[stage.layers.clone()];
        let attention_layers = layers.iter().filter(|layer| layer.is_attention()).count();
        StagePlan {
            layers: stage.layers.clone(),
            first: stage.first,
            last: stage.last,
            attention_layers,
            recurrent_layers: layers.len() - attention_layers,
            memory: Memory::of(shape, stage, wishes),
            read_per_token,
            threads,
        }
    };
    stages.iter().zip(&costs).zip(threads).map(describe).collect()
}

fn notes(shape: &ModelShape, wishes: &Wishes, host: &Host) -> Vec<Note> {
    let (context, trained) = (wishes.context, shape.context_length);
    let (stages, threads) = (wishes.shards, host.threads);
    let stretched = (context > trained).then_some(Note::StretchedContext { context, trained });
    let shared = (stages > threads).then_some(Note::SharedThreads { stages, threads });
    stretched.into_iter().chain(shared).collect()
}
