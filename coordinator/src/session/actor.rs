//! The session actor: holds a session's core and its text, and carries out what the core wants done.
//!
//! Its updates go to the client through a bounded channel. When that is nearly full the session asks for no
//! further token, so a slow reader slows only itself; when the client drops its end, the session leaves at once.

use std::collections::VecDeque;
use std::time::Instant;

use actix::{Actor, ActorContext, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, WrapFuture};
use paceline_core::session::{Action, Event, Finish};
use paceline_core::{Reuse, Session};
use paceline_proto::{SampledToken, SessionId};
use paceline_text::{Piece, TextStream};
use tokio::sync::oneshot;
use tracing::{Span, debug, warn};

use crate::actor::{CoordinatorActor, FromSession};
use crate::engine::{Finished, Timings, TokenUpdate, Update};
use crate::error::Result;
use crate::metrics;
use crate::session::ended;
use crate::session::outbox::Outbox;

/// Messages that may wait: the coordinator sends one per chunk in flight and a few about the session's life.
const MAILBOX: usize = 64;

/// What the coordinator tells a session.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub(crate) struct ToSession(pub(crate) Event);

/// One running session.
pub(crate) struct SessionActor {
    pub(crate) id: SessionId,
    pub(crate) core: Session,
    pub(crate) text: TextStream,
    pub(crate) stops: Vec<String>,
    pub(crate) coordinator: Addr<CoordinatorActor>,
    pub(crate) outbox: Outbox,
    /// Told once, when the session is admitted or refused.
    pub(crate) admitted: Option<oneshot::Sender<Result<Reuse>>>,
    pub(crate) times: Times,
    /// Tokens sent to the client.
    pub(crate) tokens: usize,
    /// Paused until the client has read something.
    pub(crate) paused: bool,
    /// The last update is sent or held back.
    pub(crate) ended: bool,
    pub(crate) span: Span,
}

/// When things happened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    begun: Instant,
    admitted: Option<Instant>,
    first_token: Option<Instant>,
}

impl Times {
    pub(crate) fn begin() -> Self {
        Self { begun: Instant::now(), admitted: None, first_token: None }
    }

    fn timings(self) -> Timings {
        let now = Instant::now();
        let admitted = self.admitted.unwrap_or(now);
        let first_token = self.first_token.unwrap_or(now);
        Timings {
            queued: admitted.duration_since(self.begun),
            prefill: first_token.duration_since(admitted),
            decode: now.duration_since(first_token),
        }
    }
}

impl Actor for SessionActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.set_mailbox_capacity(MAILBOX);
        let gone = self.outbox.closed().into_actor(self);
        context.spawn(gone.map(|(), actor, context| actor.on(Event::ClientLeft, context)));
        self.on(Event::Begin, context);
    }
}

impl Handler<ToSession> for SessionActor {
    type Result = ();

    fn handle(&mut self, ToSession(event): ToSession, context: &mut Self::Context) {
        self.on(event, context);
    }
}

impl SessionActor {
    fn on(&mut self, event: Event, context: &mut Context<Self>) {
        let span = self.span.clone();
        let _entered = span.enter();
        match &event {
            Event::Opened(reuse) => self.opened(*reuse),
            Event::Interrupted => debug!(tokens = self.tokens, "session interrupted"),
            Event::Refused(refusal) => self.tell_admission(Err(crate::session::refused(refusal.clone()))),
            Event::Lost(loss) => self.tell_admission(Err(crate::session::lost(loss))),
            _ => {}
        }
        let mut actions = Vec::new();
        self.core.on(event, &mut actions);
        self.perform(actions.into(), context);
    }

