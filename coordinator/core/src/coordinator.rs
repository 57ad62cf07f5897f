//! The coordinator's core: who runs, who waits, and what goes into the next step.
//!
//! Read [`Coordinator::on`]. The way of a session: `Open` puts it into the admission queue; when a slot and pages
//! for its tokens are free it is `Opened`; each `Want` brings tokens that it wants run; the scheduler cuts them
//! into chunks and sends steps while credits last; a step's `Done` returns its credit and brings outcomes; `Leave`
//! ends it, wherever it is. `coordinator/compose.rs` says how a step's chunks are chosen, `coordinator/caching.rs` how
//! sessions use what others have computed and leave what they have, `coordinator/positions.rs` where states are kept,
//! `coordinator/following.rs` how those who begin alike wait for the first, `coordinator/tiers.rs` what goes to disks and
//! comes back, `coordinator/growing.rs` how sessions get pages as they grow, `coordinator/running.rs` how run-ahead works,
//! `coordinator/speculation.rs` how drafts are run, `coordinator/ahead.rs` how further ones follow them before it is known
//! what became of them, `coordinator/restoring.rs` how sessions outlive their row,
//! `coordinator/switching.rs` how another
//! row takes over while they run.

mod admission;
mod ahead;
mod caching;
mod compose;
mod following;
mod growing;
mod keeping;
mod loss;
mod overdue;
mod pace;
mod positions;
mod restoring;
mod results;
mod running;
mod speculation;
mod status;
mod switching;
#[cfg(test)]
mod tests;
mod tiers;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::{
    Epoch, Operation, Outcome, PageId, SamplingSettings, SessionId, Slot, Step, StepDone, TierAnswer, TierOrder, Wanted,
};

pub use admission::Refusal;
pub use keeping::{Forgotten, PinRefusal};
pub use loss::Loss;
pub use running::Misuse;
pub use speculation::SpeculationCounts;
pub use status::{Accounts, CacheCounts, DiskStatus, StageTotals, Status};

use crate::disk::Disk;
use crate::drafts::{Draft, Proposals, Trials};
use crate::limits::Limits;
use crate::pages::PagePool;
use crate::prefix::PrefixIndex;
use crate::reuse::Reuse;
use crate::slots::Slots;
use admission::Waiting;
use compose::InFlight;
use pace::Pace;
use running::Running;
use speculation::Probes;
use switching::Hold;

/// What the coordinator is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A session wants to run.
    Open {
        /// A name never used before, or that of an interrupted session.
        session: SessionId,
        /// What it asks for.
        opening: Opening,
    },
    /// A session that is `Opened` wants this run after what it wanted before. After a wish for a token or a
    /// vector it may wish again only when it has it; and when run-ahead is on, the wish after a token must be
    /// that token alone, to sample the next.
    Want {
        /// Whose.
        session: SessionId,
        /// What.
        wish: Wish,
    },
    /// A session is over: finished, or cancelled in the queue, in prefill or in decode. Unknown ones are ignored,
    /// since a session may leave while the news that it is lost is on its way.
    Leave {
        /// Whose.
        session: SessionId,
    },
    /// A step came back. Steps of an old epoch and unknown ones are counted and ignored.
    Done(StepDone),
    /// A stage is gone or in error, and the memory of all sessions with it: those that run are interrupted.
    Failed {
        /// Which, counted from 0.
        stage: usize,
        /// What it says.
        reason: String,
    },
    /// The row, which works, is over: it makes room for another one. Those that run are interrupted.
    Ended,
    /// A placement is in force: at its start everything is free. Whoever still runs is interrupted, and goes on in it.
    Reset {
        /// The placement's epoch.
        epoch: Epoch,
        /// Its bounds.
        limits: Box<Limits>,
    },
    /// Another row is to take over: no further step is sent, and `Still` follows when all are back.
    Hold,
    /// A row of the same memory has all that was in use when the row in force became still, and takes its place. Ignored
    /// unless [`Coordinator::is_still`], since a row that failed meanwhile is over.
    Switch {
        /// The new placement's epoch.
        epoch: Epoch,
        /// Its bounds.
        limits: Box<Limits>,
    },
    /// The disk tier of a stage answers an order.
    Tier {
        /// Which, counted from 0.
        stage: usize,
        /// What it says.
        answer: TierAnswer,
    },
    /// No other row takes over after all: the one that is held goes on.
    Resume,
    /// The moment that [`Coordinator::deadline`] named has come.
    Tick,
    /// The service ends: everybody is lost, and nobody is let in any more.
    Stop,
}

