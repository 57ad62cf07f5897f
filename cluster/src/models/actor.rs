//! Carries out what the fleet decides: loads models on threads of their own, starts and ends them, and hands them to requests.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, MessageResult, WrapFuture,
};
use anyhow::{Context as _, Result};
use futures_util::future::join_all;
use metrics::{counter, histogram};
use paceline_api::{ListedModel, ModelError, Models, Opening, Serving};
use paceline_core::fleet::{Action, Event, Fleet, QUEUE, Refusal, Ticket};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::entry::{Drainer, Entry, LoadedEntry, RunningEntry};
use super::listing::{self, Releases};

/// How often it is looked who has waited too long, who has left, and which models are idle.
const TICK: Duration = Duration::from_secs(1);

/// Messages that may wait: more requests than may wait for models are refused anyway.
const MAILBOX: usize = 2 * QUEUE;

/// The models of this process.
pub(crate) struct ModelsActor {
    fleet: Fleet,
    entries: Vec<Arc<Entry>>,
    running: Vec<Option<RunningEntry>>,
    waiting: HashMap<Ticket, Waiting>,
    next_ticket: u64,
    releases: Arc<Releases>,
    listed: watch::Sender<Arc<Vec<ListedModel>>>,
    begun: Instant,
}

/// A request that waits for a model.
struct Waiting {
    name: String,
    answer: oneshot::Sender<Result<Serving, ModelError>>,
}

/// The models, as the rest of the process sees them. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Handle {
    actor: Addr<ModelsActor>,
    listed: watch::Receiver<Arc<Vec<ListedModel>>>,
}

/// A request needs a model.
struct Want {
    place: usize,
    name: String,
    answer: oneshot::Sender<Result<Serving, ModelError>>,
}

impl Message for Want {
    type Result = ();
}

/// Nobody gets a model any more; answered with what lets those that are loaded finish.
struct Drain;

impl Message for Drain {
    type Result = Vec<Drainer>;
}

/// Every model ends; answered with those that were loaded.
struct End;

impl Message for End {
    type Result = Vec<RunningEntry>;
}

/// Does anybody answer?
struct Ping;

impl Message for Ping {
    type Result = ();
}

impl Handle {
    /// Starts the actor; to be called inside a running actix system.
    pub(crate) fn start(entries: Vec<Entry>, fleet: Fleet) -> Self {
        let entries: Vec<Arc<Entry>> = entries.into_iter().map(Arc::new).collect();
        let (listed, seen) = watch::channel(Arc::default());
        let mut actor = ModelsActor {
            running: entries.iter().map(|_| None).collect(),
            releases: Releases::new(entries.len()),
            fleet,
            entries,
            waiting: HashMap::new(),
            next_ticket: 0,
            listed,
            begun: Instant::now(),
        };
        actor.publish();
        Self { actor: actor.start(), listed: seen }
    }

    /// Lets answers finish, and lets nobody begin one.
    pub(crate) async fn drain(&self) {
        let drainers = self.actor.send(Drain).await.unwrap_or_default();
        join_all(drainers.into_iter().map(Drainer::drain)).await;
    }

    /// Ends every model.
    pub(crate) async fn end(&self) {
        let running = self.actor.send(End).await.unwrap_or_default();
        join_all(running.into_iter().map(RunningEntry::stop)).await;
    }

    /// Whether the actor answers.
    pub(crate) async fn is_alive(&self) -> bool {
        self.actor.send(Ping).await.is_ok()
    }
}

impl Models for Handle {
    fn list(&self) -> Vec<ListedModel> {
        self.listed.borrow().to_vec()
    }

    fn open(&self, place: usize, name: &str) -> Opening {
        let (answer, answered) = oneshot::channel();
        let want = self.actor.send(Want { place, name: name.to_owned(), answer });
        Box::pin(async move {
            want.await.map_err(|_| ModelError::ShuttingDown)?;
            answered.await.unwrap_or(Err(ModelError::ShuttingDown))
        })
    }
}

impl Actor for ModelsActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX);
        context.run_interval(TICK, |actor, context| {
            actor.forget_who_left(context);
            actor.on(Event::Tick, context);
        });
        self.await_releases(context);
        self.on(Event::Start, context);
    }
}

impl ModelsActor {
    /// Tells the fleet, and does what it says.
    fn on(&mut self, event: Event, context: &mut Context<Self>) {
        let mut actions = Vec::new();
        self.fleet.on(event, self.begun.elapsed(), &mut actions);
        for action in actions {
            match action {
                Action::Load(place) => self.load(place, context),
                Action::Unload(place) => self.unload(place, context),
                Action::Grant { ticket, place } => self.grant(ticket, place),
                Action::Refuse { ticket, refusal } => self.refuse(ticket, refusal),
            }
        }
        self.publish();
    }

    fn load(&self, place: usize, context: &mut Context<Self>) {
        let entry = Arc::clone(&self.entries[place]);
        let (name, began) = (entry.card.id().to_owned(), Instant::now());
        info!(model = name, "loading");
        let loading = async move {
            let loaded = load_aside(entry)?.await.context("the thread that loaded it panicked")??;
            loaded.start().await
        };
        let loading = loading.into_actor(self).map(move |loaded, actor, context| {
            histogram!("paceline_model_load_seconds", "model" => name.clone()).record(began.elapsed().as_secs_f64());
            let result = if loaded.is_ok() { "loaded" } else { "failed" };
            counter!("paceline_model_loads_total", "model" => name.clone(), "result" => result).increment(1);
            match loaded {
                Ok((running, memory)) => {
                    info!(model = name, memory, seconds = began.elapsed().as_secs_f64(), "loaded");
                    actor.running[place] = Some(running);
                    actor.on(Event::Loaded { place, memory }, context);
                }
                Err(error) => {
                    warn!(model = name, "could not be loaded: {error:#}");
                    actor.on(Event::Failed { place, reason: format!("{error:#}") }, context);
                }
            }
        });
        context.spawn(loading);
    }

