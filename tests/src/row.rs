//! A whole row without its actors: the coordinator's core, the sessions' cores, and real stages between which frames
//! travel as bytes. One thread, no clock, no sockets: what comes out depends on nothing but the scheduler's choices.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{Device, LogSpec, MemorySpec};
use paceline_core::coordinator::{Action, Event, Status};
use paceline_core::drafts::{CHUNKS_UNDER_WAY, Draft, DraftSettings};
use paceline_core::session::{Action as SessionAction, Event as SessionEvent, Finish, Goal, Request, TokenGoal};
use paceline_core::{Coordinator, Limits, Session};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_model::StageLayers;
use paceline_proto::{
    Chunk, ChunkResult, EntryKey, Epoch, Frame, Payload, Reply, SamplingSettings, SessionId, Step, StepDone,
};
use paceline_shard::{Feedback, Passed, Place, SharedStage, Stage, feedback};
use uuid::Uuid;

use crate::disks::Disks;
use crate::exactness::splits;

/// How a row is laid out.
#[derive(Debug, Clone)]
pub struct RowLayout {
    /// Stages.
    pub shards: usize,
    /// Send a session's next step before its token is back.
    pub run_ahead: bool,
    /// Sessions that run at once; more wait.
    pub slots: usize,
    /// Rows of a prompt in a step.
    pub prefill_rows: usize,
    /// Tokens of a session.
    pub context: usize,
    /// Tokens of all sessions together, if not of so many as can run at once.
    pub kv_tokens: Option<usize>,
    /// Tokens for which a session reserves pages on top of those it has.
    pub growth_tokens: usize,
    /// Keep what was computed for whoever begins alike.
    pub caches: bool,
    /// States kept besides those of the sessions.
    pub snapshots: usize,
    /// How far apart they are in long prompts.
    pub snapshot_stride: usize,
    /// How keys and values are stored.
    pub key_value_type: KvType,
    /// Drafts of a chunk, from [`Row::guesses`]; two sessions may have some, and some more in chunks sent ahead.
    pub drafts: usize,
    /// The folder and the bytes of a disk tier. It outlives the stages.
    pub disk: Option<(PathBuf, u64)>,
    /// The stages' devices.
    pub devices: Devices,
}

/// Devices that are dealt out to stages in turn; without any, all have one thread of the CPU.
#[derive(Clone, Default)]
pub struct Devices(pub Vec<Arc<dyn Device>>);

impl fmt::Debug for Devices {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.iter().map(|device| device.describe().name)).finish()
    }
}

/// Says what a session may get next, when it has so many tokens of its answer.
pub type Guesses = Box<dyn FnMut(SessionId, usize) -> Vec<Draft>>;

impl Default for RowLayout {
    fn default() -> Self {
        Self {
            shards: 1,
            run_ahead: false,
            slots: 4,
            prefill_rows: 32,
            context: 256,
            kv_tokens: None,
            growth_tokens: 16,
            caches: false,
            snapshots: 0,
            snapshot_stride: 64,
            key_value_type: KvType::F16,
            drafts: 0,
            disk: None,
            devices: Devices::default(),
        }
    }
}

impl RowLayout {
    fn limits(&self, model: &Gguf) -> Limits {
        let shape = ModelShape::read(model).expect("the model's shape");
        let page_tokens = 16;
        let all = self.slots * self.context.div_ceil(page_tokens);
        let pages = self.kv_tokens.map_or(all, |tokens| tokens.div_ceil(page_tokens));
        let usual = Limits::new(self.shards, self.slots, pages, page_tokens, self.context);
        Limits {
            log_sessions: self.slots.min(2),
            log_tokens: self.drafts * CHUNKS_UNDER_WAY,
            chunk_drafts: self.drafts,
            step_wanted: usual.step_wanted + 2 * self.drafts,
            run_ahead: self.run_ahead,
            prefill_rows: self.prefill_rows,
            growth_tokens: self.growth_tokens,
            // Without snapshots a model with states keeps nothing.
            snapshots: if self.caches { self.snapshots } else { 0 },
            has_states: !self.caches || shape.state_bytes(0..shape.layers.len()) > 0,
            snapshot_stride: self.snapshot_stride,
            disk: self.disk.as_ref().map(|_| EntryKey::root(&[0; 32], &self.key_value_type.to_string())),
            ..usual
        }
    }

    fn memory(&self, limits: &Limits) -> MemorySpec {
        MemorySpec {
            page_tokens: limits.page_tokens,
            pages: limits.pages,
            slots: limits.slots + limits.snapshots,
            key_type: self.key_value_type,
            value_type: self.key_value_type,
            rows: limits.step_rows,
            wanted: limits.step_wanted,
            logs: LogSpec { sessions: limits.log_sessions, tokens: limits.log_tokens },
        }
    }
}

