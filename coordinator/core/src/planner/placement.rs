//! The planner's answer.

use std::{fmt, ops::Range};

use paceline_gguf::{KvType, Layer, ModelShape};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{
    Cache, Host, Logs, Memory, Wishes,
    cut::{Stage, divide_threads},
    memory::read_per_token,
    predict::{Prediction, StageTiming},
    render::human,
    targets::Verdict,
};

/// Which stage holds what, and what the whole is good for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Pages, on every stage: those of all sessions, and those of the cache.
    pub pages: usize,
    /// State slots, on every stage: one per session, and those for snapshots.
    pub slots: usize,
    /// What of them is for the cache.
    #[serde(default)]
    pub cache: Cache,
    /// The most rows of a step.
    pub step_rows: usize,
    /// The most rows of a step of which a token or a vector is wanted.
    pub step_wanted: usize,
    /// Room for guesses.
    #[serde(default)]
    pub logs: Logs,
    /// What makes guesses at the last stage.
    #[serde(default)]
    pub drafter: Option<TailDrafter>,
    /// What of the last stage's memory that needs.
    #[serde(default)]
    pub drafter_memory: Memory,
    /// Bytes of what logs hold of one token on all stages.
    #[serde(default)]
    pub log_per_token: u64,
    /// How keys are cached.
    #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
    pub key_type: KvType,
    /// How values are cached.
    #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
    pub value_type: KvType,
    /// Bytes of keys and values of one token on all stages.
    pub key_value_per_token: u64,
    /// Bytes of one session's recurrent states on all stages.
    pub state_per_session: u64,
    /// Bytes that the host, or all devices, have for all of this.
    pub available: u64,
    /// How fast it should be; `None` where speeds are not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prediction: Option<Prediction>,
    /// Whether the wished targets are met.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Verdict>,
    /// Devices that hold nothing, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Why the placement is as it is.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
    /// What the user should know.
    pub notes: Vec<Note>,
}

impl Placement {
    /// What all stages need together.
    pub fn memory(&self) -> Memory {
        self.stages.iter().map(|stage| stage.memory).sum()
    }

    /// Bytes of the cache on all stages together: its snapshots, its pages.
    pub fn cache_bytes(&self) -> (u64, u64) {
        let Cache { snapshots, pages } = self.cache;
        let page = self.key_value_per_token.saturating_mul(self.page_tokens as u64);
        (self.state_per_session.saturating_mul(snapshots as u64), page.saturating_mul(pages as u64))
    }

    /// Bytes of weights that the slowest stage reads per token.
    pub fn bottleneck(&self) -> u64 {
        self.stages.iter().map(|stage| stage.read_per_token).max().unwrap_or(0)
    }
}

/// What makes guesses at the last stage, besides those that sessions find in their own texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TailDrafter {
    /// The model's own block for multi-token prediction.
    Mtp,
    /// A model in a file of its own, [`ModelShape::draft`].
    Model {
        /// How its keys are cached.
        #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
        key_type: KvType,
        /// How its values are cached.
        #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
        value_type: KvType,
    },
    /// A DFlash model in a file of its own, [`ModelShape::dflash`], for which all stages compute something.
    Dflash {
        /// How its keys are cached.
        #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
        key_type: KvType,
        /// How its values are cached.
        #[serde(serialize_with = "type_name", deserialize_with = "type_of_name")]
        value_type: KvType,
    },
}

impl TailDrafter {
    /// The same of a model whose file was opened with it, which says what kind it is of.
    #[must_use]
    pub fn beside(self, shape: &ModelShape) -> Self {
        match self {
            Self::Model { key_type, value_type } if shape.dflash.is_some() => Self::Dflash { key_type, value_type },
            other => other,
        }
    }

    /// What it means for a stage: other stages than the last only have to do with what reads their layers.
    pub fn at(self, last: bool) -> Option<Self> {
        (last || matches!(self, Self::Dflash { .. })).then_some(self)
    }
}

/// What one stage holds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// The number of its device in the cluster; 0 where all stages share one host.
    pub device: usize,
    /// The name of its device.
    pub device_name: String,
    /// Where its device is; empty where all stages share one host.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub host: String,
    /// Bytes that its device has.
    pub device_memory: u64,
    /// Bytes of them that stay free.
    pub device_free: u64,
    /// How long it should take; `None` where its device's speed is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timing: Option<StageTiming>,
}

