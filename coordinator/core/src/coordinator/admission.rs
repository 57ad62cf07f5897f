//! Who may run: a bounded queue in order of arrival.
//!
//! The first in the queue is admitted when a slot is free and pages for the tokens it has and a few more can be
//! reserved; nobody overtakes it, so a large session is not starved by small ones behind it. A session that was
//! interrupted or paused is in the queue again, where it was: before all who came after it.

use std::time::Duration;

use paceline_proto::SessionId;

use super::following::Awaits;
use super::running::Place;
use super::{Action, Coordinator, Loss, Opening};
use crate::limits::Limits;
use crate::prefix::Found;
use crate::reuse::Tier;

/// Why a session will not run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is nothing to continue.
    #[error("the prompt has no tokens")]
    EmptyPrompt,
    /// More tokens than the limit that came with them.
    #[error("the prompt has {prompt_tokens} tokens, its own limit is {token_limit}")]
    OverOwnLimit {
        /// Of the prompt.
        prompt_tokens: usize,
        /// Of prompt and answer.
        token_limit: usize,
    },
    /// More tokens than a session may have.
    #[error("prompt and answer of {tokens} tokens exceed the context of {context} tokens")]
    TooLong {
        /// Asked for.
        tokens: usize,
        /// The most.
        context: usize,
    },
    /// More pages than there are.
    #[error("prompt and answer need {needed} pages of keys and values, there are {total}")]
    NeverFits {
        /// Pages asked for.
        needed: usize,
        /// Pages there are.
        total: usize,
    },
    /// Too many wait already.
    #[error("{waiting} sessions are waiting, the limit is {limit}: try again later")]
    QueueFull {
        /// Sessions that wait.
        waiting: usize,
        /// The most.
        limit: usize,
    },
    /// It waited too long for its place.
    #[error("no place came free within {waited:?}: try again later")]
    QueueDeadline {
        /// How long it waited.
        waited: Duration,
    },
    /// The name is taken.
    #[error("session {session} exists already")]
    Duplicate {
        /// The name.
        session: SessionId,
    },
    /// Nothing runs until the stages are placed anew.
    #[error("the service is being restored: {reason}")]
    Broken {
        /// What happened.
        reason: String,
    },
}

/// A session in the queue.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) session: SessionId,
    /// What it asks for; of an interrupted session nothing, until it has heard of that and opened again.
    pub(super) opening: Option<Opening>,
    /// When it arrived, or was interrupted or paused.
    pub(super) since: Duration,
    /// It made room for others in a row that works, so it waits as long as it must.
    pub(super) paused: bool,
    /// How often faults have interrupted it since its last token; nothing if it was never admitted.
    pub(super) restores: Option<u32>,
    /// Pages that were free or held by the cache alone when it was last found that it needs more.
    pub(super) tried: Option<usize>,
}

impl Waiting {
    /// When it has waited too long; never if it was paused, as those before it get on and end.
    pub(super) fn due(&self, limits: &Limits) -> Option<Duration> {
        let deadline = if self.is_interrupted() { limits.restore_deadline } else { limits.queue_deadline };
        (!self.paused).then_some(self.since + deadline)
    }

    pub(super) fn is_interrupted(&self) -> bool {
        self.restores.is_some()
    }
}

impl Coordinator {
    /// Lets a newcomer into the queue, or says why not.
    pub(super) fn open(&mut self, session: SessionId, opening: Opening, now: Duration, actions: &mut Vec<Action>) {
        if let Some(refusal) = self.refusal(session, &opening) {
            actions.push(Action::Refused { session, refusal });
            return;
        }
        self.arrivals += 1;
        let waiting =
            Waiting { session, opening: Some(opening), since: now, paused: false, restores: None, tried: None };
        self.waiting.insert(self.arrivals, waiting);
        self.admit(actions);
        self.cut_queue(actions);
    }

    /// Refuses the newest of the queue while it is too long. Interrupted sessions do not count.
    pub(super) fn cut_queue(&mut self, actions: &mut Vec<Action>) {
        let limit = self.limits.queue;
        for _ in limit..self.waiting.len() - self.interrupted() {
            let newest = self.waiting.iter().rev().find(|(_, one)| !one.is_interrupted());
            let number = *newest.expect("so many were never admitted").0;
            let newest = self.waiting.remove(&number).expect("it waits");
            let refusal = Refusal::QueueFull { waiting: limit, limit };
            actions.push(Action::Refused { session: newest.session, refusal });
        }
    }