/// What a session asks for when it opens.
#[derive(Debug, Clone, PartialEq)]
pub struct Opening {
    /// All tokens that it has: until they are sent, its chunks count as prefill.
    pub tokens: Arc<[u32]>,
    /// How many of these tokens come before places where others are likely to branch off, ascending: where it is worth
    /// keeping a state. Advice; what lies outside the tokens is ignored.
    pub boundaries: Arc<[usize]>,
    /// Of these, the tokens of its prompt; the others it got before it was interrupted.
    pub prompt_tokens: usize,
    /// The most tokens it will ever have, prompt and answer together.
    pub token_limit: usize,
    /// How the tail chooses tokens.
    pub sampling: Box<SamplingSettings>,
    /// It was interrupted, and this is its answer to that.
    pub again: bool,
}

/// What the coordinator wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// The session has a slot and pages: it may want.
    Opened {
        /// Whose.
        session: SessionId,
        /// What of its tokens need not be run: it is to want those after the cached ones.
        reuse: Reuse,
    },
    /// The session will not run.
    Refused {
        /// Whose.
        session: SessionId,
        /// Why.
        refusal: Refusal,
    },
    /// Send this to the head.
    Send {
        /// The step.
        step: Step,
        /// The vectors of its `Rows` chunks, in chunk order; empty when all chunks are tokens.
        rows: Vec<f32>,
    },
    /// A chunk of the session came back.
    Outcome {
        /// Whose.
        session: SessionId,
        /// What came out.
        outcome: Outcome,
        /// How many of the session's tokens are now run: the place of a sampled token, of several of the last one.
        position: usize,
        /// How many drafts the chunk had.
        drafts: usize,
    },
    /// Give an order to the disk tier of a stage, which does not ride the steps. It must be answered.
    Order {
        /// Which, counted from 0.
        stage: usize,
        /// What it is to do.
        order: TierOrder,
    },
    /// Tell the stages that nobody waits for the session's chunks in flight.
    Cancel {
        /// Whose.
        session: SessionId,
    },
    /// The row that was to be held is still: nothing is under way, and the memory of its stages stands.
    Still {
        /// Pages in use, in ascending order.
        pages: Vec<PageId>,
        /// Slots in use, in ascending order.
        slots: Vec<Slot>,
    },
    /// The session makes room for those before it. It keeps its place, and is to open again as one that is interrupted.
    Paused {
        /// Whose.
        session: SessionId,
    },
    /// The session's row is over. It keeps its place, and is to open again with all the tokens it has; what it wants
    /// until then is ignored.
    Interrupted {
        /// Whose.
        session: SessionId,
    },
    /// The session left; its pages and its slot are free. Nothing about it follows.
    Closed {
        /// Whose.
        session: SessionId,
    },
    /// The session cannot go on; its pages and its slot are free. Nothing about it follows.
    Lost {
        /// Whose.
        session: SessionId,
        /// Why.
        loss: Loss,
    },
}

/// Something a session wants run.
#[derive(Debug, Clone, PartialEq)]
pub struct Wish {
    /// What to run.
    pub input: Input,
    /// What is wanted of the last row.
    pub wanted: Wanted,
    /// Guesses at the tokens behind these, in order. As many of them are run along as pay. Only with tokens of which the
    /// next one is wanted.
    pub drafts: Vec<Draft>,
    /// Guesses that the tail is to make behind the last token that it samples.
    pub proposals: Proposals,
}