/// What became of a session.
#[derive(Debug, Default)]
pub struct Answer {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// The bits of the logits from which each token was chosen, and maybe one that was computed and never told.
    pub logits: Vec<Vec<u32>>,
    /// How it ended.
    pub finish: Option<Finish>,
}

struct Talk {
    core: Session,
    prompt_tokens: usize,
    answer: Answer,
}

/// Cores and stages.
pub struct Row {
    model: Arc<Gguf>,
    epoch: Epoch,
    coordinator: Coordinator,
    stages: Vec<SharedStage>,
    disks: Option<Disks>,
    talks: BTreeMap<SessionId, Talk>,
    under_way: VecDeque<Frame>,
    /// What the coordinator is still to be told: what an event causes comes behind all that it says.
    events: VecDeque<Event>,
    is_told: bool,
    now: Duration,
    context: usize,
    /// What sessions think comes next, instead of what they find in their texts.
    pub guesses: Option<Guesses>,
    /// Chunks that came back void, because of a cancel or because they were sent ahead in vain.
    pub void_chunks: usize,
}

impl Row {
    /// Loads the model's stages.
    ///
    /// # Panics
    /// If they cannot be loaded.
    pub fn new(model: &Arc<Gguf>, layout: &RowLayout) -> Row {
        let (limits, epoch) = (layout.limits(model), Epoch::default());
        let (stages, disks) = load_with_disks(model, layout, &limits, epoch);
        let mut row = Row {
            model: Arc::clone(model),
            epoch,
            stages,
            disks,
            coordinator: Coordinator::new(epoch, limits),
            talks: BTreeMap::new(),
            under_way: VecDeque::new(),
            events: VecDeque::new(),
            is_told: false,
            now: Duration::ZERO,
            context: layout.context,
            guesses: None,
            void_chunks: 0,
        };
        row.on(Event::Tick);
        row
    }

    /// Starts a session that generates `tokens` tokens after the prompt, whatever they are.
    pub fn start(&mut self, number: u128, prompt: &[u32], tokens: usize, sampling: SamplingSettings) -> SessionId {
        self.start_with(number, prompt, &[], tokens, sampling)
    }

    /// The same with positions in the prompt at which a state is worth keeping.
    pub fn start_with(
        &mut self,
        number: u128,
        prompt: &[u32],
        boundaries: &[usize],
        tokens: usize,
        sampling: SamplingSettings,
    ) -> SessionId {
        let id = SessionId(Uuid::from_u128(number));
        let goal = Goal::Tokens(TokenGoal {
            end_tokens: [].into(),
            ignore_end: false,
            stop_tokens: [].into(),
            max_tokens: Some(tokens),
            context: self.context,
        });
        let core = Session::new(Request {
            prompt: prompt.to_vec(),
            boundaries: boundaries.to_vec(),
            sampling,
            drafts: DraftSettings::NONE,
            goal,
        });
        self.talks.insert(id, Talk { core, prompt_tokens: prompt.len(), answer: Answer::default() });
        self.tell(id, SessionEvent::Begin);
        id
    }

    /// The client of a session leaves.
    pub fn leave(&mut self, id: SessionId) {
        self.tell(id, SessionEvent::ClientLeft);
    }

    /// Every stage is gone, and what was under way; the coordinator hears of it.
    pub fn fail(&mut self) {
        // The folder is free when the tier's thread has ended.
        self.disks = None;
        self.stages.clear();
        self.under_way.clear();
        self.on(Event::Failed { stage: 0, reason: "its process was killed".to_owned() });
    }

    /// Puts other stages in the place of those there are: from scratch, under a new epoch.
    ///
    /// # Panics
    /// If they cannot be loaded.
    pub fn replace(&mut self, layout: &RowLayout) {
        let limits = layout.limits(&self.model);
        self.epoch.0 += 1;
        self.under_way.clear();
        self.disks = None;
        (self.stages, self.disks) = load_with_disks(&self.model, layout, &limits, self.epoch);
        self.on(Event::Reset { epoch: self.epoch, limits: Box::new(limits) });
    }

    /// Runs the oldest step that is under way; false if there is none.
    ///
    /// # Panics
    /// If a stage fails.
    pub fn step(&mut self) -> bool {
        let idle = self.under_way.is_empty();
        if let Some((stage, answer)) = self.disks.as_mut().and_then(|disks| disks.answer(idle)) {
            self.on(Event::Tier { stage, answer });
            return true;
        }
        let Some(frame) = self.under_way.pop_front() else { return self.tick() };
        self.now += Duration::from_millis(1);
        let done = self.pass(frame);
        self.on(Event::Done(done));
        true
    }

