//! What may be said of one of many models: the keys of its table in a configuration file, which are flags like all others.

use clap::{Parser, ValueEnum};
use paceline_gguf::Pooling;

use super::{AnswerArgs, CacheDisk, ComputeArgs, LayoutArgs, ModelArgs, pooling};

/// A table `[models.NAME]`.
#[derive(Debug, Clone, Parser)]
#[command(no_binary_name = true, disable_help_flag = true, args_override_self = true)]
pub(crate) struct EntryArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Further names of the model in the API.
    #[arg(long, value_name = "NAME")]
    pub(crate) alias: Vec<String>,
    /// Names under which it thinks before it answers, for requests that do not say.
    #[arg(long, value_name = "NAME")]
    pub(crate) thinking_alias: Vec<String>,
    /// Names under which it does not.
    #[arg(long, value_name = "NAME")]
    pub(crate) plain_alias: Vec<String>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Make vectors of texts, or scores of pairs, with it.
    #[arg(long, value_name = "mean|cls|last|rank", value_parser = pooling)]
    pub(crate) pooling: Option<Pooling>,
    #[command(flatten)]
    pub(crate) answers: AnswerArgs,
    /// Folder and size on a disk for what is kept of conversations; no other model may have the same folder.
    #[arg(long, value_name = "FOLDER:SIZE")]
    pub(crate) cache_disk: Option<CacheDisk>,
    /// Requests that wait for a place; more are refused.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) queue: usize,
    /// When it is loaded.
    #[arg(long, default_value = "on-demand", value_name = "WHEN")]
    pub(crate) load: LoadWhen,
    /// Seconds without a request after which it is unloaded [default: when another model needs its memory].
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) idle: Option<u32>,
}

/// When a model is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadWhen {
    /// With its first request.
    OnDemand,
    /// Before the first request, if there is room.
    AtStart,
}
