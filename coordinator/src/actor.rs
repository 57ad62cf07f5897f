//! The coordinator actor: holds the coordinator's core, sends steps to the head, and routes what comes back.
//!
//! Every handler is one event into the core and the actions it asks for. Frames and results travel over links;
//! only control messages pass through mailboxes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::fut::{ActorStreamExt, WrapStream};
use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, SpawnHandle};
use paceline_core::coordinator::{Action, Event, Opening};
use paceline_core::limits::QUEUE;
use paceline_core::session::{Event as SessionEvent, Goal, Request, TokenGoal};
use paceline_core::{Coordinator, Reuse, Session, Wish};
use paceline_proto::{
    Epoch, Frame, Payload, Reply, SessionId, Step, TierAnswer, TierOrder, TierOutcome, TierRefusal, TierTask,
};
use paceline_text::{Detokenizer, TextStream};
use paceline_transport::FrameSender;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, debug_span, error, warn};
use uuid::Uuid;

use crate::cache::actor::{ChangeCache, GetCache};
use crate::cache::{CacheChange, CacheChanged, CacheList};
use crate::engine::{Answer, Engine, Generate, Generation, ModelCard, Sessions, Status, Update};
use crate::error::{Error, Result};
use crate::metrics;
pub use crate::placement::actor::Control;
use crate::placement::actor::GetStatus;
use crate::placement::{Health, Placed, Service, Shards, StageCard};
use crate::session::actor::{SessionActor, Times, ToSession};
use crate::session::outbox::{Outbox, UPDATES};
use crate::switching::Still;
use crate::switching::actor::Holding;

/// Messages per session that may wait in the coordinator's mailbox: a wish, its opening, perhaps again, and its leaving.
const MESSAGES_PER_SESSION: usize = 4;

/// The one actor that decides who runs and what goes into the next step.
pub struct CoordinatorActor {
    pub(crate) core: Coordinator,
    actions: Vec<Action>,
    service: Service,
    /// What clients see of the model, with the context and the stages of the newest placement.
    card: watch::Sender<Arc<ModelCard>>,
    /// Placed in the beginning, until the actor runs.
    first: Option<Placed>,
    pub(crate) row: Option<Row>,
    /// While no steps are sent because another row is to take over.
    pub(crate) holding: Option<Holding>,
    health: watch::Sender<Health>,
    sessions: HashMap<SessionId, Addr<SessionActor>>,
    pub(crate) begun: Instant,
    tick: Option<(Duration, SpawnHandle)>,
    end_tokens: BTreeSet<u32>,
    pub(crate) draining: bool,
    pub(crate) stopped: bool,
    pub(crate) drained: Vec<oneshot::Sender<()>>,
}

/// The placement in force.
pub(crate) struct Row {
    pub(crate) epoch: Epoch,
    pub(crate) stages: Vec<StageCard>,
    head: Box<dyn FrameSender>,
    shards: Box<dyn Shards>,
    /// Bring the replies, and what the disk tiers answer.
    streams: [SpawnHandle; 2],
}

/// Starts the coordinator; to be called inside a running actix system. Without a placement every request is refused
/// with [`Error::Restoring`] until [`Control::replace`] brings one.
///
/// # Panics
/// With a placement whose limits do not work.
pub fn start(service: Service, placed: impl Into<Option<Placed>>) -> (Engine, Control) {
    let placed = placed.into();
    let card = placed.as_ref().map_or_else(|| service.model.clone(), |placed| placed.card(&service.model));
    let (card, model) = watch::channel(Arc::new(card));
    let (tokenizer, template) = (service.tokenizer.clone(), service.template.clone());
    let actor = CoordinatorActor::new(service, placed, card);
    let health = actor.health.subscribe();
    let address = actor.start();
    let engine = Engine::new(model, tokenizer, template, Arc::new(address.clone()));
    (engine, Control::new(address, health))
}

