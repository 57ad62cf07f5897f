//! Flags of the commands that make a cluster of several processes.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use paceline_core::limits::STEP_DEADLINE;
use paceline_proto::Activations;

use crate::coordinator::CONTROL_PORT;

use super::{ApiArgs, CacheDisk, DeviceChoice, Isa, LayoutArgs, LockArgs, ModelArgs};

/// `paceline coordinator`.
#[derive(Debug, Args)]
pub(crate) struct CoordinatorArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) layout: LayoutArgs,
    #[command(flatten)]
    pub(crate) api: ApiArgs,
    /// Address at which shards join.
    #[arg(long, default_value_t = SocketAddr::from((Ipv4Addr::UNSPECIFIED, CONTROL_PORT)), value_name = "HOST:PORT")]
    pub(crate) control: SocketAddr,
    /// Address of the data endpoint (UDP) [default: the control address with port 7071].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) data: Option<SocketAddr>,
    /// The address that the printed token names [default: this host's, as others may reach it].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) advertise: Option<String>,
    /// Write the join token into this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) token_file: Option<PathBuf>,
    /// Rows of a prompt in one step.
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) prefill_chunk: usize,
    /// How long a step may be overdue before a stage counts as hung.
    #[arg(long, default_value_t = STEP_DEADLINE.as_secs(), value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) step_deadline: u64,
    /// How activations travel between processes: f32 is exact, f16 is half as much, int8 a little over a quarter.
    #[arg(long, default_value = "f32", value_name = "TYPE")]
    pub(crate) activations: Activations,
    /// What carries them: a Unix socket between processes of one host and QUIC between hosts, or always the same.
    #[arg(long, default_value = "auto", value_name = "CARRIER")]
    pub(crate) link: LinkChoice,
    #[command(flatten)]
    pub(crate) state: StateArgs,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// Where the coordinator keeps what must outlive it.
#[derive(Debug, Clone, Args)]
pub(crate) struct StateArgs {
    /// Folder of the cluster's keys and tokens [default: ~/.local/state/paceline].
    #[arg(long = "state", value_name = "FOLDER")]
    pub(crate) folder: Option<PathBuf>,
}

/// What carries links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum LinkChoice {
    /// A Unix socket on one host, QUIC else.
    Auto,
    /// Always QUIC.
    Quic,
    /// Always Unix sockets.
    Unix,
}

/// `paceline shard`.
#[derive(Debug, Args)]
pub(crate) struct ShardArgs {
    /// Address of the coordinator [default: the one in the token].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) join: Option<String>,
    /// The token that the coordinator printed.
    #[arg(long, value_name = "TOKEN", env = "PACELINE_TOKEN", hide_env_values = true)]
    pub(crate) token: Option<String>,
    /// A file that holds the token.
    #[arg(long, value_name = "FILE", conflicts_with = "token")]
    pub(crate) token_file: Option<PathBuf>,
    /// What computes: cpu, cuda:N for card N of NVIDIA, or auto for the first card if it can be used.
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: DeviceChoice,
    /// Threads for computing; all cores if not given.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Memory to plan with, in GiB [default: what this host has free].
    #[arg(long, value_name = "GIB")]
    pub(crate) memory: Option<f64>,
    /// Vector instructions; the best there are if not given.
    #[arg(long, value_name = "SET")]
    pub(crate) isa: Option<Isa>,
    /// Keep every thread on a core of its own, beginning with this one.
    #[arg(long, value_name = "CORE")]
    pub(crate) pin: Option<usize>,
    /// Address of the data endpoint (UDP) [default: a free port of the address that reaches the coordinator].
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) data: Option<SocketAddr>,
    /// Another address at which the data endpoint can be reached.
    #[arg(long, value_name = "HOST")]
    pub(crate) advertise: Option<IpAddr>,
    /// A copy of the model on this host; without it, layers are fetched from other nodes.
    #[arg(long, value_name = "FILE")]
    pub(crate) model: Option<PathBuf>,
    /// Fetch the layers even where this host can read the coordinator's own file, such as on a network share.
    #[arg(long, conflicts_with = "model")]
    pub(crate) fetch: bool,
    /// Folder for fetched layers [default: ~/.cache/paceline].
    #[arg(long, value_name = "FOLDER")]
    pub(crate) cache: Option<PathBuf>,
    /// The most that fetched layers may occupy, in GiB.
    #[arg(long, value_name = "GIB")]
    pub(crate) cache_size: Option<f64>,
    /// Folder and size on a disk for what this shard's stage keeps of conversations, such as /var/cache/paceline:50G. It
    /// outlives this process, and is of use when all shards of a row have one; no other process may have the same folder.
    #[arg(long, value_name = "FOLDER:SIZE")]
    pub(crate) cache_disk: Option<CacheDisk>,
    /// Be used only when there are too few others.
    #[arg(long)]
    pub(crate) standby: bool,
    /// At a signal, serve on for at most this long while the work is moved to others; 0 leaves at once.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) drain_timeout: u64,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
}

/// `paceline token`.
#[derive(Debug, Args)]
pub(crate) struct TokenArgs {
    #[command(subcommand)]
    pub(crate) command: Option<TokenCommand>,
    #[command(flatten)]
    pub(crate) state: StateArgs,
}

/// What to do with join tokens; lists them if nothing is said.
#[derive(Debug, Subcommand)]
pub(crate) enum TokenCommand {
    /// List all tokens.
    List {
        /// Print the tokens themselves, which are secrets.
        #[arg(long)]
        show: bool,
        /// Print them as JSON, secrets and all.
        #[arg(long)]
        json: bool,
    },
    /// Make a token and print it.
    Create {
        /// The address of the coordinator that it names.
        #[arg(long, value_name = "HOST:PORT")]
        address: String,
        /// For whom it is.
        #[arg(long, default_value = "", value_name = "TEXT")]
        label: String,
    },
    /// Revoke a token: nobody joins with it any more, and who joined with it must leave.
    Revoke {
        /// Its id.
        id: String,
    },
}
