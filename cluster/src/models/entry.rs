//! One of many models: what is known of it before it is loaded, and how it is loaded and ended.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use paceline_api::{Card, Defaults, Served};
use paceline_coordinator::actor::Control;
use paceline_coordinator::{DraftSettings, ModelCard};
use paceline_core::fleet::{Berth, Part};
use paceline_gguf::Gguf;
use paceline_text::Tokenizer;

use crate::cli::{EntryArgs, LoadWhen};
use crate::{disk, encoding, http, layout, model, row};

/// A model that can be loaded.
pub(crate) struct Entry {
    arguments: EntryArgs,
    /// Its names, first the one it reports.
    names: Vec<String>,
    /// What clients may know of it before it is loaded.
    pub(crate) card: Card,
    /// Bytes that it is reckoned to take.
    memory: u64,
    /// In which its layers are laid out, if it writes texts.
    room: u64,
    defaults: Arc<Defaults>,
    /// For names under which it thinks, and those under which it does not.
    thinking: [Arc<Defaults>; 2],
}

/// A model in memory, not yet answering.
pub(crate) enum LoadedEntry {
    Texts(Box<row::Loaded>),
    Vectors(Box<encoding::Loaded>),
}

/// A model at work.
pub(crate) enum RunningEntry {
    Texts(row::Running),
    Vectors(encoding::Running),
}

/// Lets the answers of a model finish.
pub(super) enum Drainer {
    Texts(Control),
    Vectors(encoding::Drainer),
}

/// What a model is for, and what it needs if it makes vectors: those come first when memory is divided.
pub(super) fn part(name: &str, arguments: &EntryArgs) -> Result<(Part, u64)> {
    let gguf = open(arguments)?;
    if !encoding::is_wanted(&gguf, arguments.pooling)? {
        return Ok((Part::Texts, 0));
    }
    let names = [name.to_owned()];
    Ok((Part::Vectors, encoding_plan(&names, arguments, &gguf)?.memory_bytes()))
}

fn open(arguments: &EntryArgs) -> Result<Arc<Gguf>> {
    model::open_with_draft(&arguments.model, &arguments.layout.draft)
}

fn encoding_plan(names: &[String], arguments: &EntryArgs, gguf: &Arc<Gguf>) -> Result<encoding::Plan> {
    let EntryArgs { model, layout, compute, pooling, queue, .. } = arguments;
    let mut plan = encoding::plan(gguf, model, layout, compute, *pooling)?;
    (plan.queue, plan.names) = (*queue, names.to_vec());
    Ok(plan)
}

fn row_plan(names: &[String], arguments: &EntryArgs, gguf: &Arc<Gguf>, room: u64) -> Result<row::Plan> {
    let EntryArgs { model, layout, compute, answers, queue, .. } = arguments;
    let mut plan = layout::plan_in(gguf, model, layout, Some(compute), Some(room))?;
    plan.limits.queue = *queue;
    plan.template = layout::template(answers.chat_template.as_deref())?;
    plan.names = names.to_vec();
    Ok(plan)
}

/// What a model is, and what it takes. One that writes texts is laid out in `room` bytes.
fn reckon(names: &[String], arguments: &EntryArgs, gguf: &Arc<Gguf>, room: u64) -> Result<(Card, u64)> {
    if encoding::is_wanted(gguf, arguments.pooling)? {
        let plan = encoding_plan(names, arguments, gguf)?;
        return Ok((Card::Vectors(Arc::new(plan.card()?)), plan.memory_bytes()));
    }
    let plan = row_plan(names, arguments, gguf, room)?;
    let stages = &plan.placement.stages;
    let memory = stages.iter().map(|stage| row::planned_bytes(stage).total()).sum();
    let vocabulary = Tokenizer::count_tokens(gguf)?;
    let card = row::model_card(gguf, names, vocabulary, DraftSettings::NONE)?;
    let card = ModelCard { context: plan.limits.context, stages: stages.len(), ..card };
    Ok((Card::Texts(Arc::new(card)), memory))
}

