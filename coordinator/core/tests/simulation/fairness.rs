//! Nobody is paused but the newest, and nobody who decodes is passed over for long.

use std::collections::{BTreeMap, BTreeSet};

use paceline_core::Limits;
use paceline_core::limits::LEAST_PREFILL_ROWS;
use paceline_proto::{SessionId, Step};

pub(crate) struct Fairness {
    /// The most steps that may be sent while a session waits to decode.
    bound: usize,
    arrivals: usize,
    /// When each session arrived at the queue.
    arrived: BTreeMap<SessionId, usize>,
    /// The arrivals of those who run.
    running: BTreeSet<usize>,
    /// The arrivals of those who were interrupted and not opened since.
    interrupted: BTreeSet<usize>,
    /// Sessions that decode and wait, and how many steps were sent without them.
    waiting: BTreeMap<SessionId, usize>,
    /// How often each running session has wanted something.
    wishes: BTreeMap<SessionId, usize>,
}

fn bound(limits: &Limits) -> usize {
    let in_a_step = (limits.step_rows - LEAST_PREFILL_ROWS).min(limits.step_wanted - 1);
    // all credits may be out when it comes, and all before it in turn go first
    let rounds = 1 + limits.slots.div_ceil(in_a_step);
    rounds * (limits.credits + 1)
}

impl Fairness {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self {
            bound: bound(limits),
            arrivals: 0,
            arrived: BTreeMap::new(),
            running: BTreeSet::new(),
            interrupted: BTreeSet::new(),
            waiting: BTreeMap::new(),
            wishes: BTreeMap::new(),
        }
    }

    /// Another placement: who waits may be passed over as often as in that.
    pub(crate) fn placed(&mut self, limits: &Limits) {
        self.bound = bound(limits);
        self.waiting.values_mut().for_each(|passed_over| *passed_over = 0);
    }

    pub(crate) fn opens(&mut self, session: SessionId) {
        self.arrivals += 1;
        self.arrived.insert(session, self.arrivals);
    }

    pub(crate) fn opened(&mut self, session: SessionId) {
        // one that waits for what another computes is opened later; who is admitted when is invariant A8
        let arrived = self.arrived[&session];
        self.interrupted.remove(&arrived);
        self.running.insert(arrived);
        self.wishes.insert(session, 0);
    }

    pub(crate) fn wants(&mut self, session: SessionId) {
        // one that is gone may not know it yet
        let Some(wishes) = self.wishes.get_mut(&session) else { return };
        *wishes += 1;
        // the first wish is the prompt
        if *wishes > 1 {
            self.waiting.insert(session, 0);
        }
    }

    pub(crate) fn served(&mut self, session: SessionId) {
        self.waiting.remove(&session);
    }

    pub(crate) fn interrupted(&mut self, session: SessionId) {
        self.gone(session);
        self.interrupted.insert(self.arrived[&session]);
    }

    /// It made room for others.
    pub(crate) fn paused(&mut self, session: SessionId) {
        let arrived = self.arrived[&session];
        assert!(self.running.len() > 1, "{session} is alone, and is paused");
        assert_eq!(self.running.last(), Some(&arrived), "{session} is not the newest, and is paused");
        self.interrupted(session);
    }

    pub(crate) fn gone(&mut self, session: SessionId) {
        self.waiting.remove(&session);
        self.wishes.remove(&session);
        if let Some(arrived) = self.arrived.get(&session) {
            self.interrupted.remove(arrived);
            self.running.remove(arrived);
        }
    }

    pub(crate) fn sent(&mut self, step: &Step) {
        for chunk in &step.chunks {
            self.waiting.remove(&chunk.session);
        }
        for (session, passed_over) in &mut self.waiting {
            *passed_over += 1;
            assert!(*passed_over <= self.bound, "{session} was passed over {passed_over} times");
        }
    }
}