    fn unload(&mut self, place: usize, context: &mut Context<Self>) {
        let name = self.entries[place].card.id().to_owned();
        info!(model = name, "unloading");
        counter!("paceline_model_unloads_total", "model" => name).increment(1);
        let running = self.running[place].take();
        // The list must not keep alive what is to end.
        self.publish();
        let ending = async move {
            if let Some(running) = running {
                running.stop().await;
            }
        };
        context
            .spawn(ending.into_actor(self).map(move |(), actor, context| actor.on(Event::Unloaded { place }, context)));
    }

    fn grant(&mut self, ticket: Ticket, place: usize) {
        // The model is given back when this is dropped, whatever becomes of the request.
        let held = self.releases.lease(place);
        let Some(Waiting { name, answer }) = self.waiting.remove(&ticket) else { return };
        let Some(running) = &self.running[place] else { return };
        let serving = Serving { served: running.served(), defaults: self.entries[place].defaults(&name), held };
        // Who has left gives the model back at once: what was not taken is dropped.
        drop(answer.send(Ok(serving)));
    }

    fn refuse(&mut self, ticket: Ticket, refusal: Refusal) {
        let Some(Waiting { name, answer }) = self.waiting.remove(&ticket) else { return };
        let listed = self.listed.borrow().clone();
        let model = listed.iter().find(|model| model.card.id() == name || model.card.aliases().contains(&name));
        let error = model.map_or(ModelError::ShuttingDown, |model| listing::refusal(model, refusal));
        // Nobody may be there to hear it.
        let _ = answer.send(Err(error));
    }

    /// Takes back the requests of clients that have left.
    fn forget_who_left(&mut self, context: &mut Context<Self>) {
        let left = self.waiting.iter().filter(|(_, waiting)| waiting.answer.is_closed());
        let left: Vec<Ticket> = left.map(|(ticket, _)| *ticket).collect();
        for ticket in left {
            self.waiting.remove(&ticket);
            self.on(Event::Withdraw(ticket), context);
        }
    }

    /// Waits for requests to end, for as long as the actor lives.
    fn await_releases(&self, context: &mut Context<Self>) {
        let releases = Arc::clone(&self.releases);
        let ended = async move { releases.next().await }.into_actor(self);
        context.spawn(ended.map(|counts, actor, context| {
            for (place, count) in counts.into_iter().enumerate() {
                (0..count).for_each(|_| actor.on(Event::Release { place }, context));
            }
            actor.await_releases(context);
        }));
    }

    /// Says how far every model is.
    fn publish(&mut self) {
        let models = self.entries.iter().zip(&self.running).enumerate().map(|(place, (entry, running))| {
            let served = running.as_ref().map(RunningEntry::served);
            let card = served.as_ref().map_or_else(|| entry.card.clone(), paceline_api::Served::card);
            let (state, memory_bytes) = (listing::state(self.fleet.state(place)), self.fleet.memory(place));
            ListedModel { card, state, memory_bytes, served }
        });
        self.listed.send_replace(Arc::new(models.collect()));
    }
}

/// Loads a model on a thread of its own. Nobody waits for that at the end of the process.
fn load_aside(entry: Arc<Entry>) -> Result<oneshot::Receiver<Result<LoadedEntry>>> {
    let (sender, loaded) = oneshot::channel();
    let thread = std::thread::Builder::new().name("paceline-load".to_owned());
    // Whoever wanted it may be gone: then it is dropped.
    let load = move || drop(sender.send(entry.load()));
    thread.spawn(load).context("no thread can be started")?;
    Ok(loaded)
}

impl Handler<Want> for ModelsActor {
    type Result = ();

    fn handle(&mut self, want: Want, context: &mut Context<Self>) {
        let Want { place, name, answer } = want;
        let name = if name.is_empty() { self.entries[place].card.id().to_owned() } else { name };
        self.next_ticket += 1;
        let ticket = Ticket(self.next_ticket);
        self.waiting.insert(ticket, Waiting { name, answer });
        self.on(Event::Want { ticket, place }, context);
    }
}

impl Handler<Drain> for ModelsActor {
    type Result = MessageResult<Drain>;

    fn handle(&mut self, _: Drain, context: &mut Context<Self>) -> Self::Result {
        self.on(Event::Stop, context);
        MessageResult(self.running.iter().flatten().map(RunningEntry::drainer).collect())
    }
}

impl Handler<End> for ModelsActor {
    type Result = MessageResult<End>;

    fn handle(&mut self, _: End, context: &mut Context<Self>) -> Self::Result {
        self.on(Event::Stop, context);
        let running = self.running.iter_mut().filter_map(Option::take).collect();
        self.publish();
        // What is still being loaded is dropped with the actor.
        context.stop();
        MessageResult(running)
    }
}

impl Handler<Ping> for ModelsActor {
    type Result = ();

    fn handle(&mut self, _: Ping, _: &mut Context<Self>) {}
}