    /// Runs until nothing is left to do.
    pub fn finish(&mut self) {
        while self.step() {}
    }

    /// What became of a session.
    ///
    /// # Panics
    /// If there is no such session.
    pub fn answer(&self, id: SessionId) -> &Answer {
        &self.talks[&id].answer
    }

    /// Is every page, every slot and every stage's memory of sessions free again, or the cache's?
    pub fn is_clean(&self) -> bool {
        let status = self.coordinator.status();
        let empty = |stage: &SharedStage| stage.open_sessions().is_empty();
        let idle = status.running == 0 && status.waiting == 0 && status.pages_used == 0;
        idle && self.stages.iter().all(empty)
    }

    /// What the coordinator says of itself.
    pub fn status(&self) -> Status {
        self.coordinator.status()
    }

    /// Forgets what became of a session that is over.
    pub fn forget(&mut self, id: SessionId) -> Option<Answer> {
        self.talks.remove(&id).map(|talk| talk.answer)
    }

    /// How often a session made room for others.
    pub fn pauses(&self) -> u64 {
        self.coordinator.status().pauses
    }

    /// Rows that were sent before the token they begin with was back.
    pub fn run_ahead_tokens(&self) -> u64 {
        self.coordinator.status().run_ahead_tokens
    }

    fn tick(&mut self) -> bool {
        let Some(deadline) = self.coordinator.deadline(self.now) else { return false };
        self.now = deadline;
        self.on(Event::Tick);
        !self.under_way.is_empty() || self.coordinator.deadline(self.now).is_some()
    }

    /// Takes a frame down the row; between stages it travels as bytes.
    fn pass(&mut self, mut frame: Frame) -> StepDone {
        for stage in &self.stages {
            let received = Frame::decode(&frame.encode()).expect("a frame survives the wire");
            let step = received.step.clone();
            match stage.with(|stage| stage.run(received)).expect("the stage runs") {
                Passed::On(next) => frame = next,
                Passed::Done(mut done) => {
                    // How many drafts pay must not depend on how busy the machine is.
                    done.times.iter_mut().for_each(|time| time.busy = 1000);
                    let logits = stage.with(Stage::logits).expect("the tail has logits");
                    self.keep_logits(&step, &done, &logits);
                    match Reply::decode(&Reply::Done(done).encode()).expect("results survive the wire") {
                        Reply::Done(done) => return done,
                        Reply::Failed { .. } => unreachable!("results are no failure"),
                    }
                }
            }
        }
        unreachable!("the tail gives results")
    }

    fn keep_logits(&mut self, step: &Step, done: &StepDone, logits: &[f32]) {
        use paceline_proto::Outcome;
        self.void_chunks += done.results.iter().filter(|result| result.outcome == Outcome::Void).count();
        // Of each chunk: how many rows of logits it has, and of how many the token was taken.
        let rows_of = |(chunk, result): &(&Chunk, &ChunkResult)| match &result.outcome {
            Outcome::Sampled(_) => (1, 1),
            Outcome::Verified(verified) => (chunk.wanted.wanted_rows(chunk.input.rows()), verified.tokens.len()),
            _ => (0, 0),
        };
        let chunks: Vec<_> = step.chunks.iter().zip(&done.results).collect();
        let rows: usize = chunks.iter().map(|chunk| rows_of(chunk).0).sum();
        let mut rows_of_logits = logits.chunks_exact((logits.len() / rows.max(1)).max(1));
        for (chunk, result) in chunks {
            let (wanted, taken) = rows_of(&(chunk, result));
            let end = chunk.start as usize + chunk.input.rows() + 1;
            for (row, logits) in rows_of_logits.by_ref().take(wanted).enumerate() {
                let Some(Talk { prompt_tokens, answer, .. }) = self.talks.get_mut(&chunk.session) else { continue };
                if row >= taken {
                    continue;
                }
                let bits: Vec<u32> = logits.iter().copied().map(f32::to_bits).collect();
                let place = end - wanted + row - *prompt_tokens;
                match answer.logits.get(place) {
                    Some(before) => {
                        assert!(*before == bits, "token {place} of {} is computed again otherwise", chunk.session);
                    }
                    None => answer.logits.push(bits),
                }
            }
        }
    }

    fn on(&mut self, event: Event) {
        self.events.push_back(event);
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        while let Some(event) = self.events.pop_front() {
            self.carry_out(event);
        }
        self.is_told = false;
    }

