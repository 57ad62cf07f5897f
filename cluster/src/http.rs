//! The HTTP side of a process that answers requests: its socket and its settings.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metrics_exporter_prometheus::PrometheusBuilder;
use paceline_api::{ApiConfig, ApiKeys, ClusterCard, Defaults, Scaling};
use paceline_coordinator::actor::Control;
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::Gguf;
use paceline_proto::SamplingSettings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::cli::ApiArgs;
use crate::supervisor::Supervisor;
use crate::{host, shutdown};

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
        check_exposure(arguments)?;
        let address = SocketAddr::new(arguments.host, arguments.port);
        TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))
    }

    /// With the settings that the model's makers recommend.
    pub(crate) fn new(listener: TcpListener, arguments: &ApiArgs, gguf: &Gguf) -> Result<Self> {
        let config = api_config(arguments, gguf)?;
        Ok(Self { listener, config, drain_timeout: Duration::from_secs(arguments.drain_timeout) })
    }

    /// Tells of a cluster in the status, and lets people change its row.
    pub(crate) fn of_cluster(mut self, cluster: watch::Receiver<ClusterCard>, scaling: Arc<dyn Scaling>) -> Self {
        (self.config.cluster, self.config.scaling) = (Some(cluster), Some(scaling));
        self
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("the socket has no address")
    }

    /// Answers requests until a signal comes and the service has ended in its [three phases](shutdown::phases), the last
    /// of which begins with `end`. The supervisor is told when the first request was answered.
    pub(crate) async fn serve(
        self,
        engine: Engine,
        control: Control,
        signals: shutdown::Signals,
        supervisor: &Supervisor,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> Result<()> {
        let address = self.address()?;
        let following = supervisor.follow(control.health());
        let ending = shutdown::phases(signals, control, self.drain_timeout, supervisor.clone(), end);
        let serving = paceline_api::serve(engine, self.config, self.listener, ending);
        let answering = async {
            if !supervisor.is_there() {
                return std::future::pending().await;
            }
            timeout(ANSWER, answers(address)).await.context("the HTTP server does not answer")??;
            supervisor.ready(&format!("listening on http://{address}"));
            following.await;
            Ok(())
        };
        tokio::select! {
            served = serving => served.context("the HTTP server failed"),
            ended = answering => ended,
        }
    }
}

/// Ready when the server has answered a request.
async fn answers(mut address: SocketAddr) -> Result<()> {
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"GET /health HTTP/1.1\r\nhost: paceline\r\nconnection: close\r\n\r\n").await?;
        stream.read_u8().await
    };
    asking.await.map(|_| ()).with_context(|| format!("nothing answers at {address}"))
}

/// An address that others can reach needs a key.
fn check_exposure(arguments: &ApiArgs) -> Result<()> {
    let host = arguments.host;
    ensure!(
        host.is_loopback() || !arguments.api_key.is_empty() || arguments.api_key_file.is_some(),
        "--host {host} can be reached from outside: give a key with --api-key or --api-key-file, or listen on 127.0.0.1"
    );
    Ok(())
}

/// Bounds of the buckets in which times are counted, from a token's gap to a long prompt's. Buckets of several processes
/// can be added up, and take the same little memory however different the times are.
const SECONDS: [f64; 17] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];

fn api_config(arguments: &ApiArgs, gguf: &Gguf) -> Result<ApiConfig> {
    let metrics = PrometheusBuilder::new().set_buckets(&SECONDS).and_then(PrometheusBuilder::install_recorder);
    let metrics = metrics.context("cannot set up metrics")?;
    Ok(ApiConfig {
        api_keys: ApiKeys::new(api_keys(arguments)?),
        defaults: recommended_sampling(gguf)?,
        keep_client_noise: arguments.keep_client_noise,
        // Answers have ended by then; what is left of them is read, or never.
        shutdown_timeout: shutdown::FLUSH,
        workers: host::cores().clamp(1, 4),
        metrics: Some(metrics),
        ..ApiConfig::default()
    })
}

/// The keys of the command line and those of the file, one a line.
fn api_keys(arguments: &ApiArgs) -> Result<Vec<String>> {
    let mut keys = arguments.api_key.clone();
    if let Some(path) = &arguments.api_key_file {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read the keys in {}", path.display()))?;
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let before = keys.len();
        keys.extend(lines.map(str::to_owned));
        ensure!(keys.len() > before, "there is no key in {}", path.display());
    }
    Ok(keys)
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
