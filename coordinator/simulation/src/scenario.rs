//! What is simulated: a row, its users, and what goes wrong.

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::planner::LinkSpeed;

use crate::faults::{Fault, FaultKind};
use crate::lengths::Lengths;
use crate::{Error, StageTimes};

/// The most sessions of one run.
pub const MOST_SESSIONS: usize = 10_000_000;
/// A message between actors of one process: their mailboxes and a waking thread.
const MESSAGE: Duration = Duration::from_micros(10);

/// When sessions come.
#[derive(Debug, Clone, PartialEq)]
pub enum Arrivals {
    /// By chance, so many in a second on average, whatever becomes of those before (an open loop).
    Rate(f64),
    /// From so many users, each of whom waits for an answer and thinks before the next (a closed loop).
    Users {
        /// How many.
        users: usize,
        /// How long they think, on average.
        think: Duration,
    },
    /// As listed, in the order of arrival; lengths and patience too.
    Listed(Vec<Visit>),
}

/// One session as it comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Visit {
    /// When.
    pub arrives: Duration,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens of its answer.
    pub answer: usize,
    /// How long after its arrival the client leaves, if it is not over by then.
    pub leaves: Option<Duration>,
}

/// What is simulated.
#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// Of all that is left to chance.
    pub seed: u64,
    /// The coordinator's bounds.
    pub limits: Limits,
    /// Values in a row of activations.
    pub width: usize,
    /// One to the head, one between each stage and the next, and one from the tail to the coordinator.
    pub links: Vec<LinkSpeed>,
    /// From an actor to another one.
    pub message: Duration,
    /// The deviation of a stage's time from its mean, as a share of it.
    pub noise: f64,
    /// When sessions come.
    pub arrivals: Arrivals,
    /// How many come, where they are not listed.
    pub sessions: usize,
    /// How long prompts are; cut so that an answer of one token fits the context.
    pub prompt: Lengths,
    /// How long answers are; cut at the context.
    pub answer: Lengths,
    /// The share of clients who leave when they lose patience.
    pub leavers: f64,
    /// How long their patience lasts, on average.
    pub patience: Duration,
    /// What goes wrong.
    pub faults: Vec<Fault>,
    /// From the loss of a stage until the coordinator knows.
    pub detect: Duration,
    /// From then until a new placement is in force.
    pub restore: Duration,
    /// Follow every step and check it; the accounts are always checked at the end.
    pub check: bool,
}

impl Scenario {
    /// A quiet run of a row inside one process, to be changed from there.
    pub fn new(seed: u64, limits: Limits, arrivals: Arrivals) -> Self {
        Self {
            seed,
            width: 1,
            links: vec![crate::LOCAL; limits.stages + 1],
            limits,
            message: MESSAGE,
            noise: 0.0,
            arrivals,
            sessions: 100,
            prompt: Lengths::Around(500),
            answer: Lengths::Around(200),
            leavers: 0.0,
            patience: Duration::from_secs(10),
            faults: Vec::new(),
            detect: Duration::from_secs(1),
            restore: Duration::from_secs(10),
            check: cfg!(debug_assertions),
        }
    }

    /// How many sessions come.
    pub(crate) fn total(&self) -> usize {
        match &self.arrivals {
            Arrivals::Listed(visits) => visits.len(),
            _ => self.sessions,
        }
    }

    /// Says what makes no sense.
    ///
    /// # Errors
    /// The first setting that does not.
    pub fn check(&self, times: &dyn StageTimes) -> Result<(), Error> {
        self.limits.check()?;
        let stages = self.limits.stages;
        require(times.stages() == stages, "the number of stages with times", times.stages(), "that of the limits")?;
        require(self.links.len() == stages + 1, "the number of links", self.links.len(), "one more than stages")?;
        let unsound = |link: &&LinkSpeed| link.bytes_per_second <= 0.0 || link.bytes_per_second.is_nan();
        if let Some(link) = self.links.iter().find(unsound) {
            require(false, "a link's throughput", link.bytes_per_second, "more than 0")?;
        }
        require((0.0..=2.0).contains(&self.noise), "the noise", self.noise, "from 0 to 2")?;
        require((0.0..=1.0).contains(&self.leavers), "the share of leavers", self.leavers, "from 0 to 1")?;
        require(self.width > 0, "the width", self.width, "at least 1")?;
        require(
            (1..=MOST_SESSIONS).contains(&self.total()),
            "the number of sessions",
            self.total(),
            "1 to 10,000,000",
        )?;
        self.check_arrivals()?;
        self.faults.iter().try_for_each(|fault| check_fault(fault, stages))
    }

    fn check_arrivals(&self) -> Result<(), Error> {
        match &self.arrivals {
            Arrivals::Rate(rate) => {
                require(rate.is_finite() && *rate >= 1e-6, "the rate", rate, "a number of sessions a second above 0")
            }
            Arrivals::Users { users, .. } => require(*users > 0, "the number of users", users, "at least 1"),
            Arrivals::Listed(visits) => {
                let sorted = visits.is_sorted_by_key(|visit| visit.arrives);
                require(sorted, "the list of visits", "unsorted", "in the order of arrival")
            }
        }
    }
}

fn check_fault(fault: &Fault, stages: usize) -> Result<(), Error> {
    let (place, places) = match fault.kind {
        FaultKind::Slow { stage, .. } | FaultKind::Lost { stage } => (stage, stages),
        FaultKind::Stalled { link, .. } => (link, stages + 1),
    };
    require(place < places, "a fault's stage or link", place, "one of the row's")?;
    if let FaultKind::Slow { factor, .. } = fault.kind {
        require((1.0..=1e6).contains(&factor), "a slow stage's factor", factor, "from 1 to 1,000,000")?;
    }
    match fault.kind {
        FaultKind::Slow { seconds, .. } | FaultKind::Stalled { seconds, .. } => {
            require((0.0..=1e6).contains(&seconds), "how long a fault lasts", seconds, "from 0 to 1,000,000 s")
        }
        FaultKind::Lost { .. } => Ok(()),
    }
}

fn require(holds: bool, name: &'static str, value: impl ToString + Copy, must: &'static str) -> Result<(), Error> {
    if holds { Ok(()) } else { Err(Error::Setting { name, value: value.to_string(), must }) }
}
