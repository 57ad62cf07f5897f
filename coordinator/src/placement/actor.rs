//! The service controlled from the outside: its row replaced, drained, stopped, and asked how it is doing.

use actix::{ActorContext, Addr, Context, Handler, Message, MessageResult};
use paceline_core::coordinator::Event;
use paceline_proto::Epoch;
use tokio::sync::{oneshot, watch};
use tracing::{debug, info, warn};

use super::{Health, Placed, PlacementError, StageCard};
use crate::actor::CoordinatorActor;
use crate::engine::Status;
use crate::metrics;

/// Controls the service from the outside. Cheap to clone.
#[derive(Clone)]
pub struct Control {
    pub(crate) coordinator: Addr<CoordinatorActor>,
    health: watch::Receiver<Health>,
}

impl Control {
    pub(crate) fn new(coordinator: Addr<CoordinatorActor>, health: watch::Receiver<Health>) -> Self {
        Self { coordinator, health }
    }

    /// Puts another row in the place of the one in force, or the first row in place. Sessions that run or wait go on in
    /// it; whatever the old row still answers is ignored, and its links are dropped.
    ///
    /// # Errors
    /// A placement that cannot run or whose epoch is not new; the one in force then stays. A stopped service.
    pub async fn replace(&self, placed: Placed) -> Result<(), PlacementError> {
        self.coordinator.send(Replace(placed)).await.unwrap_or(Err(PlacementError::Stopped))
    }

    /// A stage of the placement `epoch` is lost, and the memory of all sessions with it: they pause until the row is
    /// replaced. News of a placement that is no longer in force is ignored.
    pub async fn failed(&self, epoch: Epoch, stage: usize, reason: String) {
        if self.coordinator.send(Failed { epoch, stage, reason }).await.is_err() {
            debug!(stage, "the coordinator is gone already");
        }
    }

    /// The row of the placement `epoch`, which works, is over: it makes room for another one. Sessions pause until that is
    /// in its place.
    pub async fn ended(&self, epoch: Epoch) {
        if self.coordinator.send(Ended(epoch)).await.is_err() {
            debug!("the coordinator is gone already");
        }
    }

    /// What is known of the stages of the placement `epoch` has changed, such as a link's figures. Ignored when that
    /// placement is no longer in force, or has another number of stages.
    pub async fn describe(&self, epoch: Epoch, stages: Vec<StageCard>) {
        if self.coordinator.send(Describe { epoch, stages }).await.is_err() {
            debug!("the coordinator is gone already");
        }
    }

    /// Whether the row runs, now and whenever that changes. Ends when the coordinator has stopped.
    pub fn health(&self) -> watch::Receiver<Health> {
        self.health.clone()
    }

    /// Admits nobody from now on, and waits until every session has ended.
    pub async fn drain(&self) {
        let (sender, receiver) = oneshot::channel();
        if self.coordinator.send(Drain(sender)).await.is_ok() {
            // An error means that the coordinator is gone, and every session with it.
            let _ = receiver.await;
        }
    }

    /// Ends every session that still runs, and closes the row.
    pub async fn stop(&self) {
        if self.coordinator.send(Stop).await.is_err() {
            debug!("the coordinator is gone already");
        }
    }
}

/// Another row.
#[derive(Message)]
#[rtype(result = "Result<(), PlacementError>")]
struct Replace(Placed);

impl Handler<Replace> for CoordinatorActor {
    type Result = Result<(), PlacementError>;

    fn handle(&mut self, Replace(placed): Replace, context: &mut Context<Self>) -> Self::Result {
        placed.check(self.row.as_ref().map(|row| row.epoch))?;
        let (epoch, limits) = (placed.epoch, Box::new(placed.limits.clone()));
        let (stages, sessions) = (placed.stages.len(), self.core.status().waiting);
        info!(%epoch, stages, sessions, "a row is placed: sessions that wait go on");
        if self.row.is_some() {
            metrics::row_switched(metrics::Way::Replayed);
        }
        self.install(placed, context);
        self.on(Event::Reset { epoch, limits }, context);
        Ok(())
    }
}

/// A stage is lost.
#[derive(Message)]
#[rtype(result = "()")]
struct Failed {
    epoch: Epoch,
    stage: usize,
    reason: String,
}

impl Handler<Failed> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Failed { epoch, stage, reason }: Failed, context: &mut Context<Self>) {
        if self.row.as_ref().is_none_or(|row| row.epoch != epoch) {
            return debug!(%epoch, stage, reason, "a stage of a placement that is not in force was lost");
        }
        let sessions = self.core.status().running;
        warn!(%epoch, stage, reason, sessions, "a stage is lost: sessions that run pause");
        self.on(Event::Failed { stage, reason }, context);
    }
}

/// The row makes room.
#[derive(Message)]
#[rtype(result = "()")]
struct Ended(Epoch);

impl Handler<Ended> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Ended(epoch): Ended, context: &mut Context<Self>) {
        if self.row.as_ref().is_some_and(|row| row.epoch == epoch) {
            info!(%epoch, "the row makes room for another one: sessions that run pause");
            self.on(Event::Ended, context);
        }
    }
}

/// News of the stages.
#[derive(Message)]
#[rtype(result = "()")]
struct Describe {
    epoch: Epoch,
    stages: Vec<StageCard>,
}

impl Handler<Describe> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Describe { epoch, stages }: Describe, _: &mut Context<Self>) {
        let in_force = self.row.as_mut().filter(|row| row.epoch == epoch && row.stages.len() == stages.len());
        match in_force {
            Some(row) => row.stages = stages,
            None => debug!(%epoch, "news of stages that are not in force"),
        }
    }
}

/// Asks how the service is doing.
#[derive(Message)]
#[rtype(result = "Status")]
pub(crate) struct GetStatus;

impl Handler<GetStatus> for CoordinatorActor {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Context<Self>) -> Self::Result {
        let (epoch, cards) = self.row.as_ref().map_or((0, &[][..]), |row| (row.epoch.0, &row.stages[..]));
        let status = Status::new(self.core.status(), cards);
        MessageResult(Status {
            uptime_seconds: self.begun.elapsed().as_secs_f64(),
            epoch,
            ready: !self.draining && status.ready,
            draining: self.draining,
            ..status
        })
    }
}

/// Admits nobody from now on; answers when every session has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct Drain(oneshot::Sender<()>);

impl Handler<Drain> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Drain(sender): Drain, _: &mut Context<Self>) {
        self.draining = true;
        self.drained.push(sender);
        self.report_drained();
    }
}

/// Ends every session and the row.
#[derive(Message)]
#[rtype(result = "()")]
struct Stop;

impl Handler<Stop> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Stop: Stop, context: &mut Context<Self>) {
        self.draining = true;
        self.stopped = true;
        self.on(Event::Stop, context);
        context.stop();
    }
}
