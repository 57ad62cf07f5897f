//! Speculation, as far as it is decided here: where drafts come from, how likely they are, and how many of them are
//! worth running.
//!
//! A *draft* is a guess at a token that follows. A session has them from its own text ([`lookup`]) or from the tail,
//! which made some after it sampled; [`Drafter`] says which are the better ones and learns from what really followed.
//! They go with the session's wish to the coordinator. It knows what a step of so many rows takes ([`Widths`]) and who
//! else is in it, and runs as many of them as make the most tokens in the time ([`allot()`]): none, where they do not pay.
//! Whether that is really so, and whether the tail is to be asked for any, is tried out ([`Trials`]). Where stages would
//! stand idle, further ones follow before it is known what became of the first ([`fill()`]).
//! The tail samples row after row and stops where it disagrees, so drafts never change a text.

mod allot;
mod chances;
mod drafter;
mod filling;
pub mod lookup;
mod trials;
mod widths;

pub use allot::allot;
pub use chances::Chances;
pub use drafter::{DraftSettings, Drafter};
pub use filling::{Load, fill};
pub use trials::{Brought, Trials, Way};
pub use widths::Widths;

/// Drafts in one chunk at most, whatever is asked for: a chunk of so many more rows is no longer bound by reading
/// weights on any device.
pub const MOST_DRAFTS: usize = 32;

/// Chunks of a session with drafts that are under way together, at most, in a row of several stages: the first, and those
/// that are sent ahead of its result. Logs hold as many uncertain tokens, so more would cost memory; and what lies
/// further ahead is rarely right.
pub const CHUNKS_UNDER_WAY: usize = 3;

/// A guess at a token that follows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Draft {
    /// Its id.
    pub token: u32,
    /// How probable it is that it follows if those before it do, from 0 to 1.
    pub chance: f32,
}

/// What the tail is to guess.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Proposals {
    /// How many tokens, at most.
    pub most: u32,
    /// It stops before the first one that is less probable than this, in thousandths.
    pub least_probability: u16,
}

/// How many of these drafts are accepted on average, if all are run.
pub fn expected(drafts: &[Draft]) -> f64 {
    gains(drafts).sum()
}

/// By draft: how probable it is that it and all before it are accepted.
fn gains(drafts: &[Draft]) -> impl Iterator<Item = f64> {
    drafts.iter().scan(1.0, |all, draft| {
        *all *= f64::from(draft.chance);
        Some(*all)
    })
}
