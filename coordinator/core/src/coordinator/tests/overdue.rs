//! Steps that do not come back.

use super::*;
use crate::limits::{FIRST_STEPS, STEP_DEADLINE, STEP_PATIENCE};

const FIRST: Duration = STEP_DEADLINE.saturating_mul(FIRST_STEPS + 1);

impl Bench {
    fn tick_at(&mut self, now: Duration) -> Vec<Action> {
        self.now = now;
        self.on(Event::Tick)
    }
}

/// The prompt of session 1 is on its way.
fn reading() -> Bench {
    let mut bench = Bench::new(Limits { stages: 2, step_deadline: Some(STEP_DEADLINE), ..small() });
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    bench
}

#[test]
fn while_nothing_is_known_of_the_pace_a_step_has_long() {
    let mut bench = reading();
    assert_eq!(bench.coordinator.deadline(bench.now), Some(FIRST));
    assert_eq!(bench.tick_at(FIRST.saturating_sub(Duration::from_nanos(1))), []);
    assert_eq!(bench.tick_at(FIRST), [Action::Interrupted { session: name(1) }]);
    let loss = Loss::Overdue { step: StepId(0), waited: FIRST };
    assert_eq!(bench.coordinator.broken(), Some(&loss));
    assert_eq!(bench.coordinator.deadline(FIRST).map(|at| at > FIRST), Some(true), "its place in the next row");
}

#[test]
fn a_known_pace_shortens_the_wait_but_leaves_room() {
    let mut bench = reading();
    bench.now = Duration::from_secs(100);
    let times = [3_000_000, 4_000_000].map(|busy| StageTime { busy, ..StageTime::default() });
    bench.done_in(0, vec![(1, sampled(8))], times.to_vec());
    bench.now = Duration::from_secs(1000);
    bench.open(2, 4, 8);
    bench.want(2, vec![7; 4]);
    // 4 s on the slowest of 2 stages for as many rows; the time counts from when the step was sent.
    let due = Duration::from_secs(1000) + STEP_DEADLINE + Duration::from_secs(4 * 2) * STEP_PATIENCE;
    assert_eq!(bench.coordinator.overdue_at(), Some(due));
    assert_eq!(bench.tick_at(due).len(), 2);
    assert!(matches!(bench.coordinator.broken(), Some(Loss::Overdue { .. })));
}

#[test]
fn every_result_is_a_sign_of_life() {
    let mut bench = reading();
    bench.open(2, 4, 8);
    bench.want(2, vec![7; 4]);
    bench.now = FIRST.saturating_sub(Duration::from_secs(1));
    bench.done(0, vec![(1, sampled(8))]);
    assert_eq!(bench.tick_at(FIRST), [], "the second step has its own time");
    assert!(bench.coordinator.broken().is_none());
}

#[test]
fn where_nothing_could_be_placed_instead_a_step_is_waited_for() {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    assert_eq!(bench.coordinator.deadline(bench.now), None);
    assert_eq!(bench.tick_at(Duration::from_secs(1_000_000)), []);
}
