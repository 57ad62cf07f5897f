//! A stage's time, told apart: computing, or waiting for work.

use std::time::{Duration, Instant};

use paceline_proto::StageTime;

/// Measures one step after the other.
#[derive(Debug)]
pub(crate) struct Stopwatch {
    begun: Instant,
    /// Since when the stage has had nothing to do; before its first step nothing is waited for.
    free_since: Option<Instant>,
    idle: Duration,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self { begun: Instant::now(), free_since: None, idle: Duration::ZERO }
    }
}

impl Stopwatch {
    /// A step is there.
    pub(crate) fn begin(&mut self) {
        self.begin_at(Instant::now());
    }

    fn begin_at(&mut self, now: Instant) {
        self.begun = now;
        self.idle = self.free_since.map_or(Duration::ZERO, |since| now.duration_since(since));
    }

    /// The step is done. While it ran the stage also `waited` for something, and it passes `sent` bytes on.
    pub(crate) fn time(&self, waited: Duration, sent: usize) -> StageTime {
        self.time_at(Instant::now(), waited, sent)
    }

    fn time_at(&self, now: Instant, waited: Duration, sent: usize) -> StageTime {
        let busy = now.duration_since(self.begun).saturating_sub(waited);
        StageTime { busy: micros(busy), idle: micros(self.idle.saturating_add(waited)), sent: sent as u64 }
    }

    /// The stage has nothing more to do for the step: its result is on its way.
    pub(crate) fn free(&mut self) {
        self.free_at(Instant::now());
    }

    fn free_at(&mut self, now: Instant) {
        self.free_since = Some(now);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_waited_for_nothing_and_the_next_since_the_one_before() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut watch = Stopwatch::default();
        watch.begin_at(at(10));
        assert_eq!(watch.time_at(at(15), Duration::ZERO, 12), StageTime { busy: 5000, idle: 0, sent: 12 });
        watch.free_at(at(17));
        watch.begin_at(at(20));
        assert_eq!(watch.time_at(at(21), Duration::ZERO, 0), StageTime { busy: 1000, idle: 3000, sent: 0 });
    }

    #[test]
    fn waiting_in_a_step_is_not_computing() {
        let start = Instant::now();
        let mut watch = Stopwatch::default();
        watch.begin_at(start);
        let now = start + Duration::from_millis(9);
        let waited = watch.time_at(now, Duration::from_millis(8), 0);
        assert_eq!((waited.busy, waited.idle), (1000, 8000));
        let absurd = watch.time_at(now, Duration::MAX, 0);
        assert_eq!((absurd.busy, absurd.idle), (0, u64::MAX));
    }
}