impl Entry {
    /// Reads the header of the model's file. A model that writes texts is laid out in `room` bytes.
    pub(super) fn new(name: &str, arguments: EntryArgs, room: u64) -> Result<Self> {
        let place = format!("the model {name:?}");
        let EntryArgs { alias, thinking_alias, plain_alias, .. } = &arguments;
        let names = [&[name.to_owned()], &alias[..], thinking_alias, plain_alias].concat();
        let gguf = open(&arguments).with_context(|| place.clone())?;
        let defaults = http::defaults(&arguments.answers, &gguf).with_context(|| place.clone())?;
        let (card, memory) = reckon(&names, &arguments, &gguf, room).with_context(|| place)?;
        let thinking = [true, false].map(|on| Arc::new(Defaults { thinking: Some(on), ..defaults.clone() }));
        Ok(Self { arguments, names, card, memory, room, defaults: Arc::new(defaults), thinking })
    }

    /// What is decided with.
    pub(super) fn berth(&self) -> Berth {
        Berth {
            memory: self.memory,
            part: match self.card {
                Card::Texts(_) => Part::Texts,
                Card::Vectors(_) => Part::Vectors,
            },
            idle: self.arguments.idle.map(|seconds| Duration::from_secs(seconds.into())),
            at_start: self.arguments.load == LoadWhen::AtStart,
        }
    }

    /// What holds for requests that ask for the model by this name.
    pub(super) fn defaults(&self, name: &str) -> Arc<Defaults> {
        let EntryArgs { thinking_alias, plain_alias, .. } = &self.arguments;
        let [thinking, plain] = &self.thinking;
        Arc::clone(match name {
            name if thinking_alias.iter().any(|alias| alias == name) => thinking,
            name if plain_alias.iter().any(|alias| alias == name) => plain,
            _ => &self.defaults,
        })
    }

    /// Loads it; takes seconds.
    pub(super) fn load(&self) -> Result<LoadedEntry> {
        let gguf = open(&self.arguments)?;
        if let Card::Vectors(_) = self.card {
            return Ok(LoadedEntry::Vectors(Box::new(encoding::load(&encoding_plan(
                &self.names,
                &self.arguments,
                &gguf,
            )?)?)));
        }
        let mut plan = row_plan(&self.names, &self.arguments, &gguf, self.room)?;
        if let Some(cache_disk) = &self.arguments.cache_disk {
            plan.limits.disk = Some(disk::root_of_plan(&plan, self.arguments.model.model.as_deref(), cache_disk)?);
            plan.disk = Some(cache_disk.start()?);
        }
        Ok(LoadedEntry::Texts(Box::new(row::load(plan)?)))
    }
}

impl LoadedEntry {
    fn memory_bytes(&self) -> u64 {
        match self {
            Self::Texts(loaded) => loaded.memory_bytes(),
            Self::Vectors(loaded) => loaded.memory_bytes(),
        }
    }

    /// Starts it; to be called inside a running actix system. Also returns the bytes that it takes.
    pub(super) async fn start(self) -> Result<(RunningEntry, u64)> {
        let memory = self.memory_bytes();
        let running = match self {
            Self::Texts(loaded) => {
                let running = loaded.start()?;
                http::warm_up(&running.engine).await?;
                RunningEntry::Texts(running)
            }
            Self::Vectors(loaded) => RunningEntry::Vectors(loaded.start()?),
        };
        Ok((running, memory))
    }
}

impl RunningEntry {
    /// What answers.
    pub(super) fn served(&self) -> Served {
        match self {
            Self::Texts(running) => Served::Texts(running.engine.clone()),
            Self::Vectors(running) => Served::Vectors(running.embedder.clone()),
        }
    }

    /// Lets its answers finish.
    pub(super) fn drainer(&self) -> Drainer {
        match self {
            Self::Texts(running) => Drainer::Texts(running.control.clone()),
            Self::Vectors(running) => Drainer::Vectors(running.drainer()),
        }
    }

    /// Ends whatever still runs, and waits until its memory is free.
    pub(super) async fn stop(self) {
        match self {
            Self::Texts(running) => running.stop().await,
            Self::Vectors(running) => running.stop().await,
        }
    }
}

impl Drainer {
    /// Lets nobody begin an answer any more, and waits for those under way.
    pub(super) async fn drain(self) {
        match self {
            Self::Texts(control) => control.drain().await,
            Self::Vectors(drainer) => drainer.drain().await,
        }
    }
}
