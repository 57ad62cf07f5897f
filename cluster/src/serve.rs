//! `paceline serve`: everything in one process, answering over HTTP.

use std::io::Write;

use anyhow::{Context, Result};

use crate::cli::ServeArgs;
use crate::http::{self, Http};
use crate::row::{self, Loaded};
use crate::shutdown::{STOP, Signals};
use crate::supervisor::Supervisor;
use crate::{disk, layout, model, text};

/// Loads the model and serves it until a signal comes.
pub(crate) fn serve(arguments: &ServeArgs) -> Result<()> {
    let supervisor = Supervisor::of_environment()?;
    let listener = Http::listen(&arguments.api)?;
    let gguf = model::open_with_draft(&arguments.model, &arguments.layout.draft)?;
    let mut plan = layout::plan(&gguf, &arguments.model, &arguments.layout, Some(&arguments.compute))?;
    plan.limits.queue = arguments.api.queue;
    plan.template = layout::template(arguments.api.chat_template.as_deref())?;
    plan.progress = true;
    if let Some(cache_disk) = &arguments.cache_disk {
        plan.limits.disk = Some(disk::root_of_plan(&plan, arguments.model.model.as_deref(), cache_disk)?);
        plan.disk = Some(cache_disk.start()?);
    }
    if !arguments.api.alias.is_empty() {
        plan.names.clone_from(&arguments.api.alias);
    }
    let http = Http::new(listener, &arguments.api, &gguf)?;
    let loaded = row::load(plan)?;
    row::system()?.block_on(serve_until_signal(loaded, http, supervisor))
}

async fn serve_until_signal(loaded: Loaded, http: Http, supervisor: Supervisor) -> Result<()> {
    let cards = loaded.cards.clone();
    let url = http.url()?;
    let running = loaded.start()?;
    http::warm_up(&running.engine).await?;
    let signals = Signals::new()?;
    let ready = text::ready(&running.engine.model(), &cards, &url);
    std::io::stderr().write_all(ready.as_bytes()).context("cannot write to standard error")?;
    let (engine, control) = (running.engine.clone(), running.control.clone());
    let end = {
        let control = control.clone();
        async move { control.stop().await }
    };
    let alive = || async { engine.status().await.is_ok() };
    tokio::select! {
        served = http.serve(engine.clone(), control, signals, &supervisor, end) => served?,
        () = supervisor.watch(alive) => {}
    }
    tokio::time::timeout(STOP, running.stop()).await.context("a stage did not end in time")
}