/// A device that holds nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// Its number in the cluster.
    pub device: usize,
    /// Its name.
    pub device_name: String,
    /// Where it is.
    pub host: String,
    /// Why it is left out.
    pub reason: String,
}

/// Something unusual about a placement that is not an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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
    /// There is no memory for the usual cache.
    SmallCache {
        /// Bytes it has.
        bytes: u64,
        /// Bytes it usually has.
        usual: u64,
    },
    /// Something that the plan assumes of devices.
    Assumed {
        /// What.
        text: String,
    },
    /// Devices whose speed is not known.
    UnknownSpeed {
        /// How many.
        devices: usize,
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
            Self::SmallCache { bytes, usual } => {
                let (bytes, usual) = (human(*bytes), human(*usual));
                write!(f, "the cache has {bytes} instead of the usual {usual}: there is no memory for more")
            }
            Self::Assumed { text } => f.write_str(text),
            Self::UnknownSpeed { devices: 1 } => {
                f.write_str("the speed of a device is not known: it counts as no faster than the others")
            }
            Self::UnknownSpeed { devices } => {
                write!(f, "the speed of {devices} devices is not known: they count as no faster than the others")
            }
        }
    }
}

/// Writes a type by its name.
fn type_name<S: Serializer>(kind: &KvType, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(kind)
}

/// Reads a type's name.
fn type_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KvType, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
}

/// Describes a division of the model that fits into so many bytes; devices are left to the caller.
pub(super) fn describe(shape: &ModelShape, stages: &[Stage], wishes: &Wishes, available: u64) -> Placement {
    let all = 0..shape.layers.len();
    let (context, trained) = (wishes.context, shape.context_length);
    let stretched = (context > trained).then_some(Note::StretchedContext { context, trained });
    Placement {
        model: shape.name.clone(),
        stages: stages.iter().map(|stage| describe_stage(shape, stage, wishes)).collect(),
        context: wishes.context,
        sessions: wishes.sessions,
        page_tokens: wishes.page_tokens,
        pages: wishes.pages(),
        slots: wishes.slots(),
        cache: wishes.cache,
        step_rows: wishes.step_rows,
        step_wanted: wishes.step_wanted,
        logs: wishes.logs,
        drafter: wishes.drafter,
        drafter_memory: stages.last().map(|last| Memory::of_drafter(shape, last.first, wishes)).unwrap_or_default(),
        log_per_token: shape.layers.iter().map(Layer::log_bytes_per_token).sum(),
        key_type: wishes.key_type,
        value_type: wishes.value_type,
        key_value_per_token: shape.key_value_bytes_per_token(all.clone(), wishes.key_type, wishes.value_type),
        state_per_session: shape.state_bytes(all),
        available,
        prediction: None,
        targets: Vec::new(),
        left_out: Vec::new(),
        reasons: Vec::new(),
        notes: stretched.into_iter().collect(),
    }
}

fn describe_stage(shape: &ModelShape, stage: &Stage, wishes: &Wishes) -> StagePlan {
    let layers = &shape.layers[stage.layers.clone()];
    let attention_layers = layers.iter().filter(|layer| layer.is_attention()).count();
    StagePlan {
        layers: stage.layers.clone(),
        first: stage.first,
        last: stage.last,
        attention_layers,
        recurrent_layers: layers.len() - attention_layers,
        memory: Memory::of(shape, stage, wishes),
        read_per_token: read_per_token(shape, stage),
        threads: 0,
        device: 0,
        device_name: String::new(),
        host: String::new(),
        device_memory: 0,
        device_free: 0,
        timing: None,
    }
}

/// Describes stages that share the memory and the threads of one host.
pub(super) fn on_one_host(shape: &ModelShape, stages: &[Stage], wishes: &Wishes, host: &Host) -> Placement {
    let mut placement = describe(shape, stages, wishes, host.memory_bytes);
    let reads: Vec<u64> = placement.stages.iter().map(|stage| stage.read_per_token).collect();
    let free = host.memory_bytes.saturating_sub(placement.memory().total());
    for (stage, threads) in placement.stages.iter_mut().zip(divide_threads(&reads, host.threads)) {
        stage.threads = threads;
        "cpu".clone_into(&mut stage.device_name);
        (stage.device_memory, stage.device_free) = (host.memory_bytes, free);
    }
    let (stages, threads) = (stages.len(), host.threads);
    placement.notes.extend((stages > threads).then_some(Note::SharedThreads { stages, threads }));
    placement
}
