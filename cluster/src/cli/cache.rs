//! Flags of `paceline cache`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::ServiceArgs;

/// `paceline cache`.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    /// What to do.
    #[arg(value_name = "ACTION")]
    pub(crate) action: CacheAction,
    /// The text to pin, unpin or drop: the beginning of prompts, as it is, without a chat template.
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub(crate) prompt: Option<String>,
    /// Or a file with the JSON of a chat request: its messages and tools are the beginning of conversations.
    #[arg(long, value_name = "FILE")]
    pub(crate) messages: Option<PathBuf>,
    /// Texts that are listed.
    #[arg(long, default_value_t = 20, value_name = "N")]
    pub(crate) limit: usize,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// What to do with the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheAction {
    /// Say what is remembered.
    List,
    /// Keep a text whatever needs room.
    Pin,
    /// Let it go when room is needed.
    Unpin,
    /// Forget it, and all that goes on from it.
    Drop,
}

impl CacheAction {
    /// As the service knows it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Pin => "pin",
            Self::Unpin => "unpin",
            Self::Drop => "drop",
        }
    }
}
