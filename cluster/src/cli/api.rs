//! The flags that say how requests are answered, and to whom.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;

/// What a model answers to requests that do not say.
#[derive(Debug, Clone, Args)]
pub(crate) struct AnswerArgs {
    /// A chat template instead of the model's.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Variables of the chat template, as a JSON object, for requests that do not give them.
    #[arg(long, value_name = "JSON")]
    pub(crate) chat_template_kwargs: Option<String>,
    /// Whether models that can think before they answer do, for requests that do not say [default: as the template has it].
    #[arg(long, value_name = "on|off", value_enum, hide_possible_values = true)]
    pub(crate) thinking: Option<OnOff>,
    /// The most tokens of thinking, for requests that do not say [default: as many as the model wants].
    #[arg(long, value_name = "TOKENS")]
    pub(crate) thinking_budget: Option<u32>,
}

/// How requests are answered.
#[derive(Debug, Clone, Args)]
pub(crate) struct ApiArgs {
    /// Address to listen on; anything but loopback needs --api-key or --api-key-file.
    #[arg(long, default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// Port to listen on; 0 for a free one.
    #[arg(long, default_value_t = 8080)]
    pub(crate) port: u16,
    /// Names of the model in the API, first the one it reports; its file's name if not given.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) alias: Vec<String>,
    /// A key that requests must carry; several are allowed.
    #[arg(long, value_name = "KEY", value_delimiter = ',', env = "PACELINE_API_KEY", hide_env_values = true)]
    pub(crate) api_key: Vec<String>,
    /// A file with such keys, one a line: the key or "sha256:" and its hash, and behind it what it may use, such as
    /// name=alice requests=60 tokens=100000 sessions=4. Lines that begin with # are skipped.
    #[arg(long, value_name = "FILE")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Requests in a minute of a key that has no number of its own; without keys, of all clients together.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) key_requests: Option<u32>,
    /// Tokens in a minute of such a key, of prompts and answers together.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) key_tokens: Option<u32>,
    /// Sessions at once of such a key; every choice of a request is one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) key_sessions: Option<u32>,
    /// A file with the certificate of this service and those that vouch for it, as PEM: the API is then served over TLS.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// A file with the key of that certificate, as PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Let web pages of this origin use the API from browsers, such as <https://chat.example.org>; * for all.
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',')]
    pub(crate) cors: Vec<String>,
    /// Append a line to this file for every request: when, whose, which page, how it ended, and its tokens.
    #[arg(long, value_name = "FILE")]
    pub(crate) audit_log: Option<PathBuf>,
    /// With --audit-log: the bodies of requests as well, which hold the prompts.
    #[arg(long, requires = "audit_log")]
    pub(crate) audit_bodies: bool,
    #[command(flatten)]
    pub(crate) answers: AnswerArgs,
    /// Leave lines in system prompts that known clients change on every request, such as Claude Code's billing line. They
    /// are taken out otherwise, and the response says so: they keep everything behind them out of the cache.
    #[arg(long)]
    pub(crate) keep_client_noise: bool,
    /// Requests that wait for a place; more are refused.
    #[arg(long, default_value_t = 256, value_name = "N")]
    pub(crate) queue: usize,
    /// The most bytes of a request's body, in MiB.
    #[arg(long, default_value_t = 8, value_name = "MIB", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) body_limit: u32,
    /// Seconds that a request may take to its last token, waiting included.
    #[arg(long, default_value_t = 3600, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) request_deadline: u32,
    /// Seconds that running answers have to finish at shutdown.
    #[arg(long, default_value_t = 30, value_name = "SECONDS")]
    pub(crate) drain_timeout: u64,
}

/// A switch that has a position of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum OnOff {
    /// Yes.
    On,
    /// No.
    Off,
}
