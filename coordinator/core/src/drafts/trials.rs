//! Whether drafts are run at all, and whether the tail is asked for more of them.
//!
//! What a step of some width takes and how often drafts are right is measured, and by that it is decided how many are run
//! ([`allot`](super::allot())). But not everything is in those numbers: that steps with drafts are not sent ahead of their
//! results, that they hold up other groups of sessions, what the tail's draft model takes. So it is tried, by how many
//! sessions decode: time is divided into windows of some steps, each in one [`Way`]. The way that makes the most tokens
//! in the time is kept, and the others are tried again, more rarely the more often they have lost.

use std::time::Duration;

/// Steps of a window.
const STEPS: u32 = 24;
/// Steps after which a window in another way ends early, where it makes
const FEW_STEPS: u32 = STEPS / 4;
/// less than this part of the tokens that the best way makes: chance does not explain that, and it is time lost.
const HOPELESS: f64 = 0.7;
/// Steps after a change that belong to no window.
const SETTLING: u32 = 2;
/// A window says something of drafts if so many of its steps had any.
const TELLING: u32 = FEW_STEPS;
/// Drafts are kept unless they are slower than this part of doing without: windows differ by chance.
const MARGIN: f64 = 0.98;
/// Times of a window in vain before another one in vain, at least; then twice as long, and so on,
const PATIENCE: u32 = 25;
/// but no longer than this, or than those times.
const MOST_PATIENCE: Duration = Duration::from_secs(60);
/// How much of what was learned remains at the next window.
const KEEP: f64 = 0.5;
/// Numbers of sessions that are told apart: 1, 2, 3 to 4, 5 to 8, and more.
const CROWDS: usize = 5;

/// What is done about drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// None are run.
    Plain,
    /// Those that sessions have are run where they pay.
    Own,
    /// And the tail is asked for more.
    Asking,
}

const WAYS: [Way; 3] = [Way::Plain, Way::Own, Way::Asking];

/// What a step brought.
#[derive(Debug, Clone, Copy)]
pub struct Brought {
    /// How many sessions decode.
    pub sessions: usize,
    /// Tokens of all of them.
    pub tokens: usize,
    /// It had rows of sessions that decode and no others.
    pub decodes: bool,
    /// It had drafts.
    pub drafted: bool,
    /// The tail was asked for some.
    pub asked: bool,
}

/// Tries what brings more.
#[derive(Debug, Default)]
pub struct Trials {
    crowds: [Crowd; CROWDS],
    window: Option<Window>,
}

/// Steps in one way, one after the other.
#[derive(Debug)]
struct Window {
    crowd: usize,
    began: Duration,
    /// Steps that do not count yet.
    settling: u32,
    steps: u32,
    drafted: u32,
    asked: u32,
    tokens: usize,
}

/// What is known of one number of sessions.
#[derive(Debug)]
struct Crowd {
    /// By way: tokens per second.
    rates: [Option<f64>; 3],
    way: Way,
    /// The best way, as far as is known.
    best: Way,
    patience: Duration,
    /// When another way is tried.
    next: Duration,
    /// The way that is tried next is after this one.
    tried: usize,
}

impl Default for Crowd {
    fn default() -> Self {
        let (patience, next) = (Duration::ZERO, Duration::ZERO);
        Self { rates: [None; 3], way: Way::Asking, best: Way::Asking, patience, next, tried: 0 }
    }
}

impl Trials {
    /// What is done while so many sessions decode.
    pub fn way(&self, sessions: usize) -> Way {
        self.crowds[crowd(sessions)].way
    }

