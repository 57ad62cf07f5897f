//! What the scheduler does with a row: who waits for whom, and how busy stages are.

use std::time::Duration;

use paceline_simulation::{Arrivals, Lengths, Report, Scenario, StageTimes};

use crate::{alike, limits, quiet, report, visit};

/// Users who only decode, for a while.
fn decode(users: usize, times: &dyn StageTimes) -> Report {
    let visits = (0..users).map(|user| visit(user as u64 * 1_000, 16, 300)).collect();
    report(&quiet(limits(times.stages()), Arrivals::Listed(visits)), times)
}

#[test]
fn more_users_never_slow_a_row_in_which_rows_are_nearly_free() {
    for stages in [1, 2, 4] {
        let mut best: f64 = 0.0;
        for users in 1..=24 {
            let rate = decode(users, &alike(stages, 5_000, 20)).throughput.decode_tok_s_busy;
            assert!(rate > 0.97 * best, "{users} users on {stages} stages: {rate} after {best}");
            best = best.max(rate);
        }
    }
}

#[test]
fn more_users_never_slow_a_single_stage() {
    let mut best: f64 = 0.0;
    for users in 1..=24 {
        let rate = decode(users, &alike(1, 500, 500)).throughput.decode_tok_s_busy;
        assert!(rate > 0.97 * best, "{users} users: {rate} after {best}");
        best = best.max(rate);
    }
}

#[test]
fn one_user_for_each_stage_fills_the_row() {
    for stages in [1, 2, 4, 8] {
        let found = decode(stages, &alike(stages, 5_000, 500));
        for stage in &found.stages {
            assert!(stage.busy > 0.95, "{stages} stages: {:?}", found.stages);
        }
        let share = found.throughput.decode_tok_s_busy / found.ideal.decode_tok_s;
        assert!(share > 0.95, "{stages} stages: {share} of {:?}", found.ideal);
    }
}

#[test]
fn nobody_starves_under_mixed_load() {
    // chats, and documents that fill half the context
    let limits = limits(4);
    let mut visits: Vec<_> = (0..120).map(|number| visit(number * 60_000, 40, 60)).collect();
    visits.extend((0..12).map(|number| visit(number * 600_000, 8_000, 20)));
    visits.sort_by_key(|visit| visit.arrives);
    let found = report(&quiet(limits.clone(), Arrivals::Listed(visits)), &alike(4, 2_000, 100));
    assert_eq!(found.sessions.finished, 132);
    // at worst all credits are out with full steps when a session becomes ready, and its own goes behind them
    let longest = 2.0 + 0.1 * limits.step_rows as f64;
    let bound = (2 * limits.credits + limits.stages) as f64 * longest;
    assert!(found.gap_ms.max < bound, "{:?}", found.gap_ms);
    assert!(found.first_token_ms.max < 60_000.0, "{:?}", found.first_token_ms);
}

#[test]
fn a_long_prompt_leaves_decoding_sessions_a_share_of_every_stage() {
    let alone: Vec<_> = (0..4).map(|number| visit(number, 16, 400)).collect();
    let mut visits = alone.clone();
    visits.push(visit(1_000_000, 8_192, 1));
    let run = |visits| report(&quiet(limits(2), Arrivals::Listed(visits)), &alike(2, 5_000, 100));
    let (before, found) = (run(alone), run(visits));
    assert!(before.gap_ms.max < 30.0, "{:?}", before.gap_ms);
    // a step may take 80 percent longer, and the tokens come that much later
    assert!(found.gap_ms.p95 < 2.0 * before.gap_ms.p50, "{:?} {:?}", found.gap_ms, before.gap_ms);
    assert_eq!(found.sessions.finished, 5);
}

#[test]
fn cancelled_sessions_cost_the_row_nothing_more() {
    let scenario = |leavers| Scenario {
        sessions: 200,
        leavers,
        patience: Duration::from_millis(500),
        prompt: Lengths::Exactly(2_000),
        answer: Lengths::Exactly(50),
        ..quiet(limits(2), Arrivals::Users { users: 16, think: Duration::ZERO })
    };
    let times = alike(2, 1_000, 100);
    let (stays, leaves) = (report(&scenario(0.0), &times), report(&scenario(0.9), &times));
    assert_eq!(stays.sessions.cancelled, 0);
    assert!(leaves.sessions.cancelled > 100, "{:?}", leaves.sessions);
    assert!(leaves.seconds < stays.seconds, "{} {}", leaves.seconds, stays.seconds);
}
