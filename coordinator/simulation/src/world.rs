//! Coordinator, sessions, clients and the emulated row under one virtual clock.
//!
//! Read [`Simulation::run`]. The cores are the real ones; messages between them arrive in the order they were sent.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_core::coordinator::{Accounts, Action, Event, Status};
use paceline_core::drafts::DraftSettings;
use paceline_core::invariants::{Broken, StepStream, accounts_balance};
use paceline_core::session::{Finish, FinishReason, Goal, Request, TokenGoal};
use paceline_core::{Coordinator, Refusal, Session, session};
use paceline_proto::{Epoch, SamplingSettings, SessionId, Step};
use uuid::Uuid;

use crate::events::Events;
use crate::outages::Outages;
use crate::row::{Later, Row, RowEvent};
use crate::scenario::{Scenario, Visit};
use crate::tally::Tally;
use crate::visits::Visits;
use crate::{Error, Report, StageTimes};

/// Something that arrives somewhere.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A client.
    Arrives(usize, Visit),
    /// A client loses patience.
    Leaves(usize),
    /// News for a session.
    Session(usize, session::Event),
    /// News for the coordinator.
    Coordinator(Event),
    /// The coordinator's alarm.
    Tick,
    /// Something in the row of an epoch.
    Row(Epoch, RowEvent),
    /// A fault is over.
    FaultEnds(usize),
    /// A new placement is in force.
    Restored,
}

/// A client and its session.
#[derive(Debug)]
struct Client {
    visit: Visit,
    session: Session,
    opened: bool,
    /// When it got its last token.
    token: Option<Duration>,
    /// Tokens run for it.
    position: usize,
}

/// A run. See the module's text.
pub struct Simulation<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) times: &'a dyn StageTimes,
    pub(crate) events: Events<Mail>,
    coordinator: Coordinator,
    stream: StepStream,
    pub(crate) row: Row,
    pub(crate) outages: Outages,
    visits: Visits,
    /// Those who have come and not gone.
    clients: BTreeMap<usize, Client>,
    pub(crate) tally: Tally,
    next_tick: Option<Duration>,
    /// Credits taken.
    in_flight: usize,
    broken: Option<Broken>,
}

fn name(client: usize) -> SessionId {
    SessionId(Uuid::from_u128(client as u128))
}

fn client(session: SessionId) -> usize {
    session.0.as_u128() as usize
}

impl<'a> Simulation<'a> {
    /// A run before its first event.
    ///
    /// # Errors
    /// A scenario that makes no sense.
    pub fn new(scenario: &'a Scenario, times: &'a dyn StageTimes) -> Result<Self, Error> {
        scenario.check(times)?;
        let Scenario { seed, limits, noise, width, links, .. } = scenario;
        let mut simulation = Self {
            times,
            events: Events::new(),
            coordinator: Coordinator::new(Epoch(0), limits.clone()),
            stream: StepStream::new(limits),
            row: Row::new(*seed, *noise, *width, links),
            outages: Outages::new(&scenario.faults),
            visits: Visits::new(*seed),
            clients: BTreeMap::new(),
            tally: Tally::default(),
            next_tick: None,
            in_flight: 0,
            broken: None,
            scenario,
        };
        for (number, visit) in simulation.visits.first(scenario) {
            simulation.events.post(visit.arrives, Mail::Arrives(number, visit));
        }
        Ok(simulation)
    }

    /// Runs until everybody has gone, and reports.
    ///
    /// # Errors
    /// A fault of the cores: an invariant that does not hold, sessions that nobody serves, pages that nobody frees.
    pub fn run(mut self) -> Result<Report, Error> {
        while let Some(mail) = self.events.next() {
            self.deliver(mail);
            if let Some(broken) = self.broken.take() {
                return Err(Error::Broken { seed: self.scenario.seed, at: self.events.now(), broken });
            }
        }
        self.check_end()?;
        Ok(Report::of(&self))
    }

    /// Figures of the coordinator.
    pub(crate) fn status(&self) -> Status {
        self.coordinator.status()
    }

