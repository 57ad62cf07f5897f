//! What of a session's tokens need not be run, where their memory comes from, and why it is not more.

use std::fmt;

/// What a session found when it was let in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Tokens that need not be run: the session wants those after them.
    pub cached: usize,
    /// Where their memory came from.
    pub tier: Tier,
    /// How many of its first tokens are those of anything that is known.
    pub matched: usize,
    /// Why not all but the last are cached, if they are not.
    pub missed: Option<Missed>,
}

/// Where memory was kept, fastest first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// On the stages' devices.
    #[default]
    Device,
    /// In the memory of the stages' hosts.
    Ram,
    /// On the hosts' disks.
    Disk,
}

/// Why tokens must be run although others begin with the same ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missed {
    /// Nothing that is known begins so.
    Unknown,
    /// The tokens behind the cached ones are new.
    New,
    /// More of the tokens are known, but no state is kept where they end: a recurrent state exists at single positions only.
    NoState,
}

impl Missed {
    /// One word for machines.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::New => "new",
            Self::NoState => "no-state",
        }
    }
}

impl fmt::Display for Missed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Unknown => "nothing that is cached begins like this prompt",
            Self::New => "the prompt goes on differently from everything that is cached",
            Self::NoState => "more of the prompt is known, but no recurrent state is kept where it ends",
        })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Device => "device",
            Self::Ram => "ram",
            Self::Disk => "disk",
        })
    }
}
