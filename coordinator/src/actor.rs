//! The coordinator actor: holds the coordinator's core, sends steps to the head, and routes what comes back.
//!
//! Every handler is one event into the core and the actions it asks for. Frames and results travel over links;
//! only control messages pass through mailboxes.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use actix::{
    Actor, ActorContext, Addr, AsyncContext, Context, Handler, Message, MessageResult, SpawnHandle, StreamHandler,
};
use paceline_core::coordinator::{Action, Event};
use paceline_core::session::{Event as SessionEvent, Goal, Request, TokenGoal};
use paceline_core::{Coordinator, Limits, Session, Wish};
use paceline_proto::{Epoch, Frame, Payload, Reply, SamplingSettings, SessionId, Step};
use paceline_text::{ChatTemplate, Detokenizer, TextStream, Tokenizer};
use paceline_transport::FrameSender;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, debug_span, error, warn};
use uuid::Uuid;

use crate::engine::{Answer, Engine, Generate, Generation, ModelCard, Sessions, Status, Update};
use crate::error::{Error, Result};
use crate::session::actor::{SessionActor, Times, ToSession};
use crate::session::outbox::{Outbox, UPDATES};

/// Messages per session that may wait in the coordinator's mailbox: its opening, a wish, and its leaving.
const MESSAGES_PER_SESSION: usize = 4;

/// The shards, as far as the coordinator controls them besides the steps.
pub trait Shards: Send {
    /// Voids a session's chunks on every stage, ahead of the frames under way.
    fn cancel(&self, session: SessionId);
}

/// A loaded row of stages and the model's text side, from which an [`Engine`] is made.
pub struct Row {
    /// What clients may know of the model.
    pub model: ModelCard,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// The model's chat template, where it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// Every bound.
    pub limits: Limits,
    /// The placement in force.
    pub epoch: Epoch,
    /// The link to the head.
    pub head: Box<dyn FrameSender>,
    /// What the stages answer.
    pub replies: mpsc::Receiver<Reply>,
    /// The shards.
    pub shards: Box<dyn Shards>,
}

/// Controls the service from the outside.
#[derive(Clone)]
pub struct Control(Addr<CoordinatorActor>);

/// The one actor that decides who runs and what goes into the next step.
pub struct CoordinatorActor {
    core: Coordinator,
    actions: Vec<Action>,
    row: Row,
    sessions: HashMap<SessionId, Addr<SessionActor>>,
    begun: Instant,
    tick: Option<(Duration, SpawnHandle)>,
    end_tokens: BTreeSet<u32>,
    draining: bool,
    drained: Vec<oneshot::Sender<()>>,
}

/// Starts the coordinator of a row; to be called inside a running actix system.
pub fn start(row: Row) -> (Engine, Control) {
    let (model, tokenizer, template) = (row.model.clone(), row.tokenizer.clone(), row.template.clone());
    let address = CoordinatorActor::new(row).start();
    let engine = Engine::new(model, tokenizer, template, Arc::new(address.clone()));
    (engine, Control(address))
}

impl Control {
    /// Admits nobody from now on, and waits until every session has ended.
    pub async fn drain(&self) {
        let (sender, receiver) = oneshot::channel();
        if self.0.send(Drain(sender)).await.is_ok() {
            // An error means that the coordinator is gone, and every session with it.
            let _ = receiver.await;
        }
    }

    /// Ends every session that still runs, and closes the row.
    pub async fn stop(&self) {
        if self.0.send(Stop).await.is_err() {
            debug!("the coordinator is gone already");
        }
    }
}

impl CoordinatorActor {
    fn new(row: Row) -> Self {
        Self {
            core: Coordinator::new(row.epoch, row.limits.clone()),
            actions: Vec::new(),
            sessions: HashMap::new(),
            begun: Instant::now(),
            tick: None,
            end_tokens: row.tokenizer.end_of_generation().iter().copied().collect(),
            draining: false,
            drained: Vec::new(),
            row,
        }
    }

