//! Makes the stage that the coordinator asks for, links it, and takes it down again. One at a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{Device, LoadedStage, MemorySpec, MemoryUse};
use paceline_control::{Connect, Failed, FromShard, Link, Linked, Load, Loaded, Progress, Released, from_shard};
use paceline_gguf::Gguf;
use paceline_model::{Overrides, RopeScaling, StageLayers};
use paceline_proto::{Epoch, Reply, SessionId};
use paceline_shard::actor::{self, Shard};
use paceline_shard::worker::Links;
use paceline_shard::{Feedback, Place, Stage};
use paceline_transport::{
    Endpoint, Expected, LinkCloser, LinkCounters, LinkKey, LinkReceiver, LinkReport, LinkSender, LinkSettings, Pending,
    ReplySender,
};
use tokio::sync::{mpsc, watch};
use tokio::task::spawn_local;
use tracing::{debug, info, warn};

use super::fetch::Weights;
use crate::control::{node_from, secret_from};
use crate::link;

/// The link from the stage before comes within this time after the order to connect.
const LINK: Duration = Duration::from_secs(25);
/// A stage that is released ends after the step it is in.
const END: Duration = Duration::from_secs(30);
/// Progress is told after so many bytes.
const PROGRESS_BYTES: u64 = 64 << 20;
/// Bounds of what the coordinator may ask for; far beyond any model, far below any overflow.
const MOST: u64 = 1 << 32;

type Outbox = mpsc::Sender<FromShard>;

/// The device, and what is made with it.
#[derive(Clone)]
pub(super) struct Workshop(Arc<Inner>);

struct Inner {
    device: CpuDevice,
    weights: Arc<Weights>,
    endpoint: Endpoint,
    held: Mutex<Option<Held>>,
}

/// A stage, or one in the making.
struct Held {
    epoch: Epoch,
    state: Holding,
}

enum Holding {
    /// Weights are fetched and packed. Becomes true when that has ended.
    Loading(watch::Receiver<bool>),
    /// In memory, and waiting to be linked.
    Loaded(Box<Ready>),
    /// Links are being made.
    Linking,
    /// At work.
    Running(Running),
}

struct Ready {
    stage: Stage,
    pending: Pending,
    last: bool,
}

struct Running {
    shard: Shard,
    closer: LinkCloser,
    counters: Arc<LinkCounters>,
}

/// An order to load whose every field is checked.
struct Order {
    place: Place,
    layers: StageLayers,
    memory: MemorySpec,
    overrides: Overrides,
    expected: Expected,
}

impl Workshop {
    pub(super) fn new(device: CpuDevice, weights: Weights, endpoint: Endpoint) -> Self {
        let weights = Arc::new(weights);
        Self(Arc::new(Inner { device, weights, endpoint, held: Mutex::new(None) }))
    }

    /// The placement that is worked for, and how many steps of it have come.
    pub(super) fn progress(&self) -> (Epoch, u64) {
        self.held().as_ref().map_or((Epoch(0), 0), |held| match &held.state {
            Holding::Running(running) => (held.epoch, running.counters.frames()),
            _ => (held.epoch, 0),
        })
    }

    /// Begins to load; what was held before is released first.
    pub(super) async fn load(&self, load: Load, outbox: Outbox) {
        self.release_all().await;
        let epoch = Epoch(load.epoch);
        let (ended, ending) = watch::channel(false);
        *self.held() = Some(Held { epoch, state: Holding::Loading(ending) });
        let workshop = self.clone();
        spawn_local(async move {
            let loaded = workshop.make(&load, &outbox).await;
            ended.send_replace(true);
            match loaded {
                Ok((ready, memory)) => workshop.loaded(epoch, ready, memory, &outbox),
                Err(error) => workshop.failed(epoch, &format!("{error:#}"), &outbox),
            }
        });
    }

