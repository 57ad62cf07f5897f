//! Cuts a model into stages, and says what each needs.
//!
//! [`plan`] takes what is known of a model before loading it (its [`ModelShape`]), the [`Wishes`] and the [`Host`],
//! and gives a [`Placement`], or an [`Error`] that says what would fit. It is pure arithmetic over the model's header;
//! every byte that a stage will reserve is in the placement, and together they never exceed what the host has.
//! [`render()`] makes a table of it for people.

mod cut;
mod error;
mod fit;
mod memory;
mod placement;
mod render;
#[cfg(test)]
mod tests;

use paceline_gguf::{KvType, ModelShape};

use crate::limits::PREFILL_ROWS;

pub use error::{Error, Result};
pub use fit::WouldFit;
pub use memory::Memory;
pub use placement::{Note, Placement, StagePlan};
pub use render::render;

/// Tokens in a page, unless another size is wished for: small enough that a short session wastes little.
pub const PAGE_TOKENS: usize = 64;
/// The most threads a host can have here.
pub const MAX_THREADS: usize = 1 << 16;

/// What a placement is to be good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wishes {
    /// Stages in the row.
    pub shards: usize,
    /// Tokens of one session, prompt and answer together.
    pub context: usize,
    /// Sessions of that length that run at once.
    pub sessions: usize,
    /// State slots beyond those of the sessions, for snapshots.
    pub snapshots: usize,
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
    /// The model's positions are stretched (rope scaling), which makes contexts past the trained one possible.
    pub scaled_rope: bool,
}

impl Wishes {
    /// The usual wishes for so many shards and sessions, as [`Limits::new`](crate::Limits::new) has them.
    pub fn new(shards: usize, context: usize, sessions: usize) -> Self {
        Self {
            shards,
            context,
            sessions,
            snapshots: 0,
            key_type: KvType::default(),
            value_type: KvType::default(),
            page_tokens: PAGE_TOKENS,
            step_rows: PREFILL_ROWS.saturating_add(sessions),
            step_wanted: sessions.saturating_add(1),
            scaled_rope: false,
        }
    }

    /// Pages of keys and values for all sessions.
    fn pages(&self) -> usize {
        self.context.div_ceil(self.page_tokens).saturating_mul(self.sessions)
    }

    /// State slots for all sessions and snapshots.
    fn slots(&self) -> usize {
        self.sessions.saturating_add(self.snapshots)
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
///
/// MTP blocks are not placed.
///
/// # Errors
/// Wishes that are zero, contradict the model or do not fit; see [`Error`].
pub fn plan(shape: &ModelShape, wishes: &Wishes, host: &Host) -> Result<Placement> {
    check(shape, wishes, host)?;
    let stages = cut::cut(shape, wishes.shards)?;
    fit::check(shape, &stages, wishes, host)?;
    Ok(placement::describe(shape, &stages, wishes, host))
}

fn check(shape: &ModelShape, wishes: &Wishes, host: &Host) -> Result<()> {
    let counts = [
        ("shards", wishes.shards),
        ("context", wishes.context),
        ("sessions", wishes.sessions),
        ("page_tokens", wishes.page_tokens),
        ("step_rows", wishes.step_rows),
        ("step_wanted", wishes.step_wanted),
    ];
    if let Some((what, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
        return Err(Error::Zero { what });
    }
    if !(1..=MAX_THREADS).contains(&host.threads) {
        return Err(Error::Threads { threads: host.threads, limit: MAX_THREADS });
    }
    if wishes.context > shape.context_length && !wishes.scaled_rope {
        return Err(Error::ContextTooLong { context: wishes.context, trained: shape.context_length });
    }
    shape.check_key_value_types(wishes.key_type, wishes.value_type)?;
    for (what, count) in [("pages", wishes.pages()), ("state slots", wishes.slots())] {
        if count > u32::MAX as usize {
            return Err(Error::TooMany { what, count, limit: u32::MAX });
        }
    }
    Ok(())
}
