//! The emulated row: stages that compute for a time, and links between them. Frames, orders and results are the
//! real ones; of the memory of a stage nothing is emulated.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use paceline_core::planner::LinkSpeed;
use paceline_proto::{
    ChunkInput, ChunkResult, Epoch, Operation, Outcome, SampledToken, SessionId, StageTime, Step, StepDone, StepId,
    Wanted,
};

use crate::link::Link;
use crate::random::{Random, Stream};
use crate::{StageTimes, StepLoad};

/// Bytes of a frame's header, of a chunk's description, of a result, and of an element of activations.
const HEADER_BYTES: usize = 64;
const CHUNK_BYTES: usize = 32;
const RESULT_BYTES: usize = 32;
const ELEMENT_BYTES: usize = 4;

/// What happens in a row.
#[derive(Debug)]
pub(crate) enum RowEvent {
    /// A frame is at a stage.
    Arrives(usize, Frame),
    /// A stage is done with what it computes.
    Computed(usize),
    /// The head knows the tokens of a step.
    Fed(StepId),
    /// Nobody waits for a session's chunks any more.
    Cancel(SessionId),
    /// The results are at the coordinator.
    Done(StepDone),
}

/// A step on its way.
#[derive(Debug)]
pub(crate) struct Frame {
    step: Step,
    times: Vec<StageTime>,
    arrived: Duration,
}

/// What happens later in the row, and when.
pub(crate) type Later = Vec<(Duration, RowEvent)>;

/// A stage and what it did.
#[derive(Debug)]
pub(crate) struct Stage {
    queue: VecDeque<Frame>,
    computes: Option<Frame>,
    /// How many times as long it takes.
    slow: f64,
    /// For how long all credits had been out when it became idle.
    idle_since: Duration,
    pub(crate) busy: Duration,
    /// Of its idle time, that in which all credits were out.
    pub(crate) starved: Duration,
    /// What it took longer because it was slow.
    pub(crate) extra: Duration,
    /// How long frames waited for it.
    pub(crate) waited: Duration,
    /// With rows.
    pub(crate) steps: u64,
    pub(crate) rows: u64,
}

impl Stage {
    fn new() -> Self {
        let zero = Duration::ZERO;
        let (queue, computes) = (VecDeque::new(), None);
        let (busy, starved, extra, waited, idle_since) = (zero, zero, zero, zero, zero);
        Self { queue, computes, slow: 1.0, idle_since, busy, starved, extra, waited, steps: 0, rows: 0 }
    }
}

/// The time in which all credits were out.
#[derive(Debug, Default)]
pub(crate) struct CreditsOut {
    total: Duration,
    since: Option<Duration>,
}

impl CreditsOut {
    /// Notes whether all are out now.
    pub(crate) fn note(&mut self, out: bool, now: Duration) {
        match (out, self.since) {
            (true, None) => self.since = Some(now),
            (false, Some(since)) => {
                self.total += now - since;
                self.since = None;
            }
            _ => {}
        }
    }

    /// All of it until now.
    pub(crate) fn until(&self, now: Duration) -> Duration {
        self.total + self.since.map_or(Duration::ZERO, |since| now - since)
    }
}

/// All stages, links, and what is between them.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) epoch: Epoch,
    seed: u64,
    noise: f64,
    row_bytes: usize,
    pub(crate) stages: Vec<Stage>,
    pub(crate) links: Vec<Link>,
    pub(crate) credits_out: CreditsOut,
    cancelled: BTreeSet<SessionId>,
    /// The last step whose tokens the head knows.
    fed: Option<StepId>,
}

impl Row {
    pub(crate) fn new(seed: u64, noise: f64, width: usize, links: &[LinkSpeed]) -> Self {
        Self {
            epoch: Epoch(0),
            seed,
            noise,
            row_bytes: width * ELEMENT_BYTES,
            stages: (1..links.len()).map(|_| Stage::new()).collect(),
            links: links.iter().copied().map(Link::new).collect(),
            credits_out: CreditsOut::default(),
            cancelled: BTreeSet::new(),
            fed: None,
        }
    }

    /// Begins anew with nothing on its way.
    pub(crate) fn restart(&mut self, epoch: Epoch, now: Duration) {
        self.epoch = epoch;
        self.cancelled.clear();
        self.fed = None;
        self.links.iter_mut().for_each(|link| link.clear(now));
        for stage in &mut self.stages {
            stage.queue.clear();
            if stage.computes.take().is_some() {
                stage.idle_since = self.credits_out.until(now);
            }
        }
    }

    /// How many times as long a stage takes from now on.
    pub(crate) fn slow_down(&mut self, stage: usize, factor: f64) {
        self.stages[stage].slow = factor;
    }

    /// A step leaves the coordinator. One of an epoch that is over arrives nowhere.
    pub(crate) fn send(&mut self, step: Step, now: Duration) -> Option<(Duration, RowEvent)> {
        if step.epoch != self.epoch {
            return None;
        }
        let tokens: usize = step.chunks.iter().map(|chunk| chunk.input.rows()).sum();
        let arrives = self.links[0].send(described(&step) + (tokens * ELEMENT_BYTES) as u64, now);
        let times = Vec::with_capacity(self.stages.len());
        Some((arrives, RowEvent::Arrives(0, Frame { step, times, arrived: arrives })))
    }