    async fn make(&self, load: &Load, outbox: &Outbox) -> Result<(Ready, MemoryUse)> {
        let order = Order::read(load)?;
        let pending = self.0.endpoint.expect(order.expected);
        let epoch = load.epoch;
        let tell = |progress: Progress| {
            // Progress that nobody has room for is not worth waiting.
            drop(outbox.try_send(FromShard { message: Some(from_shard::Message::Progress(progress)) }));
        };
        let fetched = |fetch_total, fetched| tell(Progress { epoch, fetch_total, fetched, ..Progress::default() });
        let model = self.0.weights.open(load, &fetched).await?;
        let (workshop, outbox) = (self.clone(), outbox.clone());
        let Order { place, layers, memory, overrides, .. } = order;
        let loading = tokio::task::spawn_blocking(move || {
            workshop.load_stage(&model, &layers, &overrides, memory, epoch, &outbox)
        });
        let loaded = loading.await.map_err(|_| anyhow!("the thread that loaded the stage panicked"))??;
        let used = loaded.memory_use();
        info!(epoch, stage = place.index, layers = ?(load.first_layer..load.end_layer), "stage loaded");
        Ok((Ready { stage: Stage::new(place, loaded, Feedback::own()), pending, last: place.last }, used))
    }

    fn load_stage(
        &self,
        model: &Arc<Gguf>,
        layers: &StageLayers,
        overrides: &Overrides,
        memory: MemorySpec,
        epoch: u32,
        outbox: &Outbox,
    ) -> Result<Box<dyn LoadedStage>> {
        let program = paceline_model::record_with(model, layers, overrides)?;
        let (loaded, told) = (AtomicU64::new(0), AtomicU64::new(0));
        let load_total = model.tensor_bytes();
        let mut progress = |bytes: u64| {
            let loaded = loaded.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if loaded - told.load(Ordering::Relaxed) >= PROGRESS_BYTES {
                told.store(loaded, Ordering::Relaxed);
                let progress = Progress { epoch, load_total, loaded, ..Progress::default() };
                drop(outbox.try_send(FromShard { message: Some(from_shard::Message::Progress(progress)) }));
            }
        };
        Ok(self.0.device.load(program, model, memory, &mut progress)?)
    }

    fn loaded(&self, epoch: Epoch, ready: Ready, memory: MemoryUse, outbox: &Outbox) {
        let MemoryUse { weights, pages, states, buffers } = memory;
        if let Some(held) = self.held().as_mut().filter(|held| held.epoch == epoch) {
            held.state = Holding::Loaded(Box::new(ready));
            let loaded = Loaded { epoch: epoch.0, weights, pages, states, buffers };
            say(outbox, from_shard::Message::Loaded(loaded));
        }
    }

    fn failed(&self, epoch: Epoch, reason: &str, outbox: &Outbox) {
        if self.held().take_if(|held| held.epoch == epoch).is_some() {
            warn!(%epoch, reason, "the stage failed");
            say(outbox, from_shard::Message::Failed(Failed { epoch: epoch.0, reason: reason.to_owned() }));
        }
    }

    /// Connects to the next stage, waits for the one before, and starts.
    pub(super) fn connect(&self, connect: Connect, outbox: Outbox) {
        let epoch = Epoch(connect.epoch);
        let Some(ready) = self.begin_linking(epoch) else {
            return debug!(%epoch, "an order to connect came for a stage that is not loaded");
        };
        let workshop = self.clone();
        spawn_local(async move {
            match workshop.link(*ready, &connect, &outbox).await {
                Ok((running, report)) => workshop.run(epoch, running, &report, &outbox),
                Err(error) => workshop.failed(epoch, &format!("{error:#}"), &outbox),
            }
        });
    }

    fn begin_linking(&self, epoch: Epoch) -> Option<Box<Ready>> {
        let mut held = self.held();
        let held = held.as_mut().filter(|held| held.epoch == epoch)?;
        match std::mem::replace(&mut held.state, Holding::Linking) {
            Holding::Loaded(ready) => Some(ready),
            other => {
                held.state = other;
                None
            }
        }
    }

