//! The memory of the cache: what is kept of conversations between their turns.
//!
//! It is state slots (snapshots of recurrent states) and pages beyond those of the sessions that run, reserved with them
//! when a stage loads. Half of the bytes go to each in a hybrid: a snapshot without the pages before it is worth nothing,
//! nor are pages without a snapshot behind them. Models of attention alone need no snapshots.
//!
//! Unless something else is wished for, the cache has as many bytes as the pages of all sessions, so that as much again
//! as can run at once is kept between turns. In a hybrid it has [`LEAST_SNAPSHOTS`] to [`MOST_SNAPSHOTS`] for each
//! session, and [`LEAST_IN_ALL`] at least, whatever the bytes: a state can be as large as thousands of tokens. Where that
//! does not fit it is made smaller before contexts or sessions are, and [`Note::SmallCache`] says so.

use std::fmt;
use std::str::FromStr;

use paceline_gguf::ModelShape;
use serde::{Deserialize, Serialize};

use super::{Error, Note, Placement, Result, Wishes, render::human};

/// Snapshots for each session at least: the end of its last turn, the end of the one before (which the next turn may
/// still agree with when a template renders the last anew), the end of its system prompt, and a branch.
pub const LEAST_SNAPSHOTS: usize = 4;
/// Snapshots at least, however few the sessions. One prompt takes half of them at most: so one of 8192 tokens has one
/// every 512, and nothing that it has in common with another is read from further back.
pub const LEAST_IN_ALL: usize = 32;
/// Snapshots for each session at most. They lie some hundred tokens apart in a long prompt: more of them would save
/// less than a second each.
pub const MOST_SNAPSHOTS: usize = 32;
/// If the usual cache does not fit, one of so many parts of it is tried, then none.
const PARTS: [u64; 5] = [2, 4, 8, 16, 32];

/// How many bytes of memory the cache may have, on all stages together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CacheRam {
    /// As the module's text says.
    #[default]
    Usual,
    /// So many. With none nothing is kept in a hybrid, and of attention what pages of the sessions have room for.
    Bytes(u64),
}

/// What the cache has beyond the memory of the sessions, on every stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// State slots.
    pub snapshots: usize,
    /// Pages.
    pub pages: usize,
}

impl Cache {
    /// What so many bytes are enough for.
    pub fn of(shape: &ModelShape, wishes: &Wishes, bytes: u64) -> Self {
        let (state, page) = sizes(shape, wishes);
        let share = if state > 0 && page > 0 { bytes / 2 } else { bytes };
        Self { snapshots: count(share, state), pages: count(share, page) }
    }

    /// What a cache usually has.
    pub fn usual(shape: &ModelShape, wishes: &Wishes) -> Self {
        let (state, page) = sizes(shape, wishes);
        let bytes = page.saturating_mul(wishes.session_pages() as u64);
        let Self { snapshots, pages } = Self::of(shape, wishes, bytes);
        let per_session = |count: usize| count.saturating_mul(wishes.sessions);
        let snapshots = if state > 0 {
            {
                let least = per_session(LEAST_SNAPSHOTS).max(LEAST_IN_ALL);
                snapshots.clamp(least, per_session(MOST_SNAPSHOTS).max(least))
            }
        } else {
            0
        };
        Self { snapshots, pages }
    }

    /// Bytes that it occupies, on all stages together.
    pub fn bytes(self, shape: &ModelShape, wishes: &Wishes) -> u64 {
        let (state, page) = sizes(shape, wishes);
        state.saturating_mul(self.snapshots as u64).saturating_add(page.saturating_mul(self.pages as u64))
    }
}

/// Bytes of a state slot and of a page, on all stages together.
fn sizes(shape: &ModelShape, wishes: &Wishes) -> (u64, u64) {
    let all = 0..shape.layers.len();
    let token = shape.key_value_bytes_per_token(all.clone(), wishes.key_type, wishes.value_type);
    (shape.state_bytes(all), token.saturating_mul(wishes.page_tokens as u64))
}

fn count(bytes: u64, each: u64) -> usize {
    bytes.checked_div(each).map_or(0, |count| usize::try_from(count).unwrap_or(usize::MAX))
}

/// Places a model together with its cache, with `place`, which is [`plan`](super::plan()) or [`place`](super::place()) on
/// some host or devices.
///
/// # Errors
/// As `place`: what is wished for does not fit, even without the usual cache.
pub fn with_cache(
    shape: &ModelShape,
    wishes: &Wishes,
    ram: CacheRam,
    place: impl Fn(&Wishes) -> Result<Placement>,
) -> Result<Placement> {
    let with = |cache: Cache| place(&Wishes { cache, ..wishes.clone() });
    if let CacheRam::Bytes(bytes) = ram {
        return with(Cache::of(shape, wishes, bytes));
    }
    let usual = Cache::usual(shape, wishes);
    let mut tried = with(usual);
    let bytes = usual.bytes(shape, wishes);
    let parts = PARTS.map(|part| Cache::of(shape, wishes, bytes / part));
    for cache in parts.into_iter().chain([Cache::default()]) {
        if !matches!(tried, Err(Error::DoesNotFit { .. } | Error::NoCutFits { .. })) {
            break;
        }
        tried = with(cache).map(|mut placement| {
            placement.notes.push(Note::SmallCache { bytes: cache.bytes(shape, wishes), usual: bytes });
            placement
        });
    }
    tried
}

/// What is no size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is no size: write a number of bytes, or one with K, M, G or T behind it, such as 512M or 2G")]
pub struct SizeError {
    /// What was given.
    given: String,
}

impl FromStr for CacheRam {
    type Err = SizeError;

    /// Reads `0`, `512M` or `1.5G`; K is 1024 bytes, and so on.
    fn from_str(text: &str) -> std::result::Result<Self, SizeError> {
        let error = || SizeError { given: text.to_owned() };
        let digits = text.trim_end_matches(|char: char| char.is_ascii_alphabetic());
        let shift = match text[digits.len()..].to_ascii_uppercase().trim_end_matches("IB").trim_end_matches('B') {
            "" => 0,
            "K" => 10,
            "M" => 20,
            "G" => 30,
            "T" => 40,
            _ => return Err(error()),
        };
        let number: f64 = digits.trim().parse().map_err(|_| error())?;
        let bytes = number * (1_u64 << shift) as f64;
        if !(0.0..=(1_u64 << 60) as f64).contains(&bytes) {
            return Err(error());
        }
        Ok(Self::Bytes(bytes as u64))
    }
}

impl fmt::Display for CacheRam {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usual => f.write_str("the usual"),
            Self::Bytes(bytes) => f.write_str(&human(*bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_and_others_refused() {
        for (text, bytes) in [
            ("0", 0),
            ("12", 12),
            ("1K", 1 << 10),
            ("512M", 512 << 20),
            ("2g", 2 << 30),
            ("2GiB", 2 << 30),
            ("1.5GB", 3 << 29),
            ("1 T", 1 << 40),
        ] {
            assert_eq!(text.parse(), Ok(CacheRam::Bytes(bytes)), "{text}");
        }
        for text in ["", "G", "-1", "2X", "1e40", "nan", "inf", "2GG", "two", "B"] {
            let error = text.parse::<CacheRam>().expect_err(text);
            assert!(error.to_string().contains("such as 512M or 2G"), "{error}");
        }
    }
}
