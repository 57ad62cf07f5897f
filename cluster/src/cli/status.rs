//! Flags of the commands that look at a running service.

use clap::Args;

/// Which service.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServerArgs {
    /// Where the service listens.
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080")]
    pub(crate) url: String,
    /// A key of the service, if it asks for one.
    #[arg(long, value_name = "KEY", env = "PACELINE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Option<String>,
}

/// `paceline status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print all figures as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print nothing, and succeed if the service answers, also while it waits for shards; needs no key.
    #[arg(long, conflicts_with = "json")]
    pub(crate) live: bool,
}

/// `paceline top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
    /// Print one screen as text and end.
    #[arg(long)]
    pub(crate) once: bool,
}
