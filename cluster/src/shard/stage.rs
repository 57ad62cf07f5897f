//! Makes the stage that the coordinator asks for, links it, and takes it down again.
//!
//! Read [`Work::run`]: the life of a stage from the order to load to its end.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use paceline_compute::device::MemoryUse;
use paceline_control::{Connect, Failed, FromShard, Linked, Load, Loaded, Peer, Progress, Take, Tier, from_shard};
use paceline_gguf::Gguf;
use paceline_proto::{Epoch, Reply};
use paceline_shard::actor;
use paceline_shard::worker::Links;
use paceline_shard::{Feedback, SharedStage, Stage, StageTier};
use paceline_text::Tokenizer;
use paceline_transport::{LinkReceiver, LinkReport, LinkSender, Pending, ReplySender};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use super::moving;
use super::order::{LinkEnds, Order, TakeOrder};
use super::others::Nodes;
use super::workshop::{Outbox, Running, StageWeights, Workshop, say};
use crate::{link, tail};

/// The link from the stage before comes within this time after the order to connect.
const LINK: Duration = Duration::from_secs(25);
/// Progress is told after so many bytes.
const PROGRESS_BYTES: u64 = 64 << 20;

/// The life of one stage.
pub(super) struct Work {
    pub(super) workshop: Workshop,
    pub(super) epoch: Epoch,
    pub(super) connect: oneshot::Receiver<Connect>,
    pub(super) take: oneshot::Receiver<Take>,
    pub(super) running: Arc<OnceLock<Running>>,
    pub(super) weights: StageWeights,
    pub(super) release: watch::Receiver<bool>,
    pub(super) outbox: Outbox,
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

impl Work {
    pub(super) async fn run_and_tell(self, load: &Load) {
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
        let order = Order::read(load)?;
        let place = order.place;
        let pending = self.workshop.0.endpoint.expect(order.expected);
        let (stage, reused) = self.load(load, order).await?;
        let MemoryUse { weights, pages, states, buffers } = stage.memory_use();
        info!(epoch = %self.epoch, stage = place.index, weights, reused, "stage loaded");
        let told = Loaded { epoch: self.epoch.0, weights, pages, states, buffers, reused };
        say(&self.outbox, from_shard::Message::Loaded(told));
        let stage = SharedStage::new(stage);
        let connect = unless(&mut self.release, async { (&mut self.connect).await.context("nobody connects") }).await?;
        let workshop = self.workshop.clone();
        let linked = workshop.link(&connect, pending);
        let (from, to, report) = unless(&mut self.release, linked).await?;
        // Whoever may have pieces of the model may also have kept what this node lacks.
        let others = load.model.as_ref().map_or_else(Vec::new, |model| model.sources.clone());
        Ok(self.work(stage, from, to, &report, others).await)
    }

    /// The stage, and how many bytes of its weights were in memory already.
    async fn load(&mut self, load: &Load, order: Order) -> Result<(Stage, u64)> {
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
        let weights = Arc::clone(&self.weights);
        let loading = tokio::task::spawn_blocking(move || {
            workshop.load_stage(&model, &order, &weights, &|loaded| {
                let progress = Progress { epoch, loaded, ..Progress::default() };
                drop(outbox.try_send(FromShard { message: Some(from_shard::Message::Progress(progress)) }));
            })
        });
        loading.await.map_err(|_| anyhow!("the thread that loaded the stage panicked"))?
    }

