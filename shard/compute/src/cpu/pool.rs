//! Threads that walk a program in lock step.
//!
//! [`Pool::run`] runs one closure on every thread; inside, [`Member::wait`] is a barrier. The caller's
//! thread is member 0, so a pool of one has no threads of its own. A panic in one member breaks the
//! barrier for all others, becomes [`Error::Threads`], and the pool refuses further work.
//!
//! A pool can have a core for every member. The members then pack weights, touch memory first, and read it later
//! where it lies: on a host with several memory nodes, a pool whose cores are of one node works in that node.

#![expect(unsafe_code, reason = "workers call a closure that lives on the caller's stack")]

mod pin;
mod signal;
#[cfg(test)]
mod tests;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};

use self::signal::Signal;
use crate::{Error, Result};

type Job<'a> = &'a (dyn Fn(&Member<'_>) + Sync);

/// The epoch that tells workers to end.
const END: u64 = u64::MAX;

/// A fixed number of threads, the caller's included.
pub(crate) struct Pool {
    team: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// Serializes jobs: stages that share a device take turns. Its value numbers them.
    jobs: Mutex<u64>,
}

/// What all members see.
struct Team {
    threads: usize,
    /// A core for every member, or none.
    cores: Vec<usize>,
    /// The number of the current job; workers wait for the next one.
    epoch: Signal,
    /// Points to the current [`Job`]; valid from the start of its epoch until all workers are done.
    job: AtomicPtr<()>,
    /// Counts workers that are done with all jobs so far.
    done: Signal,
    /// Members that have arrived at the barrier.
    arrived: AtomicUsize,
    /// Counts barriers passed.
    barrier: Signal,
    broken: AtomicBool,
    reason: Mutex<Option<String>>,
}

/// One thread's view of the pool during a job.
pub(crate) struct Member<'a> {
    index: usize,
    team: &'a Team,
}

/// Unwinds a member that waits for one that has panicked.
struct Broken;

impl Pool {
    /// Starts `threads - 1` threads named `paceline-cpu-1` and so on.
    ///
    /// # Errors
    /// [`Error::Threads`] for no threads at all, or more than the system grants.
    pub(crate) fn new(threads: usize) -> Result<Self> {
        Self::start(Team::new(threads, Vec::new()))
    }

    /// Starts a thread per core, but for the first core: that is where the callers of [`Pool::run`] are pinned.
    ///
    /// # Errors
    /// As [`Pool::new`].
    pub(crate) fn on_cores(cores: &[usize]) -> Result<Self> {
        Self::start(Team::new(cores.len(), cores.to_vec()))
    }

    fn start(team: Team) -> Result<Self> {
        let threads = team.threads;
        if threads == 0 {
            return Err(Error::Threads { reason: "a pool needs at least one".to_owned() });
        }
        let team = Arc::new(team);
        let mut pool = Self { team, workers: Vec::new(), jobs: Mutex::new(0) };
        for index in 1..threads {
            let team = Arc::clone(&pool.team);
            let builder = Builder::new().name(format!("paceline-cpu-{index}"));
            let worker = builder.spawn(move || team.work(index));
            // On failure the drop of `pool` ends the workers that have started.
            pool.workers.push(worker.map_err(|error| Error::Threads { reason: error.to_string() })?);
        }
        Ok(pool)
    }

    /// How many members there are.
    pub(crate) fn threads(&self) -> usize {
        self.team.threads
    }

    /// Runs `job` on every member and returns when all are done.
    ///
    /// # Errors
    /// [`Error::Threads`] if a member panicked, now or in an earlier job.
    pub(crate) fn run(&self, job: Job<'_>) -> Result<()> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        self.team.check()?;
        self.team.settle(0);
        *jobs += 1;
        self.team.job.store((&raw const job).cast_mut().cast(), Ordering::Release);
        self.team.epoch.set(*jobs);
        self.team.take_part(0, job);
        let workers = self.workers.len() as u64;
        // The job lives on this stack: no return before every worker has let go of it.
        self.team.done.wait_until(|done| done == *jobs * workers);
        self.team.check()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.team.epoch.set(END);
        for worker in self.workers.drain(..) {
            // A worker catches its panics; there is nothing to learn from its end.
            let _ = worker.join();
        }
    }
}

impl Team {
    fn new(threads: usize, cores: Vec<usize>) -> Self {
        Self {
            threads,
            cores,
            epoch: Signal::default(),
            job: AtomicPtr::default(),
            done: Signal::default(),
            arrived: AtomicUsize::new(0),
            barrier: Signal::default(),
            broken: AtomicBool::new(false),
            reason: Mutex::new(None),
        }
    }

    /// Pins the calling thread, which is this member.
    fn settle(&self, index: usize) {
        if let Some(core) = self.cores.get(index) {
            pin::pin(*core);
        }
    }

    /// The life of a worker.
    fn work(&self, index: usize) {
        self.settle(index);
        let mut seen = 0;
        loop {
            let epoch = self.epoch.wait_until(|epoch| epoch != seen);
            if epoch == END {
                return;
            }
            seen = epoch;
            let job = self.job.load(Ordering::Acquire);
            // SAFETY: `Pool::run` stored a pointer to its `job` before it set this epoch, and keeps it
            // alive until this worker has added to `done`.
            let job: Job<'_> = unsafe { *job.cast::<Job<'_>>() };
            self.take_part(index, job);
            self.done.add(1);
        }
    }

    fn take_part(&self, index: usize, job: Job<'_>) {
        let member = Member { index, team: self };
        let result = catch_unwind(AssertUnwindSafe(|| job(&member)));
        let Err(payload) = result else { return };
        if !payload.is::<Broken>() {
            let mut reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
            reason.get_or_insert_with(|| format!("thread {index} panicked: {}", message(&*payload)));
        }
        self.broken.store(true, Ordering::SeqCst);
        self.barrier.wake();
    }

    fn check(&self) -> Result<()> {
        if !self.broken.load(Ordering::SeqCst) {
            return Ok(());
        }
        let reason = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        Err(Error::Threads { reason: reason.clone().unwrap_or_else(|| "one has ended".to_owned()) })
    }
}

impl Member<'_> {
    /// This member's index, below [`Member::threads`].
    pub(crate) fn index(&self) -> usize {
        self.index
    }

    /// How many members there are.
    pub(crate) fn threads(&self) -> usize {
        self.team.threads
    }

    /// This member's contiguous share of `count` equal things.
    pub(crate) fn share(&self, count: usize) -> Range<usize> {
        let threads = self.team.threads;
        let (each, more) = (count / threads, count % threads);
        let start = self.index * each + self.index.min(more);
        start..start + each + usize::from(self.index < more)
    }

    /// Waits until every member is here.
    pub(crate) fn wait(&self) {
        let team = self.team;
        if team.threads == 1 {
            return;
        }
        let passed = team.barrier.get();
        if team.arrived.fetch_add(1, Ordering::AcqRel) + 1 == team.threads {
            // Nobody arrives again before the barrier is open.
            team.arrived.store(0, Ordering::Relaxed);
            team.barrier.set(passed + 1);
            return;
        }
        let broken = || team.broken.load(Ordering::SeqCst);
        team.barrier.wait_until(|count| count != passed || broken());
        if broken() {
            resume_unwind(Box::new(Broken));
        }
    }
}

fn message(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    let owned = payload.downcast_ref::<String>().map(String::as_str);
    text.or(owned).unwrap_or("without a message")
}
