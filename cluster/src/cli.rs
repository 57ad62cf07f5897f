//! The command line. Every flag is also a key of `--config FILE.toml` (see [`crate::config`]).

mod api;
mod cache;
mod cluster;
mod doctor;
mod draft;
mod eval;
mod models;
mod scale;
mod simulate;
mod status;

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use paceline_core::planner::{CacheRam, DeviceGroup, LinkSpeed, Targets};
use paceline_gguf::{KvType, Pooling};

pub(crate) use crate::devices::DeviceChoice;
pub(crate) use crate::disk::CacheDisk;
pub(crate) use api::{AnswerArgs, ApiArgs, OnOff};
pub(crate) use cache::{CacheAction, CacheArgs};
pub(crate) use cluster::{CoordinatorArgs, LinkChoice, ShardArgs, TokenArgs, TokenCommand};
pub(crate) use doctor::{DoctorArgs, LockArgs};
pub(crate) use draft::{DraftArgs, DraftSource};
pub(crate) use eval::{EvalArgs, EvalCommand, EvalKvArgs, PerplexityArgs, ReadingArgs, SelfcheckArgs};
pub(crate) use models::{EntryArgs, LoadWhen};
pub(crate) use scale::{DrainArgs, RebalanceArgs, ScaleArgs, ServiceArgs};
pub(crate) use simulate::{HardwareArgs, PlacesArgs, SimulateArgs};
pub(crate) use status::{ServerArgs, StatusArgs, TopArgs};

/// Serves one large language model from every device you have.
#[derive(Debug, Parser)]
#[command(name = "paceline", version, about, max_term_width = 100, args_override_self = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Say more; twice for every step.
    #[arg(short, long, action = clap::ArgAction::Count, global = true)]
    pub(crate) verbose: u8,
    /// Read flags from this file; flags on the command line win.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) log: LogArgs,
}

/// What becomes of the log.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogArgs {
    /// Write the log into files in this folder as well, one a day, with more than the terminal shows.
    #[arg(long, value_name = "FOLDER", global = true)]
    pub(crate) log_dir: Option<PathBuf>,
    /// How many days' files are kept.
    #[arg(long, default_value_t = 14, value_name = "DAYS", global = true, value_parser = clap::value_parser!(u16).range(1..=3650))]
    pub(crate) log_keep: u16,
    /// How lines of the log are written, on the terminal and in files.
    #[arg(long, default_value = "text", value_name = "FORMAT", global = true)]
    pub(crate) log_format: LogFormat,
}

/// How lines of the log are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer requests over HTTP.
    Serve(ServeArgs),
    /// Wait for shards, cut the model over them, and answer requests over HTTP.
    Coordinator(CoordinatorArgs),
    /// Join a coordinator and run a part of its model.
    Shard(ShardArgs),
    /// List, make and revoke the tokens with which shards join.
    Token(TokenArgs),
    /// Say what every stage of a running service holds and does.
    Status(StatusArgs),
    /// Show a running service on the whole terminal, second by second.
    Top(TopArgs),
    /// Add nodes to a running row, drain them, or remove them, while it answers.
    Scale(ScaleArgs),
    /// The same as scale drain.
    Drain(DrainArgs),
    /// Place the layers of a running row anew, with what is known of nodes and links by now.
    Rebalance(RebalanceArgs),
    /// Say what a running service remembers of prompts, keep some of it, or drop it.
    Cache(CacheArgs),
    /// Print one answer.
    Run(RunArgs),
    /// Say what a model needs and where its layers would go, without loading it.
    Plan(PlanArgs),
    /// Say how a service would do on described devices, under a virtual clock.
    Simulate(Box<SimulateArgs>),
    /// Measure prefill and decode.
    Bench(BenchArgs),
    /// Measure how well the model reads and remembers a text, for each type of keys and values.
    Eval(EvalArgs),
    /// Run a text in many ways that must give the same bits, on this machine.
    Selfcheck(SelfcheckArgs),
    /// Say what of this host keeps it from serving models well, and what to do about it.
    Doctor(DoctorArgs),
}