    async fn work(
        &mut self,
        stage: SharedStage,
        from: LinkReceiver,
        to: LinkSender,
        report: &LinkReport,
        others: Vec<Peer>,
    ) -> End {
        let tier = match self.attach(&stage, others).transpose() {
            Ok(tier) => tier,
            Err(error) => return End::Failed(error),
        };
        let running = Running { tier, ..start(stage.clone(), from, to, self.epoch, &self.outbox) };
        let (mut ended, closer) = (running.shard.ended.clone(), running.closer.clone());
        drop(self.running.set(running));
        let linked = Linked {
            epoch: self.epoch.0,
            carrier: report.carrier.to_string(),
            round_trip_micros: u64::try_from(report.round_trip.as_micros()).unwrap_or(u64::MAX),
            bytes_per_second: report.bytes_per_second,
        };
        say(&self.outbox, from_shard::Message::Linked(linked));
        let (workshop, epoch, outbox) = (self.workshop.clone(), self.epoch, self.outbox.clone());
        let taking = take_over(&workshop, epoch, &stage, &mut self.take, &outbox);
        let released = async {
            drop(self.release.wait_for(|released| *released).await);
        };
        // An error of waiting means that the actor is gone, and the thread with it.
        let end = tokio::select! {
            _ = ended.wait_for(|ended| *ended) => return End::Neighbour,
            () = released => End::Released,
            error = taking => End::Failed(error),
        };
        closer.close();
        drop(ended.wait_for(|ended| *ended).await);
        end
    }
}

impl Work {
    /// Lets the disk tier, if this node has one, keep what the stage remembers. Its answers go over the control plane.
    fn attach(&self, stage: &SharedStage, others: Vec<Peer>) -> Option<Result<StageTier>> {
        let disk = self.workshop.0.disk.as_ref()?;
        let (outbox, epoch) = (self.outbox.clone(), self.epoch);
        let others = Box::new(Nodes::new(others, self.workshop.0.endpoint.clone()));
        let attached = disk.attach(stage, Some(others), move |answer| {
            say(&outbox, from_shard::Message::Tier(Tier { epoch: epoch.0, message: answer.encode() }));
        });
        Some(attached.context("the stage cannot use the disk tier"))
    }
}

/// Waits for the order to take over memories and carries it out. Returns only if that fails.
async fn take_over(
    workshop: &Workshop,
    epoch: Epoch,
    stage: &SharedStage,
    order: &mut oneshot::Receiver<Take>,
    outbox: &Outbox,
) -> anyhow::Error {
    // Without an order there is nothing to do, now or later.
    let Ok(take) = order.await else { return pending().await };
    let taken = match TakeOrder::read(take) {
        Ok(order) => moving::take(workshop, epoch, stage, order).await,
        Err(error) => Err(error),
    };
    match taken {
        Ok(taken) => {
            info!(%epoch, fetched = taken.fetched, copied = taken.copied, "memories taken over");
            say(outbox, from_shard::Message::Taken(taken));
            pending().await
        }
        Err(error) => error.context("memories cannot be taken over"),
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
    /// Loads a stage, and says how many bytes of its weights were in memory already.
    fn load_stage(
        &self,
        model: &Arc<Gguf>,
        order: &Order,
        weights: &StageWeights,
        progress: &dyn Fn(u64),
    ) -> Result<(Stage, u64)> {
        let Order { place, layers, memory, overrides, drafter, .. } = order;
        let program = tail::record(model, layers, overrides, *drafter)?;
        let device = &self.0.device;
        let shared = device.keep(&program, model);
        let reused = shared.bytes();
        // What the new stage does not use must be gone before anything is loaded.
        self.kept().take();
        let (mut read, mut told) = (0, 0);
        let mut count = |bytes: u64| {
            read += bytes;
            if read - told >= PROGRESS_BYTES {
                told = read;
                progress(read);
            }
        };
        let loaded = device.load(program, model, *memory, &mut count);
        let keep = loaded.as_ref().map_or(shared, |loaded| device.keep(loaded.program(), model));
        drop(weights.set(keep));
        let mut stage = Stage::new(*place, loaded?, Feedback::own());
        if place.last {
            match Tokenizer::from_gguf(model) {
                Ok(tokenizer) => stage = tail::with_speller(stage, &tokenizer),
                Err(error) => warn!(%error, "answers cannot be held to schemas and grammars"),
            }
        }
        if let Some(drafter) = drafter.filter(|_| place.last) {
            stage = tail::with_drafter(stage, drafter, device.as_ref(), model, overrides, &mut count)?;
        }
        Ok((stage, reused))
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
fn start(stage: SharedStage, from: LinkReceiver, to: LinkSender, epoch: Epoch, outbox: &Outbox) -> Running {
    let (closer, counters) = (from.closer(), to.counters());
    let (to, replies): (Option<Box<_>>, Box<dyn ReplySender>) = if stage.place().last {
        (None, Box::new(to))
    } else {
        (Some(Box::new(to)), Box::new(ControlReplies { epoch, outbox: outbox.clone() }))
    };
    let links = Links { from: Box::new(from), to: to.map(|to| to as _), replies };
    Running { stage: stage.clone(), shard: actor::start(stage, links), closer, counters, tier: None }
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
