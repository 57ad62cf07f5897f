//! `paceline serve`: everything in one process, answering over HTTP.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use paceline_api::{Defaults, Models, OneModel, Served};
use paceline_core::fleet::Fleet;
use paceline_gguf::Gguf;

use crate::cli::ServeArgs;
use crate::encoding;
use crate::http::{self, Http};
use crate::row::{self, Loaded};
use crate::shutdown::{STOP, Signals};
use crate::supervisor::Supervisor;
use crate::{disk, layout, model, models, text};

/// Loads the model and serves it until a signal comes; or serves several, which `file` may describe. `given` is the whole
/// command line.
pub(crate) fn serve(arguments: &ServeArgs, file: Option<&Path>, given: &[OsString]) -> Result<()> {
    let supervisor = Supervisor::of_environment()?;
    let listener = Http::listen(&arguments.api)?;
    if let Some(named) = models::named(arguments, file, given)? {
        let (entries, fleet) = models::plan(named, arguments.models_memory)?;
        let http = Http::new(listener, &arguments.api)?;
        return row::system()?.block_on(serve_many(entries, fleet, http, supervisor));
    }
    ensure!(arguments.models_memory.is_none(), "--models-memory is for several models, and there is one");
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    let http = Http::new(listener, &arguments.api)?;
    if encoding::is_wanted(&gguf, arguments.pooling)? {
        let loaded = load_encoder(arguments, &gguf)?;
        return row::system()?.block_on(serve_encoder(loaded, http, supervisor));
    }
    let loaded = load_row(arguments, &gguf)?;
    let defaults = http::defaults(&arguments.api.answers, &gguf)?;
    row::system()?.block_on(serve_row(loaded, defaults, http, supervisor))
}

/// Loads a model that writes texts.
fn load_row(arguments: &ServeArgs, gguf: &Arc<Gguf>) -> Result<Loaded> {
    let mut plan = layout::plan(gguf, &arguments.model, &arguments.layout, Some(&arguments.compute))?;
    plan.limits.queue = arguments.api.queue;
    plan.template = layout::template(arguments.api.answers.chat_template.as_deref())?;
    plan.progress = true;
    if let Some(cache_disk) = &arguments.cache_disk {
        plan.limits.disk = Some(disk::root_of_plan(&plan, arguments.model.model.as_deref(), cache_disk)?);
        plan.disk = Some(cache_disk.start()?);
    }
    if !arguments.api.alias.is_empty() {
        plan.names.clone_from(&arguments.api.alias);
    }
    row::load(plan)
}

async fn serve_row(loaded: Loaded, defaults: Defaults, http: Http, supervisor: Supervisor) -> Result<()> {
    let (cards, memory) = (loaded.cards.clone(), loaded.memory_bytes());
    let url = http.url()?;
    let running = loaded.start()?;
    http::warm_up(&running.engine).await?;
    let signals = Signals::new()?;
    say(&text::ready(&running.engine.model(), &cards, &url))?;
    let (engine, control) = (running.engine.clone(), running.control.clone());
    let (drain, end) = {
        let (draining, ending) = (control.clone(), control.clone());
        (async move { draining.drain().await }, async move { ending.stop().await })
    };
    let alive = || async { engine.status().await.is_ok() };
    let models = OneModel::serve(Served::Texts(engine.clone()), defaults, memory);
    let following = supervisor.follow(control.health());
    tokio::select! {
        served = http.serve(models, signals, &supervisor, following, (drain, end)) => served?,
        () = supervisor.watch(alive) => {}
    }
    tokio::time::timeout(STOP, running.stop()).await.context("a stage did not end in time")
}

/// Loads a model that makes vectors or scores.
fn load_encoder(arguments: &ServeArgs, gguf: &Arc<Gguf>) -> Result<encoding::Loaded> {
    let ServeArgs { model, layout, compute, pooling, api, .. } = arguments;
    let mut plan = encoding::plan(gguf, model, layout, compute, *pooling)?;
    (plan.queue, plan.progress) = (api.queue, true);
    if !api.alias.is_empty() {
        plan.names.clone_from(&api.alias);
    }
    encoding::load(&plan)
}

async fn serve_encoder(loaded: encoding::Loaded, http: Http, supervisor: Supervisor) -> Result<()> {
    let memory = loaded.memory_bytes();
    let running = loaded.start()?;
    let embedder = running.embedder.clone();
    let signals = Signals::new()?;
    say(&text::ready_to_read(embedder.card(), memory, &http.url()?))?;
    let models: Arc<dyn Models> = OneModel::serve(Served::Vectors(embedder), Defaults::default(), memory);
    let ended = running.ended();
    let alive = || async { !*ended.borrow() };
    let (drain, end) = (running.drainer().drain(), std::future::ready(()));
    tokio::select! {
        served = http.serve(models, signals, &supervisor, std::future::pending(), (drain, end)) => served?,
        () = supervisor.watch(alive) => {}
    }
    tokio::time::timeout(STOP, running.stop()).await.context("the model did not end in time")
}

async fn serve_many(entries: Vec<models::Entry>, fleet: Fleet, http: Http, supervisor: Supervisor) -> Result<()> {
    let url = http.url()?;
    let signals = Signals::new()?;
    let handle = models::Handle::start(entries, fleet);
    say(&text::ready_with_many(&handle.list(), &url))?;
    let (draining, ending, last) = (handle.clone(), handle.clone(), handle.clone());
    let (drain, end) = (async move { draining.drain().await }, async move { ending.end().await });
    let alive = || handle.is_alive();
    let models: Arc<dyn Models> = Arc::new(handle.clone());
    tokio::select! {
        served = http.serve(models, signals, &supervisor, std::future::pending(), (drain, end)) => served?,
        () = supervisor.watch(alive) => {}
    }
    tokio::time::timeout(STOP, last.end()).await.context("a model did not end in time")
}

/// Tells people.
fn say(text: &str) -> Result<()> {
    std::io::stderr().write_all(text.as_bytes()).context("cannot write to standard error")
}