    fn perform(&mut self, mut actions: VecDeque<Action>, context: &mut Context<Self>) {
        let mut stop = None;
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Open(opening) => self.tell(FromSession::Open { session: self.id, opening }),
                Action::Want(wish) => self.tell(FromSession::Want { session: self.id, wish }),
                Action::Leave => self.tell(FromSession::Leave { session: self.id }),
                Action::Emit(sampled) => {
                    if let Some(found) = self.emit(sampled) {
                        stop = Some(found);
                        self.end_here(&mut actions);
                    }
                }
                Action::Vector(vector) => debug!(values = vector.len(), "nobody asked for a vector"),
                Action::Finish(finish) => self.finish(finish, stop.take()),
            }
        }
        self.heed_slow_reader(context);
        self.stop_when_done(context);
    }

    fn stop_when_done(&self, context: &mut Context<Self>) {
        if self.ended && self.outbox.is_flushed() {
            context.stop();
        }
    }

    /// A stop string is complete: the core hears of it before anything that it wanted after this token is done. Tokens that
    /// came together with this one are not part of the answer, nor is an end among them.
    fn end_here(&mut self, actions: &mut VecDeque<Action>) {
        let came_more = actions.iter().any(|action| matches!(action, Action::Emit(_)));
        actions.retain(|action| !matches!(action, Action::Want(_) | Action::Emit(_)));
        for action in actions.iter_mut() {
            if let Action::Finish(finish) = action
                && (came_more || finish.end_token.is_some())
            {
                *finish = finish.clone().stopped(self.tokens);
            }
        }
        let mut rest = Vec::new();
        self.core.on(Event::Stopped { tokens: self.tokens }, &mut rest);
        actions.extend(rest);
    }

    fn opened(&mut self, reuse: Reuse) {
        // A pause is part of whatever it interrupted.
        self.times.admitted.get_or_insert_with(Instant::now);
        self.tell_admission(Ok(reuse));
    }

    fn tell_admission(&mut self, result: Result<Reuse>) {
        if let Some(admitted) = self.admitted.take() {
            // If nobody listens any more, the channel of updates is closed as well, which ends the session.
            let _ = admitted.send(result);
        }
    }

    /// Sends a token's text to the client, and says which stop string it completed.
    fn emit(&mut self, sampled: SampledToken) -> Option<String> {
        if self.times.first_token.is_none() {
            self.times.first_token = Some(Instant::now());
            metrics::first_token(self.times.timings());
        }
        self.tokens += 1;
        let Piece { text, marks, stopped } = self.text.push(sampled.token);
        let update = TokenUpdate { token: sampled.token, text, marks, logprobs: sampled.logprobs };
        self.outbox.send(Update::Token(update));
        stopped.map(|index| self.stops[index].clone())
    }

    fn finish(&mut self, finish: Finish, stop: Option<String>) {
        let rest = if stop.is_some() { Piece::default() } else { self.text.finish() };
        let stop = stop.or_else(|| rest.stopped.map(|index| self.stops[index].clone()));
        let update = match ended(finish.reason, stop) {
            Ok(reason) => {
                let timings = self.times.timings();
                metrics::finished(&finish.usage, timings);
                debug!(?reason, tokens = finish.usage.completion_tokens, "session finished");
                Update::Finished(Finished {
                    reason,
                    text: rest.text,
                    marks: rest.marks,
                    usage: finish.usage,
                    reuse: finish.reuse,
                    timings,
                })
            }
            Err(error) => {
                debug!(%error, "session ended early");
                self.tell_admission(Err(error.clone()));
                Update::Failed(error)
            }
        };
        self.outbox.send(update);
        self.ended = true;
    }

    /// Pauses the session when the channel is nearly full, until half of it is free again.
    fn heed_slow_reader(&mut self, context: &mut Context<Self>) {
        if self.paused || !self.outbox.is_nearly_full() {
            return;
        }
        self.paused = true;
        let mut actions = Vec::new();
        self.core.on(Event::Full, &mut actions);
        context.spawn(self.outbox.room().into_actor(self).map(|open, actor, context| {
            actor.paused = false;
            actor.outbox.flush();
            if open {
                actor.on(Event::Room, context);
            }
            actor.stop_when_done(context);
        }));
        self.perform(actions.into(), context);
    }

    fn tell(&mut self, message: FromSession) {
        if let Err(error) = self.coordinator.try_send(message) {
            warn!(%error, "the coordinator cannot be reached");
            let reason = "the coordinator is gone or overloaded".to_owned();
            self.tell_admission(Err(crate::Error::Lost { reason: reason.clone() }));
            self.outbox.send(Update::Failed(crate::Error::Lost { reason }));
            self.ended = true;
        }
    }
}
