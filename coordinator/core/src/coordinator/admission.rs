//! Who may run: a bounded queue in order of arrival.
//!
//! The first in the queue is admitted when a slot is free and pages for all tokens it may ever have can be
//! reserved; nobody overtakes it, so a large session is not starved by small ones behind it.

use std::time::Duration;

use paceline_proto::{SamplingSettings, SessionId};

use super::running::Running;
use super::{Action, Coordinator};

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
    pub(super) prompt_tokens: usize,
    pub(super) token_limit: usize,
    pub(super) sampling: Box<SamplingSettings>,
    pub(super) since: Duration,
}

impl Coordinator {
    /// Lets a session into the queue, or says why not.
    pub(super) fn open(&mut self, newcomer: Waiting, actions: &mut Vec<Action>) {
        let session = newcomer.session;
        if let Some(refusal) = self.refusal(&newcomer) {
            actions.push(Action::Refused { session, refusal });
            return;
        }
        self.waiting.push_back(newcomer);
        self.admit(actions);
        if self.waiting.len() > self.limits.queue {
            self.waiting.pop_back();
            let refusal = Refusal::QueueFull { waiting: self.waiting.len(), limit: self.limits.queue };
            actions.push(Action::Refused { session, refusal });
        }
    }

    fn refusal(&self, newcomer: &Waiting) -> Option<Refusal> {
        let &Waiting { session, prompt_tokens, token_limit, .. } = newcomer;
        if let Some(loss) = &self.broken {
            return Some(Refusal::Broken { reason: loss.to_string() });
        }
        if prompt_tokens == 0 {
            return Some(Refusal::EmptyPrompt);
        }
        if prompt_tokens > token_limit {
            return Some(Refusal::OverOwnLimit { prompt_tokens, token_limit });
        }
        if token_limit > self.limits.context {
            return Some(Refusal::TooLong { tokens: token_limit, context: self.limits.context });
        }
        let needed = self.limits.pages_for(token_limit);
        if needed > self.pages.total() {
            return Some(Refusal::NeverFits { needed, total: self.pages.total() });
        }
        let waits = self.waiting.iter().any(|waiting| waiting.session == session);
        // also a name whose last owner's chunks are in flight: their outcomes would be taken for the new one's
        if waits || self.running.contains_key(&session) || self.in_flight(session) {
            return Some(Refusal::Duplicate { session });
        }
        None
    }

    /// Admits from the front of the queue while there is room.
    pub(super) fn admit(&mut self, actions: &mut Vec<Action>) {
        while let Some(first) = self.waiting.front() {
            if self.slots.free() == 0 {
                return;
            }
            let Some(pages) = self.pages.reserve(self.limits.pages_for(first.token_limit)) else { return };
            let first = self.waiting.pop_front().expect("the queue has a front");
            let slot = self.slots.take().expect("a slot is free");
            let session = first.session;
            self.counts.admitted += 1;
            self.running.insert(session, Running::new(first, slot, pages, self.counts.admitted));
            actions.push(Action::Opened { session });
        }
    }

    /// Refuses those who have waited too long: the queue is in order of arrival, so they are in front.
    pub(super) fn expire(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while let Some(first) = self.waiting.front() {
            let waited = now.saturating_sub(first.since);
            if waited < self.limits.queue_deadline {
                return;
            }
            let session = first.session;
            self.waiting.pop_front();
            actions.push(Action::Refused { session, refusal: Refusal::QueueDeadline { waited } });
            self.admit(actions);
        }
    }
}
