//! Who comes, and when.

use std::time::Duration;

use crate::random::{Random, Stream};
use crate::scenario::{Arrivals, Scenario, Visit};

/// A user who was refused tries again after this, if no thinking takes longer.
const TRY_AGAIN: Duration = Duration::from_secs(5);

/// The sessions that come, by number.
#[derive(Debug)]
pub(crate) struct Visits {
    arrivals: Random,
    thinking: Random,
    /// How many are drawn.
    drawn: usize,
}

impl Visits {
    pub(crate) fn new(seed: u64) -> Self {
        let stream = |stream| Random::stream(seed, stream, 0);
        Self { arrivals: stream(Stream::Arrivals), thinking: stream(Stream::Thinking), drawn: 0 }
    }

    /// Those that come by themselves: of an open loop the first, which is followed by one after another.
    pub(crate) fn first(&mut self, scenario: &Scenario) -> Vec<(usize, Visit)> {
        let count = match &scenario.arrivals {
            Arrivals::Rate(_) => 1,
            Arrivals::Users { users, .. } => *users,
            Arrivals::Listed(visits) => visits.len(),
        };
        (0..count).map_while(|_| self.next(scenario, Duration::ZERO, false)).collect()
    }

    /// The one after one of an open loop has come.
    pub(crate) fn after_arrival(&mut self, scenario: &Scenario, now: Duration) -> Option<(usize, Visit)> {
        matches!(scenario.arrivals, Arrivals::Rate(_)).then(|| self.next(scenario, now, false)).flatten()
    }

    /// The next of a user whose session has ended.
    pub(crate) fn after_end(&mut self, scenario: &Scenario, now: Duration, refused: bool) -> Option<(usize, Visit)> {
        matches!(scenario.arrivals, Arrivals::Users { .. }).then(|| self.next(scenario, now, refused)).flatten()
    }

    fn next(&mut self, scenario: &Scenario, now: Duration, refused: bool) -> Option<(usize, Visit)> {
        if self.drawn == scenario.total() {
            return None;
        }
        let number = self.drawn;
        self.drawn += 1;
        let arrives = match &scenario.arrivals {
            Arrivals::Listed(visits) => return Some((number, visits[number])),
            Arrivals::Rate(rate) => now + seconds(self.arrivals.exponential(1.0 / rate)),
            Arrivals::Users { think, .. } => {
                let think = seconds(self.thinking.exponential(think.as_secs_f64()));
                now + if refused { think.max(TRY_AGAIN) } else { think }
            }
        };
        Some((number, visit(scenario, number, arrives)))
    }
}

/// What the number alone decides: two runs with one seed have the same sessions, whenever they come.
fn visit(scenario: &Scenario, number: usize, arrives: Duration) -> Visit {
    let mut random = Random::stream(scenario.seed, Stream::Session, number as u64);
    let context = scenario.limits.context;
    let prompt = scenario.prompt.draw(&mut random).min(context.saturating_sub(1).max(1));
    let answer = scenario.answer.draw(&mut random).min(context.saturating_sub(prompt).max(1));
    let (leaves, patience) = (random.unit() < scenario.leavers, random.exponential(scenario.patience.as_secs_f64()));
    Visit { arrives, prompt, answer, leaves: leaves.then(|| seconds(patience)) }
}

fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds.abs()).unwrap_or(Duration::from_secs(u64::from(u32::MAX)))
}
