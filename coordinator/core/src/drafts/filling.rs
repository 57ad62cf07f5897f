//! How many drafts go into a chunk that is sent ahead of a result.
//!
//! Where few sessions share a row of several stages, most stages stand idle while a step travels. A session whose drafts
//! are under way can have further ones sent behind them, which count if all before them are accepted and the token
//! sampled behind those is the first of the further ones. If not, they were run in vain; but as long as stages would have
//! stood idle, nobody waits for that.
//!
//! So such a chunk goes out only into time that nobody else uses. A step is back after a *round*: what all stages take,
//! and the way. If the steps under way keep the slowest stage busy for less than that, whatever is sent when one of them
//! is back finds the stages free, and a further chunk that fits the rest holds nobody up. Measured times scatter, so a
//! part of the round stays free ([`SPARE`]), and a chunk must be worth that something waits for it now and then
//! ([`HELD_UP`]): with others in the row, or drafts that are rarely right, it is not.

use super::{Draft, gains};

/// The part of a round in which the slowest stage stays free.
const SPARE: f64 = 0.1;
/// How often something waits for a chunk that was sent ahead, by what is reckoned: for so many of its times.
const HELD_UP: f64 = 1.0 / 16.0;

/// What a row has to do while a result is under way. Times are all in the same unit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Load {
    /// How long after a step is sent the next one of the same sessions can be.
    pub round: f64,
    /// How long the steps under way keep the slowest stage busy.
    pub occupied: f64,
    /// Tokens that are expected of a round, of all sessions.
    pub tokens: f64,
}

/// How many of these drafts go into a chunk of their own, with which the slowest stage gets the most tokens in its time;
/// none if no such chunk is worth it. They come behind drafts under way that are all accepted with the probability
/// `chance`. `time` says how long a step of so many rows keeps the slowest stage busy, and nothing where that is not known.
pub fn fill(further: &[Draft], chance: f64, load: Load, time: impl Fn(usize) -> Option<f64>) -> usize {
    let free = load.round * (1.0 - SPARE) - load.occupied;
    let (mut gain, mut best, mut chosen) = (0.0, HELD_UP * load.tokens / load.round, 0);
    for (number, draft) in gains(further).enumerate() {
        gain += chance * draft;
        let Some(time) = time(number + 1).filter(|time| *time <= free) else { break };
        if gain / time > best {
            (best, chosen) = (gain / time, number + 1);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Four stages of 5 each, and a way of 4; one chunk is under way.
    const ALONE: Load = Load { round: 24.0, occupied: 5.0, tokens: 5.0 };

    fn drafts(chance: f32, count: usize) -> Vec<Draft> {
        vec![Draft { token: 1, chance }; count]
    }

    fn flat(_: usize) -> Option<f64> {
        Some(5.0)
    }

    #[test]
    fn idle_stages_are_filled_with_what_is_likely() {
        assert_eq!(fill(&drafts(0.9, 7), 0.5, ALONE, flat), 7);
        assert_eq!(fill(&drafts(0.6, 7), 0.01, ALONE, flat), 0, "hardly ever right");
        assert_eq!(fill(&drafts(0.9, 7), 0.5, Load { occupied: 17.0, ..ALONE }, flat), 0, "no stage is idle");
        assert_eq!(fill(&drafts(0.9, 7), 0.05, ALONE, flat), 7);
        assert_eq!(fill(&drafts(0.9, 7), 0.05, Load { tokens: 50.0, ..ALONE }, flat), 0, "others would wait");
        assert_eq!(fill(&[], 1.0, ALONE, flat), 0);
        assert_eq!(fill(&drafts(0.9, 7), 0.5, ALONE, |_| None), 0);
    }

    #[test]
    fn where_rows_are_dear_chunks_are_small() {
        assert_eq!(fill(&drafts(0.9, 7), 0.9, ALONE, |rows| Some(5.0 * rows as f64)), 1);
        let some = fill(&drafts(0.7, 7), 0.9, ALONE, |rows| Some(3.0 + rows as f64));
        assert!((2..7).contains(&some), "{some}");
    }

    proptest! {
        #[test]
        fn what_is_sent_fits(
            chances in prop::collection::vec(0.0f32..=1.0, 0..12),
            chance in 0.0f64..=1.0,
            (round, occupied, tokens) in (1.0f64..100.0, 0.0f64..100.0, 0.0f64..20.0),
            (step, row) in (0.1f64..20.0, 0.0f64..5.0),
        ) {
            let further: Vec<Draft> = chances.into_iter().map(|chance| Draft { token: 0, chance }).collect();
            let time = |rows: usize| step + row * rows as f64;
            let load = Load { round, occupied, tokens };
            let rows = fill(&further, chance, load, |rows| Some(time(rows)));
            prop_assert!(rows <= further.len());
            prop_assert!(rows == 0 || occupied + time(rows) <= round);
            let fuller = Load { occupied: occupied + 5.0, tokens: tokens + 1.0, ..load };
            prop_assert!(fill(&further, chance, fuller, |rows| Some(time(rows))) <= rows, "the fuller, the less");
        }
    }
}