impl Command {
    /// The file for the audit log, where requests are answered and it is wanted.
    pub(crate) fn audit_log(&self) -> Option<&Path> {
        match self {
            Self::Serve(ServeArgs { api, .. }) | Self::Coordinator(CoordinatorArgs { api, .. }) => {
                api.audit_log.as_deref()
            }
            _ => None,
        }
    }

    /// Whether the program's memory is to be kept from being swapped out.
    pub(crate) fn locks_memory(&self) -> bool {
        match self {
            Self::Serve(ServeArgs { lock, .. })
            | Self::Coordinator(CoordinatorArgs { lock, .. })
            | Self::Shard(ShardArgs { lock, .. }) => lock.mlock,
            _ => false,
        }
    }

    /// As it is called.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Serve(_) => "serve",
            Self::Coordinator(_) => "coordinator",
            Self::Shard(_) => "shard",
            Self::Token(_) => "token",
            Self::Status(_) => "status",
            Self::Top(_) => "top",
            Self::Scale(_) => "scale",
            Self::Drain(_) => "drain",
            Self::Rebalance(_) => "rebalance",
            Self::Cache(_) => "cache",
            Self::Run(_) => "run",
            Self::Plan(_) => "plan",
            Self::Simulate(_) => "simulate",
            Self::Bench(_) => "bench",
            Self::Eval(_) => "eval",
            Self::Selfcheck(_) => "selfcheck",
            Self::Doctor(_) => "doctor",
        }
    }
}

/// Which model.
#[derive(Debug, Clone, Args)]
pub(crate) struct ModelArgs {
    /// A GGUF file, or the first part of a split one; without it the tiny model inside this program.
    pub(crate) model: Option<PathBuf>,
    /// Base of the rotary frequencies, instead of the file's.
    #[arg(long, value_name = "BASE")]
    pub(crate) rope_freq_base: Option<f32>,
    /// Stretch positions with YaRN by this factor.
    #[arg(long, value_name = "FACTOR")]
    pub(crate) yarn_factor: Option<f32>,
    /// The context that the model was trained for, where YaRN needs it and the file is wrong.
    #[arg(long, value_name = "TOKENS", requires = "yarn_factor")]
    pub(crate) yarn_original_context: Option<u32>,
}

/// How the model is laid out and how much memory it may have.
#[derive(Debug, Clone, Args)]
pub(crate) struct LayoutArgs {
    /// Cut the model into this many stages.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) shards: usize,
    /// Threads for computing, divided among the stages; all cores if not given.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// The most tokens of one session, prompt and answer together [default: the model's, at most 8192].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) ctx: Option<usize>,
    /// Sessions that run at once; more wait.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) sessions: usize,
    /// How keys and values are stored.
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type: KvType,
    /// How keys are stored, instead of --kv-type.
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type_k: Option<KvType>,
    /// How values are stored, instead of --kv-type.
    #[arg(long, value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type_v: Option<KvType>,
    /// Tokens whose keys and values there is room for, of all sessions together; where it is used up, the newest session
    /// waits [default: as many as all sessions can have].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) kv_tokens: Option<usize>,
    /// Memory for what is kept of conversations between their turns, such as 512M or 2G; 0 for next to none [default:
    /// as much as the keys and values of all sessions].
    #[arg(long, value_name = "SIZE")]
    pub(crate) cache_ram: Option<CacheRam>,
    #[command(flatten)]
    pub(crate) draft: DraftArgs,
    /// Refused: there is nothing like it here.
    #[arg(long, hide = true, value_parser = no_cache_reuse, num_args = 0..=1, default_missing_value = "")]
    pub(crate) cache_reuse: Option<Infallible>,
}

/// How the layers are computed.
#[derive(Debug, Clone, Args)]
pub(crate) struct ComputeArgs {
    /// Rows of a prompt in one step.
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) prefill_chunk: usize,
    /// What computes: cpu, cuda:N for card N of NVIDIA, or auto for the first card if it can be used.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Vector instructions; the best there are if not given.
    #[arg(long, value_name = "SET")]
    pub(crate) isa: Option<Isa>,
    /// Keep every thread on a core of its own; for hosts that nothing else uses.
    #[arg(long)]
    pub(crate) pin: bool,
}