impl Wish {
    /// Without any guesses.
    pub fn new(input: Input, wanted: Wanted) -> Self {
        Self { input, wanted, drafts: Vec::new(), proposals: Proposals::default() }
    }
}

/// Rows to run.
#[derive(Debug, Clone, PartialEq)]
pub enum Input {
    /// Tokens.
    Tokens(Vec<u32>),
    /// Vectors in place of token embeddings.
    Rows {
        /// One per row: time, height, width, and a fourth that is 0.
        positions: Vec<[u32; 4]>,
        /// `(rows, width)`.
        values: Vec<f32>,
    },
}

impl Input {
    /// How many rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Tokens(tokens) => tokens.len(),
            Self::Rows { positions, .. } => positions.len(),
        }
    }
}

/// Owns pages, slots, the admission queue, the credits and the choice of every step. See the module's text.
#[derive(Debug)]
pub struct Coordinator {
    limits: Limits,
    epoch: Epoch,
    /// The number of the next step.
    next_step: u64,
    pages: PagePool,
    slots: Slots,
    /// In order of arrival, which is the order of admission too: an interrupted session is where it was.
    waiting: BTreeMap<u64, Waiting>,
    /// Sessions that arrived.
    arrivals: u64,
    running: BTreeMap<SessionId, Running>,
    /// Sessions that left, and whose last row is under way or about to be.
    lingering: BTreeMap<SessionId, Running>,
    /// What the row's memory knows beyond the sessions that run.
    index: PrefixIndex,
    /// Sessions that have a token and have not answered, by when they got it.
    unanswered: BTreeSet<(Duration, SessionId)>,
    /// Closes that go with the next step, and what it installs.
    closes: Vec<Operation>,
    /// What the stages keep on disks.
    disk: Option<Disk>,
    /// What of the index they may lack, the oldest first.
    unkept: VecDeque<tiers::Unkept>,
    /// The ticket of the first order of the next row.
    tickets: u64,
    /// Each holds a credit; oldest first.
    steps: VecDeque<InFlight>,
    /// When a step last came back, or was sent while none was in flight.
    moved: Duration,
    pace: Pace,
    probes: Probes,
    trials: Trials,
    hold: Hold,
    /// Why nothing can run until a new placement is in force.
    broken: Option<Loss>,
    counts: status::Counts,
}

impl Coordinator {
    /// A coordinator of a placement at whose start everything is free.
    ///
    /// # Panics
    /// With limits that [`Limits::check`] refuses.
    pub fn new(epoch: Epoch, limits: Limits) -> Self {
        limits.check().expect("limits are checked where they are configured");
        Self {
            epoch,
            next_step: 0,
            pages: PagePool::new(limits.pages),
            slots: Slots::new(limits.slots, limits.snapshots),
            waiting: BTreeMap::new(),
            arrivals: 0,
            running: BTreeMap::new(),
            lingering: BTreeMap::new(),
            index: PrefixIndex::new(limits.pages, limits.page_tokens, limits.has_states),
            unanswered: BTreeSet::new(),
            closes: Vec::new(),
            disk: None,
            unkept: VecDeque::new(),
            tickets: 0,
            steps: VecDeque::new(),
            moved: Duration::ZERO,
            pace: Pace::default(),
            probes: Probes::default(),
            trials: Trials::default(),
            hold: Hold::No,
            broken: None,
            counts: status::Counts::default(),
            limits,
        }
    }

    /// A coordinator without a placement: it lets nobody in until a `Reset` brings one.
    pub fn unplaced() -> Self {
        Self { broken: Some(Loss::Unplaced), ..Self::new(Epoch::default(), Limits::new(1, 1, 1, 1, 1)) }
    }