    /// A step is back.
    pub fn observe(&mut self, now: Duration, brought: Brought) {
        let crowd = crowd(brought.sessions);
        let Some(window) = self.window.as_mut().filter(|window| window.crowd == crowd && brought.decodes) else {
            self.window = Some(Window::begin(crowd, now));
            return;
        };
        if window.settling > 0 {
            *window = Window { settling: window.settling - 1, ..Window::begin(crowd, now) };
            return;
        }
        window.steps += 1;
        window.drafted += u32::from(brought.drafted);
        window.asked += u32::from(brought.asked);
        window.tokens += brought.tokens;
        let (tokens, time) = (window.tokens, now.saturating_sub(window.began));
        let hopeless = window.steps >= FEW_STEPS && self.crowds[crowd].is_hopeless(tokens, time);
        if window.steps == STEPS || hopeless {
            // What was done, whatever was wanted: without a draft model nobody is asked, without drafts it is plain.
            let way = match (window.asked >= TELLING, window.drafted >= TELLING) {
                (true, _) => Some(Way::Asking),
                (false, true) => Some(Way::Own),
                (false, false) => None,
            };
            self.crowds[crowd].learn(way, tokens, now, time);
            self.window = Some(Window::begin(crowd, now));
        }
    }
}

impl Window {
    fn begin(crowd: usize, now: Duration) -> Self {
        Self { crowd, began: now, settling: SETTLING, steps: 0, drafted: 0, asked: 0, tokens: 0 }
    }
}

impl Crowd {
    /// Whether a trial that made so many tokens in the time need not go on.
    fn is_hopeless(&self, tokens: usize, time: Duration) -> bool {
        let best = self.rates[self.best as usize].filter(|_| self.way != self.best);
        best.is_some_and(|best| rate(tokens, time) < HOPELESS * best)
    }

    /// A window with drafts of this way, or with none, made so many tokens in the time.
    fn learn(&mut self, drafts: Option<Way>, tokens: usize, now: Duration, time: Duration) {
        let way = match (drafts, self.way) {
            (Some(way), _) => way,
            (None, Way::Plain) => Way::Plain,
            // Sessions have none of their own. Where the tail has some, waiting for others would keep it from being asked.
            (None, Way::Own) if self.rates[Way::Asking as usize].is_some() => Way::Own,
            // Nobody had drafts: nothing is learned of them, and nothing is lost by taking them when they come.
            (None, Way::Own | Way::Asking) => return,
        };
        let rate = rate(tokens, time);
        let known = &mut self.rates[way as usize];
        // What was found long ago says nothing.
        let is_best = way == self.best;
        *known = Some(known.filter(|_| is_best).map_or(rate, |known| known * KEEP + rate * (1.0 - KEEP)));
        let rated = |way: Way| {
            let rate = self.rates[way as usize]?;
            Some(if way == Way::Plain { rate * MARGIN } else { rate })
        };
        let possible = || WAYS.into_iter().filter(|way| *way != Way::Asking || self.rates[2].is_some());
        if let Some(unknown) = possible().rev().find(|way| rated(*way).is_none()) {
            self.way = unknown;
            return;
        }
        let best = possible().max_by(|one, other| rated(*one).unwrap_or(0.0).total_cmp(&rated(*other).unwrap_or(0.0)));
        let best = best.unwrap_or(Way::Own);
        let changes = best != self.best;
        if changes || way != best {
            // Another window in vain costs what this one has cost, or the one before.
            let before = if changes { Duration::ZERO } else { (2 * self.patience).min(MOST_PATIENCE) };
            self.patience = before.max(PATIENCE * time);
            (self.best, self.way, self.next) = (best, best, now + self.patience);
        } else if now >= self.next {
            let others: Vec<Way> = possible().filter(|way| *way != best).collect();
            self.tried += 1;
            self.way = others[self.tried % others.len()];
        }
    }
}

/// Tokens per second.
fn rate(tokens: usize, time: Duration) -> f64 {
    tokens as f64 / time.as_secs_f64().max(f64::MIN_POSITIVE)
}

