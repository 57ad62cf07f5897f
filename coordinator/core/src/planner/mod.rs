//! Cuts a model into stages, and says what each needs.
//!
//! [`plan`] takes what is known of a model before loading it (its [`ModelShape`]), the [`Wishes`] and the [`Host`],
//! and gives a [`Placement`], or an [`Error`] that says what would fit. It is pure arithmetic over the model's header;
//! every byte that a stage will reserve is in the placement, and together they never exceed what the host has.
//! [`render()`] makes a table of it for people.

mod assign;
mod cache;
mod cost;
mod cut;
mod described;
mod device;
mod error;
mod explain;
mod fit;
mod footprint;
mod load;
mod memory;
mod orders;
mod place;
mod placement;
mod predict;
mod reach;
mod render;
mod segments;
mod targets;
#[cfg(test)]
mod tests;

use paceline_gguf::{KvType, ModelShape};
use serde::{Deserialize, Serialize};

use crate::drafts::CHUNKS_UNDER_WAY;
use crate::limits::PREFILL_ROWS;

pub use cache::{Cache, CacheRam, LEAST_IN_ALL, LEAST_SNAPSHOTS, MOST_SNAPSHOTS, SizeError, with_cache};
pub use cost::{ExpertCost, StageCost, StepShape, Work};
pub use described::{DescriptionError, DeviceGroup};
pub use device::{Cluster, DeviceSpec, LinkSpeed, MAX_DEVICES, STEP_OVERHEAD, Speed};
pub use error::{Error, Result};
pub use fit::WouldFit;
pub use load::Load;
pub use memory::{Memory, shared_weights};
pub use place::place;
pub use placement::{LeftOut, Note, Placement, StagePlan, TailDrafter};
pub use predict::{Prediction, StageTiming};
pub use render::render;
pub use targets::{TargetError, Targets, Verdict};

/// Tokens in a page, unless another size is wished for: small enough that a short session wastes little.
pub const PAGE_TOKENS: usize = 64;
/// The most threads a host can have here.
pub const MAX_THREADS: usize = 1 << 16;

/// Room on every stage for tokens that may yet be rejected, because they are guesses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Logs {
    /// Sessions that may have such tokens at once; 0 for nobody.
    pub sessions: usize,
    /// The most such tokens of a session, in all its chunks under way.
    pub tokens: usize,
    /// How many such chunks these are for; 0 is as 1.
    #[serde(default)]
    pub chunks: usize,
}

impl Logs {
    /// Logs for so many chunks under way, each with so many guesses, of some of the sessions: where more decode together,
    /// their rows are worth more than guesses.
    pub fn of(drafts: usize, chunks: usize, sessions: usize) -> Self {
        if drafts == 0 {
            return Self::default();
        }
        Self { sessions: sessions.min(MOST_LOGS), tokens: drafts.saturating_mul(chunks), chunks }
    }

    /// The most guesses of one chunk.
    pub fn drafts(self) -> usize {
        self.tokens / self.chunks.max(1)
    }

    /// All tokens of which there are logs.
    pub fn rows(self) -> usize {
        self.sessions.saturating_mul(self.tokens)
    }

    /// Rows of a step of which a token is wanted beyond one of each session.
    pub fn wanted(self) -> usize {
        self.sessions.min(LOGS_IN_STEP).saturating_mul(self.drafts())
    }
}

/// Sessions that may have guesses under way at once, at most.
const MOST_LOGS: usize = 4;
/// Sessions whose longest guesses fit one step together: each row wants logits, a megabyte for a large vocabulary.
const LOGS_IN_STEP: usize = 2;

/// What a placement is to be good for.
#[derive(Debug, Clone, PartialEq)]
pub struct Wishes {
    /// Stages in the row; `None` for as many as make it fastest.
    pub shards: Option<usize>,
    /// Tokens of one session, prompt and answer together.
    pub context: usize,
    /// Sessions that run at once.
    pub sessions: usize,
    /// Tokens of all of them together; `None` for as many as all can have.
    pub kv_tokens: Option<usize>,
    /// What is kept of conversations between their turns, beyond the memory of the sessions.
    pub cache: Cache,
    /// How keys are cached.
    pub key_type: KvType,
    /// How values are cached.
    pub value_type: KvType,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// The most rows of a step.
    pub step_rows: usize,
    /// The most rows of a step of which a token or a vector is wanted.
    pub step_wanted: usize,
    /// Room for guesses.
    pub logs: Logs,
    /// What makes guesses at the last stage.
    pub drafter: Option<TailDrafter>,
    /// The model's positions are stretched (rope scaling), which makes contexts past the trained one possible.
    pub scaled_rope: bool,
    /// What a row of unequal devices should be best at.
    pub prefer: Prefer,
    /// The times that a row should keep, and the load for which it is made.
    pub targets: Targets,
}

/// What a row should be best at. Its memory is the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Prefer {
    /// All users together: the slowest stage is as fast as possible.
    #[default]
    Row,
    /// One user: a token passes all stages in as little time as possible.
    OneUser,
}

impl Wishes {
    /// The usual wishes for so many shards and sessions, as [`Limits::new`](crate::Limits::new) has them.
    pub fn new(shards: usize, context: usize, sessions: usize) -> Self {
        Self { shards: Some(shards), ..Self::of(context, sessions) }
    }

