//! Whether the tail is asked for drafts.
//!
//! A draft of the tail costs a pass of its draft model, and a step whose result is waited for is not sent ahead. Whether
//! that pays depends on the model, the machine, the text, and on how many sessions decode. So it is tried: time is
//! divided into windows of some steps, in which the tail is asked or is not. What makes more tokens in the time is kept,
//! and the other is tried again, more rarely the more often it has lost.

use std::time::Duration;

/// Steps of a window.
const STEPS: u32 = 24;
/// Steps after a change that are of neither kind.
const SETTLING: u32 = 2;
/// Windows of the better kind before one of the other, at first,
const PATIENCE: u32 = 8;
/// and at most.
const MOST_PATIENCE: u32 = 64;
/// How much of what was learned remains at the next window.
const KEEP: f64 = 0.5;
/// Numbers of sessions that are told apart: 1, 2, 3 to 4, 5 to 8, and more.
const CROWDS: usize = 5;

/// Tries, by how many sessions decode, what brings more.
#[derive(Debug, Default)]
pub struct Proposing {
    trials: [Trial; CROWDS],
    window: Option<Window>,
}

/// Steps of one kind, one after the other.
#[derive(Debug)]
struct Window {
    crowd: usize,
    began: Duration,
    /// Steps that do not count yet.
    settling: u32,
    steps: u32,
    tokens: usize,
}

#[derive(Debug)]
struct Trial {
    /// Tokens per second, without drafts of the tail and with them.
    rates: [Option<f64>; 2],
    asks: bool,
    /// The better one, as far as is known.
    prefers: bool,
    patience: u32,
    /// Windows until the other one is tried.
    left: u32,
}

impl Default for Trial {
    fn default() -> Self {
        Self { rates: [None; 2], asks: true, prefers: true, patience: PATIENCE, left: PATIENCE }
    }
}

impl Proposing {
    /// Whether the tail is asked while so many sessions decode.
    pub fn asks(&self, sessions: usize) -> bool {
        self.trials[crowd(sessions)].asks
    }

    /// A step came back that brought so many tokens; `decodes` if it had nothing but rows of the `sessions` that decode.
    pub fn observe(&mut self, now: Duration, sessions: usize, tokens: usize, decodes: bool) {
        let crowd = crowd(sessions);
        let Some(window) = self.window.as_mut().filter(|window| window.crowd == crowd && decodes) else {
            self.window = Some(Window::begin(crowd, now));
            return;
        };
        if window.settling > 0 {
            *window = Window { settling: window.settling - 1, ..Window::begin(crowd, now) };
            return;
        }
        (window.steps, window.tokens) = (window.steps + 1, window.tokens + tokens);
        if window.steps == STEPS {
            let seconds = now.saturating_sub(window.began).as_secs_f64();
            self.trials[crowd].learn(window.tokens as f64 / seconds.max(f64::MIN_POSITIVE));
            self.window = Some(Window::begin(crowd, now));
        }
    }
}

impl Window {
    fn begin(crowd: usize, now: Duration) -> Self {
        Self { crowd, began: now, settling: SETTLING, steps: 0, tokens: 0 }
    }
}

impl Trial {
    /// A window of its kind made so many tokens per second.
    fn learn(&mut self, rate: f64) {
        let known = &mut self.rates[usize::from(self.asks)];
        *known = Some(known.map_or(rate, |known| known * KEEP + rate * (1.0 - KEEP)));
        let [Some(plain), Some(asked)] = self.rates else {
            self.asks = !self.asks;
            return;
        };
        let prefers = asked >= plain;
        if prefers != self.prefers {
            (self.prefers, self.asks) = (prefers, prefers);
            (self.patience, self.left) = (PATIENCE, PATIENCE);
        } else if self.asks != prefers {
            self.asks = prefers;
            self.patience = (2 * self.patience).min(MOST_PATIENCE);
            self.left = self.patience;
        } else if self.left == 0 {
            self.asks = !prefers;
        } else {
            self.left -= 1;
        }
    }
}

fn crowd(sessions: usize) -> usize {
    let doublings = sessions.max(1).next_power_of_two().ilog2() as usize;
    doublings.min(CROWDS - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs steps of one kind or the other until so much time has passed; gives the tokens of all.
    fn run(proposing: &mut Proposing, sessions: usize, seconds: f64, step: impl Fn(bool) -> (f64, usize)) -> usize {
        let (mut now, mut tokens) = (0.0, 0);
        while now < seconds {
            let (time, brought) = step(proposing.asks(sessions));
            (now, tokens) = (now + time, tokens + brought);
            proposing.observe(Duration::from_secs_f64(now), sessions, brought, true);
        }
        tokens
    }

    #[test]
    fn what_pays_is_kept() {
        for (cost, brought, asks) in [(1.3, 2, true), (2.5, 2, false), (1.0, 1, true)] {
            let mut proposing = Proposing::default();
            run(&mut proposing, 1, 20.0, |asked| if asked { (0.02 * cost, brought) } else { (0.02, 1) });
            assert_eq!(proposing.trials[0].prefers, asks, "a step of {cost} for {brought} tokens");
            assert!(proposing.asks(40), "nothing is known of a crowd");
        }
    }

    #[test]
    fn a_change_is_found() {
        let mut proposing = Proposing::default();
        run(&mut proposing, 2, 60.0, |asked| if asked { (0.05, 2) } else { (0.02, 2) });
        assert!(!proposing.trials[1].prefers);
        run(&mut proposing, 2, 60.0, |asked| if asked { (0.03, 4) } else { (0.02, 2) });
        assert!(proposing.trials[1].prefers);
        // And at once where what was kept has become the worse.
        run(&mut proposing, 2, 5.0, |asked| if asked { (0.1, 2) } else { (0.02, 2) });
        assert!(!proposing.trials[1].prefers);
    }

    #[test]
    fn windows_with_prompts_do_not_count() {
        let mut proposing = Proposing::default();
        for step in 0..1000 {
            proposing.observe(Duration::from_millis(20 * step), 1, 1, step % 20 != 0);
        }
        assert_eq!(proposing.trials[0].rates, [None; 2]);
    }

    proptest! {
        /// In the long run it is never much slower than the better of both.
        #[test]
        fn trying_costs_little(cost in 0.2f64..5.0, brought in 1usize..5) {
            let mut proposing = Proposing::default();
            let step = |asked| if asked { (0.02 * cost, brought) } else { (0.02, 1) };
            let tokens = run(&mut proposing, 1, 200.0, step) as f64;
            let better = (brought as f64 / cost).max(1.0) * 200.0 / 0.02;
            prop_assert!(tokens >= 0.95 * better, "{tokens} of {better}");
        }
    }
}
