//! The shard actor: controls the thread of one stage. Frames never pass through its mailbox.

use actix::{Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, WrapFuture};
use paceline_proto::SessionId;
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

use crate::open_sessions::OpenSessions;
use crate::stage::{Place, SharedStage};
use crate::worker::{self, Links};

/// Messages that may wait: cancels, one per running session, and a few questions.
const MAILBOX: usize = 1024;

/// One stage, its thread, and who may be told that it has ended.
pub struct ShardActor {
    place: Place,
    open: OpenSessions,
    work: Option<(SharedStage, Links)>,
    ended: watch::Sender<bool>,
}

/// Voids a session's chunks at once, ahead of the frames under way.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Cancel(pub SessionId);

impl ShardActor {
    /// An actor that starts the stage's thread when it starts itself. The receiver turns true when the thread
    /// has ended.
    pub fn new(stage: SharedStage, links: Links) -> (Self, watch::Receiver<bool>) {
        let (ended, receiver) = watch::channel(false);
        let (place, open) = (stage.place(), stage.open_sessions());
        (Self { place, open, work: Some((stage, links)), ended }, receiver)
    }
}

/// A shard actor that runs, as whoever started it sees it.
pub struct Shard {
    actor: Addr<ShardActor>,
    /// True when the stage's thread has ended.
    pub ended: watch::Receiver<bool>,
}

/// Starts the actor of a stage, and with it the stage's thread; to be called inside a running actix system.
pub fn start(stage: SharedStage, links: Links) -> Shard {
    let (actor, ended) = ShardActor::new(stage, links);
    Shard { actor: actor.start(), ended }
}

impl Shard {
    /// Voids a session's chunks at once, ahead of the frames under way; false when the actor takes no more messages.
    pub fn cancel(&self, session: SessionId) -> bool {
        self.actor.try_send(Cancel(session)).is_ok()
    }
}

impl Actor for ShardActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX);
        let Some((stage, links)) = self.work.take() else { return };
        let thread = match worker::start(stage, links) {
            Ok(thread) => thread,
            Err(error) => return warn!(stage = self.place.index, %error, "stage not started"),
        };
        let (sender, joined) = oneshot::channel();
        let watcher = std::thread::Builder::new().name(format!("paceline-join-{}", self.place.index));
        let watching = watcher.spawn(move || {
            let panicked = thread.join().is_err();
            // The actor may be gone already; then nobody asks.
            let _ = sender.send(panicked);
        });
        if let Err(error) = watching {
            return warn!(stage = self.place.index, %error, "stage cannot be watched");
        }
        context.spawn(joined.into_actor(self).map(|_, actor, _| {
            info!(stage = actor.place.index, "stage has ended");
            actor.ended.send_replace(true);
        }));
    }
}

impl Handler<Cancel> for ShardActor {
    type Result = ();

    fn handle(&mut self, Cancel(session): Cancel, _: &mut Self::Context) {
        self.open.cancel(session);
    }
}