    fn deliver(&mut self, mail: Mail) {
        match mail {
            Mail::Arrives(number, visit) => self.arrives(number, visit),
            Mail::Leaves(number) => self.tell_session(number, session::Event::ClientLeft),
            Mail::Session(number, event) => self.tell_session(number, event),
            Mail::Coordinator(event) => self.tell_coordinator(event),
            // one that an earlier alarm has taken the place of is stale
            Mail::Tick if self.next_tick == Some(self.events.now()) => {
                self.next_tick = None;
                self.tell_coordinator(Event::Tick);
            }
            Mail::Tick => {}
            Mail::Row(epoch, event) if epoch == self.row.epoch => self.in_row(event),
            Mail::Row(..) => {}
            Mail::FaultEnds(fault) => self.fault_ends(fault),
            Mail::Restored => self.restored(),
        }
    }

    fn arrives(&mut self, number: usize, visit: Visit) {
        let now = self.events.now();
        if let Some((next, visit)) = self.visits.after_arrival(self.scenario, now) {
            self.events.post(visit.arrives, Mail::Arrives(next, visit));
        }
        if let Some(patience) = visit.leaves {
            self.events.post(now + patience, Mail::Leaves(number));
        }
        let visit = Visit { arrives: now, ..visit };
        let session = new_session(&visit, self.scenario.limits.context);
        self.clients.insert(number, Client { visit, session, opened: false, token: None, position: 0 });
        self.tally.ends.begun += 1;
        self.tell_session(number, session::Event::Begin);
        self.begin_faults();
    }

