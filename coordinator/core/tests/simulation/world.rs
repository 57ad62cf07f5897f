//! Clients, sessions, coordinator and row under one virtual clock.
//!
//! Messages between two parties arrive in the order they were sent; messages of different pairs overtake each other
//! at random. After every event of the coordinator its invariants are checked.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use paceline_core::coordinator::{Action, Event};
use paceline_core::invariants::{StepStream, accounts_balance};
use paceline_core::{Coordinator, Limits, Refusal, session};
use paceline_proto::{Epoch, PageId, SessionId, Slot, Step, StepDone, Wanted};
use uuid::Uuid;

use crate::client::{Client, Plan};
use crate::fairness::Fairness;
use crate::random::Random;
use crate::row::{Costs, Row};

/// Something that arrives somewhere.
enum Mail {
    Coordinator(Event),
    Session(usize, session::Event),
    Step(Step),
    Cancel(SessionId),
    /// A step leaves the tail.
    Tail(StepDone),
    /// A slow reader reads a token.
    Read(usize),
    /// A stage fails.
    Fault,
    /// The stages are placed anew.
    Restore,
    /// Another row is to take over.
    Hold,
    /// The memory in use of the row of this epoch is copied, and the copies take over or are given up.
    Move {
        from: Epoch,
        pages: Vec<PageId>,
        slots: Vec<Slot>,
    },
}

/// Two parties of which messages stay in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Pair {
    SessionToCoordinator(usize),
    CoordinatorToSession(usize),
    Steps,
    Cancels,
    Results,
}

/// What a run is about.
pub(crate) struct Settings {
    pub(crate) limits: Limits,
    pub(crate) costs: Costs,
    /// The longest a message takes, in microseconds.
    pub(crate) latency: u64,
    /// When stages fail, in microseconds.
    pub(crate) faults: Vec<u64>,
    /// The placements after each; then the first again.
    pub(crate) placements: Vec<Limits>,
    /// When another row is to take over, in microseconds.
    pub(crate) moves: Vec<u64>,
    pub(crate) plans: Vec<Plan>,
}

pub(crate) struct World {
    random: Random,
    settings: Settings,
    /// The placement in force, as the coordinator knows it.
    placed: (Epoch, Limits),
    /// Rows that took over.
    pub(crate) switches: usize,
    pub(crate) now: u64,
    sent: u64,
    mail: BTreeMap<(u64, u64), Mail>,
    arrivals: BTreeMap<Pair, u64>,
    next_tick: Option<u64>,
    pub(crate) coordinator: Coordinator,
    stream: StepStream,
    pub(crate) row: Row,
    pub(crate) clients: Vec<Client>,
    fairness: Fairness,
    /// By client: how often the coordinator let it go.
    let_go: Vec<usize>,
}

/// More events than any run here has: it does not come to rest.
const MOST_EVENTS: usize = 3_000_000;

fn name(client: usize) -> SessionId {
    SessionId(Uuid::from_u128(client as u128))
}

fn client(session: SessionId) -> usize {
    session.0.as_u128() as usize
}

/// A stop string ends with the token just emitted: what came with it in the same run is not part of the answer.
fn stop(actions: &mut VecDeque<session::Action>, tokens: usize) {
    let more = actions.iter().any(|action| matches!(action, session::Action::Emit(_)));
    actions.retain(|action| !matches!(action, session::Action::Emit(_)));
    for action in actions {
        if let session::Action::Finish(finish) = action
            && (more || finish.end_token.is_some())
        {
            *finish = finish.clone().stopped(tokens);
        }
    }
}

impl World {
    pub(crate) fn new(seed: u64, settings: Settings) -> Self {
        let limits = &settings.limits;
        let clients: Vec<_> = settings.plans.iter().map(|plan| Client::new(plan.clone(), limits)).collect();
        let mut world = Self {
            random: Random::new(seed),
            placed: (Epoch(0), limits.clone()),
            switches: 0,
            now: 0,
            sent: 0,
            mail: BTreeMap::new(),
            arrivals: BTreeMap::new(),
            next_tick: None,
            coordinator: Coordinator::new(Epoch(0), limits.clone()),
            stream: StepStream::new(limits),
            row: Row::new(Epoch(0), limits, settings.costs),
            fairness: Fairness::new(limits),
            let_go: vec![0; clients.len()],
            clients,
            settings,
        };
        world.schedule();
        world
    }

    fn schedule(&mut self) {
        for index in 0..self.clients.len() {
            let Plan { arrives, patience, reader, .. } = self.clients[index].plan;
            self.post(arrives, Mail::Session(index, session::Event::Begin));
            if let Some(patience) = patience {
                self.post(arrives + 1 + patience, Mail::Session(index, session::Event::ClientLeft));
            }
            if let Some((_, period)) = reader {
                self.post(arrives + period, Mail::Read(index));
            }
        }
        for fault in self.settings.faults.clone() {
            self.post(fault, Mail::Fault);
        }
        for time in self.settings.moves.clone() {
            self.post(time, Mail::Hold);
        }
    }