/// Kernel sets, as flags name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Isa {
    /// No vector instructions: slow, and the reference for the others.
    Scalar,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512 with VNNI.
    Avx512,
}

impl LayoutArgs {
    /// How keys are stored.
    pub(crate) fn key_type(&self) -> KvType {
        self.kv_type_k.unwrap_or(self.kv_type)
    }

    /// How values are stored.
    pub(crate) fn value_type(&self) -> KvType {
        self.kv_type_v.unwrap_or(self.kv_type)
    }
}

/// `paceline serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Further models, each loaded when it is asked for by its file's name; tables [models.NAME] of the configuration file
    /// say more of each.
    #[arg(value_name = "MODEL")]
    pub(crate) more_models: Vec<PathBuf>,
    /// Memory for several models together, such as 12G: those that nobody uses go when another one needs it [default: what
    /// this host has free].
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub(crate) models_memory: Option<u64>,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// Folder and size on a disk for what is kept of conversations, such as /var/cache/paceline:50G. It outlives this
    /// process; no other process may have the same folder.
    #[arg(long, value_name = "FOLDER:SIZE")]
    pub(crate) cache_disk: Option<CacheDisk>,
    /// Make vectors of texts with the model (/v1/embeddings), one of all its rows of a text in this way; or scores of pairs
    /// (/v1/rerank) [default: as the file says; models whose files say nothing write texts].
    #[arg(long, value_name = "mean|cls|last|rank", value_parser = pooling)]
    pub(crate) pooling: Option<Pooling>,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// `paceline run`.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// What to answer.
    #[arg(short, long, value_name = "TEXT")]
    pub(crate) prompt: String,
    /// A system message before it.
    #[arg(long, value_name = "TEXT", conflicts_with = "raw")]
    pub(crate) system: Option<String>,
    /// Continue the text as it is, without the chat template.
    #[arg(long)]
    pub(crate) raw: bool,
    /// The most tokens to generate [default: until the model ends or the context is full].
    #[arg(short = 'n', long, value_name = "TOKENS")]
    pub(crate) max_tokens: Option<usize>,
    /// 0 takes the most probable token.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) temperature: f32,
    /// Only this many of the most probable tokens; 0 for all.
    #[arg(long, default_value_t = 0)]
    pub(crate) top_k: u32,
    /// Only the most probable tokens whose probabilities reach this sum.
    #[arg(long, default_value_t = 1.0)]
    pub(crate) top_p: f32,
    /// Only tokens at least this probable relative to the most probable.
    #[arg(long, default_value_t = 0.0)]
    pub(crate) min_p: f32,
    /// Of the random numbers; the same seed gives the same text.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A text that ends the answer; may be given several times.
    #[arg(long, value_name = "TEXT")]
    pub(crate) stop: Vec<String>,
    /// Go on after end tokens.
    #[arg(long)]
    pub(crate) ignore_eos: bool,
    /// A chat template instead of the model's.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Print text, tokens and timings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// With --json: log probabilities of each token and of this many most probable ones.
    #[arg(long, value_name = "N", requires = "json")]
    pub(crate) logprobs: Option<u32>,
}