fn crowd(sessions: usize) -> usize {
    let doublings = sessions.max(1).next_power_of_two().ilog2() as usize;
    doublings.min(CROWDS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Trials, the time, and whether sessions have drafts of their own.
    struct World {
        trials: Trials,
        now: f64,
        own_drafts: bool,
    }

    impl Default for World {
        fn default() -> Self {
            Self { trials: Trials::default(), now: 0.0, own_drafts: true }
        }
    }

    impl World {
        /// Runs steps for so much time; `step` gives the time of one and what it brings. Gives all tokens.
        fn run(&mut self, sessions: usize, seconds: f64, step: impl Fn(Way) -> (f64, usize)) -> usize {
            let (end, mut all) = (self.now + seconds, 0);
            while self.now < end {
                let way = self.trials.way(sessions);
                let (time, tokens) = step(way);
                (self.now, all) = (self.now + time, all + tokens);
                let (drafted, asked) = (way == Way::Asking || (way == Way::Own && self.own_drafts), way == Way::Asking);
                let brought = Brought { sessions, tokens, decodes: true, drafted, asked };
                self.trials.observe(Duration::from_secs_f64(self.now), brought);
            }
            all
        }
    }

    /// A step of each way takes so many times as long as a plain one, and brings so many tokens.
    fn costs(own: (f64, usize), asking: (f64, usize)) -> impl Fn(Way) -> (f64, usize) {
        move |way| {
            let (time, tokens) = [(1.0, 1), own, asking][way as usize];
            (0.02 * time, tokens)
        }
    }

    #[test]
    fn what_pays_is_kept() {
        for (own, asking, best) in [
            ((1.2, 1), (1.3, 2), Way::Asking),
            ((1.2, 2), (1.9, 2), Way::Own),
            ((1.2, 1), (1.9, 1), Way::Plain),
            ((1.01, 1), (1.1, 1), Way::Own),
        ] {
            let mut world = World::default();
            world.run(1, 30.0, costs(own, asking));
            assert_eq!(world.trials.crowds[0].best, best, "{own:?} {asking:?}");
            assert_eq!(world.trials.way(40), Way::Asking, "nothing is known of a crowd");
        }
    }

    #[test]
    fn the_tail_is_asked_where_sessions_have_no_drafts_of_their_own() {
        for (asking, best, least) in [((1.4, 4), Way::Asking, 3800), ((1.9, 1), Way::Own, 1400)] {
            let mut world = World { own_drafts: false, ..World::default() };
            let tokens = world.run(1, 30.0, costs((1.0, 1), asking));
            assert_eq!(world.trials.crowds[0].best, best, "{asking:?}");
            assert!(tokens > least, "{tokens} tokens in half a minute, {asking:?}");
        }
    }

    #[test]
    fn a_change_is_found() {
        let mut world = World::default();
        world.run(2, 60.0, costs((2.5, 2), (2.5, 2)));
        assert_eq!(world.trials.crowds[1].best, Way::Plain);
        world.run(2, 130.0, costs((2.5, 2), (1.5, 4)));
        assert_eq!(world.trials.crowds[1].best, Way::Asking);
        // And at once where what was kept has become the worse.
        world.run(2, 8.0, costs((2.5, 2), (5.0, 2)));
        assert_ne!(world.trials.crowds[1].best, Way::Asking);
    }

    #[test]
    fn windows_with_prompts_or_without_drafts_say_nothing() {
        let mut trials = Trials::default();
        let step = |number: u64, decodes, drafted| {
            let brought = Brought { sessions: 1, tokens: 1, decodes, drafted, asked: false };
            (Duration::from_millis(20 * number), brought)
        };
        for number in 0..1000 {
            let (now, brought) = step(number, number % 20 != 0, true);
            trials.observe(now, brought);
        }
        for number in 1000..2000 {
            let (now, brought) = step(number, number > 1000, number % 8 == 0);
            trials.observe(now, brought);
        }
        assert_eq!((trials.crowds[0].rates, trials.way(1)), ([None; 3], Way::Asking));
    }

    proptest! {
        /// In the long run it is never much slower than the best.
        #[test]
        fn trying_costs_little(own in (0.2f64..5.0, 1usize..5), asking in (0.2f64..5.0, 1usize..5)) {
            let tokens = World::default().run(1, 300.0, costs(own, asking)) as f64;
            let rate = |(time, tokens): (f64, usize)| tokens as f64 / time;
            let best = rate(own).max(rate(asking)).max(1.0) * 300.0 / 0.02;
            prop_assert!(tokens >= 0.94 * best, "{tokens} of {best}");
        }
    }
}
