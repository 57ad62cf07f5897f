//! What goes wrong, what it costs, and that the row goes on afterwards.

use std::time::Duration;

use paceline_core::Limits;
use paceline_simulation::{Arrivals, Fault, FaultKind, Lengths, Report, Scenario};

use crate::{alike, limits, quiet, report, visit};

/// Eight users on two stages, for a while.
fn with(faults: &[FaultKind]) -> Report {
    let arrivals = Arrivals::Users { users: 8, think: Duration::ZERO };
    let faults = faults.iter().map(|kind| Fault { after_sessions: 20, kind: *kind }).collect();
    let (prompt, answer) = (Lengths::Exactly(50), Lengths::Between(30, 70));
    report(&Scenario { sessions: 100, prompt, answer, faults, ..quiet(limits(2), arrivals) }, &alike(2, 10_000, 0))
}

#[test]
fn a_lost_stage_interrupts_its_sessions_and_they_go_on_in_the_next_row() {
    let (quiet, found) = (with(&[]), with(&[FaultKind::Lost { stage: 1 }]));
    assert_eq!((quiet.sessions.finished, found.sessions.finished), (100, 100));
    let outage = &found.faults[0];
    assert_eq!((outage.sessions_interrupted, outage.sessions_lost, outage.sessions_refused), (8, 0, 0));
    assert!(outage.tokens_again > 0 && outage.tokens_again <= 8 * 119, "{outage:?}");
    assert_eq!(outage.down_seconds, 11.0);
    // the pause is one gap between two tokens, with the reading of what was there
    assert!(found.gap_ms.max > 11_000.0 && found.gap_ms.max < 11_500.0, "{:?}", found.gap_ms);
    let work = |report: &Report| (report.throughput.prefill_tokens, report.throughput.tokens);
    let ((read, tokens), (read_again, tokens_again)) = (work(&quiet), work(&found));
    assert_eq!(tokens, tokens_again);
    assert!((1..=8 * 119).contains(&(read_again - read)), "{read} {read_again}");
}

#[test]
fn sessions_wait_for_a_row_for_so_long_and_no_longer() {
    let arrivals = Arrivals::Listed((0..4).map(|_| visit(0, 50, 70)).collect());
    let faults = vec![Fault { after_sessions: 4, kind: FaultKind::Lost { stage: 0 } }];
    let limits = Limits { restore_deadline: Duration::from_secs(3), ..limits(2) };
    let found = report(&Scenario { faults, ..quiet(limits, arrivals) }, &alike(2, 10_000, 0));
    assert_eq!((found.sessions.failed, found.faults[0].sessions_lost), (4, 4));
    // a second until it is known, and then the deadline
    assert!(found.seconds >= 4.0 && found.seconds < 4.1, "{}", found.seconds);
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
    assert_eq!(found.faults[1].sessions_interrupted, 0, "a row that is down cannot be lost");
    let arrivals = Arrivals::Users { users: 1, think: Duration::ZERO };
    let faults = vec![Fault { after_sessions: 10, kind: lost }];
    let found = report(&Scenario { sessions: 3, faults, ..quiet(limits(1), arrivals) }, &alike(1, 100, 1));
    assert_eq!((found.faults[0].at_seconds, found.sessions.finished), (None, 3));
}
