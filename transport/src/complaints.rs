//! Log lines about strangers, so few of them that a stranger cannot fill a disk.

use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const LINES: u32 = 20;
const PERIOD: Duration = Duration::from_secs(10);

/// Writes at most 20 lines in 10 seconds, and says how many it did not write.
#[derive(Debug)]
pub(crate) struct Complaints(Mutex<Period>);

#[derive(Debug)]
struct Period {
    began: Instant,
    lines: u32,
    silent: u64,
}

impl Complaints {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Period { began: Instant::now(), lines: 0, silent: 0 }))
    }

    /// Says that someone was refused.
    pub(crate) fn refused(&self, from: impl Display, reason: impl Display) {
        let Some(silent) = self.0.lock().unwrap_or_else(PoisonError::into_inner).line(Instant::now()) else { return };
        if silent > 0 {
            tracing::warn!(silent, "more were refused than there are lines about it");
        }
        tracing::warn!(%from, %reason, "refused at the data endpoint");
    }
}

impl Period {
    /// Whether there is a line to write, and how many were not written before it.
    fn line(&mut self, now: Instant) -> Option<u64> {
        if now.duration_since(self.began) >= PERIOD {
            (self.began, self.lines) = (now, 0);
        }
        if self.lines >= LINES {
            self.silent += 1;
            return None;
        }
        self.lines += 1;
        Some(std::mem::take(&mut self.silent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_period_has_so_many_lines_and_the_next_counts_the_others() {
        let began = Instant::now();
        let mut period = Period { began, lines: 0, silent: 0 };
        let told = (0..100).filter(|_| period.line(began).is_some()).count();
        assert_eq!(told, LINES as usize);
        assert_eq!(period.line(began + PERIOD), Some(80));
        assert_eq!(period.line(began + PERIOD), Some(0));
    }
}
