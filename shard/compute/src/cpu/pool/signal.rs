//! A number that threads wait for: they spin, then yield, then sleep.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// About 4 µs: the usual time between barriers when every thread has a core.
const SPINS: usize = 100;
/// Gives the core away a few times, for threads that are about to arrive, before sleeping costs a wake-up.
const YIELDS: usize = 20;
/// And many times more as long as nobody else wants the core: where sleeping stops a virtual one, waking it takes longer
/// than an operation of a small model.
const IDLE_YIELDS: usize = 400;
/// A yield that takes longer gave the core to somebody else.
const IDLE: Duration = Duration::from_micros(5);

/// A number with waiters. All accesses are sequentially consistent: either the one who changes the number
/// sees the sleeper, or the sleeper sees the change.
#[derive(Default)]
pub(super) struct Signal {
    value: AtomicU64,
    sleepers: AtomicUsize,
    lock: Mutex<()>,
    changed: Condvar,
}

impl Signal {
    pub(super) fn get(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    pub(super) fn set(&self, value: u64) {
        self.value.store(value, Ordering::SeqCst);
        self.wake();
    }

    pub(super) fn add(&self, more: u64) {
        self.value.fetch_add(more, Ordering::SeqCst);
        self.wake();
    }

    /// Lets sleepers look again.
    pub(super) fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// Waits until `reached` is true of the value, and returns that value.
    pub(super) fn wait_until(&self, reached: impl Fn(u64) -> bool) -> u64 {
        for round in 0..SPINS + YIELDS {
            let value = self.get();
            if reached(value) {
                return value;
            }
            if round < SPINS {
                spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        let mut before = Instant::now();
        for _ in 0..IDLE_YIELDS {
            let value = self.get();
            if reached(value) {
                return value;
            }
            std::thread::yield_now();
            let now = Instant::now();
            if now - std::mem::replace(&mut before, now) > IDLE {
                break;
            }
        }
        self.sleep_until(reached)
    }

    fn sleep_until(&self, reached: impl Fn(u64) -> bool) -> u64 {
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let value = loop {
            let value = self.get();
            if reached(value) {
                break value;
            }
            guard = self.changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        value
    }
}
