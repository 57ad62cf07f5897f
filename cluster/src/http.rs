//! The HTTP side of a process that answers requests: its socket and its settings.

mod protection;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use metrics_exporter_prometheus::PrometheusBuilder;
use paceline_api::{ApiConfig, ClusterCard, Defaults, Models, ResponseShelf, Scaling};
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::Gguf;
use paceline_proto::SamplingSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cli::{AnswerArgs, ApiArgs, OnOff};
use crate::supervisor::Supervisor;
use crate::{host, shutdown};

/// A record of TLS that begins no handshake; servers answer it with an alert, or close.
const NO_HANDSHAKE: &[u8] = &[22, 3, 1, 0, 1, 255];

/// The server answers within this time, once it runs.
const ANSWER: Duration = Duration::from_secs(30);

/// A socket that listens, and how its requests are answered.
pub(crate) struct Http {
    listener: TcpListener,
    config: ApiConfig,
    drain_timeout: Duration,
}

impl Http {
    /// Takes the address. To be done before a model is loaded, so that a port in use is told at once.
    pub(crate) fn listen(arguments: &ApiArgs) -> Result<TcpListener> {
        protection::check_exposure(arguments)?;
        let address = SocketAddr::new(arguments.host, arguments.port);
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
    }

    /// With the settings that are the same for all models.
    pub(crate) fn new(listener: TcpListener, arguments: &ApiArgs) -> Result<Self> {
        let config = api_config(arguments)?;
        Ok(Self { listener, config, drain_timeout: Duration::from_secs(arguments.drain_timeout) })
    }

    /// Tells of a cluster in the status, and lets people change its row.
    pub(crate) fn of_cluster(mut self, cluster: watch::Receiver<ClusterCard>, scaling: Arc<dyn Scaling>) -> Self {
        (self.config.cluster, self.config.scaling) = (Some(cluster), Some(scaling));
        self
    }

    /// With a place where responses outlive the process.
    pub(crate) fn keeping(mut self, shelf: Arc<dyn ResponseShelf>) -> Self {
        self.config.response_shelf = Some(shelf);
        self
    }

    /// Where it listens, as clients say it.
    pub(crate) fn url(&self) -> Result<String> {
        Ok(format!("{}://{}", self.scheme(), self.address()?))
    }

    fn scheme(&self) -> &'static str {
        if self.config.tls.is_some() { "https" } else { "http" }
    }

    fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("the socket has no address")
    }

    /// Answers requests with `models` until a signal comes and the service has ended in its
    /// [three phases](shutdown::phases): `drain` lets running answers finish, then `end` closes what is left. The supervisor
    /// is told when the first request was answered; `following` tells it more, and never ends.
    pub(crate) async fn serve(
        self,
        models: Arc<dyn Models>,
        signals: shutdown::Signals,
        supervisor: &Supervisor,
        following: impl Future<Output = ()>,
        (drain, end): (impl Future<Output = ()> + Send + 'static, impl Future<Output = ()> + Send + 'static),
    ) -> Result<()> {
        let (address, scheme, url) = (self.address()?, self.scheme(), self.url()?);
        let ending = shutdown::phases(signals, drain, self.drain_timeout, supervisor.clone(), end);
        let serving = paceline_api::serve(models, self.config, self.listener, ending);
        let answering = async {
            if !supervisor.is_there() {
                return std::future::pending().await;
            }
            timeout(ANSWER, answers(address, scheme)).await.context("the HTTP server does not answer")??;
            supervisor.ready(&format!("listening on {url}"));
            following.await;
            Ok(())
        };
        tokio::select! {
            served = serving => served.context("the HTTP server failed"),
            ended = answering => ended,
        }
    }
}

/// Ready when the server has answered: a request, or over TLS anything at all, for it may have a name of its own only.
async fn answers(mut address: SocketAddr, scheme: &str) -> Result<()> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        let hello: &[u8] = match scheme {
            "https" => NO_HANDSHAKE,
            _ => b"GET /health HTTP/1.1\r\nhost: paceline\r\nconnection: close\r\n\r\n",
        };
        stream.write_all(hello).await?;
        stream.read(&mut [0; 1]).await
    };
    asking.await.map(|_| ()).with_context(|| format!("nothing answers at {address}"))
}

/// Bounds of the buckets in which times are counted, from a token's gap to a long prompt's. Buckets of several processes
/// can be added up, and take the same little memory however different the times are.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

fn api_config(arguments: &ApiArgs) -> Result<ApiConfig> {
    let metrics = PrometheusBuilder::new().set_buckets(&SECONDS).and_then(PrometheusBuilder::install_recorder);
    let metrics = metrics.context("cannot set up metrics")?;
    Ok(ApiConfig {
        api_keys: protection::api_keys(arguments)?,
        cors_origins: arguments.cors.clone(),
        tls: protection::tls(arguments)?,
        audit_bodies: arguments.audit_bodies,
        body_bytes: (arguments.body_limit as usize) << 20,
        request_deadline: Duration::from_secs(u64::from(arguments.request_deadline)),
        keep_client_noise: arguments.keep_client_noise,
        // Answers have ended by then; what is left of them is read, or never.
        shutdown_timeout: shutdown::FLUSH,
        workers: host::cores().clamp(1, 4),
        metrics: Some(metrics),
        ..ApiConfig::default()
    })
}

/// What holds for requests that do not say: what the command line says, and what the model's makers recommend.
pub(crate) fn defaults(arguments: &AnswerArgs, gguf: &Gguf) -> Result<Defaults> {
    Ok(Defaults {
        thinking: arguments.thinking.map(|switch| switch == OnOff::On),
        thinking_budget: arguments.thinking_budget,
        template_variables: template_variables(arguments.chat_template_kwargs.as_deref())?,
        ..recommended_sampling(gguf)?
    })
}

/// The variables of the chat template from the command line.
fn template_variables(text: Option<&str>) -> Result<serde_json::Map<String, serde_json::Value>> {
    let Some(text) = text else { return Ok(serde_json::Map::new()) };
    serde_json::from_str(text).context("--chat-template-kwargs is no JSON object")
}

/// The settings that the model's makers recommend, where its file carries them.
fn recommended_sampling(gguf: &Gguf) -> Result<Defaults> {
    let usual = Defaults::default();
    let metadata = gguf.metadata();
    let number = |key: &str, usual: f32| Ok::<f32, anyhow::Error>(metadata.get_f32(key)?.unwrap_or(usual));
    Ok(Defaults {
        temperature: number("general.sampling.temp", usual.temperature)?,
        top_p: number("general.sampling.top_p", usual.top_p)?,
        top_k: metadata.get_u32("general.sampling.top_k")?.unwrap_or(usual.top_k),
        min_p: number("general.sampling.min_p", usual.min_p)?,
        ..usual
    })
}

/// Runs a few tokens through every stage, so that the first user does not wait for memory to be touched.
pub(crate) async fn warm_up(engine: &Engine) -> Result<()> {
    let prompt = vec![0; engine.model().context.saturating_sub(2).clamp(1, 16)];
    let request = Generate {
        prompt,
        boundaries: Vec::new(),
        max_tokens: Some(2),
        stop: Vec::new(),
        sampling: SamplingSettings::default(),
        ignore_end: true,
        show_special: false,
    };
    let mut generation = engine.generate(request).await.context("the warm-up failed")?;
    while let Some(update) = generation.updates.recv().await {
        if let Update::Failed(error) = update {
            return Err(error).context("the warm-up failed");
        }
    }
    Ok(())
}
