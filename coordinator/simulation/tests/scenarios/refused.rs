//! Scenarios that make no sense are refused, with what is wrong.

use std::time::Duration;

use paceline_core::Limits;
use paceline_core::planner::LinkSpeed;
use paceline_simulation::{Arrivals, Error, Fault, FaultKind, Scenario};

use crate::{alike, limits, run, visit};

fn error(scenario: &Scenario) -> String {
    run(scenario, &alike(2, 100, 1)).expect_err("a bad scenario").to_string()
}

#[test]
fn bad_settings_are_named() {
    let good = || Scenario { sessions: 5, ..Scenario::new(1, limits(2), Arrivals::Rate(10.0)) };
    assert!(run(&good(), &alike(2, 100, 1)).is_ok());
    let no_link = LinkSpeed { round_trip: Duration::ZERO, bytes_per_second: 0.0 };
    let users = |users| Arrivals::Users { users, think: Duration::ZERO };
    let fault = |kind| Scenario { faults: vec![Fault { after_sessions: 1, kind }], ..good() };
    let slow = |factor, seconds| fault(FaultKind::Slow { stage: 0, factor, seconds });
    for (scenario, name) in [
        (Scenario { links: vec![], ..good() }, "number of links is 0"),
        (Scenario { links: vec![no_link; 3], ..good() }, "throughput is 0"),
        (Scenario { noise: f64::NAN, ..good() }, "noise is NaN"),
        (Scenario { noise: -0.1, ..good() }, "noise is -0.1"),
        (Scenario { leavers: 1.1, ..good() }, "leavers is 1.1"),
        (Scenario { width: 0, ..good() }, "width is 0"),
        (Scenario { sessions: 0, ..good() }, "number of sessions is 0"),
        (Scenario { sessions: usize::MAX, ..good() }, "number of sessions is"),
        (Scenario { arrivals: Arrivals::Rate(0.0), ..good() }, "rate is 0"),
        (Scenario { arrivals: Arrivals::Rate(f64::INFINITY), ..good() }, "rate is inf"),
        (Scenario { arrivals: users(0), ..good() }, "users is 0"),
        (Scenario { arrivals: Arrivals::Listed(vec![]), ..good() }, "number of sessions is 0"),
        (Scenario { arrivals: Arrivals::Listed(vec![visit(2, 1, 1), visit(1, 1, 1)]), ..good() }, "order of arrival"),
        (Scenario { limits: limits(3), ..good() }, "number of stages with times is 2"),
        (Scenario { limits: Limits { credits: 0, ..limits(2) }, ..good() }, "credits is 0"),
        (fault(FaultKind::Lost { stage: 2 }), "stage or link is 2"),
        (fault(FaultKind::Stalled { link: 3, seconds: 1.0 }), "stage or link is 3"),
        (slow(0.5, 1.0), "factor is 0.5"),
        (slow(2.0, -1.0), "lasts is -1"),
        (slow(f64::NAN, 1.0), "factor is NaN"),
        (slow(2.0, f64::INFINITY), "lasts is inf"),
    ] {
        let error = error(&scenario);
        assert!(error.contains(name), "{name}: {error}");
    }
}

#[test]
fn visits_that_the_core_refuses_are_counted() {
    let long = Arrivals::Listed(vec![visit(0, 0, 5), visit(0, 20_000, 5), visit(0, 10, 5), visit(0, 10, 0)]);
    let found = run(&Scenario::new(1, limits(2), long), &alike(2, 100, 1)).expect("a run");
    assert_eq!((found.sessions.refused, found.sessions.finished), (2, 2));
    assert_eq!((found.sessions.refused_queue, found.sessions.refused_down), (0, 0));
}

#[test]
fn errors_of_the_cores_name_the_seed() {
    let stuck = Error::Stuck { seed: 42, at: Duration::from_secs(3), sessions: 7 };
    assert_eq!(stuck.to_string(), "with seed 42: nothing happens after 3s while 7 sessions wait");
}
