//! Flags of `paceline simulate`.

use clap::Args;
use paceline_core::planner::{DeviceGroup, LinkSpeed};
use paceline_gguf::KvType;
use paceline_simulation::Lengths;

use super::{ModelArgs, kv_type};

/// `paceline simulate`.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) hardware: HardwareArgs,
    #[command(flatten)]
    pub(crate) places: PlacesArgs,
    #[command(flatten)]
    pub(crate) load: LoadArgs,
    #[command(flatten)]
    pub(crate) trouble: TroubleArgs,
    /// Of everything that is left to chance; the same seed gives the same report.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Check every step of the scheduler, which takes longer; its accounts are always checked.
    #[arg(long)]
    pub(crate) check: bool,
    /// Print the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What the row is made of.
#[derive(Debug, Clone, Args)]
pub(crate) struct HardwareArgs {
    /// Devices, such as "8x 24GiB 1008GB/s @hosta"; may be given several times.
    #[arg(long, value_name = "DEVICES")]
    pub(crate) device: Vec<DeviceGroup>,
    /// So many hosts, each with the devices given.
    #[arg(long, value_name = "N", requires = "device", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) hosts: Option<u16>,
    /// So many of the devices given on each host.
    #[arg(long, value_name = "N", requires = "device", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub(crate) devices_per_host: Option<u16>,
    /// The network between hosts, such as "10Gb/s 100us".
    #[arg(long, value_name = "LINK", requires = "device")]
    pub(crate) network: Option<LinkSpeed>,
    /// Measured times instead of devices: a JSON file, or microseconds of a step for each stage, such as 900,850,1100.
    #[arg(long, value_name = "FILE|MICROS,..", conflicts_with = "device", required_unless_present = "device")]
    pub(crate) stage_micros: Option<String>,
}

/// How much of the model's memory the row has.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlacesArgs {
    /// Cut the model into this many stages [default: as many as make it fastest].
    #[arg(long, value_name = "N", conflicts_with = "stage_micros")]
    pub(crate) shards: Option<usize>,
    /// The most tokens of one session, prompt and answer together [default: the model's, at most 8192].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) ctx: Option<usize>,
    /// Sessions that run at once; more wait.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) sessions: usize,
    /// Sessions that wait for a place; more are refused.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) queue: usize,
    /// How keys and values are stored.
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = kv_type)]
    pub(crate) kv_type: KvType,
    /// Rows of a prompt in one step.
    #[arg(long, default_value_t = 512, value_name = "TOKENS")]
    pub(crate) prefill_chunk: usize,
}

/// Who comes.
#[derive(Debug, Clone, Args)]
pub(crate) struct LoadArgs {
    /// Requests a second that come by chance, whatever becomes of those before.
    #[arg(long, value_name = "RATE", conflicts_with = "users")]
    pub(crate) rate: Option<f64>,
    /// Users who wait for each answer and think before the next request [default: as many as --sessions].
    #[arg(long, value_name = "N")]
    pub(crate) users: Option<usize>,
    /// Seconds for which users think, on average.
    #[arg(long, default_value_t = 0.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) think: f64,
    /// Requests in all.
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub(crate) requests: usize,
    /// Tokens of a prompt: N, LEAST-MOST, or ~MEDIAN for many short and few long ones.
    #[arg(long, default_value = "~500", value_name = "TOKENS")]
    pub(crate) prompt: Lengths,
    /// Tokens of an answer, in the same ways.
    #[arg(long, default_value = "~200", value_name = "TOKENS")]
    pub(crate) answer: Lengths,
    /// The share of clients who leave when they lose patience.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub(crate) leavers: f64,
    /// Seconds for which their patience lasts, on average.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) patience: f64,
}

/// What goes wrong.
#[derive(Debug, Clone, Args)]
pub(crate) struct TroubleArgs {
    /// Faults at moments drawn by the seed: slow stages, lost stages, stalled links. The run without them is told too.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1000))]
    pub(crate) faults: u16,
    /// Seconds from the news that a stage is lost until the row is placed anew.
    #[arg(long, default_value_t = 10.0, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) restore: f64,
    /// The deviation of a stage's time, as a share of it.
    #[arg(long, default_value_t = 0.0, value_name = "SHARE")]
    pub(crate) noise: f64,
}

fn seconds(text: &str) -> Result<f64, String> {
    const MOST: f64 = 1e6;
    let seconds: f64 = text.parse().map_err(|_| format!("{text} is no number"))?;
    if (0.0..=MOST).contains(&seconds) { Ok(seconds) } else { Err(format!("{text} s is not from 0 to {MOST}")) }
}
