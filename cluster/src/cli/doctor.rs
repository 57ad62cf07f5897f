//! Flags of `paceline doctor`, and the one that its advice speaks of.

use clap::Args;

/// `paceline doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// The port on which requests are to be answered.
    #[arg(long, default_value_t = 8080, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Say whether a TCP connection to this address is made, and in what time; may be given several times.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) reach: Vec<String>,
    /// Print the findings as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What becomes of the program's memory when others want it.
#[derive(Debug, Clone, Args)]
pub(crate) struct LockArgs {
    /// Keep all memory of the program from being swapped out; refused where the system allows less.
    #[arg(long)]
    pub(crate) mlock: bool,
}