impl CoordinatorActor {
    fn new(service: Service, placed: Option<Placed>, card: watch::Sender<Arc<ModelCard>>) -> Self {
        let core = placed.as_ref().map_or_else(Coordinator::unplaced, |placed| {
            placed.check(None).expect("a placement is checked where it is made");
            Coordinator::new(placed.epoch, placed.limits.clone())
        });
        let epoch = placed.as_ref().map(|placed| placed.epoch).unwrap_or_default();
        Self {
            actions: Vec::new(),
            card,
            first: placed,
            row: None,
            holding: None,
            health: watch::Sender::new(Health::of(epoch, core.broken())),
            core,
            sessions: HashMap::new(),
            begun: Instant::now(),
            tick: None,
            end_tokens: service.tokenizer.end_of_generation().iter().copied().collect(),
            service,
            draining: false,
            stopped: false,
            drained: Vec::new(),
        }
    }

    /// Takes over a placement's links. Those of the one before are dropped, and with them what is still under way.
    pub(crate) fn install(&mut self, placed: Placed, context: &mut Context<Self>) {
        self.holding = None;
        self.card.send_replace(Arc::new(placed.card(&self.service.model)));
        // Those who are here may be more than a smaller placement has room for.
        let sessions = self.sessions.len() + placed.limits.slots + placed.limits.queue;
        context.set_mailbox_capacity(MESSAGES_PER_SESSION * sessions);
        let Placed { epoch, head, replies, shards, stages, tiers, .. } = placed;
        let replies = ReceiverStream::new(replies).map(Some).chain(tokio_stream::once(None));
        let replies = replies.into_actor(self).map(move |reply, actor, context| actor.hear(epoch, reply, context));
        let answers = ReceiverStream::new(tiers).into_actor(self);
        let answers = answers.map(move |(stage, answer), actor, context| {
            if actor.row.as_ref().is_some_and(|row| row.epoch == epoch) {
                actor.on(Event::Tier { stage, answer }, context);
            }
        });
        let streams = [context.spawn(replies.finish()), context.spawn(answers.finish())];
        if let Some(old) = self.row.replace(Row { epoch, stages, head, shards, streams }) {
            for stream in old.streams {
                context.cancel_future(stream);
            }
        }
    }