/// `paceline plan`.
#[derive(Debug, Args)]
#[command(mut_arg("shards", |shards| shards.default_value("0").hide_default_value(true).help(
    "Cut the model into this many stages [default: 1 on this host, else as many as make the row fastest]"
)))]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    /// Memory to plan for, in GiB [default: what this host has free].
    #[arg(long, value_name = "GIB", conflicts_with = "device")]
    pub(crate) memory: Option<f64>,
    /// Plan for these devices instead of this host, such as "8x 24GiB 1008GB/s" or "cpu 64GiB 40GB/s @hostb"; may be
    /// given several times.
    #[arg(long, value_name = "DEVICES", conflicts_with = "threads")]
    pub(crate) device: Vec<DeviceGroup>,
    /// The network between their hosts, such as "10Gb/s 100us".
    #[arg(long, value_name = "LINK", requires = "device")]
    pub(crate) network: Option<LinkSpeed>,
    /// Say whether these are met and what would meet them, such as "first-token<800ms decode>20 users=3 prompt=2000".
    #[arg(long, value_name = "TARGETS")]
    pub(crate) target: Option<Targets>,
    /// Plan for the nodes of a running coordinator: its HTTP address.
    #[arg(long, value_name = "URL", conflicts_with_all = ["device", "memory", "threads"])]
    pub(crate) cluster: Option<String>,
    /// A key of that coordinator, if it asks for one.
    #[arg(long, value_name = "KEY", requires = "cluster", env = "PACELINE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Make one user's tokens as fast as possible, rather than all users' together.
    #[arg(long)]
    pub(crate) one_user: bool,
    /// Say what a token costs on cards of NVIDIA, operation by operation: kernels, bytes, and the time that they predict.
    #[arg(long, conflicts_with_all = ["device", "memory", "cluster", "target", "one_user"])]
    pub(crate) kernels: bool,
    /// Print the plan as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// `paceline bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    #[command(flatten)]
    pub(crate) compute: ComputeArgs,
    /// Prompt lengths to measure prefill with.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "512")]
    pub(crate) prefill: Vec<usize>,
    /// Tokens to generate for each measurement of decode.
    #[arg(long, value_name = "TOKENS", default_value_t = 64)]
    pub(crate) decode: usize,
    /// Tokens before the measured ones.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "16")]
    pub(crate) depth: Vec<usize>,
    /// Sessions that decode together.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub(crate) users: Vec<usize>,
    /// Rounds of all measurements; reported are the median and the quartiles.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) repeat: usize,
    /// Say where the time of a decode step and of a prefill chunk goes.
    #[arg(long, group = "measurement")]
    pub(crate) profile: bool,
    /// Say what a step of several rows of one session costs against one row.
    #[arg(long, group = "measurement")]
    pub(crate) verify: bool,
    /// Rows of such a step.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_value = "8")]
    pub(crate) verify_rows: Vec<usize>,
    /// Say what drafts of the tail would bring of which this share is right, from 0 to 1: one session with such drafts, at most
    /// --draft-max at a time, against one without.
    #[arg(long, value_name = "P", group = "measurement")]
    pub(crate) draft_accept: Option<f64>,
    /// Find the best --threads (unless given) and --prefill-chunk.
    #[arg(long, group = "measurement")]
    pub(crate) tune: bool,
    /// Measure a service that runs already, here or elsewhere: any that speaks OpenAI's chat completions over HTTP. The
    /// model is then a name [default: the first that it lists], and --prefill counts words.
    #[arg(long, value_name = "URL", group = "measurement")]
    pub(crate) url: Option<String>,
    /// With --url: clients that ask at the same time, each --repeat times.
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1,4,8,16")]
    pub(crate) clients: Vec<usize>,
    /// With --url: a key of the service, if it asks for one.
    #[arg(long, value_name = "KEY", env = "PACELINE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
    /// Print the figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Other servers have a flag of this name, which users bring along.
fn no_cache_reuse(_: &str) -> Result<Infallible, String> {
    Err("there is no such thing here: cached tokens moved to other positions give other answers than a cold run, and \
         a recurrent state cannot be moved at all. Common prefixes are always reused, exactly; see --cache-ram"
        .to_owned())
}

fn kv_type(name: &str) -> Result<KvType, String> {
    name.parse().map_err(|error: paceline_gguf::Error| error.to_string())
}

fn pooling(name: &str) -> Result<Pooling, String> {
    name.parse().map_err(|error: paceline_gguf::Error| error.to_string())
}

/// A number of bytes.
fn size(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(CacheRam::Bytes(bytes)) => Ok(bytes),
        Ok(CacheRam::Usual) => Err(format!("{text:?} is no size")),
        Err(error) => Err(error.to_string()),
    }
}
