//! What the coordinator may order of this node: stages to make, link, move and take down again.
//!
//! Read [`Workshop`]: at most two stages at once, of which the newer takes over the memories of the older. Each is made
//! and ended by a task of its own ([`Work`]); whoever releases one waits until its memory is really
//! free. Weights outlive the last stage until the next order to load, so that a row which is made again reads nothing.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result};
use paceline_compute::device::{Device, KeptWeights};
use paceline_control::{Connect, Failed, FromShard, Give, Load, Released, Take, Tier, from_shard};
use paceline_proto::{Epoch, SessionId, TierOrder};
use paceline_shard::actor::Shard;
use paceline_shard::{DiskTier, SharedStage, StageTier};
use paceline_transport::{Endpoint, Giving, LinkCloser, LinkCounters, MoveKey};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;
use tracing::{debug, warn};

use super::fetch::Weights;
use super::moving::StageMemories;
use super::stage::Work;
use crate::control::secret_from;

pub(super) type Outbox = mpsc::Sender<FromShard>;

/// The device, and what is made with it.
#[derive(Clone)]
pub(super) struct Workshop(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) device: Arc<dyn Device>,
    pub(super) weights: Arc<Weights>,
    pub(super) endpoint: Endpoint,
    /// What of stages' memory is kept on disk.
    pub(super) disk: Option<DiskTier>,
    /// The older first.
    held: Mutex<Vec<Held>>,
    /// Of the last stage there was, while there is none.
    pub(super) kept: Mutex<Option<StageWeights>>,
}

/// A stage's weights, once they are loaded.
pub(super) type StageWeights = Arc<OnceLock<KeptWeights>>;

/// A stage, or one in the making, as seen from outside: the work itself is a task of its own.
struct Held {
    epoch: Epoch,
    /// Takes the order to connect, once.
    connect: Option<oneshot::Sender<Connect>>,
    /// Takes the order to take over memories, once.
    take: Option<oneshot::Sender<Take>>,
    running: Arc<OnceLock<Running>>,
    /// Others may take this stage's memories.
    giving: Option<Giving>,
    weights: StageWeights,
    /// True tells the work that it is no longer wanted.
    release: watch::Sender<bool>,
    /// True, or closed, when the work is over and its memory is free.
    over: watch::Receiver<bool>,
}

/// What can be done with a stage at work.
pub(super) struct Running {
    pub(super) stage: SharedStage,
    pub(super) shard: Shard,
    pub(super) closer: LinkCloser,
    pub(super) counters: Arc<LinkCounters>,
    pub(super) tier: Option<StageTier>,
}

impl Workshop {
    pub(super) fn new(device: Arc<dyn Device>, weights: Weights, endpoint: Endpoint, disk: Option<DiskTier>) -> Self {
        let (weights, held, kept) = (Arc::new(weights), Mutex::default(), Mutex::default());
        Self(Arc::new(Inner { device, weights, endpoint, disk, held, kept }))
    }

    /// The newest placement that is worked for, and how many steps of it are finished.
    pub(super) fn progress(&self) -> (Epoch, u64) {
        let held = self.held();
        let runs = held.iter().rev().find_map(|held| Some((held.epoch, held.running.get()?.counters.frames())));
        runs.unwrap_or_else(|| (held.last().map_or(Epoch(0), |held| held.epoch), 0))
    }

    /// Is no placement worked for?
    pub(super) fn is_free(&self) -> bool {
        self.held().is_empty()
    }

    /// Begins to load; what was held before is released first, but for the stage that the new one is made beside.
    pub(super) async fn load(&self, load: Load, outbox: Outbox) {
        let (epoch, beside) = (Epoch(load.epoch), load.beside.map(Epoch));
        self.end(|held| Some(held.epoch) != beside).await;
        if beside == Some(epoch) {
            return fail(&outbox, epoch, format!("epoch {epoch} cannot be loaded beside itself"));
        }
        let (connect, connected) = oneshot::channel();
        let (take, taken) = oneshot::channel();
        let (release, released) = watch::channel(false);
        let (ends, over) = watch::channel(false);
        let (running, weights) = (Arc::default(), StageWeights::default());
        let work = Work {
            workshop: self.clone(),
            epoch,
            connect: connected,
            take: taken,
            running: Arc::clone(&running),
            weights: Arc::clone(&weights),
            release: released,
            outbox,
        };
        let (connect, take, giving) = (Some(connect), Some(take), None);
        self.held().push(Held { epoch, connect, take, running, giving, weights, release, over });
        spawn_local(async move {
            work.run_and_tell(&load).await;
            ends.send_replace(true);
        });
    }

