//! What must hold of every run, whatever happens in it. The simulation itself checks the cores' invariants at every
//! step and their accounts at the end; a run that returns has passed.

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::planner::LinkSpeed;
use paceline_simulation::{Arrivals, Fault, Lengths, Linear, LinearTimes, Random, Report, Scenario, render};

use crate::{alike, micros, report, run};

const SEEDS: u64 = 60;

/// A small row with everything that can go wrong.
fn anything(seed: u64) -> (Scenario, Linear) {
    let mut random = Random::new(seed);
    let mut size = |low: u64, high: u64| random.between(low, high) as usize;
    let stages = size(1, 5);
    let context = size(200, 2_000);
    let limits = Limits {
        queue: size(0, 40),
        queue_deadline: Duration::from_millis(size(50, 20_000) as u64),
        restore_deadline: Duration::from_millis(size(100, 4_000) as u64),
        credits: size(1, 2 * stages as u64 + 1),
        prefill_rows: size(16, 256),
        step_rows: size(300, 400),
        step_wanted: size(2, 20),
        run_ahead: size(0, 1) == 1,
        gather: micros(size(0, 500) as u64),
        ..Limits::new(stages, size(1, 16), context * 6 / 16, 16, context)
    };
    let arrivals = match size(0, 1) {
        0 => Arrivals::Rate(size(1, 40) as f64),
        _ => Arrivals::Users { users: size(1, 30), think: Duration::from_millis(size(0, 500) as u64) },
    };
    let link = |round_trip| LinkSpeed { round_trip: micros(round_trip), bytes_per_second: 1e8 };
    let links = (0..=stages).map(|_| link(size(0, 3_000) as u64)).collect();
    let times = |_| LinearTimes { step: micros(size(100, 5_000) as u64), row: micros(size(1, 300) as u64) };
    let times = Linear { stages: (0..stages).map(times).collect() };
    let scenario = Scenario {
        links,
        width: 256,
        noise: 0.2,
        sessions: 150,
        prompt: Lengths::Around(100),
        answer: Lengths::Around(30),
        leavers: 0.2,
        patience: Duration::from_secs(1),
        faults: Fault::draw(seed, 3, 150, stages),
        restore: Duration::from_secs(2),
        check: true,
        ..Scenario::new(seed, limits, arrivals)
    };
    (scenario, times)
}

fn json(report: &Report) -> String {
    serde_json::to_string(report).expect("plain data")
}

#[test]
fn every_session_ends_once_and_nothing_stays_held() {
    let (mut finished, mut cancelled, mut queue, mut down, mut failed) = (0, 0, 0, 0, 0);
    for seed in 0..SEEDS {
        let (scenario, times) = anything(seed);
        let found = report(&scenario, &times);
        let ends = found.sessions;
        assert_eq!((ends.begun, ends.ended()), (150, 150), "seed {seed}");
        assert!(found.credits_out <= 1.0, "seed {seed}: {}", found.credits_out);
        for stage in &found.stages {
            assert!(stage.busy + stage.credit_wait <= 1.0 + 1e-6, "seed {seed}: {stage:?}");
        }
        finished += ends.finished;
        cancelled += ends.cancelled;
        queue += ends.refused_queue;
        down += ends.refused_down;
        failed += ends.failed;
    }
    // everything came up
    let all = [finished, cancelled, queue, down, failed];
    assert!(all.iter().all(|count| *count > 50), "{all:?}");
}

#[test]
fn a_seed_gives_one_report_byte_for_byte_and_another_seed_another() {
    for seed in [3, 4, 5] {
        let (scenario, times) = anything(seed);
        let (one, two) = (report(&scenario, &times), report(&scenario, &times));
        assert_eq!((json(&one), render(&one)), (json(&two), render(&two)));
        let other = report(&Scenario { seed: seed + 1_000, ..scenario }, &times);
        assert_ne!(json(&one), json(&other));
    }
}

#[test]
fn users_have_the_same_sessions_however_fast_the_row_is() {
    let arrivals = Arrivals::Users { users: 8, think: Duration::from_millis(100) };
    let scenario = Scenario { sessions: 100, ..Scenario::new(9, crate::limits(2), arrivals) };
    let (slow, fast) = (report(&scenario, &alike(2, 9_000, 50)), report(&scenario, &alike(2, 900, 5)));
    assert_eq!(slow.sessions.finished, 100);
    let work = |report: &Report| (report.throughput.prefill_tokens, report.throughput.tokens);
    assert_eq!(work(&slow), work(&fast));
    assert!(slow.seconds > fast.seconds);
}

#[test]
fn an_open_loop_comes_at_its_rate_whatever_the_row_does() {
    for step in [100, 20_000] {
        let arrivals = Arrivals::Rate(50.0);
        let scenario = Scenario { sessions: 2_000, ..Scenario::new(2, crate::limits(1), arrivals) };
        let found = report(&Scenario { answer: Lengths::Exactly(1), ..scenario }, &alike(1, step, 0));
        assert!(found.seconds > 36.0, "{}", found.seconds);
        assert_eq!(found.sessions.begun, 2_000);
    }
}

#[test]
fn a_crowd_is_served_or_told() {
    // 3,000 at once for a row with 32 places and a queue of 256
    let arrivals = Arrivals::Rate(1e6);
    let scenario = Scenario { sessions: 3_000, ..Scenario::new(4, crate::limits(2), arrivals) };
    let found = run(&Scenario { check: false, ..scenario }, &alike(2, 2_000, 20)).expect("a run");
    assert!(found.sessions.refused_queue >= 3_000 - 256 - 32 - 50, "{:?}", found.sessions);
    assert_eq!(found.sessions.ended(), 3_000);
    // a wait in the queue is no work: about two events for a token, some for a session and for a step on a stage
    let steps: u64 = found.stages.iter().map(|stage| stage.steps).sum();
    let most = 3 * found.throughput.tokens + 10 * 3_000 + 8 * steps;
    assert!(found.events < most, "{} events, at most {most}", found.events);
}