    fn carry_out(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.coordinator.on(event, self.now, &mut actions);
        for action in actions {
            match action {
                Action::Send { step, .. } => {
                    self.under_way.push_back(Frame { step, payload: Payload::empty(), times: Vec::new() });
                }
                Action::Opened { session, reuse } => self.tell(session, SessionEvent::Opened(reuse)),
                Action::Interrupted { session } | Action::Paused { session } => {
                    self.tell(session, SessionEvent::Interrupted);
                }
                Action::Outcome { session, outcome, position, drafts } => {
                    self.tell(session, SessionEvent::Outcome { outcome, position, drafts });
                }
                Action::Refused { session, refusal } => self.tell(session, SessionEvent::Refused(refusal)),
                Action::Lost { session, loss } => self.tell(session, SessionEvent::Lost(loss)),
                Action::Cancel { session } => {
                    self.stages.iter().for_each(|stage| stage.open_sessions().cancel(session));
                }
                Action::Order { stage, order } => {
                    if let Some(disks) = &mut self.disks {
                        disks.order(stage, &order);
                    }
                }
                Action::Closed { .. } | Action::Still { .. } => {}
            }
        }
    }

    fn tell(&mut self, session: SessionId, event: SessionEvent) {
        // What is said to one that was forgotten is of no interest any more.
        let Some(talk) = self.talks.get_mut(&session) else { return };
        let mut actions = Vec::new();
        talk.core.on(event, &mut actions);
        for action in actions {
            match action {
                SessionAction::Open(opening) => self.on(Event::Open { session, opening }),
                SessionAction::Want(mut wish) => {
                    let got = self.talks[&session].answer.tokens.len();
                    wish.drafts = self.guesses.as_mut().map_or_else(Vec::new, |guesses| guesses(session, got));
                    self.on(Event::Want { session, wish });
                }
                SessionAction::Leave => self.on(Event::Leave { session }),
                SessionAction::Emit(sampled) => self.answer_mut(session).tokens.push(sampled.token),
                SessionAction::Vector(_) => unreachable!("nobody wants vectors here"),
                SessionAction::Finish(finish) => self.answer_mut(session).finish = Some(finish),
            }
        }
    }

    fn answer_mut(&mut self, session: SessionId) -> &mut Answer {
        &mut self.talks.get_mut(&session).expect("the session was started").answer
    }
}

/// A row of one stage with memory for one session of 64 tokens, to be fed by hand.
pub fn single_stage(model: &Arc<Gguf>) -> Stage {
    let (key_type, value_type) = (KvType::F16, KvType::F16);
    let logs = LogSpec::NONE;
    let memory = MemorySpec { page_tokens: 16, pages: 4, slots: 1, key_type, value_type, rows: 64, wanted: 1, logs };
    load(model, memory, &Limits::new(1, 1, 4, 16, 64), Epoch::default(), &Devices::default()).pop().expect("one stage")
}

fn load_with_disks(
    model: &Arc<Gguf>,
    layout: &RowLayout,
    limits: &Limits,
    epoch: Epoch,
) -> (Vec<SharedStage>, Option<Disks>) {
    let stages = load(model, layout.memory(limits), limits, epoch, &layout.devices).into_iter().map(SharedStage::new);
    let stages: Vec<SharedStage> = stages.collect();
    let disks = layout.disk.as_ref().map(|(folder, bytes)| Disks::open(folder, *bytes, &stages));
    (stages, disks)
}

fn load(model: &Arc<Gguf>, memory: MemorySpec, limits: &Limits, epoch: Epoch, devices: &Devices) -> Vec<Stage> {
    let (shards, results) = (limits.stages, limits.credits * limits.step_wanted);
    let layers = ModelShape::read(model).expect("the model's shape").layers.len();
    let own: Arc<dyn Device> = Arc::new(CpuDevice::new(1, None).expect("a thread"));
    let devices: &[Arc<dyn Device>] = if devices.0.is_empty() { std::slice::from_ref(&own) } else { &devices.0 };
    let (head, tail) = feedback(results);
    let mut ends = [Some(head), Some(tail)];
    let place = |index: usize| Place { index, first: index == 0, last: index + 1 == shards, epoch };
    let load = |(index, range): (usize, Range<usize>)| {
        let program = paceline_model::record(model, &StageLayers::of(range, layers)).expect("the stage is recorded");
        let device = &devices[index % devices.len()];
        let loaded = device.load(program, model, memory, &mut |_| {}).expect("the stage is loaded");
        let feedback = match place(index) {
            Place { first: true, last: false, .. } => ends[0].take(),
            Place { first: false, last: true, .. } => ends[1].take(),
            _ => None,
        };
        Stage::new(place(index), loaded, feedback.unwrap_or_else(Feedback::own))
    };
    splits(model, shards).into_iter().enumerate().map(load).collect()
}