    /// Runs until nothing is left to happen.
    pub(crate) fn run(&mut self) {
        for _ in 0..MOST_EVENTS {
            let Some(((time, _), mail)) = self.mail.pop_first() else { return };
            self.now = time;
            self.receive(mail);
        }
        panic!("the simulation does not come to rest");
    }

    fn post(&mut self, time: u64, mail: Mail) {
        self.sent += 1;
        self.mail.insert((time, self.sent), mail);
    }

    /// Sends over a pair: after what was sent before, else whenever.
    fn send(&mut self, pair: Pair, mail: Mail) {
        let latency = self.random.between(1, self.settings.latency);
        let last = self.arrivals.get(&pair).copied().unwrap_or(0);
        let time = last.max(self.now + latency);
        self.arrivals.insert(pair, time);
        self.post(time, mail);
    }

    fn receive(&mut self, mail: Mail) {
        match mail {
            Mail::Coordinator(event) => self.tell_coordinator(event),
            Mail::Session(index, event) => self.tell_session(index, event),
            Mail::Step(step) if step.epoch == self.row.epoch => {
                let (finish, done) = self.row.run(step, self.now);
                self.post(finish, Mail::Tail(done));
            }
            Mail::Step(_) => {}
            Mail::Cancel(session) => self.row.cancel(session),
            Mail::Tail(done) => {
                let done = if done.epoch == self.row.epoch { self.row.leave_tail(done) } else { done };
                self.send(Pair::Results, Mail::Coordinator(Event::Done(done)));
            }
            Mail::Read(index) => self.read(index),
            Mail::Fault => self.fault(),
            Mail::Restore => self.restore(),
            Mail::Hold => self.send(Pair::Results, Mail::Coordinator(Event::Hold)),
            Mail::Move { from, pages, slots } => self.move_row(from, &pages, &slots),
        }
    }

    /// A stage fails: nothing it was sent is run. Results of steps that had passed it still come in.
    fn fault(&mut self) {
        self.row.epoch = Epoch(u32::MAX);
        let failed = Event::Failed { stage: 0, reason: "the power went".into() };
        self.send(Pair::Results, Mail::Coordinator(failed));
        let pause = self.random.between(1_000, 50_000);
        self.post(self.now + pause, Mail::Restore);
    }

    fn restore(&mut self) {
        let epoch = Epoch(self.sent as u32);
        let limits = self.settings.placements.pop().unwrap_or_else(|| self.settings.limits.clone());
        self.row = Row::new(epoch, &limits, self.settings.costs);
        self.send(Pair::Results, Mail::Coordinator(Event::Reset { epoch, limits: Box::new(limits) }));
    }

    /// The row is still: copying its memory takes a while.
    fn still(&mut self, pages: Vec<PageId>, slots: Vec<Slot>) {
        let pause = self.random.between(100, 30_000);
        self.post(self.now + pause, Mail::Move { from: self.placed.0, pages, slots });
    }

    /// Now and then the copies are given up. A row that has failed meanwhile has nothing to copy, nor to resume.
    fn move_row(&mut self, from: Epoch, pages: &[PageId], slots: &[Slot]) {
        if from != self.row.epoch {
            return;
        }
        if self.random.once_in(4) {
            return self.send(Pair::Results, Mail::Coordinator(Event::Resume));
        }
        let (epoch, stages) = (Epoch(self.sent as u32), self.random.size(1, 4));
        let limits = Limits {
            stages,
            credits: self.random.size(1, 2 * stages + 1),
            run_ahead: self.random.once_in(2),
            ..self.placed.1.clone()
        };
        self.row = self.row.moved(epoch, &limits, pages, slots);
        self.send(Pair::Results, Mail::Coordinator(Event::Switch { epoch, limits: Box::new(limits) }));
    }

    fn tell_coordinator(&mut self, event: Event) {
        match &event {
            Event::Open { opening, .. } if opening.again => {}
            Event::Open { session, .. } => self.fairness.opens(*session),
            Event::Want { session, .. } => self.fairness.wants(*session),
            Event::Leave { session } => self.fairness.gone(*session),
            Event::Reset { epoch, limits } => {
                self.stream = StepStream::new(limits);
                self.fairness.placed(limits);
                self.placed = (*epoch, Limits::clone(limits));
            }
            Event::Switch { epoch, limits } if self.coordinator.is_still() => {
                self.fairness.placed(limits);
                self.placed = (*epoch, Limits::clone(limits));
                self.switches += 1;
            }
            Event::Tick => self.next_tick = None,
            Event::Hold
            | Event::Ended
            | Event::Switch { .. }
            | Event::Resume
            | Event::Tier { .. }
            | Event::Done(_)
            | Event::Failed { .. }
            | Event::Stop => {}
        }
        let now = Duration::from_micros(self.now);
        let mut actions = Vec::new();
        self.coordinator.on(event, now, &mut actions);
        assert_eq!(accounts_balance(&self.coordinator.accounts()), Ok(()));
        for action in actions {
            self.perform(action);
        }
        self.set_alarm(now);
    }

