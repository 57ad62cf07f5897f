//! Many models in the memory of one process: which to load, which to let go, whom to let wait and whom to refuse.
//!
//! Read [`Fleet`] first. A request asks for a model and waits until it is loaded; while it is answered, its model stays. A
//! model that nobody uses goes when it has been idle for so long as its owner said, or when another one needs its memory,
//! the one that was used longest ago first. What is counted is bytes, never models.
//!
//! Models that write texts and models that read them have a [`Budget`] each, so that a request for a vector never costs
//! somebody their conversation.
//!
//! A request that waits for room behind models that are always in use would wait forever. Once it has waited for
//! [`PATIENCE`], requests for those models queue behind it, until they have ended.

mod budget;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::time::Duration;

pub use budget::{Budget, Part, TooLarge};

/// Requests that wait for models to be loaded, all models together: loading takes seconds, and who comes later would wait
/// longer than clients do.
pub const QUEUE: usize = 256;

/// A request that has waited this long for a model is told so rather than kept: that is longer than any model takes to load.
pub const DEADLINE: Duration = Duration::from_secs(120);

/// After so long a request for a model that finds no room goes before new requests for models that are in its way.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of a model before it is loaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Berth {
    /// Bytes that it is reckoned to take.
    pub memory: u64,
    /// Which part of the budget it is taken from.
    pub part: Part,
    /// How long it may be idle before it is let go; without it, until another one needs the room.
    pub idle: Option<Duration>,
    /// Whether it is loaded before anybody asks for it.
    pub at_start: bool,
}

/// A request that waits for a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub u64);

/// How far a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It takes no memory.
    Unloaded,
    /// It is being loaded.
    Loading,
    /// It answers so many requests, and was last used then.
    Loaded {
        /// Requests that are being answered.
        users: usize,
        /// When the last of them ended, or it was loaded.
        since: Duration,
    },
    /// It ends; its memory is still taken.
    Unloading,
}

/// What happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The service begins.
    Start,
    /// A request needs the model at this place.
    Want {
        /// Who asks; a new number each time.
        ticket: Ticket,
        /// Which model.
        place: usize,
    },
    /// A request that waits is taken back.
    Withdraw(Ticket),
    /// A request has been answered.
    Release {
        /// By which model.
        place: usize,
    },
    /// A model is loaded, and takes so many bytes.
    Loaded {
        /// Which model.
        place: usize,
        /// What it takes.
        memory: u64,
    },
    /// A model could not be loaded.
    Failed {
        /// Which model.
        place: usize,
        /// What went wrong.
        reason: String,
    },
    /// A model has ended, and its memory is free.
    Unloaded {
        /// Which model.
        place: usize,
    },
    /// Time has passed.
    Tick,
    /// The service ends: nobody is let in any more.
    Stop,
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Load a model.
    Load(usize),
    /// End a model that nobody uses, and give its memory back.
    Unload(usize),
    /// The request's model is loaded; the request uses it until it is released.
    Grant {
        /// Who.
        ticket: Ticket,
        /// Which model.
        place: usize,
    },
    /// The request will not be answered.
    Refuse {
        /// Who.
        ticket: Ticket,
        /// Why.
        refusal: Refusal,
    },
}

/// Why a request is not let in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// So many wait already.
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// Models in use left too little room for too long.
    NoRoom {
        /// Bytes that its model needs.
        needed: u64,
        /// Bytes that could be had.
        left: u64,
        /// Bytes of the part of the budget.
        budget: u64,
    },
    /// The model could not be loaded.
    Failed {
        /// What went wrong.
        reason: String,
    },
    /// The service ends.
    Stopping,
}

/// A model with what becomes of it.
#[derive(Debug, Clone)]
struct Member {
    berth: Berth,
    state: State,
    /// Bytes: what it takes where it is loaded, else what it is reckoned to take.
    memory: u64,
}

/// A request that waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    ticket: Ticket,
    place: usize,
    since: Duration,
}

/// The models of a service.
#[derive(Debug, Clone)]
pub struct Fleet {
    members: Vec<Member>,
    budget: Budget,
    waiting: VecDeque<Waiting>,
    /// Models that are to be loaded though nobody asks.
    starting: Vec<usize>,
    stopping: bool,
}

impl Fleet {
    /// Models that are not loaded, with memory that was found to be enough for each ([`Budget::divide`]).
    pub fn new(berths: Vec<Berth>, budget: Budget) -> Self {
        let member = |berth: Berth| Member { memory: berth.memory, berth, state: State::Unloaded };
        let members = berths.into_iter().map(member).collect();
        Self { members, budget, waiting: VecDeque::new(), starting: Vec::new(), stopping: false }
    }