    /// The usual wishes for so many sessions, with as many shards as make the row fastest.
    pub fn of(context: usize, sessions: usize) -> Self {
        Self {
            shards: None,
            context,
            sessions,
            kv_tokens: None,
            cache: Cache::default(),
            key_type: KvType::default(),
            value_type: KvType::default(),
            page_tokens: PAGE_TOKENS,
            step_rows: PREFILL_ROWS.saturating_add(sessions),
            step_wanted: sessions.saturating_add(1),
            logs: Logs::default(),
            drafter: None,
            scaled_rope: false,
            prefer: Prefer::Row,
            targets: Targets::default(),
        }
    }

    /// The same with chunks of at most so many guesses. In a row of several stages some may be sent ahead.
    #[must_use]
    pub fn with_drafts(self, drafts: usize) -> Self {
        let chunks = if self.shards == Some(1) { 1 } else { CHUNKS_UNDER_WAY };
        let logs = Logs::of(drafts, chunks, self.sessions);
        Self { logs, step_wanted: self.step_wanted.saturating_add(logs.wanted()), ..self }
    }

    /// The load that a row is made for.
    pub fn load(&self) -> Load {
        self.targets.load(self.context, self.sessions)
    }

    /// Rows of a chunk of prompt: what a step holds besides a row of each session.
    fn prefill_rows(&self) -> usize {
        self.step_rows.saturating_sub(self.sessions).max(1)
    }

    /// Pages of keys and values for all sessions.
    fn session_pages(&self) -> usize {
        let all = self.context.div_ceil(self.page_tokens).saturating_mul(self.sessions);
        self.kv_tokens.map_or(all, |tokens| tokens.div_ceil(self.page_tokens).min(all))
    }

    /// Pages of keys and values for all sessions and the cache.
    fn pages(&self) -> usize {
        self.session_pages().saturating_add(self.cache.pages)
    }

    /// State slots for all sessions and snapshots.
    fn slots(&self) -> usize {
        self.sessions.saturating_add(self.cache.snapshots)
    }
}

/// Where the stages run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Host {
    /// Bytes that may be used: what is free, less a margin for everything that is not planned here.
    pub memory_bytes: u64,
    /// Threads that compute; they are divided among the stages.
    pub threads: usize,
}

/// Places a model on a host: the cut between blocks with which the slowest stage reads the fewest bytes per token.
/// Without a number of shards it is one.
///
/// # Errors
/// Wishes that are zero, contradict the model or do not fit; see [`Error`].
pub fn plan(shape: &ModelShape, wishes: &Wishes, host: &Host) -> Result<Placement> {
    check_wishes(shape, wishes)?;
    if !(1..=MAX_THREADS).contains(&host.threads) {
        return Err(Error::Threads { threads: host.threads, limit: MAX_THREADS });
    }
    let stages = cut::cut(shape, wishes.shards.unwrap_or(1))?;
    fit::check(shape, &stages, wishes, host)?;
    Ok(placement::on_one_host(shape, &stages, wishes, host))
}

fn check_wishes(shape: &ModelShape, wishes: &Wishes) -> Result<()> {
    let counts = [
        ("shards", wishes.shards.unwrap_or(1)),
        ("context", wishes.context),
        ("sessions", wishes.sessions),
        ("page_tokens", wishes.page_tokens),
        ("step_rows", wishes.step_rows),
        ("step_wanted", wishes.step_wanted),
    ];
    if let Some((what, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
        return Err(Error::Zero { what });
    }
    if wishes.context > shape.context_length && !wishes.scaled_rope {
        return Err(Error::ContextTooLong { context: wishes.context, trained: shape.context_length });
    }
    if let Some(tokens) = wishes.kv_tokens.filter(|tokens| *tokens < wishes.context) {
        return Err(Error::FewTokens { tokens, context: wishes.context });
    }
    check_drafter(shape, wishes)?;
    shape.check_key_value_types(wishes.key_type, wishes.value_type)?;
    for (what, count) in [("pages", wishes.pages()), ("state slots", wishes.slots())] {
        if count > u32::MAX as usize {
            return Err(Error::TooMany { what, count, limit: u32::MAX });
        }
    }
    check_load(wishes)
}

fn check_drafter(shape: &ModelShape, wishes: &Wishes) -> Result<()> {
    match wishes.drafter {
        Some(TailDrafter::Mtp) if shape.mtp.len() != 1 => Err(Error::MtpBlocks { blocks: shape.mtp.len() }),
        Some(TailDrafter::Model { key_type, value_type }) => {
            let draft = shape.draft.as_deref().ok_or(Error::NoDraft)?;
            Ok(draft.check_key_value_types(key_type, value_type)?)
        }
        Some(TailDrafter::Dflash { key_type, value_type }) => {
            let draft = shape.dflash.as_ref().ok_or(Error::NoDraft)?;
            Ok(draft.check_key_value_types(key_type, value_type)?)
        }
        Some(TailDrafter::Mtp) | None => Ok(()),
    }
}

fn check_load(wishes: &Wishes) -> Result<()> {
    let Load { prompt, answer, depth, users } = wishes.load();
    let (context, sessions) = (wishes.context, wishes.sessions);
    let most = [
        ("prompt", prompt, context),
        ("answer", answer, context),
        ("depth", depth, context),
        ("users", users, sessions),
    ];
    match most.into_iter().find(|(_, wanted, limit)| wanted > limit) {
        Some((what, wanted, limit)) => Err(Error::Load { what, wanted, limit }),
        None => Ok(()),
    }
}
