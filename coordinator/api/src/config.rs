//! What the server allows and assumes. Every limit has a default and a reason.

use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::PrometheusHandle;
use rustls::ServerConfig;
use tokio::sync::watch;

use crate::keys::ApiKeys;
use crate::responses::{ResponseLimits, ResponseShelf};
use crate::scale::Scaling;
use crate::status::ClusterCard;

/// Everything the HTTP server needs to be told besides the engine and its socket.
#[derive(Clone)]
pub struct ApiConfig {
    /// Keys that clients must show, and what each may use; none leaves the API open. Default: none.
    pub api_keys: ApiKeys,
    /// Web pages of these origins may use the API from browsers; `*` stands for all. Default: none.
    pub cors_origins: Vec<String>,
    /// Certificate and key; without them HTTP is spoken in the clear. Default: none.
    pub tls: Option<Arc<ServerConfig>>,
    /// How many responses are kept for others to go on from, and how long.
    pub response_limits: ResponseLimits,
    /// Where they outlive the process; without it they end with it. Default: nowhere.
    pub response_shelf: Option<Arc<dyn ResponseShelf>>,
    /// Whether bodies of requests, and with them prompts, are part of the audit log. Default: no.
    pub audit_bodies: bool,
    /// How long a request may take, waiting included, until its last token. Default: an hour.
    pub request_deadline: Duration,
    /// Threads that serve connections; the work behind them is done elsewhere. Default: 2.
    pub workers: usize,
    /// The most connections at a time; more wait in the socket's backlog. Default: 512.
    pub connections: usize,
    /// The most bytes of a request body. Default: 8 MiB, twice the text of a million tokens.
    pub body_bytes: usize,
    /// The most bytes of all prompts of a request as text, templates rendered. Default: 4 MiB.
    pub prompt_bytes: usize,
    /// Whether lines that known clients change on every request stay in system prompts ([`ClientNoise`]). Default: no,
    /// they would make every prompt a new one to the cache.
    ///
    /// [`ClientNoise`]: paceline_text::ClientNoise
    pub keep_client_noise: bool,
    /// The most time for the head of a request to arrive. Default: 10 s.
    pub head_timeout: Duration,
    /// The most time for the body of a request to arrive. Default: 60 s.
    pub body_timeout: Duration,
    /// How long a connection may idle between requests. Default: 75 s, more than most proxies keep one.
    pub idle_timeout: Duration,
    /// How long a stream may be silent before a comment is sent, so that nothing on the way thinks it dead.
    /// Default: 15 s.
    pub comment_interval: Duration,
    /// How long a client may read nothing of a stream before its answer is given up: its session holds memory.
    /// Default: 120 s.
    pub stall_timeout: Duration,
    /// How long answers may go on once the server is told to stop; in whole seconds. Default: 30 s.
    pub shutdown_timeout: Duration,
    /// Where `/metrics` comes from; without it there is no such page. Default: none.
    pub metrics: Option<PrometheusHandle>,
    /// The cluster, as its nodes come and go; without it there is only this process. Default: none.
    pub cluster: Option<watch::Receiver<ClusterCard>>,
    /// Whoever can change the cluster's row. Default: nobody.
    pub scaling: Option<Arc<dyn Scaling>>,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self {
            api_keys: ApiKeys::default(),
            cors_origins: Vec::new(),
            tls: None,
            response_limits: ResponseLimits::default(),
            response_shelf: None,
            audit_bodies: false,
            request_deadline: Duration::from_secs(3600),
            workers: 2,
            connections: 512,
            body_bytes: 8 << 20,
            prompt_bytes: 4 << 20,
            keep_client_noise: false,
            head_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(60),
            idle_timeout: Duration::from_secs(75),
            comment_interval: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(120),
            shutdown_timeout: Duration::from_secs(30),
            metrics: None,
            cluster: None,
            scaling: None,
        }
    }
}

/// Settings of requests that do not give them. The defaults are those of the OpenAI API; a model file may carry
/// better ones (`general.sampling.*`).
#[derive(Debug, Clone, PartialEq)]
pub struct Defaults {
    /// Default: 1.
    pub temperature: f32,
    /// Default: 1, all tokens.
    pub top_p: f32,
    /// Default: 0, all tokens.
    pub top_k: u32,
    /// Default: 0, all tokens.
    pub min_p: f32,
    /// Default: 1, none.
    pub repetition_penalty: f32,
    /// How many of the last tokens the repetition penalty sees. Default: 0, all.
    pub penalty_window: u32,
    /// Default: 0.
    pub frequency_penalty: f32,
    /// Default: 0.
    pub presence_penalty: f32,
    /// The most tokens of an answer. Default: none, until the context is full.
    pub max_tokens: Option<usize>,
    /// Whether models that can think before they answer do. Default: as the model's template has it.
    pub thinking: Option<bool>,
    /// The most tokens of thinking. Default: none.
    pub thinking_budget: Option<u32>,
    /// Further variables of the chat template. Default: none.
    pub template_variables: serde_json::Map<String, serde_json::Value>,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            penalty_window: 0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            max_tokens: None,
            thinking: None,
            thinking_budget: None,
            template_variables: serde_json::Map::new(),
        }
    }
}