    fn set_alarm(&mut self, now: Duration) {
        let Some(deadline) = self.coordinator.deadline(now) else { return };
        assert!(deadline > now, "the deadline has passed");
        let deadline = deadline.as_micros() as u64;
        if self.next_tick.is_none_or(|tick| deadline < tick) {
            self.next_tick = Some(deadline);
            self.post(deadline, Mail::Coordinator(Event::Tick));
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Opened { session, reuse } => {
                self.fairness.opened(session);
                self.answer(session, session::Event::Opened(reuse));
            }
            Action::Refused { session, refusal } => {
                assert!(!matches!(refusal, Refusal::Duplicate { .. }));
                self.let_go(session);
                self.answer(session, session::Event::Refused(refusal));
            }
            Action::Send { step, rows } => {
                assert!(rows.is_empty());
                assert_eq!(self.stream.follow(&step), Ok(()));
                self.fairness.sent(&step);
                self.send(Pair::Steps, Mail::Step(step));
            }
            Action::Outcome { session, outcome, position, drafts } => {
                self.fairness.served(session);
                self.answer(session, session::Event::Outcome { outcome, position, drafts });
            }
            Action::Still { pages, slots } => self.still(pages, slots),
            Action::Order { .. } => unreachable!("this row has no disks"),
            Action::Interrupted { session } => {
                self.fairness.interrupted(session);
                self.answer(session, session::Event::Interrupted);
            }
            Action::Paused { session } => {
                self.fairness.paused(session);
                self.answer(session, session::Event::Interrupted);
            }
            Action::Cancel { session } => self.send(Pair::Cancels, Mail::Cancel(session)),
            Action::Closed { session } => self.let_go(session),
            Action::Lost { session, loss } => {
                self.let_go(session);
                self.answer(session, session::Event::Lost(loss));
            }
        }
    }

    fn let_go(&mut self, session: SessionId) {
        self.fairness.gone(session);
        self.let_go[client(session)] += 1;
    }

    fn answer(&mut self, session: SessionId, event: session::Event) {
        let index = client(session);
        self.send(Pair::CoordinatorToSession(index), Mail::Session(index, event));
    }

    fn tell_session(&mut self, index: usize, event: session::Event) {
        if event == session::Event::Interrupted {
            self.clients[index].interruptions += 1;
        }
        let mut actions = Vec::new();
        self.clients[index].session.on(event, &mut actions);
        let mut actions = VecDeque::from(actions);
        while let Some(action) = actions.pop_front() {
            let session = name(index);
            let event = match action {
                session::Action::Open(opening) => Event::Open { session, opening },
                session::Action::Want(mut wish) => {
                    if wish.wanted == Wanted::Sample && self.settings.limits.log_tokens > 0 {
                        wish.drafts = self.clients[index].guess(&mut self.random);
                        if self.clients[index].plan.guesses.is_none() {
                            wish.proposals.most = self.random.between(0, 2) as u32;
                        }
                    }
                    Event::Want { session, wish }
                }
                session::Action::Leave => Event::Leave { session },
                session::Action::Emit(sampled) => {
                    let said = self.clients[index].emitted(sampled.token);
                    // the text side is a little behind the session
                    if let Some(said) = said {
                        if let session::Event::Stopped { tokens } = said {
                            stop(&mut actions, tokens);
                        }
                        self.post(self.now, Mail::Session(index, said));
                    }
                    continue;
                }
                session::Action::Vector(vector) => {
                    self.clients[index].vector = Some(vector);
                    continue;
                }
                session::Action::Finish(finish) => {
                    self.clients[index].finished(finish);
                    continue;
                }
            };
            self.send(Pair::SessionToCoordinator(index), Mail::Coordinator(event));
        }
    }

    fn read(&mut self, index: usize) {
        if self.clients[index].finish.is_some() {
            return;
        }
        if self.clients[index].read() {
            self.tell_session(index, session::Event::Room);
        }
        let (_, period) = self.clients[index].plan.reader.expect("a slow reader");
        self.post(self.now + period, Mail::Read(index));
    }

    /// What must be true when everything is over.
    pub(crate) fn check_end(&self) {
        let accounts = self.coordinator.accounts();
        // what is not free is the cache's
        let status = self.coordinator.status();
        assert_eq!(status.pages_idle, accounts.pages - accounts.pages_free, "{accounts:?} {status:?}");
        assert_eq!(status.index.pages, status.pages_idle);
        assert_eq!(status.index.snapshots, accounts.snapshots - accounts.snapshots_free);
        assert_eq!(accounts.pages_reserved, 0);
        assert_eq!(accounts.slots_free, accounts.slots);
        assert_eq!((accounts.steps, accounts.waiting, accounts.interrupted), (0, 0, 0));
        assert_eq!(self.stream.open_sessions(), 0, "a session was not closed on the stages");
        assert_eq!(self.row.open_sessions(), 0);
        for (index, client) in self.clients.iter().enumerate() {
            client.check(&self.settings.limits);
            let never_opened = client.plan.max_tokens == Some(0) && !client.plan.vector;
            assert_eq!(self.let_go[index], usize::from(!never_opened), "client {index}: {:?}", client.plan);
        }
    }
}
