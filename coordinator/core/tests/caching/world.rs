//! Conversations that are begun, gone on with, branched, repeated and cancelled while the row's memory is too small for
//! them, fails, and moves.

#[path = "disks.rs"]
mod disks;

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use disks::Disks;
use paceline_core::coordinator::{Action, Event};
use paceline_core::drafts::{Draft, DraftSettings};
use paceline_core::invariants::{StepStream, SymbolicStage, accounts_balance, next_token};
use paceline_core::session::{self, FinishReason, Goal, Request, TokenGoal};
use paceline_core::{Coordinator, Limits, Session};
use paceline_proto::{EntryKey, Epoch, PageId, SamplingSettings, SessionId, Slot, Step};
use uuid::Uuid;

/// Conversations that may be gone on with.
const CONVERSATIONS: usize = 24;

/// What happened.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) sessions: u64,
    pub(crate) whole: u64,
    pub(crate) cancelled: u64,
    pub(crate) cached_tokens: u64,
    pub(crate) run_tokens: u64,
    pub(crate) evicted_pages: u64,
    pub(crate) evicted_snapshots: u64,
    pub(crate) failures: u64,
    pub(crate) switches: u64,
    pub(crate) pauses: u64,
    pub(crate) drafts: u64,
    pub(crate) accepted: u64,
    pub(crate) kept: u64,
    pub(crate) fetched: u64,
    pub(crate) not_fetched: u64,
    pub(crate) disk_tokens: u64,
}

impl Tally {
    pub(crate) fn add(&mut self, other: Self) {
        self.sessions += other.sessions;
        self.whole += other.whole;
        self.cancelled += other.cancelled;
        self.cached_tokens += other.cached_tokens;
        self.run_tokens += other.run_tokens;
        self.evicted_pages += other.evicted_pages;
        self.evicted_snapshots += other.evicted_snapshots;
        self.failures += other.failures;
        self.switches += other.switches;
        self.pauses += other.pauses;
        self.drafts += other.drafts;
        self.accepted += other.accepted;
        self.kept += other.kept;
        self.fetched += other.fetched;
        self.not_fetched += other.not_fetched;
        self.disk_tokens += other.disk_tokens;
    }
}

/// Xorshift.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize % bound
    }

    fn tokens(&mut self, most: usize) -> Vec<u32> {
        (0..=self.below(most)).map(|_| self.below(3) as u32).collect()
    }
}

struct Client {
    core: Session,
    prompt: Vec<u32>,
    got: Vec<u32>,
}

pub(crate) struct World {
    random: Random,
    limits: Limits,
    coordinator: Coordinator,
    stage: SymbolicStage,
    disks: Disks,
    stream: StepStream,
    clients: BTreeMap<SessionId, Client>,
    /// All tokens of those who have left: a step that opens one may be under way.
    left: BTreeMap<SessionId, Vec<u32>>,
    under_way: VecDeque<Step>,
    /// What the coordinator is to be told, in order; what one event causes comes behind all that it says.
    events: VecDeque<Event>,
    busy: bool,
    still: Option<(Vec<PageId>, Vec<Slot>)>,
    conversations: Vec<Vec<u32>>,
    now: Duration,
    epoch: u32,
    tally: Tally,
}