    /// How far the model at a place is.
    pub fn state(&self, place: usize) -> State {
        self.members[place].state
    }

    /// Bytes that the model at a place takes, or is reckoned to take.
    pub fn memory(&self, place: usize) -> u64 {
        self.members[place].memory
    }

    /// Requests that wait for the model at a place.
    pub fn waiting(&self, place: usize) -> usize {
        self.waiting.iter().filter(|waiting| waiting.place == place).count()
    }

    /// Takes what happened at `now`, and says what is to be done.
    pub fn on(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        match event {
            Event::Start => {
                let first = self.members.iter().enumerate().filter(|(_, member)| member.berth.at_start);
                self.starting = first.map(|(place, _)| place).collect();
            }
            Event::Want { ticket, place } => self.want(ticket, place, now, actions),
            Event::Withdraw(ticket) => self.waiting.retain(|waiting| waiting.ticket != ticket),
            Event::Release { place } => self.release(place, now),
            Event::Loaded { place, memory } => {
                let member = &mut self.members[place];
                (member.state, member.memory) = (State::Loaded { users: 0, since: now }, memory);
            }
            Event::Failed { place, reason } => self.failed(place, &reason, actions),
            Event::Unloaded { place } => {
                let member = &mut self.members[place];
                (member.state, member.memory) = (State::Unloaded, member.berth.memory);
            }
            Event::Tick => {}
            Event::Stop => self.stop(actions),
        }
        self.refuse_late(now, actions);
        self.advance(now, actions);
    }

    fn want(&mut self, ticket: Ticket, place: usize, now: Duration, actions: &mut Vec<Action>) {
        if self.stopping {
            return actions.push(Action::Refuse { ticket, refusal: Refusal::Stopping });
        }
        let waiting = self.waiting.len();
        if waiting >= QUEUE {
            return actions.push(Action::Refuse { ticket, refusal: Refusal::QueueFull { waiting } });
        }
        self.waiting.push_back(Waiting { ticket, place, since: now });
    }

    fn release(&mut self, place: usize, now: Duration) {
        if let State::Loaded { users, since } = &mut self.members[place].state {
            *users = users.saturating_sub(1);
            *since = now;
        }
    }

    /// Nobody gets a model that cannot be loaded.
    fn failed(&mut self, place: usize, reason: &str, actions: &mut Vec<Action>) {
        self.members[place].state = State::Unloaded;
        let all = std::mem::take(&mut self.waiting);
        let (refused, left): (VecDeque<Waiting>, _) = all.into_iter().partition(|waiting| waiting.place == place);
        self.waiting = left;
        let refusal = || Refusal::Failed { reason: reason.to_owned() };
        actions.extend(refused.into_iter().map(|Waiting { ticket, .. }| Action::Refuse { ticket, refusal: refusal() }));
    }

    fn stop(&mut self, actions: &mut Vec<Action>) {
        self.stopping = true;
        self.starting.clear();
        let refuse = |Waiting { ticket, .. }| Action::Refuse { ticket, refusal: Refusal::Stopping };
        actions.extend(self.waiting.drain(..).map(refuse));
    }

    /// Refuses who has waited too long.
    fn refuse_late(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while let Some(first) = self.waiting.front().copied()
            && now >= first.since + DEADLINE
        {
            self.waiting.pop_front();
            let Member { berth, memory, .. } = &self.members[first.place];
            let (part, needed) = (berth.part, *memory);
            let budget = self.budget.of(part);
            let left = budget.saturating_sub(self.taken(part, Member::is_used));
            let refusal = Refusal::NoRoom { needed, left, budget };
            actions.push(Action::Refuse { ticket: first.ticket, refusal });
        }
    }

