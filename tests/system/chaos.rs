//! Faults under streaming clients, few of them; `tests/examples/chaos.rs` lets as many happen as one likes.

use std::time::Duration;

use paceline_tests::chaos::disks::DiskKills;
use paceline_tests::chaos::processes::Plan;
use paceline_tests::chaos::restarts::Restarts;
use paceline_tests::chaos::rounds::Rounds;

use crate::program::PACELINE;

fn plan(shards: usize) -> Plan {
    let flags = Plan::FLAGS.map(str::to_owned).to_vec();
    Plan { program: PACELINE.into(), model: None, stages: 2, shards, flags, disk_mib: None }
}

#[test]
fn no_token_is_lost_whatever_happens_to_shards() {
    let rounds = Rounds { plan: plan(4), rounds: 20, seed: 1, clients: 8, longest: Duration::from_secs(7) };
    let report = rounds.run(&mut std::io::stderr());
    assert_eq!(report.wrongs, 0, "{report}");
}

#[test]
fn shards_join_a_coordinator_that_was_killed_and_started_again() {
    let report = Restarts { plan: plan(3), times: 5, seed: 1, clients: 8 }.run(&mut std::io::stderr());
    assert_eq!(report.wrongs, 0, "{report}");
}

#[test]
fn processes_that_are_killed_while_they_keep_and_fetch_serve_nothing_wrong() {
    let flags = Plan::LITTLE_CACHE.map(str::to_owned).to_vec();
    let plan = Plan { flags, disk_mib: Some(256), ..plan(2) };
    let report = DiskKills { plan, times: 5, seed: 1, clients: 6 }.run(&mut std::io::stderr());
    assert_eq!(report.wrongs, 0, "{report}");
    assert!(report.hits > 0, "{report}: nothing came from disks");
}