    async fn link(&self, ready: Ready, connect: &Connect, outbox: &Outbox) -> Result<(Running, LinkReport)> {
        let link = connect.to.as_ref().context("the order to connect names no link")?;
        let ends = LinkEnds::read(Epoch(connect.epoch), link)?;
        let peer = link.peer.as_ref().context("the link has no other end")?;
        let unix = (!peer.unix.is_empty()).then_some(peer.unix.as_str());
        let routes = link::routes(&peer.data, unix, link::carrier_from(&link.carrier)?)?;
        let (to, report) = link::connect(&self.0.endpoint, ends.node, &routes, ends.key, ends.settings).await?;
        let from = ready.pending.wait(LINK).await.context("the stage before did not connect")?;
        Ok((start(ready.stage, ready.last, from, to, Epoch(connect.epoch), outbox), report))
    }

    fn run(&self, epoch: Epoch, running: Running, report: &LinkReport, outbox: &Outbox) {
        let mut ended = running.shard.ended.clone();
        {
            let mut held = self.held();
            // Dropping what is no longer wanted closes its links.
            let Some(held) = held.as_mut().filter(|held| held.epoch == epoch) else { return running.closer.close() };
            held.state = Holding::Running(running);
        }
        let linked = Linked {
            epoch: epoch.0,
            carrier: report.carrier.to_string(),
            round_trip_micros: u64::try_from(report.round_trip.as_micros()).unwrap_or(u64::MAX),
            bytes_per_second: report.bytes_per_second,
        };
        say(outbox, from_shard::Message::Linked(linked));
        let (workshop, outbox) = (self.clone(), outbox.clone());
        spawn_local(async move {
            // An error means that the actor is gone, and the thread with it.
            drop(ended.wait_for(|ended| *ended).await);
            workshop.failed(epoch, "the stage ended: a link to a neighbour is gone", &outbox);
        });
    }

    /// Voids a session's chunks, ahead of the frames under way.
    pub(super) fn cancel(&self, session: SessionId) {
        if let Some(Held { state: Holding::Running(running), .. }) = self.held().as_ref()
            && !running.shard.cancel(session)
        {
            // The chunk is then computed in vain; nobody waits for its result.
            warn!(%session, "the stage could not be told of a cancel");
        }
    }

    /// Drops what is held of a placement, and tells when its memory is free.
    pub(super) async fn release(&self, epoch: Epoch, outbox: Outbox) {
        let held = self.held().take_if(|held| held.epoch == epoch);
        if let Some(held) = held {
            end(held).await;
        }
        say(&outbox, from_shard::Message::Released(Released { epoch: epoch.0 }));
    }

