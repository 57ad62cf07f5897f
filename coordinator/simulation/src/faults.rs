//! What goes wrong, and when: drawn by seed, or listed.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::random::{Random, Stream};

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Fault {
    /// It begins when so many sessions have come.
    pub after_sessions: usize,
    /// What it is.
    pub kind: FaultKind,
}

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(tag = "fault", rename_all = "snake_case")]
pub enum FaultKind {
    /// A stage computes slower for a while.
    Slow {
        /// Counted from 0.
        stage: usize,
        /// How many times as long it takes.
        factor: f64,
        /// How long it lasts.
        seconds: f64,
    },
    /// A stage is gone, and the memory of all sessions with it. The row is restored later.
    Lost {
        /// Counted from 0.
        stage: usize,
    },
    /// A link sends nothing for a while.
    Stalled {
        /// 0 leads to the head, the last from the tail to the coordinator.
        link: usize,
        /// How long it lasts.
        seconds: f64,
    },
}

impl Fault {
    /// Draws so many faults over a run of so many sessions in a row of so many stages.
    pub fn draw(seed: u64, count: usize, sessions: usize, stages: usize) -> Vec<Self> {
        let mut random = Random::stream(seed, Stream::Faults, 0);
        let mut faults: Vec<_> = (0..count).map(|_| Self::draw_one(&mut random, sessions, stages)).collect();
        faults.sort_by_key(|fault| fault.after_sessions);
        faults
    }

    fn draw_one(random: &mut Random, sessions: usize, stages: usize) -> Self {
        let after_sessions = random.between(1, sessions.max(1) as u64) as usize;
        let mut below = |count: usize| random.between(0, count.saturating_sub(1) as u64) as usize;
        let (kind, stage, link) = (below(3), below(stages), below(stages + 1));
        let (share, seconds) = (random.unit(), 1.0 + 9.0 * random.unit());
        let kind = match kind {
            0 => FaultKind::Slow { stage, factor: 2.0 + 8.0 * share, seconds },
            1 => FaultKind::Lost { stage },
            _ => FaultKind::Stalled { link, seconds: seconds / 2.0 },
        };
        Self { after_sessions, kind }
    }

    /// How long it lasts, where it ends by itself.
    pub(crate) fn lasts(&self) -> Option<Duration> {
        match self.kind {
            FaultKind::Slow { seconds, .. } | FaultKind::Stalled { seconds, .. } => {
                Some(Duration::from_secs_f64(seconds))
            }
            FaultKind::Lost { .. } => None,
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Slow { stage, factor, seconds } => {
                write!(f, "stage {stage} is {factor:.1} times slower for {seconds:.1} s")
            }
            Self::Lost { stage } => write!(f, "stage {stage} is lost"),
            Self::Stalled { link, seconds } => write!(f, "link {link} stalls for {seconds:.1} s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_drawn_by_seed_and_within_the_row() {
        let faults = Fault::draw(5, 100, 1_000, 4);
        assert_eq!(faults, Fault::draw(5, 100, 1_000, 4));
        assert_ne!(faults, Fault::draw(6, 100, 1_000, 4));
        assert!(faults.is_sorted_by_key(|fault| fault.after_sessions));
        for Fault { after_sessions, kind } in &faults {
            assert!((1..=1_000).contains(after_sessions));
            match *kind {
                FaultKind::Slow { stage, factor, seconds } => assert!(stage < 4 && factor >= 2.0 && seconds >= 1.0),
                FaultKind::Lost { stage } => assert!(stage < 4),
                FaultKind::Stalled { link, .. } => assert!(link < 5),
            }
        }
        let lost = faults.iter().filter(|fault| matches!(fault.kind, FaultKind::Lost { .. })).count();
        assert!((15..60).contains(&lost), "{lost}");
    }
}