    fn tell_session(&mut self, number: usize, event: session::Event) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let now = self.events.now();
        match &event {
            session::Event::Opened(_) if !client.opened => {
                client.opened = true;
                self.tally.queue.add(now - client.visit.arrives);
                self.tally.prefilling.begin(now);
            }
            session::Event::Outcome { position, .. } => client.position = *position,
            _ => {}
        }
        let mut actions = Vec::with_capacity(2);
        client.session.on(event, &mut actions);
        actions.into_iter().for_each(|action| self.session_acts(number, action));
    }

    fn session_acts(&mut self, number: usize, action: session::Action) {
        let session = name(number);
        let event = match action {
            session::Action::Open(opening) => Event::Open { session, opening },
            session::Action::Want(wish) => Event::Want { session, wish },
            session::Action::Leave => Event::Leave { session },
            session::Action::Emit(_) => return self.token(number),
            session::Action::Vector(_) => return,
            session::Action::Finish(finish) => return self.finished(number, &finish),
        };
        self.events.post(self.events.now() + self.scenario.message, Mail::Coordinator(event));
    }

    fn token(&mut self, number: usize) {
        let Some(client) = self.clients.get_mut(&number) else { return };
        let (now, tally) = (self.events.now(), &mut self.tally);
        tally.tokens += 1;
        match client.token.replace(now) {
            None => {
                tally.first_token.add(now - client.visit.arrives);
                tally.prefilling.end(now);
                tally.decoding.begin(now);
            }
            Some(before) => {
                tally.later_tokens += 1;
                tally.gap.add(now - before);
            }
        }
    }

    fn finished(&mut self, number: usize, finish: &Finish) {
        let Some(client) = self.clients.remove(&number) else { return };
        let now = self.events.now();
        match (client.opened, client.token) {
            (true, Some(_)) => self.tally.decoding.end(now),
            (true, None) => self.tally.prefilling.end(now),
            _ => {}
        }
        self.tally.ended(&finish.reason, now);
        match &finish.reason {
            FinishReason::Length => self.tally.depth += (client.visit.prompt + client.visit.answer / 2) as u64,
            FinishReason::Lost(_) => self.outages.lost(),
            FinishReason::Refused(Refusal::Broken { .. }) => self.outages.refused(),
            _ => {}
        }
        let refused = matches!(finish.reason, FinishReason::Refused(_) | FinishReason::Lost(_));
        if let Some((next, visit)) = self.visits.after_end(self.scenario, now, refused) {
            self.events.post(visit.arrives, Mail::Arrives(next, visit));
        }
    }

    pub(crate) fn tell_coordinator(&mut self, event: Event) {
        match event {
            Event::Done(_) => self.in_flight -= 1,
            Event::Failed { .. } => self.in_flight = 0,
            Event::Reset { .. } => self.stream = StepStream::new(&self.scenario.limits),
            _ => {}
        }
        let now = self.events.now();
        let mut actions = Vec::new();
        self.coordinator.on(event, now, &mut actions);
        actions.into_iter().for_each(|action| self.perform(action));
        self.row.credits_out.note(self.in_flight == self.scenario.limits.credits, now);
        if self.scenario.check {
            self.note(accounts_balance(&self.coordinator.accounts()));
        }
        self.set_alarm(now);
    }

    fn set_alarm(&mut self, now: Duration) {
        let Some(deadline) = self.coordinator.deadline(now) else { return };
        if self.next_tick.is_none_or(|tick| deadline < tick) {
            self.next_tick = Some(deadline);
            self.events.post(deadline, Mail::Tick);
        }
    }

    fn perform(&mut self, action: Action) {
        match action {
            Action::Opened { session, reuse } => self.answer(session, session::Event::Opened(reuse)),
            Action::Refused { session, refusal } => self.answer(session, session::Event::Refused(refusal)),
            Action::Send { step, .. } => self.send(step),
            Action::Outcome { session, outcome, position, drafts } => {
                self.answer(session, session::Event::Outcome { outcome, position, drafts });
            }
            Action::Interrupted { session } => {
                let position = self.clients.get(&client(session)).map_or(0, |client| client.position);
                self.outages.interrupted(position);
                self.answer(session, session::Event::Interrupted);
            }
            Action::Paused { session } => self.answer(session, session::Event::Interrupted),
            Action::Cancel { session } => {
                let at = self.events.now() + self.scenario.message;
                self.events.post(at, Mail::Row(self.row.epoch, RowEvent::Cancel(session)));
            }
            // Nobody holds a row here, so none is ever still; nor are there disks.
            Action::Closed { .. } | Action::Still { .. } | Action::Order { .. } => {}
            Action::Lost { session, loss } => self.answer(session, session::Event::Lost(loss)),
        }
    }

    fn send(&mut self, step: Step) {
        self.in_flight += 1;
        if self.scenario.check {
            let followed = self.stream.follow(&step);
            self.note(followed);
        }
        if let Some((at, event)) = self.row.send(step, self.events.now()) {
            self.events.post(at, Mail::Row(self.row.epoch, event));
        }
    }

    fn answer(&mut self, session: SessionId, event: session::Event) {
        self.events.post(self.events.now() + self.scenario.message, Mail::Session(client(session), event));
    }

    fn in_row(&mut self, event: RowEvent) {
        if let RowEvent::Done(done) = event {
            return self.tell_coordinator(Event::Done(done));
        }
        let mut later = Later::new();
        self.row.on(event, self.events.now(), self.times, &mut later);
        for (at, event) in later {
            self.events.post(at, Mail::Row(self.row.epoch, event));
        }
    }

    fn note(&mut self, checked: Result<(), Broken>) {
        if let Err(broken) = checked {
            self.broken.get_or_insert(broken);
        }
    }

    /// What must be true when everybody has gone.
    fn check_end(&self) -> Result<(), Error> {
        let (seed, at) = (self.scenario.seed, self.events.now());
        if !self.clients.is_empty() {
            return Err(Error::Stuck { seed, at, sessions: self.clients.len() });
        }
        let accounts = self.coordinator.accounts();
        let Accounts { pages, pages_free, pages_reserved, slots, slots_free, steps, waiting, interrupted, .. } =
            accounts;
        let rest = [
            (pages - pages_free, "pages"),
            (pages_reserved, "reserved pages"),
            (slots - slots_free, "slots"),
            (steps, "credits"),
            (waiting + interrupted, "places in the queue"),
            (self.tally.ends.begun.abs_diff(self.tally.ends.ended()) as usize, "sessions"),
        ];
        match rest.into_iter().find(|(held, _)| *held > 0) {
            Some((held, what)) => Err(Error::Leak { seed, what: format!("{held} {what}") }),
            None => Ok(()),
        }
    }
}

fn new_session(visit: &Visit, context: usize) -> Session {
    let goal = TokenGoal {
        end_tokens: [].into(),
        ignore_end: true,
        stop_tokens: [].into(),
        max_tokens: Some(visit.answer),
        context,
    };
    Session::new(Request {
        prompt: vec![0; visit.prompt],
        boundaries: Vec::new(),
        sampling: SamplingSettings::default(),
        drafts: DraftSettings::NONE,
        goal: Goal::Tokens(goal),
    })
}