    fn refusal(&self, session: SessionId, opening: &Opening) -> Option<Refusal> {
        let (tokens, token_limit) = (opening.tokens.len(), opening.token_limit);
        if let Some(loss) = &self.broken {
            return Some(Refusal::Broken { reason: loss.to_string() });
        }
        if tokens == 0 {
            return Some(Refusal::EmptyPrompt);
        }
        if tokens > token_limit {
            return Some(Refusal::OverOwnLimit { prompt_tokens: tokens, token_limit });
        }
        let waits = self.waiting.values().any(|waiting| waiting.session == session);
        // also a name whose last owner's chunks are in flight: their outcomes would be taken for the new one's
        if waits || self.running.contains_key(&session) || self.in_flight(session) {
            return Some(Refusal::Duplicate { session });
        }
        self.too_small(token_limit)
    }

    /// Why so many tokens never fit this placement, if they do not.
    pub(super) fn too_small(&self, token_limit: usize) -> Option<Refusal> {
        if token_limit > self.limits.context {
            return Some(Refusal::TooLong { tokens: token_limit, context: self.limits.context });
        }
        let needed = self.limits.pages_for(token_limit);
        (needed > self.pages.total()).then(|| Refusal::NeverFits { needed, total: self.pages.total() })
    }

    /// Admits from the front of the queue while there is room.
    pub(super) fn admit(&mut self, actions: &mut Vec<Action>) {
        while self.broken.is_none() && self.slots.free() > 0 {
            let Some(one) = self.waiting.values().next() else { return };
            let Some(opening) = &one.opening else { return };
            let opening = opening.clone();
            let wanted = (opening.tokens.len() + self.limits.growth_tokens).min(opening.token_limit);
            // who was paused would be so again at once if those who run had no page left to grow
            let spare = if one.paused { self.running.len() } else { 0 };
            let (session, tried) = (one.session, one.tried);
            let room = self.pages.available() + self.pages.idle();
            // outcomes of what was under way when it was paused would be taken for new ones; and the same is not tried
            // again while nothing has come free since there was too little
            if self.in_flight(session) || tried == Some(room) {
                return;
            }
            let mut found = self.find(&opening.tokens);
            let leader = self.leader(&opening.tokens, found.cached);
            let known = leader.map_or(found.cached, |(_, goal)| goal.max(found.cached));
            let mut on_disk = self.more_on_disk(&opening.tokens, known);
            let (leader, known) = if on_disk { (None, found.cached) } else { (leader, known) };
            let mut needed = self.limits.pages_for(wanted) - known / self.limits.page_tokens;
            let mut fits = self.make_room_beside(&found, needed + spare);
            if !fits && self.running.is_empty() && self.lingering.is_empty() {
                // Nobody could make room but what is pinned, and at last what it would reuse itself.
                if self.index.unpin_least() {
                    continue;
                }
                (found, needed) = (Found::nothing(found.matched), self.limits.pages_for(wanted));
                on_disk = false;
                fits = self.make_room(needed);
            }
            if !fits {
                let first = self.waiting.values_mut().next().expect("it waits");
                first.tried = Some(room);
                return;
            }
            let pages = self.pages.reserve(needed).expect("there is room");
            let slot = self.slots.take().expect("a slot is free");
            let (number, first) = self.waiting.pop_first().expect("it waits");
            let place = Place { slot, pages, number, restores: first.restores.unwrap_or(0) };
            let awaits = if on_disk { self.await_disk(&opening.tokens, found.cached) } else { None };
            let awaits = awaits.or(leader.map(|(leader, goal)| Awaits::Leader { leader, goal }));
            if let Some(awaits) = awaits {
                self.follow(first, place, awaits);
            } else {
                self.counts.admitted += u64::from(!first.is_interrupted());
                self.begin(session, place, opening, &found, Tier::Device, actions);
            }
        }
    }

    /// Ends those who have waited too long.
    pub(super) fn expire(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let late = |waiting: &Waiting, limits: &Limits| waiting.due(limits).is_some_and(|due| due <= now);
        while let Some(number) = self.waiting.iter().find(|(_, one)| late(one, &self.limits)).map(|(number, _)| *number)
        {
            let one = self.waiting.remove(&number).expect("it waits");
            let (session, waited) = (one.session, now.saturating_sub(one.since));
            actions.push(if one.is_interrupted() {
                let reason = self.broken.as_ref().map_or("all places are taken".to_owned(), Loss::to_string);
                Action::Lost { session, loss: Loss::NotRestored { waited, reason } }
            } else {
                Action::Refused { session, refusal: Refusal::QueueDeadline { waited } }
            });
            self.admit(actions);
        }
    }
}
