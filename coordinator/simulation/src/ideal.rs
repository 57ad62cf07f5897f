//! What a row could do with the best schedule: arithmetic over the same times that the simulation uses.

use std::time::Duration;

use serde::Serialize;

use crate::scenario::Scenario;
use crate::{StageTimes, StepLoad};

/// What a row could do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ideal {
    /// Sessions that decode.
    pub sessions: usize,
    /// Tokens of each.
    pub depth: usize,
    /// Groups of sessions that follow each other through the row, with which it is fastest.
    pub groups: usize,
    /// Tokens a second of all of them.
    pub decode_tok_s: f64,
    /// Tokens a second of a long prompt, if nothing else runs.
    pub prefill_tok_s: f64,
}

impl Ideal {
    /// Of so many sessions that decode at a depth of so many tokens.
    pub fn of(scenario: &Scenario, times: &dyn StageTimes, sessions: usize, depth: usize) -> Self {
        let most = scenario.limits.credits.min(sessions).max(1);
        let rate = |groups: &usize| decode_rate(scenario, times, sessions, *groups, depth);
        // of equals the fewest groups
        let groups = (1..=most).rev().max_by(|one, other| rate(one).total_cmp(&rate(other))).unwrap_or(1);
        let chunk = StepLoad::prefill(scenario.limits.prefill_rows, depth);
        Self {
            sessions,
            depth,
            groups,
            decode_tok_s: rate(&groups),
            prefill_tok_s: chunk.rows() as f64 / slowest(scenario, times, &chunk).as_secs_f64().max(1e-9),
        }
    }
}

/// Tokens a second of groups that follow each other: a group comes round after all stages and links, and not before the
/// slowest of them has served every other group.
fn decode_rate(scenario: &Scenario, times: &dyn StageTimes, sessions: usize, groups: usize, depth: usize) -> f64 {
    let load = StepLoad::decode(sessions.div_ceil(groups), depth);
    let computing: Duration = (0..times.stages()).map(|stage| times.time(stage, &load)).sum();
    let bytes = (load.rows() * scenario.width * 4) as f64;
    let sending: f64 = scenario.links.iter().map(|link| link.seconds(bytes)).sum();
    let round = computing.as_secs_f64() + sending + 2.0 * scenario.message.as_secs_f64();
    let slowest = slowest(scenario, times, &load).as_secs_f64() * groups as f64;
    sessions as f64 / round.max(slowest).max(1e-9)
}

fn slowest(scenario: &Scenario, times: &dyn StageTimes, load: &StepLoad) -> Duration {
    let stages = (0..times.stages()).map(|stage| times.time(stage, load));
    let bytes = (load.rows() * scenario.width * 4) as f64;
    let between = &scenario.links[1..times.stages()];
    let links = between.iter().map(|link| Duration::from_secs_f64(link.transfer(bytes)));
    stages.chain(links).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use paceline_core::Limits;

    use super::*;
    use crate::scenario::Arrivals;
    use crate::{Linear, LinearTimes};

    fn ideal(stages: usize, sessions: usize, row_micros: u64) -> Ideal {
        let limits = Limits::new(stages, 64, 4096, 16, 4096);
        let scenario = Scenario { message: Duration::ZERO, ..Scenario::new(1, limits, Arrivals::Rate(1.0)) };
        let times = LinearTimes { step: Duration::from_millis(10), row: Duration::from_micros(row_micros) };
        Ideal::of(&scenario, &Linear { stages: vec![times; stages] }, sessions, 0)
    }

    #[test]
    fn where_rows_are_free_one_group_per_stage_is_enough() {
        let one = ideal(1, 8, 0);
        assert_eq!(one.groups, 1);
        assert!((799.0..800.1).contains(&one.decode_tok_s), "{one:?}");
        // split or not, a dense row of two stages gives what one stage of twice the size does
        let two = ideal(2, 8, 0);
        assert!((399.0..400.1).contains(&two.decode_tok_s), "{two:?}");
    }

    #[test]
    fn where_rows_cost_groups_fill_the_stages() {
        let four = ideal(4, 4, 10_000);
        assert_eq!(four.groups, 4);
        assert!((49.0..50.1).contains(&four.decode_tok_s), "{four:?}");
        assert!((99.0..100.0).contains(&four.prefill_tok_s), "{four:?}");
    }
}
