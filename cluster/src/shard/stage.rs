//! Makes the stage that the coordinator asks for, links it, and takes it down again. One at a time.
//!
//! Read [`Work::run`]: the life of a stage from the order to load to its end. Whoever releases it waits until its
//! memory is really free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{Device, LoadedStage, MemorySpec, MemoryUse};
use paceline_control::{Connect, Failed, FromShard, Link, Linked, Load, Loaded, Progress, Released, from_shard};
use paceline_gguf::Gguf;
use paceline_model::{Overrides, RopeScaling, StageLayers};
use paceline_proto::{Epoch, NodeId, Reply, SessionId};
use paceline_shard::actor::{self, Shard};
use paceline_shard::worker::Links;
use paceline_shard::{Feedback, Place, Stage};
use paceline_transport::{
    Endpoint, Expected, LinkCloser, LinkCounters, LinkKey, LinkReceiver, LinkReport, LinkSender, LinkSettings, Pending,
    ReplySender,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tracing::{debug, info, warn};

use super::fetch::Weights;
use crate::control::{node_from, secret_from};
use crate::link;

/// The link from the stage before comes within this time after the order to connect.
const LINK: Duration = Duration::from_secs(25);
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

/// A stage, or one in the making, as seen from outside: the work itself is a task of its own.
struct Held {
    epoch: Epoch,
    /// Takes the order to connect, once.
    connect: Option<oneshot::Sender<Connect>>,
    running: Arc<OnceLock<Running>>,
    /// True tells the work that it is no longer wanted.
    release: watch::Sender<bool>,
    /// True, or closed, when the work is over and its memory is free.
    over: watch::Receiver<bool>,
}

/// What can be done with a stage at work.
struct Running {
    shard: Shard,
    closer: LinkCloser,
    counters: Arc<LinkCounters>,
}

/// The life of one stage.
struct Work {
    workshop: Workshop,
    epoch: Epoch,
    connect: oneshot::Receiver<Connect>,
    running: Arc<OnceLock<Running>>,
    release: watch::Receiver<bool>,
    outbox: Outbox,
}

/// Why a stage's life is over.
enum End {
    /// The coordinator said so.
    Released,
    /// A link to a neighbour is gone, which is not this node's fault.
    Neighbour,
    /// It cannot go on.
    Failed(anyhow::Error),
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
        let steps = |held: &Held| held.running.get().map_or(0, |running| running.counters.frames());
        self.held().as_ref().map_or((Epoch(0), 0), |held| (held.epoch, steps(held)))
    }

    /// Begins to load; what was held before is released first.
    pub(super) async fn load(&self, load: Load, outbox: Outbox) {
        self.release_all().await;
        let epoch = Epoch(load.epoch);
        let (connect, connected) = oneshot::channel();
        let (release, released) = watch::channel(false);
        let (ends, over) = watch::channel(false);
        let running = Arc::default();
        let work = Work {
            workshop: self.clone(),
            epoch,
            connect: connected,
            running: Arc::clone(&running),
            release: released,
            outbox,
        };
        *self.held() = Some(Held { epoch, connect: Some(connect), running, release, over });
        spawn_local(async move {
            work.run_and_tell(&load).await;
            ends.send_replace(true);
        });
    }

    /// Passes on the order to connect.
    pub(super) fn connect(&self, connect: Connect) {
        let epoch = Epoch(connect.epoch);
        let waiting = self.held().as_mut().filter(|held| held.epoch == epoch).and_then(|held| held.connect.take());
        // Work that is over already has told why.
        if waiting.is_none_or(|waiting| waiting.send(connect).is_err()) {
            debug!(%epoch, "an order to connect came for a stage that does not wait for it");
        }
    }

    /// Voids a session's chunks, ahead of the frames under way.
    pub(super) fn cancel(&self, session: SessionId) {
        if let Some(running) = self.held().as_ref().and_then(|held| held.running.get())
            && !running.shard.cancel(session)
        {
            // The chunk is then computed in vain; nobody waits for its result.
            warn!(%session, "the stage could not be told of a cancel");
        }
    }

    /// Drops what is held of a placement, and tells when its memory is free.
    pub(super) async fn release(&self, epoch: Epoch, outbox: &Outbox) {
        self.end(|held| held.epoch == epoch).await;
        say(outbox, from_shard::Message::Released(Released { epoch: epoch.0 }));
    }

    /// Drops whatever is held.
    pub(super) async fn release_all(&self) {
        self.end(|_| true).await;
    }

    /// Ends a stage and waits until its memory is free, which takes as long as the step or the loading it is in. When
    /// nobody waits any more it is still held, so that whoever asks next waits for it too.
    async fn end(&self, which: impl Fn(&Held) -> bool) {
        let ending = self.held().as_ref().filter(|held| which(held)).map(|held| {
            held.release.send_replace(true);
            held.over.clone()
        });
        let Some(mut over) = ending else { return };
        drop(over.wait_for(|over| *over).await);
        self.held().take_if(|held| which(held));
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Work {
    async fn run_and_tell(self, load: &Load) {
        let (epoch, outbox) = (self.epoch, self.outbox.clone());
        let (reason, neighbour) = match self.run(load).await {
            End::Released => return,
            End::Neighbour => ("a link to a neighbour is gone".to_owned(), true),
            End::Failed(error) => (format!("{error:#}"), false),
        };
        warn!(%epoch, reason, "the stage is over");
        say(&outbox, from_shard::Message::Failed(Failed { epoch: epoch.0, reason, neighbour }));
    }

    /// Loads, waits for the order to connect, links, and runs until a link or the coordinator ends it.
    async fn run(mut self, load: &Load) -> End {
        match self.try_run(load).await {
            Ok(end) => end,
            Err(_) if *self.release.borrow() => End::Released,
            Err(error) => End::Failed(error),
        }
    }

    async fn try_run(&mut self, load: &Load) -> Result<End> {
        let Order { place, layers, memory, overrides, expected } = Order::read(load)?;
        let pending = self.workshop.0.endpoint.expect(expected);
        let loaded = self.load(load, layers, overrides, memory).await?;
        let MemoryUse { weights, pages, states, buffers } = loaded.memory_use();
        info!(epoch = %self.epoch, stage = place.index, "stage loaded");
        let told = Loaded { epoch: self.epoch.0, weights, pages, states, buffers, reused: 0 };
        say(&self.outbox, from_shard::Message::Loaded(told));
        let stage = Stage::new(place, loaded, Feedback::own());
        let connect = unless(&mut self.release, async { (&mut self.connect).await.context("nobody connects") }).await?;
        let workshop = self.workshop.clone();
        let linked = workshop.link(&connect, pending);
        let (from, to, report) = unless(&mut self.release, linked).await?;
        Ok(self.work(stage, place.last, from, to, &report).await)
    }

    async fn load(
        &mut self,
        load: &Load,
        layers: StageLayers,
        overrides: Overrides,
        memory: MemorySpec,
    ) -> Result<Box<dyn LoadedStage>> {
        let (epoch, outbox) = (load.epoch, self.outbox.clone());
        let told = AtomicU64::new(0);
        let fetched = Arc::new(move |fetch_total: u64, fetched: u64| {
            let before = told.load(Ordering::Relaxed);
            if fetch_total > 0 && fetched < fetch_total && fetched < before.saturating_add(PROGRESS_BYTES) {
                return;
            }
            told.store(fetched, Ordering::Relaxed);
            let progress = Progress { epoch, fetch_total, fetched, ..Progress::default() };
            // Progress that nobody has room for is not worth waiting.
            drop(outbox.try_send(FromShard { message: Some(from_shard::Message::Progress(progress)) }));
        });
        let weights = Arc::clone(&self.workshop.0.weights);
        let model = unless(&mut self.release, weights.open(load, fetched)).await?;
        let (workshop, outbox) = (self.workshop.clone(), self.outbox.clone());
        // What has begun to load is waited for even when it is no longer wanted: its memory is not free before.
        let loading = tokio::task::spawn_blocking(move || {
            workshop.load_stage(&model, &layers, &overrides, memory, epoch, &outbox)
        });
        loading.await.map_err(|_| anyhow!("the thread that loaded the stage panicked"))?
    }

    async fn work(&mut self, stage: Stage, last: bool, from: LinkReceiver, to: LinkSender, report: &LinkReport) -> End {
        let running = start(stage, last, from, to, self.epoch, &self.outbox);
        let (mut ended, closer) = (running.shard.ended.clone(), running.closer.clone());
        drop(self.running.set(running));
        let linked = Linked {
            epoch: self.epoch.0,
            carrier: report.carrier.to_string(),
            round_trip_micros: u64::try_from(report.round_trip.as_micros()).unwrap_or(u64::MAX),
            bytes_per_second: report.bytes_per_second,
        };
        say(&self.outbox, from_shard::Message::Linked(linked));
        let released = async {
            drop(self.release.wait_for(|released| *released).await);
        };
        // An error of waiting means that the actor is gone, and the thread with it.
        let by_itself = tokio::select! {
            _ = ended.wait_for(|ended| *ended) => true,
            () = released => false,
        };
        if by_itself {
            return End::Neighbour;
        }
        closer.close();
        drop(ended.wait_for(|ended| *ended).await);
        End::Released
    }
}

/// Waits for the work, unless the stage is no longer wanted.
async fn unless<T>(release: &mut watch::Receiver<bool>, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        // An error means that whoever could want it is gone.
        _ = release.wait_for(|released| *released) => bail!("the stage is no longer wanted"),
        done = work => done,
    }
}

impl Workshop {
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
        let mut progress = |bytes: u64| {
            let loaded = loaded.fetch_add(bytes, Ordering::Relaxed) + bytes;
            if loaded - told.load(Ordering::Relaxed) >= PROGRESS_BYTES {
                told.store(loaded, Ordering::Relaxed);
                let progress = Progress { epoch, loaded, ..Progress::default() };
                drop(outbox.try_send(FromShard { message: Some(from_shard::Message::Progress(progress)) }));
            }
        };
        Ok(self.0.device.load(program, model, memory, &mut progress)?)
    }

    /// Connects to the next stage, and waits for the one before.
    async fn link(self, connect: &Connect, pending: Pending) -> Result<(LinkReceiver, LinkSender, LinkReport)> {
        let link = connect.to.as_ref().context("the order to connect names no link")?;
        let ends = LinkEnds::read(Epoch(connect.epoch), link)?;
        let peer = link.peer.as_ref().context("the link has no other end")?;
        let unix = (!peer.unix.is_empty()).then_some(peer.unix.as_str());
        let routes = link::routes(&peer.data, unix, link::carrier_from(&link.carrier)?)?;
        let (to, report) = link::connect(&self.0.endpoint, ends.node, &routes, ends.key, ends.settings).await?;
        let from = pending.wait(LINK).await.context("the stage before did not connect")?;
        Ok((from, to, report))
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
        say(&self.outbox, from_shard::Message::Failed(Failed { epoch: self.epoch.0, reason, neighbour: false }));
        Ok(())
    }
}

/// What is known of a link's other end.
struct LinkEnds {
    node: NodeId,
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
