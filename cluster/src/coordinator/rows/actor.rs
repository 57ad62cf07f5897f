//! The cluster actor's hands: one method for each thing that the membership wants done.

use actix::{ActorFutureExt, AsyncContext, Context, WrapFuture};
use paceline_control::{Leave, Release, to_shard};
use paceline_coordinator::StageCard;
use paceline_core::membership::{Action, Event, Taker};
use paceline_proto::{Epoch, NodeId};
use tonic::Status;
use tracing::{info, warn};

use crate::coordinator::actor::{ClusterActor, say};
use crate::coordinator::handing;
use crate::coordinator::making::{Making, OwnLinks};
use crate::{http, text};

impl ClusterActor {
    pub(in crate::coordinator) fn perform(&mut self, action: Action, context: &mut Context<Self>) {
        match action {
            Action::Load { epoch, placement, row, beside } => {
                info!(%epoch, stages = row.len(), ?beside, "a row is being made");
                let making = Making::new(&self.settings, epoch, *placement, row, beside, &self.attendants);
                self.makings.insert(epoch, making);
                // Nobody is told of an epoch that could be given again after a restart.
                let kept = self.settings.keeper.epoch(epoch);
                context.spawn(kept.into_actor(self).map(move |kept, actor, context| match kept {
                    Ok(()) => actor.load(epoch, context),
                    Err(error) => actor.on(Event::Broken { epoch, reason: format!("{error:#}") }, context),
                }));
            }
            Action::Connect { epoch } => self.connect(epoch, context),
            Action::Serve { epoch } => self.serve(epoch, context),
            Action::Hold { epoch, next } => self.hold(epoch, next, context),
            Action::Move { from, givers, epoch, takers } => {
                self.move_memories((from, &givers), (epoch, &takers), context);
            }
            Action::Switch { epoch } => self.switch(epoch, context),
            Action::Resume => {
                let control = self.settings.control.clone();
                context.spawn(async move { control.resume().await }.into_actor(self));
            }
            Action::Over { epoch, stage, reason } => self.over(epoch, stage, &reason, context),
            Action::MakeRoom { epoch } => self.make_room(epoch, context),
            Action::Release { node, epoch } => {
                self.tell(node, to_shard::Message::Release(Release { epoch: epoch.0 }), context);
            }
            Action::Leave { node, reason } => {
                info!(%node, reason, "a node may leave");
                self.tell(node, to_shard::Message::Leave(Leave { reason, wanted: true }), context);
                self.attendants.remove(&node);
            }
            Action::Expel { node, reason } => {
                warn!(%node, reason, "a node is no longer part of the cluster");
                if let Some(attendant) = self.attendants.remove(&node) {
                    // Ends its stream: a node that was only silent for a while joins again.
                    drop(attendant.outbox.try_send(Err(Status::unavailable(reason))));
                }
            }
            Action::Drained { nodes } => self.settings.keeper.drained(nodes),
            Action::Unplaced { reason } => say(&format!("the model cannot be placed on the shards here: {reason}\n")),
            Action::Report { ticket, report } => self.report(ticket, *report),
        }
    }

    fn load(&mut self, epoch: Epoch, context: &mut Context<Self>) {
        let Some(making) = self.makings.get(&epoch) else { return };
        for (node, load) in making.loads(&self.settings, &self.attendants) {
            self.tell(node, to_shard::Message::Load(load), context);
        }
    }

    fn connect(&mut self, epoch: Epoch, context: &mut Context<Self>) {
        let Some(making) = self.makings.get_mut(&epoch) else { return };
        let connects = making.connects(&self.settings, &self.attendants);
        let own = making.own_links(&self.settings, &self.attendants);
        for (node, connect) in connects {
            self.tell(node, to_shard::Message::Connect(connect), context);
        }
        context.spawn(own.into_actor(self).map(move |linked, actor, context| match linked {
            Ok(links) => actor.linked(epoch, links, context),
            Err(error) => actor.on(Event::Broken { epoch, reason: format!("{error:#}") }, context),
        }));
    }

    fn linked(&mut self, epoch: Epoch, links: OwnLinks, context: &mut Context<Self>) {
        if let Some(making) = self.makings.get_mut(&epoch) {
            making.set_own_links(links);
            self.on(Event::Ready { epoch }, context);
        }
    }