    pub(crate) fn on(&mut self, event: Event, context: &mut Context<Self>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = std::mem::take(&mut self.actions);
            self.core.on(event, self.begun.elapsed(), &mut actions);
            events.extend(actions.drain(..).filter_map(|action| self.perform(action)));
            self.actions = actions;
        }
        if self.core.broken().is_some() {
            self.holding = None;
        }
        self.set_tick(context);
        self.report_health();
        self.report_drained();
    }

    /// Takes in what the row of `epoch` answers; `None` when all its stages have ended.
    fn hear(&mut self, epoch: Epoch, reply: Option<Reply>, context: &mut Context<Self>) {
        if self.row.as_ref().is_none_or(|row| row.epoch != epoch) {
            return debug!(%epoch, "a reply of a placement that was replaced is ignored");
        }
        match reply {
            Some(Reply::Done(done)) => self.on(Event::Done(done), context),
            Some(Reply::Failed { stage, reason }) => {
                error!(stage, reason, "a stage failed");
                self.on(Event::Failed { stage, reason }, context);
            }
            None => self.on(Event::Failed { stage: 0, reason: "every stage has ended".to_owned() }, context),
        }
    }

    /// Carries out one action; returns the event that it causes by failing.
    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Send { step, rows } => self.send(step, &rows),
            Action::Opened { session, reuse } => self.tell(session, SessionEvent::Opened(reuse)),
            Action::Still { pages, slots } => {
                self.is_still(Still { pages, slots });
                None
            }
            Action::Interrupted { session } => {
                metrics::interrupted();
                self.tell(session, SessionEvent::Interrupted)
            }
            Action::Paused { session } => self.tell(session, SessionEvent::Interrupted),
            Action::Outcome { session, outcome, position, drafts } => {
                self.tell(session, SessionEvent::Outcome { outcome, position, drafts })
            }
            Action::Refused { session, refusal } => {
                let failed = self.tell(session, SessionEvent::Refused(refusal));
                self.sessions.remove(&session);
                failed
            }
            Action::Lost { session, loss } => {
                let failed = self.tell(session, SessionEvent::Lost(loss));
                self.sessions.remove(&session);
                failed
            }
            Action::Cancel { session } => {
                if let Some(row) = &self.row {
                    row.shards.cancel(session);
                }
                None
            }
            Action::Order { stage, order } => self.order(stage, order),
            Action::Closed { session } => {
                self.sessions.remove(&session);
                None
            }
        }
    }

    fn send(&mut self, step: Step, rows: &[f32]) -> Option<Event> {
        let count: usize = step.chunks.iter().map(|chunk| chunk.input.rows()).sum();
        let payload = if rows.is_empty() { Payload::empty() } else { Payload::from_rows(rows.len() / count, rows) };
        let sent = match &mut self.row {
            Some(row) => row.head.send(Frame { step, payload, times: Vec::new() }),
            None => Err(paceline_transport::Error::Closed),
        };
        sent.err().map(|error| Event::Failed { stage: 0, reason: error.to_string() })
    }

    /// Gives an order to a stage's disk tier. One that cannot be given is refused, unless nobody waits for its answer.
    fn order(&self, stage: usize, order: TierOrder) -> Option<Event> {
        let (ticket, answered) = (order.ticket, order.task != TierTask::Drop);
        if self.row.as_ref().is_some_and(|row| row.shards.order(stage, order)) || !answered {
            return None;
        }
        warn!(stage, "a disk tier cannot be given an order");
        Some(Event::Tier { stage, answer: TierAnswer { ticket, outcome: TierOutcome::Refused(TierRefusal::Busy) } })
    }

    fn tell(&self, session: SessionId, event: SessionEvent) -> Option<Event> {
        let told = self.sessions.get(&session).is_some_and(|address| address.try_send(ToSession(event)).is_ok());
        if told {
            return None;
        }
        warn!(%session, "session cannot be reached and is closed");
        Some(Event::Leave { session })
    }

    /// Asks to be woken when the core says so. One that comes too early does no harm, so that the deadline of a step, which
    /// moves with every step, costs nothing.
    fn set_tick(&mut self, context: &mut Context<Self>) {
        let now = self.begun.elapsed();
        let deadline = self.core.deadline(now);
        if self.tick.as_ref().is_some_and(|(at, _)| deadline.is_none_or(|deadline| *at <= deadline)) {
            return;
        }
        if let Some((_, handle)) = self.tick.take() {
            context.cancel_future(handle);
        }
        self.tick = deadline.map(|at| {
            let wait = at.saturating_sub(now);
            let handle = context.run_later(wait, |actor, context| {
                actor.tick = None;
                actor.on(Event::Tick, context);
            });
            (at, handle)
        });
    }

    /// Tells whoever watches, when something has changed. A coordinator that was stopped is not broken.
    fn report_health(&self) {
        let Some(row) = self.row.as_ref().filter(|_| !self.stopped) else { return };
        let broken = self.core.broken();
        self.health.send_if_modified(|health| {
            let same = health.epoch() == row.epoch && health.is_serving() == broken.is_none();
            if !same {
                *health = Health::of(row.epoch, broken);
            }
            !same
        });
    }

    pub(crate) fn report_drained(&mut self) {
        // What is on its way to disks is waited for, too.
        if self.draining && self.sessions.is_empty() && self.core.has_kept() {
            for waiting in self.drained.drain(..) {
                // Whoever no longer waits does not mind.
                let _ = waiting.send(());
            }
        }
    }

    fn session(&self, start: Start, address: Addr<Self>) -> Result<SessionActor> {
        let Start { id, request, updates, admitted } = start;
        let detokenizer = Detokenizer::new(self.service.tokenizer.clone());
        let detokenizer = if request.show_special { detokenizer.with_special_tokens() } else { detokenizer };
        let text = TextStream::with_detokenizer(detokenizer, &request.stop)
            .map_err(|error| Error::Request { reason: error.to_string() })?;
        let goal = Goal::Tokens(TokenGoal {
            end_tokens: self.end_tokens.clone(),
            ignore_end: request.ignore_end,
            stop_tokens: BTreeSet::new(),
            max_tokens: request.max_tokens,
            context: self.card.borrow().context,
        });
        let span = debug_span!("session", id = %id, prompt_tokens = request.prompt.len());
        let core = Session::new(Request {
            prompt: request.prompt,
            boundaries: request.boundaries,
            sampling: request.sampling,
            drafts: self.card.borrow().drafts,
            goal,
        });
        Ok(SessionActor {
            id,
            core,
            text,
            stops: request.stop,
            coordinator: address,
            outbox: Outbox::new(updates),
            admitted: Some(admitted),
            times: Times::begin(),
            tokens: 0,
            paused: false,
            ended: false,
            span,
        })
    }
}