impl World {
    /// So many operations; returns what happened when everything has come to its end.
    pub(crate) fn run(seed: u64, operations: usize) -> Tally {
        let run = || {
            let mut world = Self::new(seed);
            (0..operations).for_each(|_| world.operate());
            world.end()
        };
        catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
            eprintln!("seed {seed} fails");
            resume_unwind(panic)
        })
    }

    fn new(seed: u64) -> Self {
        let mut random = Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (stages, page_tokens) = (1 + random.below(3), 1 + random.below(20));
        let (context, slots) = (150, 1 + random.below(5));
        let pages = 150usize.div_ceil(page_tokens) + random.below(400usize.div_ceil(page_tokens));
        let limits = Limits {
            snapshots: random.below(12),
            has_states: random.below(4) > 0,
            snapshot_stride: 8 + random.below(60),
            growth_tokens: random.below(20),
            restores: 3,
            step_deadline: None,
            disk: (random.below(4) > 0).then(|| EntryKey::root(&[0; 32], "")),
            prefill_rows: 4 + random.below(60),
            run_ahead: random.below(2) == 0,
            gather: Duration::ZERO,
            step_wanted: 2 + random.below(20),
            log_sessions: random.below(4),
            log_tokens: random.below(8),
            ..Limits::new(stages, slots, pages, page_tokens, context)
        };
        Self {
            random,
            coordinator: Coordinator::new(Epoch(0), limits.clone()),
            stage: SymbolicStage::new(&limits),
            stream: StepStream::new(&limits),
            disks: Disks::new(stages, page_tokens),
            limits,
            clients: BTreeMap::new(),
            left: BTreeMap::new(),
            under_way: VecDeque::new(),
            events: VecDeque::new(),
            busy: false,
            still: None,
            conversations: vec![vec![1]],
            now: Duration::ZERO,
            epoch: 0,
            tally: Tally::default(),
        }
    }

    fn operate(&mut self) {
        let which = self.random.below(self.conversations.len());
        let known = self.conversations[which].clone();
        match self.random.below(1000) {
            0..40 => {
                let prompt = self.random.tokens(90);
                self.submit(prompt);
            }
            40..110 => {
                let more = self.random.tokens(40);
                self.submit([known, more].concat());
            }
            110..170 => {
                let cut = self.random.below(known.len() + 1);
                let other = self.random.tokens(30);
                self.submit([&known[..cut], &other].concat());
            }
            170..200 => self.submit(known),
            200..215 => (0..3).for_each(|_| self.submit(known.clone())),
            215..245 => self.cancel(),
            245..250 => self.fail(),
            250..258 => self.on(Event::Hold),
            258..266 => drop(self.coordinator.forget(&known)),
            266..270 => drop(self.coordinator.pin(&known)),
            270..274 => drop(self.coordinator.unpin(&known)),
            274..280 => self.disks.lose(self.random.below(1000)),
            280..480 => self.use_disks(),
            _ => self.step(),
        }
    }

    fn submit(&mut self, prompt: Vec<u32>) {
        self.tally.sessions += 1;
        let id = SessionId(Uuid::from_u128(u128::from(self.tally.sessions)));
        let goal = TokenGoal {
            end_tokens: [].into(),
            ignore_end: false,
            stop_tokens: [].into(),
            max_tokens: Some(1 + self.random.below(25)),
            context: self.limits.context,
        };
        let boundaries = (0..self.random.below(3)).map(|_| self.random.below(prompt.len() + 2)).collect();
        let (goal, sampling) = (Goal::Tokens(goal), SamplingSettings::default());
        let core =
            Session::new(Request { prompt: prompt.clone(), boundaries, sampling, drafts: DraftSettings::NONE, goal });
        self.clients.insert(id, Client { core, prompt, got: Vec::new() });
        self.tell(id, session::Event::Begin);
    }

    fn cancel(&mut self) {
        if !self.clients.is_empty() {
            let which = self.random.below(self.clients.len());
            let id = *self.clients.keys().nth(which).expect("one of them");
            self.tell(id, session::Event::ClientLeft);
        }
    }

    /// The row fails, and another one takes its place at once or later.
    fn fail(&mut self) {
        self.tally.failures += 1;
        self.under_way.clear();
        self.still = None;
        self.disks.lose_orders();
        self.on(Event::Failed { stage: 0, reason: "gone".into() });
        self.epoch += 1;
        self.stage = SymbolicStage::new(&self.limits);
        self.stream = StepStream::new(&self.limits);
        self.on(Event::Reset { epoch: Epoch(self.epoch), limits: Box::new(self.limits.clone()) });
    }

    /// The oldest step comes back, or a row that is still moves or goes on, or time passes.
    fn step(&mut self) {
        self.now += Duration::from_millis(1);
        if let Some(step) = self.under_way.pop_front() {
            let (clients, left) = (&self.clients, &self.left);
            let here = |id: SessionId| clients.get(&id).map(|one| [&one.prompt[..], &one.got].concat());
            let done = self.stage.run(&step, |id| here(id).unwrap_or_else(|| left[&id].clone()));
            return self.on(Event::Done(done.unwrap_or_else(|broken| panic!("{broken}"))));
        }
        if let Some((pages, slots)) = self.still.take() {
            if self.random.below(3) == 0 {
                return self.on(Event::Resume);
            }
            self.tally.switches += 1;
            self.epoch += 1;
            self.stage = self.stage.moved(&self.limits, &pages, &slots);
            self.disks.lose_orders();
            let limits = Box::new(self.limits.clone());
            return self.on(Event::Switch { epoch: Epoch(self.epoch), limits });
        }
        if self.disks.waiting() > 0 && self.random.below(20) > 0 {
            return self.use_disks();
        }
        if let Some(deadline) = self.coordinator.deadline(self.now) {
            self.now = self.now.max(deadline);
            self.on(Event::Tick);
        }
    }

    /// A stage's disk tier carries out an order.
    fn use_disks(&mut self) {
        if self.disks.waiting() > 0 {
            let (which, chance) = (self.random.below(self.disks.waiting()), self.random.below(1000));
            let (stage, answer) = self.disks.carry_out(which, chance, &mut self.stage);
            self.on(Event::Tier { stage, answer });
        }
    }

    fn on(&mut self, event: Event) {
        self.events.push_back(event);
        if std::mem::replace(&mut self.busy, true) {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            self.perform(event);
        }
        self.busy = false;
    }

    fn perform(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.coordinator.on(event, self.now, &mut actions);
        assert_eq!(accounts_balance(&self.coordinator.accounts()), Ok(()));
        for action in actions {
            match action {
                Action::Send { step, .. } => {
                    assert_eq!(self.stream.follow(&step), Ok(()));
                    self.under_way.push_back(step);
                }
                Action::Opened { session, reuse } => {
                    self.tally.cached_tokens += reuse.cached as u64;
                    self.tell(session, session::Event::Opened(reuse));
                }
                Action::Interrupted { session } | Action::Paused { session } => {
                    self.tell(session, session::Event::Interrupted);
                }
                Action::Outcome { session, outcome, position, drafts } => {
                    self.tell(session, session::Event::Outcome { outcome, position, drafts });
                }
                Action::Refused { session, refusal } => self.tell(session, session::Event::Refused(refusal)),
                Action::Lost { session, loss } => self.tell(session, session::Event::Lost(loss)),
                Action::Cancel { session } => self.stage.cancel(session),
                Action::Order { stage, order } => {
                    if let Some(answer) = self.disks.order(stage, order, &mut self.stage) {
                        self.on(Event::Tier { stage, answer });
                    }
                }
                Action::Still { pages, slots } => self.still = Some((pages, slots)),
                Action::Closed { .. } => {}
            }
        }
    }

    fn tell(&mut self, id: SessionId, event: session::Event) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        let mut actions = Vec::new();
        client.core.on(event, &mut actions);
        for action in actions {
            match action {
                session::Action::Open(opening) => self.on(Event::Open { session: id, opening }),
                session::Action::Want(mut wish) => {
                    wish.drafts = self.guess(id);
                    self.on(Event::Want { session: id, wish });
                }
                session::Action::Leave => self.on(Event::Leave { session: id }),
                session::Action::Emit(sampled) => {
                    self.clients.get_mut(&id).expect("it is here").got.push(sampled.token);
                }
                session::Action::Vector(_) => unreachable!("nobody wants vectors"),
                session::Action::Finish(finish) => self.finished(id, &finish.reason),
            }
        }
    }

    /// Some tokens that follow, and perhaps one that does not.
    fn guess(&mut self, id: SessionId) -> Vec<Draft> {
        let client = &self.clients[&id];
        let mut tokens = [&client.prompt[..], &client.got].concat();
        let mut drafts = Vec::new();
        for _ in 0..self.random.below(9) {
            let token = next_token(&tokens) + u32::from(self.random.below(6) == 0);
            tokens.push(token);
            drafts.push(Draft { token, chance: self.random.below(100) as f32 / 100.0 });
        }
        drafts
    }

    fn finished(&mut self, id: SessionId, reason: &FinishReason) {
        let Client { prompt, got, .. } = self.clients.remove(&id).expect("it ends once");
        let mut tokens = prompt;
        for token in got {
            assert_eq!(token, next_token(&tokens), "{id} got another token at {}", tokens.len());
            tokens.push(token);
        }
        match reason {
            FinishReason::Length => self.tally.whole += 1,
            FinishReason::Cancelled => self.tally.cancelled += 1,
            FinishReason::Refused(_) | FinishReason::Lost(_) => {}
            FinishReason::Stop => panic!("there are no end tokens"),
        }
        self.left.insert(id, tokens.clone());
        tokens.truncate(self.limits.context - 10);
        if self.conversations.len() == CONVERSATIONS {
            let which = self.random.below(CONVERSATIONS);
            self.conversations.swap_remove(which);
        }
        self.conversations.push(tokens);
    }

    /// Lets everything come to its end, and counts.
    fn end(mut self) -> Tally {
        for _ in 0..100_000 {
            let waits = !self.under_way.is_empty() || self.still.is_some() || self.disks.waiting() > 0;
            if self.clients.is_empty() && !waits {
                break;
            }
            self.step();
        }
        assert!(self.clients.is_empty(), "{:?}", self.coordinator.status());
        let (status, accounts) = (self.coordinator.status(), self.coordinator.accounts());
        assert_eq!((status.running, accounts.running, status.waiting), (0, 0, 0));
        assert_eq!(self.stage.open_sessions(), 0, "a session was not closed on the stages");
        assert_eq!(status.index.pages, accounts.pages - accounts.pages_free, "what is held is the index's");
        assert_eq!(status.index.snapshots, accounts.snapshots - accounts.snapshots_free);
        assert_eq!((accounts.slots_free, accounts.pages_reserved), (accounts.slots, 0));
        let tally = Tally {
            run_tokens: self.stage.rows,
            evicted_pages: status.index.evicted_pages,
            evicted_snapshots: status.index.evicted_snapshots,
            pauses: status.pauses,
            drafts: status.speculation.drafts,
            accepted: status.speculation.accepted,
            kept: status.disk.as_ref().map_or(0, |disk| disk.counts.kept),
            fetched: status.disk.as_ref().map_or(0, |disk| disk.counts.fetched),
            not_fetched: status.disk.as_ref().map_or(0, |disk| disk.counts.not_fetched),
            disk_tokens: status.cache.disk_tokens,
            ..self.tally
        };
        self.fail();
        let accounts = self.coordinator.accounts();
        assert_eq!((accounts.pages_free, accounts.snapshots_free), (accounts.pages, accounts.snapshots));
        tally
    }
}
