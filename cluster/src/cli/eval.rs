//! Flags of the commands that say how well and how exactly a model runs here.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use paceline_gguf::KvType;

use super::{DeviceChoice, Isa, ModelArgs, kv_type};

/// `paceline eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// What to measure.
    #[command(subcommand)]
    pub(crate) command: EvalCommand,
}

/// What can be measured of a model.
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// How surprised the model is by a text, measured as llama.cpp does.
    Perplexity(PerplexityArgs),
    /// What the types of keys and values cost: perplexity and exact recall of each, with and without rotation.
    Kv(EvalKvArgs),
}

/// What is read, and with what.
#[derive(Debug, Clone, Args)]
pub(crate) struct ReadingArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The text; without it a part of the King James Bible inside this program.
    #[arg(long, value_name = "FILE")]
    pub(crate) text: Option<PathBuf>,
    /// Tokens of a window of the text.
    #[arg(long, default_value_t = 512, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(4..))]
    pub(crate) ctx: u32,
    /// The most windows that are read [default: all].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) windows: Option<u32>,
    /// Threads for computing; all cores if not given.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Vector instructions; the best there are if not given.
    #[arg(long, value_name = "SET")]
    pub(crate) isa: Option<Isa>,
    /// Print the figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `paceline eval perplexity`.
#[derive(Debug, Args)]
pub(crate) struct PerplexityArgs {
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    /// How keys and values are stored.
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type: KvType,
    /// How keys are stored, instead of --kv-type.
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type_k: Option<KvType>,
    /// How values are stored, instead of --kv-type.
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type_v: Option<KvType>,
    /// Do not rotate keys and values before they are rounded to blocks, for comparison; a service always does.
    #[arg(long)]
    pub(crate) no_rotation: bool,
}

/// `paceline eval kv`.
#[derive(Debug, Args)]
pub(crate) struct EvalKvArgs {
    #[command(flatten)]
    pub(crate) reading: ReadingArgs,
    /// The types that are compared with f16 [default: all].
    #[arg(long, value_name = "TYPE", value_delimiter = ',', value_parser = kv_type)]
    pub(crate) types: Vec<KvType>,
    /// Lengths of the texts in which facts are hidden; those beyond the model's context are left out.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "256,1024,2048",
        value_parser = clap::value_parser!(u32).range(64..))]
    pub(crate) recall: Vec<u32>,
}

/// `paceline selfcheck`.
#[derive(Debug, Args)]
pub(crate) struct SelfcheckArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// The most threads of a stage; all cores if not given.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Compare with runs whose stages are on this card of NVIDIA too, such as cuda:0.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Tokens of the text that is run.
    #[arg(long, default_value_t = 72, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(8..=4096))]
    pub(crate) tokens: u32,
    /// Begin nothing more after so many minutes, and say what was left out.
    #[arg(long, default_value_t = 10, value_name = "MINUTES", conflicts_with = "full",
        value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) minutes: u64,
    /// Run every combination for every type of keys and values, the slow kernels too, however long it takes.
    #[arg(long)]
    pub(crate) full: bool,
    /// Prompts whose answers with drafts are compared with those without, greedy and with the seeds of a full check
    /// [default: 4, with --full 40].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) prompts: Option<u32>,
    /// Compare answers with the drafts of this model too: a GGUF file with the same vocabulary.
    #[arg(long, value_name = "FILE")]
    pub(crate) draft: Option<PathBuf>,
    /// Print the results as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Change one bit of what the runs are compared with: so that a test sees that the check can fail.
    #[arg(long, hide = true)]
    pub(crate) spoil: bool,
}
