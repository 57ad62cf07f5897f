//! `paceline serve`: everything in one process, answering over HTTP.

use std::io::Write;

use anyhow::{Context, Result};

use crate::cli::ServeArgs;
use crate::http::{self, Http, Signals};
use crate::row::{self, Loaded};
use crate::{layout, model, text};

/// Loads the model and serves it until a signal comes.
pub(crate) fn serve(arguments: &ServeArgs) -> Result<()> {
    let listener = Http::listen(&arguments.api)?;
    let gguf = model::open(&arguments.model)?;
    let mut plan = layout::plan(&gguf, &arguments.model, &arguments.layout, Some(&arguments.compute))?;
    plan.limits.queue = arguments.api.queue;
    plan.template = layout::template(arguments.api.chat_template.as_deref())?;
    plan.progress = true;
    if !arguments.api.alias.is_empty() {
        plan.names.clone_from(&arguments.api.alias);
    }
    let http = Http::new(listener, &arguments.api, &gguf)?;
    let loaded = row::load(plan)?;
    row::system()?.block_on(serve_until_signal(loaded, http))
}

async fn serve_until_signal(loaded: Loaded, http: Http) -> Result<()> {
    let cards = loaded.cards.clone();
    let (address, drain_timeout) = (http.address()?, http.drain_timeout());
    let running = loaded.start()?;
    http::warm_up(&running.engine).await?;
    let signals = Signals::new()?;
    let ready = text::ready(&running.engine.model(), &cards, address);
    std::io::stderr().write_all(ready.as_bytes()).context("cannot write to standard error")?;
    http.serve(running.engine.clone(), running.control.clone(), signals).await?;
    // The server has given running answers their time; what is left has no reader.
    let stopped = tokio::time::timeout(drain_timeout, running.stop()).await;
    stopped.context("a stage did not end in time")
}