    /// Grants what is loaded, makes room for what is not, and lets go what is idle.
    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let mut kept = VecDeque::with_capacity(self.waiting.len());
        // Models that an impatient request waits for to end; nobody else gets them.
        let mut closed = Vec::new();
        for waiting in std::mem::take(&mut self.waiting) {
            if closed.contains(&waiting.place) || !self.serve(&waiting, now, &mut closed, actions) {
                kept.push_back(waiting);
            }
        }
        self.waiting = kept;
        for place in std::mem::take(&mut self.starting) {
            // Nobody asks for it, so nothing is let go for it.
            if self.members[place].state == State::Unloaded {
                self.load_if_it_fits(place, actions);
            }
        }
        self.let_idle_go(now, actions);
    }

    /// Grants a request its model, or begins to load it; true if it need not wait any more.
    fn serve(&mut self, waiting: &Waiting, now: Duration, closed: &mut Vec<usize>, actions: &mut Vec<Action>) -> bool {
        let Waiting { ticket, place, since } = *waiting;
        match &mut self.members[place].state {
            State::Loaded { users, .. } => {
                *users += 1;
                actions.push(Action::Grant { ticket, place });
                return true;
            }
            State::Loading | State::Unloading => {}
            State::Unloaded => {
                if !self.make_room(place, actions) && now >= since + PATIENCE {
                    let part = self.members[place].berth.part;
                    let others = self.members.iter().enumerate();
                    closed.extend(others.filter(|(_, other)| other.berth.part == part).map(|(other, _)| other));
                    closed.retain(|other| *other != place);
                }
            }
        }
        false
    }

    /// Loads a model if it fits, and else lets idle ones go if that makes room; true if it is being loaded now.
    fn make_room(&mut self, place: usize, actions: &mut Vec<Action>) -> bool {
        if self.load_if_it_fits(place, actions) {
            return true;
        }
        let Member { berth: Berth { part, .. }, memory, .. } = self.members[place];
        let budget = self.budget.of(part);
        // What ends already will be free, so no more is let go than is needed besides.
        let staying = self.taken(part, |member| member.takes_memory() && member.state != State::Unloading);
        let missing = staying.saturating_add(memory).saturating_sub(budget);
        if let Some(victims) = self.victims(part, missing) {
            victims.into_iter().for_each(|victim| self.unload(victim, actions));
        }
        false
    }

    /// Loads a model if it fits beside those that are there; true if it does.
    fn load_if_it_fits(&mut self, place: usize, actions: &mut Vec<Action>) -> bool {
        let Member { berth: Berth { part, .. }, memory, .. } = self.members[place];
        let fits = self.taken(part, Member::takes_memory).saturating_add(memory) <= self.budget.of(part);
        if fits {
            self.members[place].state = State::Loading;
            actions.push(Action::Load(place));
        }
        fits
    }

    /// Idle models of a part that together have so many bytes, those that were used longest ago; none that is not needed.
    fn victims(&self, part: Part, missing: u64) -> Option<Vec<usize>> {
        let idle = self.members.iter().enumerate().filter(|(_, member)| member.berth.part == part);
        let mut idle: Vec<(Duration, usize)> =
            idle.filter_map(|(place, member)| Some((member.idle_since()?, place))).collect();
        idle.sort_unstable();
        let (mut victims, mut freed) = (Vec::new(), 0);
        for (_, place) in idle {
            if freed >= missing {
                break;
            }
            freed += self.members[place].memory;
            victims.push(place);
        }
        if freed < missing {
            return None;
        }
        victims.retain(|place| {
            let memory = self.members[*place].memory;
            let spare = freed - memory >= missing;
            freed -= if spare { memory } else { 0 };
            !spare
        });
        Some(victims)
    }

    fn unload(&mut self, place: usize, actions: &mut Vec<Action>) {
        self.members[place].state = State::Unloading;
        actions.push(Action::Unload(place));
    }

    fn let_idle_go(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let wanted: Vec<usize> = self.waiting.iter().map(|waiting| waiting.place).collect();
        for place in 0..self.members.len() {
            if self.members[place].idle_end().is_some_and(|end| now >= end) && !wanted.contains(&place) {
                self.unload(place, actions);
            }
        }
    }

    /// Bytes of the models of a part of which something is so.
    fn taken(&self, part: Part, is_so: impl Fn(&Member) -> bool) -> u64 {
        let members = self.members.iter().filter(|member| member.berth.part == part && is_so(member));
        members.map(|member| member.memory).fold(0, u64::saturating_add)
    }
}

impl Member {
    fn takes_memory(&self) -> bool {
        self.state != State::Unloaded
    }

    /// Whether requests are answered with it, or soon will be.
    fn is_used(&self) -> bool {
        matches!(self.state, State::Loading | State::Loaded { users: 1.., .. })
    }

    /// Since when it is loaded and nobody uses it.
    fn idle_since(&self) -> Option<Duration> {
        match self.state {
            State::Loaded { users: 0, since } => Some(since),
            _ => None,
        }
    }

    /// When it has been idle for too long.
    fn idle_end(&self) -> Option<Duration> {
        Some(self.idle_since()? + self.berth.idle?)
    }
}
