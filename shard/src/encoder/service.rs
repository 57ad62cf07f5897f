//! An encoder on a thread of its own, for whoever asks. The queue is bounded, and a request that finds it full is refused at
//! once; those that are let in take turns.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use paceline_proto::EncodeText;
use tokio::sync::oneshot;
use tokio::sync::watch;
use tracing::error;

use super::Encoder;
use super::rounds::{Asked, rotate, shares};
use crate::{Error, Result};

/// Requests that take turns. More wait in the queue, where they cost nothing.
const TURNS: usize = 16;

/// The vectors of a request's texts in order, or why there are none.
pub type Encoded = std::result::Result<Vec<Vec<f32>>, String>;

/// The thread, as the rest of the process sees it. Cheap to clone; with the last one the thread ends.
#[derive(Clone)]
pub struct EncoderThread {
    queue: Sender<Job>,
    /// Requests that are not answered yet.
    open: Arc<AtomicUsize>,
    /// True when the thread has ended.
    pub ended: watch::Receiver<bool>,
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// So many wait already.
    Full {
        /// How many wait.
        waiting: usize,
    },
    /// The thread has ended.
    Ended,
}

/// A request.
struct Job {
    texts: Vec<EncodeText>,
    answer: oneshot::Sender<Encoded>,
    open: Open,
}

impl Job {
    /// Answers, and says before that it is answered. Whoever asked may have left meanwhile.
    fn answer(self, encoded: Encoded) {
        drop(self.open);
        drop(self.answer.send(encoded));
    }
}

/// Counts a request for as long as it is not answered.
struct Open(Arc<AtomicUsize>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl EncoderThread {
    /// Starts the thread of an encoder, with a queue of so many requests.
    ///
    /// # Errors
    /// When the system has no thread left.
    pub fn start(encoder: Encoder, queue: usize) -> Result<Self> {
        let (sender, requests) = bounded(queue.max(1));
        let (end, ended) = watch::channel(false);
        let thread = std::thread::Builder::new().name("paceline-encoder".to_owned());
        thread
            .spawn(move || {
                // What is in the encoder is not used again after a panic.
                let run = AssertUnwindSafe(|| serve(encoder, &requests));
                if catch_unwind(run).is_err() {
                    error!("the thread of an encoder panicked");
                }
                end.send_replace(true);
            })
            .map_err(Error::Thread)?;
        Ok(Self { queue: sender, open: Arc::default(), ended })
    }

    /// Asks for the vectors of some texts. The answer never comes if the thread ends before; to drop the receiver is to
    /// take the request back.
    ///
    /// # Errors
    /// A queue that is full, a thread that has ended.
    pub fn ask(&self, texts: Vec<EncodeText>) -> std::result::Result<oneshot::Receiver<Encoded>, Refused> {
        let (answer, answered) = oneshot::channel();
        self.open.fetch_add(1, Ordering::Relaxed);
        let job = Job { texts, answer, open: Open(Arc::clone(&self.open)) };
        match self.queue.try_send(job) {
            Ok(()) => Ok(answered),
            Err(TrySendError::Full(_)) => Err(Refused::Full { waiting: self.queue.len() }),
            Err(TrySendError::Disconnected(_)) => Err(Refused::Ended),
        }
    }

    /// Requests that are not answered yet, and those of them that wait in the queue.
    pub fn open(&self) -> (usize, usize) {
        (self.open.load(Ordering::Relaxed), self.queue.len())
    }
}

/// A request that has its turn.
struct Turn {
    job: Job,
    asked: Asked,
    vectors: Vec<Vec<f32>>,
}

impl Turn {
    fn new(job: Job) -> Self {
        let lengths = job.texts.iter().map(|text| text.tokens.len()).collect();
        Self { job, asked: Asked::new(lengths), vectors: Vec::new() }
    }
}

/// Answers until nobody can ask any more.
fn serve(mut encoder: Encoder, requests: &Receiver<Job>) {
    let mut turns: VecDeque<Turn> = VecDeque::new();
    loop {
        if turns.is_empty() {
            let Ok(job) = requests.recv() else { return };
            turns.extend(admit(&encoder, job));
        }
        while turns.len() < TURNS
            && let Ok(job) = requests.try_recv()
        {
            turns.extend(admit(&encoder, job));
        }
        turns.retain(|turn| !turn.job.answer.is_closed());
        round(&mut encoder, &mut turns);
        rotate(&mut turns);
    }
}

/// Gives a request its turns, unless it asks for what cannot be: it would spoil the steps of others.
fn admit(encoder: &Encoder, job: Job) -> Option<Turn> {
    match job.texts.iter().try_for_each(|text| encoder.check(text)) {
        Ok(()) => Some(Turn::new(job)),
        Err(error) => {
            job.answer(Err(error.to_string()));
            None
        }
    }
}

/// Reads one step's worth of texts, and answers who has all of theirs.
fn round(encoder: &mut Encoder, turns: &mut VecDeque<Turn>) {
    let shares = shares(turns.iter().map(|turn| &turn.asked), encoder.step_tokens());
    let taken = turns.iter().zip(&shares);
    let texts = taken.flat_map(|(turn, share)| &turn.job.texts[turn.asked.read..turn.asked.read + share]);
    let texts: Vec<EncodeText> = texts.cloned().collect();
    let mut failed = None;
    let mut vectors = match encoder.encode(&texts) {
        Ok(vectors) => vectors.into_iter(),
        Err(error) => {
            failed = Some(error.to_string());
            Vec::new().into_iter()
        }
    };
    let mut left = VecDeque::with_capacity(turns.len());
    for (mut turn, share) in turns.drain(..).zip(shares) {
        turn.vectors.extend(vectors.by_ref().take(share));
        turn.asked.read += share;
        match &failed {
            Some(reason) if share > 0 => turn.job.answer(Err(reason.clone())),
            _ if turn.asked.is_done() => turn.job.answer(Ok(turn.vectors)),
            _ => left.push_back(turn),
        }
    }
    *turns = left;
}
