//! The HTTP side of a process that answers requests: its socket, its settings, and how it ends.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metrics_exporter_prometheus::PrometheusBuilder;
use paceline_api::{ApiConfig, ApiKeys, Defaults, NodeCard};
use paceline_coordinator::actor::Control;
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::Gguf;
use paceline_proto::SamplingSettings;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

use crate::cli::ApiArgs;
use crate::host;

/// A socket that listens, and how its requests are answered.
pub(crate) struct Http {
    listener: TcpListener,
    config: ApiConfig,
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
        Ok(Self { listener, config: api_config(arguments, gguf)? })
    }

    /// Tells the nodes of a cluster in the status.
    pub(crate) fn with_nodes(mut self, nodes: watch::Receiver<Vec<NodeCard>>) -> Self {
        self.config.nodes = Some(nodes);
        self
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<SocketAddr> {
        self.listener.local_addr().context("the socket has no address")
    }

    /// How long running answers may take to end at shutdown.
    pub(crate) fn drain_timeout(&self) -> Duration {
        self.config.shutdown_timeout
    }

    /// Answers requests until a signal comes and running answers have had their time.
    pub(crate) async fn serve(self, engine: Engine, control: Control, signals: Signals) -> Result<()> {
        let shutdown = shutdown(control, signals);
        paceline_api::serve(engine, self.config, self.listener, shutdown).await.context("the HTTP server failed")
    }
}

/// An address that others can reach needs a key.
fn check_exposure(arguments: &ApiArgs) -> Result<()> {
    let host = arguments.host;
    ensure!(
        host.is_loopback() || !arguments.api_key.is_empty(),
        "--host {host} can be reached from outside: give a key with --api-key, or listen on 127.0.0.1"
    );
    Ok(())
}

fn api_config(arguments: &ApiArgs, gguf: &Gguf) -> Result<ApiConfig> {
    let metrics = PrometheusBuilder::new().install_recorder().context("cannot set up metrics")?;
    Ok(ApiConfig {
        api_keys: ApiKeys::new(&arguments.api_key),
        defaults: recommended_sampling(gguf)?,
        shutdown_timeout: Duration::from_secs(arguments.drain),
        workers: host::cores().clamp(1, 4),
        metrics: Some(metrics),
        ..ApiConfig::default()
    })
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

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    /// Waits for the next of either.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Ready at the first signal, when nobody new is admitted any more; a second one ends the process.
async fn shutdown(control: Control, mut signals: Signals) {
    signals.next().await;
    info!("shutting down: running answers may finish; a second signal ends them");
    tokio::spawn(async move { control.drain().await });
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(130);
    });
}