    fn on(&mut self, event: Event, context: &mut Context<Self>) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = std::mem::take(&mut self.actions);
            self.core.on(event, self.begun.elapsed(), &mut actions);
            events.extend(actions.drain(..).filter_map(|action| self.perform(action)));
            self.actions = actions;
        }
        self.set_tick(context);
        self.report_drained();
    }

    /// Carries out one action; returns the event that it causes by failing.
    fn perform(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Send { step, rows } => self.send(step, &rows),
            Action::Opened { session } => self.tell(session, SessionEvent::Opened),
            Action::Outcome { session, outcome, position } => {
                self.tell(session, SessionEvent::Outcome { outcome, position })
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
                self.row.shards.cancel(session);
                None
            }
            Action::Closed { session } => {
                self.sessions.remove(&session);
                None
            }
        }
    }

    fn send(&mut self, step: Step, rows: &[f32]) -> Option<Event> {
        let count: usize = step.chunks.iter().map(|chunk| chunk.input.rows()).sum();
        let payload = if rows.is_empty() { Payload::empty() } else { Payload::from_rows(rows.len() / count, rows) };
        let sent = self.row.head.send(Frame { step, payload, times: Vec::new() });
        sent.err().map(|error| Event::Failed { stage: 0, reason: error.to_string() })
    }

    fn tell(&self, session: SessionId, event: SessionEvent) -> Option<Event> {
        let told = self.sessions.get(&session).is_some_and(|address| address.try_send(ToSession(event)).is_ok());
        if told {
            return None;
        }
        warn!(%session, "session cannot be reached and is closed");
        Some(Event::Leave { session })
    }

    /// Asks to be woken when the core says so.
    fn set_tick(&mut self, context: &mut Context<Self>) {
        let now = self.begun.elapsed();
        let deadline = self.core.deadline(now);
        if self.tick.as_ref().map(|(at, _)| *at) == deadline {
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

    fn report_drained(&mut self) {
        if self.draining && self.sessions.is_empty() {
            for waiting in self.drained.drain(..) {
                // Whoever no longer waits does not mind.
                let _ = waiting.send(());
            }
        }
    }

    fn session(&self, start: Start, address: Addr<Self>) -> Result<SessionActor> {
        let Start { id, request, updates, admitted } = start;
        let detokenizer = Detokenizer::new(self.row.tokenizer.clone());
        let detokenizer = if request.show_special { detokenizer.with_special_tokens() } else { detokenizer };
        let text = TextStream::with_detokenizer(detokenizer, &request.stop)
            .map_err(|error| Error::Request { reason: error.to_string() })?;
        let goal = Goal::Tokens(TokenGoal {
            end_tokens: self.end_tokens.clone(),
            ignore_end: request.ignore_end,
            stop_tokens: BTreeSet::new(),
            max_tokens: request.max_tokens,
            context: self.row.limits.context,
        });
        let span = debug_span!("session", id = %id, prompt_tokens = request.prompt.len());
        let core = Session::new(Request { prompt: request.prompt, sampling: request.sampling, goal });
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
        let sessions = self.row.limits.slots + self.row.limits.queue;
        context.set_mailbox_capacity(MESSAGES_PER_SESSION * sessions);
        let (_, closed) = mpsc::channel(1);
        let replies = std::mem::replace(&mut self.row.replies, closed);
        Self::add_stream(ReceiverStream::new(replies), context);
    }
}

impl StreamHandler<Reply> for CoordinatorActor {
    fn handle(&mut self, reply: Reply, context: &mut Self::Context) {
        match reply {
            Reply::Done(done) => self.on(Event::Done(done), context),
            Reply::Failed { stage, reason } => {
                error!(stage, reason, "a stage failed");
                self.on(Event::Failed { stage, reason }, context);
            }
        }
    }

    fn finished(&mut self, context: &mut Self::Context) {
        self.on(Event::Failed { stage: 0, reason: "every stage has ended".to_owned() }, context);
    }
}

/// What a session tells the coordinator.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) enum FromSession {
    /// It wants to run.
    Open { session: SessionId, prompt_tokens: usize, token_limit: usize, sampling: Box<SamplingSettings> },
    /// It wants this run.
    Want { session: SessionId, wish: Wish },
    /// It is over.
    Leave { session: SessionId },
}

impl Handler<FromSession> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, message: FromSession, context: &mut Self::Context) {
        let event = match message {
            FromSession::Open { session, prompt_tokens, token_limit, sampling } => {
                Event::Open { session, prompt_tokens, token_limit, sampling }
            }
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
    admitted: oneshot::Sender<Result<()>>,
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

/// Asks how the service is doing.
#[derive(Message)]
#[rtype(result = "Status")]
struct GetStatus;

impl Handler<GetStatus> for CoordinatorActor {
    type Result = MessageResult<GetStatus>;

    fn handle(&mut self, _: GetStatus, _: &mut Self::Context) -> Self::Result {
        let status = self.core.status();
        MessageResult(Status {
            running: status.running,
            waiting: status.waiting,
            pages_used: status.pages_used,
            pages_reserved: status.pages_reserved,
            pages: self.row.limits.pages,
            steps_in_flight: status.steps_in_flight,
            prefill_tokens: status.prefill_tokens,
            decode_tokens: status.decode_tokens,
            steps: status.steps,
            ready: !self.draining && status.broken.is_none(),
        })
    }
}

/// Admits nobody from now on; answers when every session has ended.
#[derive(Message)]
#[rtype(result = "()")]
struct Drain(oneshot::Sender<()>);

impl Handler<Drain> for CoordinatorActor {
    type Result = ();

    fn handle(&mut self, Drain(sender): Drain, _: &mut Self::Context) {
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

    fn handle(&mut self, Stop: Stop, context: &mut Self::Context) {
        self.draining = true;
        self.on(Event::Failed { stage: 0, reason: Error::ShuttingDown.to_string() }, context);
        context.stop();
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
            let generation = Generation { session: id, updates: receiver };
            address.send(Start { id, request, updates, admitted }).await.map_err(|_| Error::ShuttingDown)??;
            admission.await.map_err(|_| Error::Lost { reason: "the session ended unexpectedly".to_owned() })??;
            Ok(generation)
        })
    }

    fn status(&self) -> Answer<Status> {
        let address = self.clone();
        Box::pin(async move { address.send(GetStatus).await.map_err(|_| Error::ShuttingDown) })
    }
}
