//! What the service remembers of prompts and answers, as people ask about it.

pub(crate) mod actor;

pub use paceline_core::prefix::CachedPath;
use serde::{Deserialize, Serialize};

/// What is remembered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CacheList {
    /// Texts, the last used first.
    pub paths: Vec<CachedPath>,
    /// How many more there are.
    pub left_off: usize,
}

/// What is to become of a text that is remembered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange {
    /// It stays until it is unpinned or dropped.
    Pin,
    /// It may go when room is needed.
    Unpin,
    /// It is forgotten, and all that goes on from it.
    Drop,
}

/// What became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheChanged {
    /// Tokens of the text that was sent.
    pub tokens: usize,
    /// How many of its first tokens were cached.
    pub cached: usize,
    /// Pages that were forgotten.
    pub pages: usize,
    /// Recurrent states that were forgotten.
    pub snapshots: usize,
    /// The disks were told to forget it too.
    #[serde(default)]
    pub on_disk: bool,
}