    /// Takes in what happens in the row at `now`, and appends what follows from it. Results are for the caller.
    pub(crate) fn on(&mut self, event: RowEvent, now: Duration, times: &dyn StageTimes, later: &mut Later) {
        match event {
            RowEvent::Arrives(stage, frame) => {
                self.stages[stage].queue.push_back(frame);
                self.begin(stage, now, times, later);
            }
            RowEvent::Computed(stage) => {
                self.pass_on(stage, now, later);
                self.begin(stage, now, times, later);
            }
            RowEvent::Fed(step) => {
                self.fed = Some(step);
                self.begin(0, now, times, later);
            }
            RowEvent::Cancel(session) => {
                self.cancelled.insert(session);
            }
            RowEvent::Done(_) => {}
        }
    }

    /// Lets a stage compute its next frame, if it is idle and has one that can be computed.
    fn begin(&mut self, index: usize, now: Duration, times: &dyn StageTimes, later: &mut Later) {
        let stage = &self.stages[index];
        if stage.computes.is_some() || !stage.queue.front().is_some_and(|frame| self.has_tokens(index, &frame.step)) {
            return;
        }
        let mut frame = self.stages[index].queue.pop_front().expect("it has a front");
        self.void(&mut frame.step);
        let load = StepLoad::of(&frame.step);
        let usual = times.time(index, &load).mul_f64(self.noise(index, frame.step.id));
        let out = self.credits_out.until(now);
        let stage = &mut self.stages[index];
        let takes = if stage.slow > 1.0 { usual.mul_f64(stage.slow) } else { usual };
        stage.busy += takes;
        stage.extra += takes - usual;
        stage.starved += out - stage.idle_since;
        stage.waited += now.saturating_sub(frame.arrived);
        stage.steps += u64::from(load.rows() > 0);
        stage.rows += load.rows() as u64;
        frame.times.push(StageTime { busy: takes.as_micros().try_into().unwrap_or(u64::MAX), ..StageTime::default() });
        stage.computes = Some(frame);
        later.push((now + takes, RowEvent::Computed(index)));
    }

    /// Whether the tokens that a step takes from the tail are there. Only the head of a longer row waits for them.
    fn has_tokens(&self, stage: usize, step: &Step) -> bool {
        let known = |chunk: &ChunkInput| match chunk {
            ChunkInput::Sampled { step } => self.fed.is_some_and(|fed| fed >= *step),
            _ => true,
        };
        stage > 0 || self.stages.len() == 1 || step.chunks.iter().all(|chunk| known(&chunk.input))
    }

    fn void(&self, step: &mut Step) {
        if !self.cancelled.is_empty() {
            step.chunks.iter_mut().for_each(|chunk| chunk.void |= self.cancelled.contains(&chunk.session));
        }
    }

    fn noise(&self, stage: usize, step: StepId) -> f64 {
        if self.noise == 0.0 {
            return 1.0;
        }
        let number = step.0 * self.stages.len() as u64 + stage as u64;
        let mut random = Random::stream(self.seed ^ u64::from(self.epoch.0), Stream::Noise, number);
        libm::exp(self.noise * random.normal() - self.noise * self.noise / 2.0)
    }

    fn pass_on(&mut self, index: usize, now: Duration, later: &mut Later) {
        self.stages[index].idle_since = self.credits_out.until(now);
        let Some(mut frame) = self.stages[index].computes.take() else { return };
        let link = &mut self.links[index + 1];
        if index + 1 < self.stages.len() {
            let bytes = described(&frame.step) + (StepLoad::of(&frame.step).rows() * self.row_bytes) as u64;
            let arrives = link.send(bytes, now);
            frame.arrived = arrives;
            return later.push((arrives, RowEvent::Arrives(index + 1, frame)));
        }
        let arrives = link.send((HEADER_BYTES + RESULT_BYTES * frame.step.chunks.len()) as u64, now);
        // the way back to the head takes about as long as the one to the coordinator
        later.push((arrives, RowEvent::Fed(frame.step.id)));
        self.forget_closed(&frame.step);
        later.push((arrives, RowEvent::Done(results(frame))));
    }

    fn forget_closed(&mut self, step: &Step) {
        for operation in &step.operations {
            if let Operation::Close { session } = operation {
                self.cancelled.remove(session);
            }
        }
    }
}

/// Bytes of a step's description.
fn described(step: &Step) -> u64 {
    (HEADER_BYTES + CHUNK_BYTES * (step.chunks.len() + step.operations.len())) as u64
}

fn results(frame: Frame) -> StepDone {
    let Frame { step, times, .. } = frame;
    let results = step.chunks.into_iter().map(|chunk| {
        let outcome = match (chunk.void, chunk.wanted) {
            (true, _) => Outcome::Void,
            (false, Wanted::Nothing) => Outcome::Stored,
            (false, Wanted::Sample) => Outcome::Sampled(SampledToken { token: 0, logprobs: None }),
            (false, Wanted::Verify(_)) => Outcome::Failed("the simulation has no drafts".to_owned()),
            (false, Wanted::Vector) => Outcome::Vector(Vec::new()),
        };
        ChunkResult { session: chunk.session, outcome }
    });
    StepDone { epoch: step.epoch, step: step.id, results: results.collect(), times }
}
