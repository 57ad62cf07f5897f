//! `paceline serve`: everything in one process, answering over HTTP.

use std::io::Write;
use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use metrics_exporter_prometheus::PrometheusBuilder;
use paceline_api::{ApiConfig, ApiKeys, Defaults};
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::Gguf;
use paceline_proto::SamplingSettings;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;

use crate::cli::ServeArgs;
use crate::row::{self, Loaded, Running};
use crate::{host, layout, model, text};

/// Loads the model and serves it until a signal comes.
pub(crate) fn serve(arguments: &ServeArgs) -> Result<()> {
    check_exposure(arguments)?;
    // Taken before the model is loaded, so that a port in use is told at once.
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    let gguf = model::open(&arguments.model)?;
    let mut plan = layout::plan(&gguf, &arguments.model, &arguments.layout, Some(&arguments.compute))?;
    plan.limits.queue = arguments.queue;
    plan.template = layout::template(arguments.chat_template.as_deref())?;
    plan.progress = true;
    if !arguments.alias.is_empty() {
        plan.names.clone_from(&arguments.alias);
    }
    let config = api_config(arguments, &gguf)?;
    let loaded = row::load(plan)?;
    row::system()?.block_on(serve_until_signal(loaded, config, listener))
}

/// An address that others can reach needs a key.
fn check_exposure(arguments: &ServeArgs) -> Result<()> {
    let host = arguments.host;
    ensure!(
        host.is_loopback() || !arguments.api_key.is_empty(),
        "--host {host} can be reached from outside: give a key with --api-key, or listen on 127.0.0.1"
    );
    Ok(())
}

fn api_config(arguments: &ServeArgs, gguf: &Gguf) -> Result<ApiConfig> {
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

async fn serve_until_signal(loaded: Loaded, config: ApiConfig, listener: TcpListener) -> Result<()> {
    let address = listener.local_addr().context("the socket has no address")?;
    let summary = loaded.summary.clone();
    let drain_timeout = config.shutdown_timeout;
    let running = loaded.start()?;
    warm_up(&running.engine).await?;
    let ready = text::ready(running.engine.model(), &summary, address);
    std::io::stderr().write_all(ready.as_bytes()).context("cannot write to standard error")?;
    let shutdown = shutdown_signal(&running)?;
    paceline_api::serve(running.engine.clone(), config, listener, shutdown).await.context("the HTTP server failed")?;
    // The server has given running answers their time; what is left has no reader.
    let stopped = tokio::time::timeout(drain_timeout, running.stop()).await;
    stopped.context("a stage did not end in time")
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

/// Ready at the first SIGINT or SIGTERM, when nobody new is admitted any more; a second one ends the process.
fn shutdown_signal(running: &Running) -> Result<impl Future<Output = ()> + Send + 'static> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let control = running.control.clone();
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        info!("shutting down: running answers may finish; a second signal ends them");
        tokio::spawn(async move { control.drain().await });
        tokio::spawn(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            std::process::exit(130);
        });
    })
}