    /// Drops whatever is held.
    pub(super) async fn release_all(&self) {
        let held = self.held().take();
        if let Some(held) = held {
            end(held).await;
        }
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Starts the stage's actor and thread between its links.
fn start(stage: Stage, last: bool, from: LinkReceiver, to: LinkSender, epoch: Epoch, outbox: &Outbox) -> Running {
    let (closer, counters) = (from.closer(), from.counters());
    let (to, replies): (Option<Box<_>>, Box<dyn ReplySender>) = if last {
        (None, Box::new(to))
    } else {
        (Some(Box::new(to)), Box::new(ControlReplies { epoch, outbox: outbox.clone() }))
    };
    let links = Links { from: Box::new(from), to: to.map(|to| to as _), replies };
    Running { shard: actor::start(stage, links), closer, counters }
}

/// Ends a stage and waits until its memory is free.
async fn end(held: Held) {
    let mut ended = match held.state {
        Holding::Loading(ended) => ended,
        Holding::Loaded(_) | Holding::Linking => return,
        Holding::Running(running) => {
            running.closer.close();
            running.shard.ended
        }
    };
    // An error of waiting means that whoever would tell is gone, and the memory with it.
    if tokio::time::timeout(END, ended.wait_for(|ended| *ended)).await.is_err() {
        warn!(epoch = %held.epoch, "the stage did not end within {} s", END.as_secs());
    }
}

fn say(outbox: &Outbox, message: from_shard::Message) {
    if outbox.try_send(FromShard { message: Some(message) }).is_err() {
        debug!("the coordinator is gone; it will not hear of this");
    }
}

/// The way back of a stage that is not the tail: it has failures only, which go over the control plane.
struct ControlReplies {
    epoch: Epoch,
    outbox: Outbox,
}

impl ReplySender for ControlReplies {
    fn reply(&mut self, reply: Reply) -> paceline_transport::Result<()> {
        let Reply::Failed { stage, reason } = reply else { return Err(paceline_transport::Error::Closed) };
        warn!(stage, reason, "the stage failed");
        say(&self.outbox, from_shard::Message::Failed(Failed { epoch: self.epoch.0, reason }));
        Ok(())
    }
}

/// What is known of a link's other end.
struct LinkEnds {
    node: paceline_proto::NodeId,
    key: LinkKey,
    settings: LinkSettings,
}

impl LinkEnds {
    fn read(epoch: Epoch, link: &Link) -> Result<Self> {
        let peer = link.peer.as_ref().context("the link has no other end")?;
        let activations = link.activations.parse().map_err(|error| anyhow!("the link's activations: {error}"))?;
        Ok(Self {
            node: node_from(&peer.node)?,
            key: LinkKey { epoch, link: link.number, secret: secret_from(&link.secret)? },
            settings: LinkSettings {
                frames: bounded("frames of a link", u64::from(link.frames))?.max(1),
                frame_bytes: bounded("bytes of a frame", link.frame_bytes)? as u64,
                activations,
            },
        })
    }
}

impl Order {
    fn read(load: &Load) -> Result<Self> {
        let epoch = Epoch(load.epoch);
        let link = load.from.as_ref().context("the order to load names no link")?;
        let LinkEnds { node, key, settings } = LinkEnds::read(epoch, link)?;
        let (first, end) = (load.first_layer as usize, load.end_layer as usize);
        if first >= end || load.stage >= load.stages {
            bail!("the order to load is for layers {first}..{end} of stage {} of {}", load.stage, load.stages);
        }
        let (is_first, is_last) = (load.stage == 0, load.stage + 1 == load.stages);
        let place = Place { index: load.stage as usize, first: is_first, last: is_last, epoch };
        Ok(Self {
            place,
            layers: StageLayers { layers: first..end, first: is_first, last: is_last },
            memory: memory(load)?,
            overrides: overrides(load),
            expected: Expected { key, from: node, settings },
        })
    }
}

fn memory(load: &Load) -> Result<MemorySpec> {
    let memory = load.memory.as_ref().context("the order to load names no memory")?;
    let kind = |what: &str, name: &str| name.parse().map_err(|error| anyhow!("the type of {what}: {error}"));
    Ok(MemorySpec {
        page_tokens: bounded("tokens of a page", memory.page_tokens)?,
        pages: bounded("pages", memory.pages)?,
        slots: bounded("slots", memory.slots)?,
        key_type: kind("keys", &memory.key_type)?,
        value_type: kind("values", &memory.value_type)?,
        rows: bounded("rows", memory.rows)?,
        wanted: bounded("wanted rows", memory.wanted)?,
    })
}

fn overrides(load: &Load) -> Overrides {
    let original_context = load.yarn_original_context.map(|context| context as _);
    let yarn = |factor| RopeScaling::Yarn { factor, original_context };
    Overrides { rope_base: load.rope_base, rope_scaling: load.yarn_factor.map(yarn) }
}

fn bounded(what: &str, count: u64) -> Result<usize> {
    if count > MOST {
        bail!("the coordinator asks for {count} {what}, the most is {MOST}");
    }
    Ok(count as usize)
}