    /// Takes in one event at the time `now`, measured from any fixed moment, and appends what is to be done.
    pub fn on(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        self.begin_disk(now);
        match event {
            Event::Open { session, opening } if opening.again => self.reopen(session, opening, actions),
            Event::Open { session, opening } => self.open(session, opening, now, actions),
            Event::Want { session, wish } => self.want(session, wish, now, actions),
            Event::Leave { session } => self.leave(session, actions),
            Event::Done(done) => self.done(done, now, actions),
            Event::Failed { stage, reason } => self.fail(Loss::Stage { stage, reason }, now, actions),
            Event::Ended => self.fail(Loss::Ended, now, actions),
            Event::Reset { epoch, limits } => self.reset(epoch, *limits, now, actions),
            Event::Hold => self.hold(),
            Event::Switch { epoch, limits } => self.switch(epoch, *limits, now, actions),
            Event::Tier { stage, answer } => self.tier_answers(stage, answer),
            Event::Resume => self.resume(),
            Event::Tick => {}
            Event::Stop => self.stop(actions),
        }
        self.begin_followers(actions);
        self.admit(actions);
        self.expire(now, actions);
        self.expect_results(now, actions);
        self.send_steps(now, actions);
        self.come_to_rest(now, actions);
        self.use_disk(actions);
        debug_assert_eq!(crate::invariants::accounts_balance(&self.accounts()), Ok(()));
    }

    /// When to send a `Tick` if nothing else happens before. To be asked anew after every event.
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let queue = self.waiting.values().filter_map(|waiting| waiting.due(&self.limits));
        let gather = self.unanswered.iter().map(|(since, _)| *since + self.limits.gather).find(|end| *end > now);
        let disk = self.disk.as_ref().and_then(Disk::deadline);
        queue.chain(gather).chain(self.overdue_at()).chain(disk).min()
    }

    /// The bounds of the placement in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Why nothing can run: the stages must be placed anew, and a `Reset` sent. To be asked after `Done` too, since
    /// results that do not belong to what was sent break the row as a failed stage does.
    pub fn broken(&self) -> Option<&Loss> {
        self.broken.as_ref()
    }

    fn want(&mut self, session: SessionId, wish: Wish, now: Duration, actions: &mut Vec<Action>) {
        let Some(running) = self.running.get_mut(&session) else {
            if self.waiting.values().any(|waiting| waiting.session == session && waiting.opening.is_some()) {
                self.lose(session, Misuse::NotOpened.into(), actions);
            }
            return; // it left, or was lost or interrupted while its wish was on its way
        };
        if let Some(since) = running.answered() {
            self.unanswered.remove(&(since, session));
        }
        match running.want(wish) {
            Ok(None) => {}
            Ok(Some(held)) => self.deliver(session, held, now, actions),
            Err(misuse) => self.lose(session, misuse.into(), actions),
        }
    }

    fn leave(&mut self, session: SessionId, actions: &mut Vec<Action>) {
        if self.remove(session, actions) {
            actions.push(Action::Closed { session });
        }
    }

    fn lose(&mut self, session: SessionId, loss: Loss, actions: &mut Vec<Action>) {
        if self.remove(session, actions) {
            actions.push(Action::Lost { session, loss });
        }
    }

    /// Takes a session out, wherever it is. Its pages and its slot are free or the cache's at once, even while chunks of it are
    /// in flight: whoever gets them next does so in a later step, and every stage runs the steps in order.
    fn remove(&mut self, session: SessionId, actions: &mut Vec<Action>) -> bool {
        let place = self.waiting.iter().find(|(_, waiting)| waiting.session == session);
        if let Some(number) = place.map(|(number, _)| *number) {
            self.waiting.remove(&number);
            return true;
        }
        let Some(mut running) = self.running.remove(&session) else { return false };
        if let Some(since) = running.unanswered_since() {
            self.unanswered.remove(&(since, session));
        }
        if self.lingers(session, &running) || self.settles(session, &mut running) {
            self.lingering.insert(session, running);
            return true;
        }
        if self.in_flight(session) {
            actions.push(Action::Cancel { session });
        }
        if running.opened() {
            self.closes.push(Operation::Close { session });
        }
        self.shelve(running);
        true
    }

    /// Whether a step in flight has a chunk of the session.
    fn in_flight(&self, session: SessionId) -> bool {
        self.steps.iter().any(|step| step.chunks.iter().any(|chunk| chunk.session == session))
    }
}
