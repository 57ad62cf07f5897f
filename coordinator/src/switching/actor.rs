//! The row held, switched and resumed.

use std::time::Duration;

use actix::{Context, Handler, Message, ResponseFuture};
use paceline_core::coordinator::Event;
use paceline_proto::Epoch;
use tokio::sync::oneshot;
use tracing::{debug, info};

use super::Still;
use crate::actor::CoordinatorActor;
use crate::metrics;
use crate::placement::actor::Control;
use crate::placement::{Placed, PlacementError};

/// A row that is held, or is to be.
pub(crate) struct Holding {
    /// Since when no step is sent.
    since: Duration,
    /// Whoever waits until it is still.
    waits: Option<oneshot::Sender<Still>>,
}

impl Control {
    /// Sends no further step in the row of `epoch`, and answers when all are back. What sessions want meanwhile waits
    /// until the row is switched or resumed.
    ///
    /// # Errors
    /// A row that is not in force, is held already, or fails before it is still. A stopped service.
    pub async fn hold(&self, epoch: Epoch) -> Result<Still, PlacementError> {
        self.coordinator.send(Hold(epoch)).await.unwrap_or(Err(PlacementError::Stopped))
    }

    /// Puts a row that has the memory of the one in force, which is still, in its place: sessions run on in it as if
    /// nothing had happened. Says how long no step was sent.
    ///
    /// # Errors
    /// A row that is not still, as it may have failed meanwhile; a placement that cannot take over from it.
    pub async fn switch(&self, placed: Placed) -> Result<Duration, PlacementError> {
        self.coordinator.send(Switch(placed)).await.unwrap_or(Err(PlacementError::Stopped))
    }

    /// Lets the row that is held go on.
    pub async fn resume(&self) {
        if self.coordinator.send(Resume).await.is_err() {
            debug!("the coordinator is gone already");
        }
    }
}

impl CoordinatorActor {
    /// The row is still.
    pub(crate) fn is_still(&mut self, still: Still) {
        let waits = self.holding.as_mut().and_then(|holding| holding.waits.take());
        if waits.is_none_or(|waits| waits.send(still).is_err()) {
            debug!("nobody waits for the row to be still");
        }
    }
}

/// Let the row come to rest.
#[derive(Message)]
#[rtype(result = "Result<Still, PlacementError>")]
struct Hold(Epoch);

impl Handler<Hold> for CoordinatorActor {
    type Result = ResponseFuture<Result<Still, PlacementError>>;

    fn handle(&mut self, Hold(epoch): Hold, context: &mut Context<Self>) -> Self::Result {
        let in_force = self.row.as_ref().is_some_and(|row| row.epoch == epoch) && self.core.broken().is_none();
        if !in_force || self.holding.is_some() {
            return Box::pin(async move { Err(PlacementError::NotStill { epoch }) });
        }
        let (waits, still) = oneshot::channel();
        self.holding = Some(Holding { since: self.begun.elapsed(), waits: Some(waits) });
        self.on(Event::Hold, context);
        // Dropped when the row fails, or is resumed or replaced.
        Box::pin(async move { still.await.map_err(|_| PlacementError::NotStill { epoch }) })
    }
}

/// Another row takes over.
#[derive(Message)]
#[rtype(result = "Result<Duration, PlacementError>")]
struct Switch(Placed);

impl Handler<Switch> for CoordinatorActor {
    type Result = Result<Duration, PlacementError>;

    fn handle(&mut self, Switch(placed): Switch, context: &mut Context<Self>) -> Self::Result {
        let old = self.row.as_ref().map(|row| row.epoch);
        placed.check(old)?;
        let epoch = placed.epoch;
        let Some(since) = self.holding.as_ref().filter(|_| self.core.is_still()).map(|holding| holding.since) else {
            return Err(PlacementError::NotStill { epoch: old.unwrap_or_default() });
        };
        if !placed.limits.same_memory(self.core.limits()) {
            return Err(PlacementError::OtherMemory { epoch });
        }
        let limits = Box::new(placed.limits.clone());
        self.install(placed, context);
        self.on(Event::Switch { epoch, limits }, context);
        let pause = self.begun.elapsed().saturating_sub(since);
        let sessions = self.core.status().running;
        info!(%epoch, sessions, ?pause, "a row has taken over: sessions run on in it");
        metrics::row_switched(metrics::Way::Moved);
        metrics::paused(pause);
        Ok(pause)
    }
}

/// Not after all.
#[derive(Message)]
#[rtype(result = "()")]
struct Resume;

impl Handler<Resume> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Resume: Resume, context: &mut Context<Self>) {
        if let Some(Holding { since, .. }) = self.holding.take() {
            self.on(Event::Resume, context);
            metrics::row_switched(metrics::Way::RolledBack);
            metrics::paused(self.begun.elapsed().saturating_sub(since));
        }
    }
}