impl Actor for CoordinatorActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MESSAGES_PER_SESSION * QUEUE);
        if let Some(placed) = self.first.take() {
            self.install(placed, context);
            self.on(Event::Tick, context);
        }
    }
}

/// What a session tells the coordinator.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) enum FromSession {
    /// It wants to run.
    Open { session: SessionId, opening: Opening },
    /// It wants this run.
    Want { session: SessionId, wish: Wish },
    /// It is over.
    Leave { session: SessionId },
}

impl Handler<FromSession> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, message: FromSession, context: &mut Self::Context) {
        let event = match message {
            FromSession::Open { session, opening } => Event::Open { session, opening },
            FromSession::Want { session, wish } => Event::Want { session, wish },
            FromSession::Leave { session } => Event::Leave { session },
        };
        self.on(event, context);
    }
}

/// A new session.
#[derive(Message)]
#[rtype(result = "Result<()>")]
struct Start {
    id: SessionId,
    request: Generate,
    updates: mpsc::Sender<Update>,
    admitted: oneshot::Sender<Result<Reuse>>,
}

impl Handler<Start> for CoordinatorActor {
    type Result = Result<()>;

    fn handle(&mut self, start: Start, context: &mut Self::Context) -> Result<()> {
        if self.draining {
            return Err(Error::ShuttingDown);
        }
        let id = start.id;
        let session = self.session(start, context.address())?;
        self.sessions.insert(id, session.start());
        Ok(())
    }
}

impl Sessions for Addr<CoordinatorActor> {
    fn start(&self, request: Generate) -> Answer<Generation> {
        let address = self.clone();
        Box::pin(async move {
            let (updates, receiver) = mpsc::channel(UPDATES);
            let (admitted, admission) = oneshot::channel();
            let id = SessionId(Uuid::now_v7());
            // Made before the first await: if this future is dropped, the session sees its client leave.
            let mut generation = Generation { session: id, reuse: Reuse::default(), updates: receiver };
            address.send(Start { id, request, updates, admitted }).await.map_err(|_| Error::ShuttingDown)??;
            generation.reuse =
                admission.await.map_err(|_| Error::Lost { reason: "the session ended unexpectedly".to_owned() })??;
            Ok(generation)
        })
    }

    fn cache(&self, limit: usize) -> Answer<CacheList> {
        let address = self.clone();
        Box::pin(async move { address.send(GetCache(limit)).await.map_err(|_| Error::ShuttingDown) })
    }

    fn change_cache(&self, change: CacheChange, tokens: Vec<u32>) -> Answer<CacheChanged> {
        let address = self.clone();
        Box::pin(async move { address.send(ChangeCache { change, tokens }).await.map_err(|_| Error::ShuttingDown)? })
    }

    fn status(&self) -> Answer<Status> {
        let address = self.clone();
        Box::pin(async move { address.send(GetStatus).await.map_err(|_| Error::ShuttingDown) })
    }
}