    /// Passes on the order to connect.
    pub(super) fn connect(&self, connect: Connect) {
        let epoch = Epoch(connect.epoch);
        let waiting = self.with(epoch, |held| held.connect.take()).flatten();
        // Work that is over already has told why.
        if waiting.is_none_or(|waiting| waiting.send(connect).is_err()) {
            debug!(%epoch, "an order to connect came for a stage that does not wait for it");
        }
    }

    /// Lets others take the memories of a stage, if they know the secret.
    pub(super) fn give(&self, give: &Give, outbox: &Outbox) {
        let epoch = Epoch(give.epoch);
        let given = secret_from(&give.secret).and_then(|secret| {
            let memories = Arc::new(self.memories(epoch)?);
            let giving = self.0.endpoint.give(MoveKey { epoch, secret }, memories);
            self.with(epoch, |held| held.giving = Some(giving)).context("it was released in this moment")
        });
        if let Err(error) = given {
            fail(outbox, epoch, format!("the stage's memories cannot be given: {error:#}"));
        }
    }

    /// Passes on the order to take over memories.
    pub(super) fn take(&self, take: Take, outbox: &Outbox) {
        let epoch = Epoch(take.epoch);
        match self.with(epoch, |held| held.take.take()) {
            None => fail(outbox, epoch, "memories cannot be taken over: there is no such stage here".to_owned()),
            Some(None) => fail(outbox, epoch, "memories are taken over once, and they have been".to_owned()),
            // Work that is over already has told why.
            Some(Some(waiting)) => drop(waiting.send(take)),
        }
    }

    /// The memories of a stage at work.
    pub(super) fn memories(&self, epoch: Epoch) -> Result<StageMemories> {
        let running = self.with(epoch, |held| held.running.get().map(|running| running.stage.clone()));
        let running = running.with_context(|| format!("there is no stage of epoch {epoch} here"))?;
        running.map(StageMemories).with_context(|| format!("the stage of epoch {epoch} does not run yet"))
    }

    /// Passes an order on to the disk tier of a stage. Of one that is gone nobody waits for an answer.
    pub(super) fn tier(&self, tier: &Tier, outbox: &Outbox) {
        let epoch = Epoch(tier.epoch);
        match TierOrder::decode(&tier.message) {
            Ok(order) => {
                let held = self.held();
                let running = held.iter().find(|held| held.epoch == epoch).and_then(|held| held.running.get());
                match running.and_then(|running| running.tier.as_ref()) {
                    Some(tier) => tier.order(order),
                    None => debug!(%epoch, "an order came for the disk tier of a stage that has none"),
                }
            }
            Err(error) => fail(outbox, epoch, format!("an order for the disk tier cannot be read: {error}")),
        }
    }

    /// Voids a session's chunks, ahead of the frames under way.
    pub(super) fn cancel(&self, session: SessionId) {
        for running in self.held().iter().filter_map(|held| held.running.get()) {
            if !running.shard.cancel(session) {
                // The chunk is then computed in vain; nobody waits for its result.
                warn!(%session, "the stage could not be told of a cancel");
            }
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

    /// Ends stages, the newest first, and waits until their memory is free, which takes as long as the step or the
    /// loading they are in. When nobody waits any more they are still held, so that whoever asks next waits for them
    /// too.
    async fn end(&self, which: impl Fn(&Held) -> bool) {
        let ending = |held: &Held| {
            held.release.send_replace(true);
            (held.epoch, held.over.clone())
        };
        let ending: Vec<_> = self.held().iter().rev().filter(|held| which(held)).map(ending).collect();
        for (epoch, mut over) in ending {
            drop(over.wait_for(|over| *over).await);
            let mut held = self.held();
            let ended = held.iter().position(|held| held.epoch == epoch).map(|index| held.remove(index));
            // A stage that came to nothing leaves what was kept before.
            if let Some(ended) = ended.filter(|ended| held.is_empty() && ended.weights.get().is_some()) {
                *self.kept() = Some(ended.weights);
            }
        }
    }

    fn with<T>(&self, epoch: Epoch, work: impl FnOnce(&mut Held) -> T) -> Option<T> {
        self.held().iter_mut().find(|held| held.epoch == epoch).map(work)
    }

    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn kept(&self) -> MutexGuard<'_, Option<StageWeights>> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fail(outbox: &Outbox, epoch: Epoch, reason: String) {
    warn!(%epoch, reason, "an order cannot be carried out");
    say(outbox, from_shard::Message::Failed(Failed { epoch: epoch.0, reason, neighbour: false }));
}

pub(super) fn say(outbox: &Outbox, message: from_shard::Message) {
    if outbox.try_send(FromShard { message: Some(message) }).is_err() {
        debug!("the coordinator is gone; it will not hear of this");
    }
}