    fn serve(&mut self, epoch: Epoch, context: &mut Context<Self>) {
        let Some(making) = self.makings.get_mut(&epoch) else { return };
        let Some(placed) = making.place(&self.attendants) else { return };
        let (control, engine) = (self.settings.control.clone(), self.settings.engine.clone());
        let health = self.settings.control.health();
        let replaced = async move {
            control.replace(placed).await?;
            let warm = http::warm_up(&engine).await;
            // A warm-up that was not let in, among many who wait, says nothing against the row.
            let serves = health.borrow().is_serving() && health.borrow().epoch() == epoch;
            if serves { Ok(()) } else { warm }
        };
        context.spawn(replaced.into_actor(self).map(move |replaced, actor, context| match replaced {
            Ok(()) => actor.serves(epoch),
            Err(error) => actor.on(Event::Broken { epoch, reason: format!("{error:#}") }, context),
        }));
    }

    /// The row is in force. One that was over again meanwhile is not announced.
    fn serves(&mut self, epoch: Epoch) {
        let Some(making) = self.makings.get(&epoch) else { return };
        let record = making.record(self.settings.purpose.clone());
        let stages = making.cards().to_vec();
        self.settings.keeper.row(record, self.settings.links.all());
        self.show(epoch, &stages);
        // The rows before it are only being cleared away.
        self.makings.retain(|other, _| *other >= epoch);
    }

    fn show(&mut self, epoch: Epoch, stages: &[StageCard]) {
        if std::mem::replace(&mut self.shown, true) {
            return say(&format!("serving again (epoch {epoch})\n{}", text::table(stages)));
        }
        say(&text::ready(&self.settings.engine.model(), stages, &self.settings.api));
    }

    /// Lets the row in force come to rest.
    fn hold(&mut self, epoch: Epoch, next: Epoch, context: &mut Context<Self>) {
        let control = self.settings.control.clone();
        let held = async move { control.hold(epoch).await };
        context.spawn(held.into_actor(self).map(move |held, actor, context| match held {
            Ok(still) => {
                actor.still = still;
                actor.on(Event::Still { epoch }, context);
            }
            Err(error) => actor.on(Event::Broken { epoch: next, reason: error.to_string() }, context),
        }));
    }

    /// Tells who gives and who takes.
    fn move_memories(
        &mut self,
        (from, givers): (Epoch, &[NodeId]),
        (epoch, takers): (Epoch, &[Taker]),
        context: &mut Context<Self>,
    ) {
        let still = std::mem::take(&mut self.still);
        info!(%from, %epoch, pages = still.pages.len(), slots = still.slots.len(), "memories move to another row");
        let hands = handing::Hands::new(from, epoch, still);
        for giver in givers {
            self.tell(*giver, to_shard::Message::Give(hands.give()), context);
        }
        for taker in takers {
            if let Some(take) = hands.take(taker, &self.attendants, self.settings.link) {
                self.tell(taker.node, to_shard::Message::Take(take), context);
            }
        }
    }

    /// Puts the row that has all memories in force.
    fn switch(&mut self, epoch: Epoch, context: &mut Context<Self>) {
        let Some(making) = self.makings.get_mut(&epoch) else { return };
        let Some(placed) = making.place(&self.attendants) else { return };
        let control = self.settings.control.clone();
        let switched = async move { control.switch(placed).await };
        context.spawn(switched.into_actor(self).map(move |switched, actor, context| match switched {
            Ok(pause) => {
                actor.serves(epoch);
                actor.on(Event::Switched { epoch, pause }, context);
            }
            Err(error) => actor.on(Event::Broken { epoch, reason: error.to_string() }, context),
        }));
    }

    fn make_room(&mut self, epoch: Epoch, context: &mut Context<Self>) {
        say(&format!("the row of epoch {epoch} makes room for another one\n"));
        self.makings.remove(&epoch);
        self.settings.keeper.forget(epoch);
        let control = self.settings.control.clone();
        context.spawn(async move { control.ended(epoch).await }.into_actor(self));
    }

    fn over(&mut self, epoch: Epoch, stage: Option<usize>, reason: &str, context: &mut Context<Self>) {
        say(&format!("the row of epoch {epoch} is over: {reason}\n"));
        self.makings.remove(&epoch);
        self.settings.keeper.forget(epoch);
        let (control, reason) = (self.settings.control.clone(), reason.to_owned());
        let failed = async move { control.failed(epoch, stage.unwrap_or_default(), reason).await };
        context.spawn(failed.into_actor(self));
    }
}
