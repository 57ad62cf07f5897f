//! What goes wrong, what it costs, and that the row goes on afterwards.

use std::time::Duration;

use paceline_simulation::{Arrivals, Fault, FaultKind, Lengths, Report, Scenario};

use crate::{alike, limits, quiet, report};

/// Eight users on two stages, for a while.
fn with(faults: &[FaultKind]) -> Report {
    let arrivals = Arrivals::Users { users: 8, think: Duration::ZERO };
    let faults = faults.iter().map(|kind| Fault { after_sessions: 20, kind: *kind }).collect();
    let (prompt, answer) = (Lengths::Exactly(50), Lengths::Between(30, 70));
    report(&Scenario { sessions: 100, prompt, answer, faults, ..quiet(limits(2), arrivals) }, &alike(2, 10_000, 0))
}

#[test]
fn a_lost_stage_ends_its_sessions_and_the_row_comes_back() {
    let (quiet, found) = (with(&[]), with(&[FaultKind::Lost { stage: 1 }]));
    assert_eq!(quiet.sessions.finished, 100);
    let outage = &found.faults[0];
    assert_eq!(outage.sessions_lost, 8);
    assert_eq!(found.sessions.failed, 8);
    assert_eq!(found.sessions.refused, outage.sessions_refused);
    assert_eq!(found.sessions.finished + 8 + found.sessions.refused, 100);
    assert!(outage.tokens_lost > 0 && outage.tokens_lost <= 8 * 119, "{outage:?}");
    assert!(outage.sessions_refused >= 8, "users try again: {outage:?}");
    assert_eq!(outage.down_seconds, 11.0);
    // who waited for the outage to be found out had a pause of a second
    assert!(found.seconds > 11.0);
}

#[test]
fn a_slow_stage_slows_everybody_for_a_while() {
    let (quiet, found) = (with(&[]), with(&[FaultKind::Slow { stage: 0, factor: 5.0, seconds: 2.0 }]));
    assert_eq!(found.sessions.finished, 100);
    assert!(found.gap_ms.max >= 49.9, "{:?}", found.gap_ms);
    // nearly all of the 2 s were computing, four fifths of them too long
    let delay = found.faults[0].delay_seconds;
    assert!((1.4..1.7).contains(&delay), "{delay}");
    assert!(found.seconds > quiet.seconds + 1.4, "{} {}", found.seconds, quiet.seconds);
}

#[test]
fn a_stalled_link_holds_the_frames_and_lets_them_go() {
    for link in 0..=2 {
        let found = with(&[FaultKind::Stalled { link, seconds: 3.0 }]);
        assert_eq!(found.sessions.finished, 100, "link {link}");
        assert!((2.9..3.2).contains(&(found.gap_ms.max / 1e3)), "link {link}: {:?}", found.gap_ms);
        assert!(found.faults[0].delay_seconds > 2.9, "{:?}", found.faults);
    }
}

#[test]
fn faults_come_together_and_one_that_comes_too_late_is_told() {
    let lost = FaultKind::Lost { stage: 0 };
    let slow = FaultKind::Slow { stage: 1, factor: 3.0, seconds: 1.0 };
    let found = with(&[lost, lost, slow, slow, FaultKind::Stalled { link: 1, seconds: 1.0 }]);
    assert_eq!(found.sessions.ended(), 100);
    assert_eq!(found.faults[1].sessions_lost, 0, "a row that is down cannot be lost");
    let arrivals = Arrivals::Users { users: 1, think: Duration::ZERO };
    let faults = vec![Fault { after_sessions: 10, kind: lost }];
    let found = report(&Scenario { sessions: 3, faults, ..quiet(limits(1), arrivals) }, &alike(1, 100, 1));
    assert_eq!((found.faults[0].at_seconds, found.sessions.finished), (None, 3));
}
