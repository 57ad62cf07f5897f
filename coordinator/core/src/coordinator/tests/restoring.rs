//! Sessions that outlive their row.

use super::*;

const RESTORE: Duration = Duration::from_secs(120);

impl Bench {
    fn fail(&mut self) -> Vec<Action> {
        self.on(Event::Failed { stage: 3, reason: "gone".into() })
    }

    fn reset(&mut self, epoch: u32, limits: Limits) -> Vec<Action> {
        self.on(Event::Reset { epoch: Epoch(epoch), limits: Box::new(limits) })
    }

    /// An interrupted session opens again with so many tokens, 4 of them its prompt's.
    fn reopen(&mut self, number: u128, tokens: usize, token_limit: usize) -> Vec<Action> {
        let (tokens, boundaries, sampling) = (new_tokens(number, tokens), [].into(), Box::default());
        let opening = Opening { tokens, boundaries, prompt_tokens: 4, token_limit, sampling, again: true };
        self.on(Event::Open { session: name(number), opening })
    }

    fn at(&mut self, seconds: u64) -> &mut Self {
        self.now = Duration::from_secs(seconds);
        self
    }
}

fn interrupted(number: u128) -> Action {
    Action::Interrupted { session: name(number) }
}

fn lost(number: u128, loss: Loss) -> Action {
    Action::Lost { session: name(number), loss }
}

fn gone() -> String {
    "stage 3 failed: gone".to_owned()
}

/// Session 1 has its first token, and its next is on its way.
fn decoding() -> Bench {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    bench.done(0, vec![(1, sampled(8))]);
    bench.want(1, vec![8]);
    bench
}

#[test]
fn a_session_goes_on_in_the_next_row() {
    let mut bench = decoding();
    assert_eq!(bench.fail(), [interrupted(1)]);
    assert_eq!(bench.done(1, vec![(1, sampled(9))]), [], "of a row that is over");
    assert_eq!(bench.open(3, 4, 4), [refused(3, Refusal::Broken { reason: gone() })]);
    assert_eq!(bench.reopen(1, 5, 8), []);
    let status = bench.coordinator.status();
    assert_eq!((status.running, status.waiting, status.interrupted, status.pages_used), (0, 1, 1, 0));

    assert_eq!(bench.reset(2, small()), [opened(1)]);
    let replay = bench.want(1, vec![7, 7, 7, 7, 8]);
    let session = name(1);
    assert_eq!((step(&replay).epoch, step(&replay).id), (Epoch(2), StepId(0)));
    assert_eq!(
        step(&replay).operations,
        [
            Operation::Open {
                session,
                slot: Slot(0),
                sampling: Box::default(),
                generated_from: 4,
                reused: Reused::default()
            },
            Operation::Grant { session, pages: vec![PageId(0), PageId(1)] },
        ]
    );
    assert_eq!(step(&replay).chunks, [chunk(1, 0, ChunkInput::Tokens(vec![7, 7, 7, 7, 8]))]);
    assert_eq!(bench.done(0, vec![(1, sampled(9))]), [], "of the old epoch");
    assert_eq!(bench.coordinator.status().ignored_results, 2);
    assert_eq!(bench.coordinator.status().admitted, 1);
}

#[test]
fn what_a_session_wanted_before_it_knew_is_ignored() {
    let mut bench = decoding();
    bench.fail();
    bench.reset(2, small());
    assert_eq!(bench.want(1, vec![8]), [], "it is not admitted before it has heard of it");
    assert_eq!(bench.reset(3, small()), [], "and is told once");
    assert_eq!(bench.want(1, vec![8]), []);
    assert_eq!(bench.reopen(1, 5, 8), [opened(1)]);
    assert_eq!(bench.reset(4, small()), [interrupted(1)]);
    assert_eq!(bench.reopen(1, 5, 8), [opened(1)]);
    assert_eq!(bench.reopen(1, 5, 8), [], "it runs already");
    assert_eq!(bench.want(1, vec![7, 7, 7, 7, 8]).len(), 1);
}

#[test]
fn nothing_that_was_run_ahead_is_told() {
    let mut bench = ahead();
    bench.done(0, vec![(1, sampled(8))]);
    bench.done(1, vec![(1, sampled(9))]); // held back
    assert_eq!(bench.fail(), [interrupted(1)]);
    assert_eq!(bench.want(1, vec![8]), [], "which would have brought it");
    bench.reset(2, Limits { run_ahead: true, ..small() });
    assert_eq!(bench.reopen(1, 6, 8), [opened(1)]);
}

#[test]
fn interrupted_sessions_keep_their_order_before_all_who_came_later() {
    let mut bench = Bench::new(Limits { slots: 3, pages: 6, ..small() });
    for number in [5, 2, 9] {
        assert_eq!(bench.open(number, 4, 8), [opened(number)]);
    }
    assert_eq!(bench.open(1, 4, 4), []);
    assert_eq!(bench.open(3, 4, 4), []);
    bench.fail();
    assert_eq!(bench.coordinator.status().waiting, 5);
    // fewer places than before, and the queue is full without them
    assert_eq!(bench.reset(2, Limits { slots: 1, ..small() }), []);
    assert_eq!(bench.reopen(2, 4, 8), [], "nobody overtakes the first, who has not answered");
    assert_eq!(bench.reopen(5, 4, 8), [opened(5)]);
    bench.reopen(9, 4, 8);
    assert_eq!(bench.open(4, 4, 4), [refused(4, Refusal::QueueFull { waiting: 2, limit: 2 })]);
    for (leaves, next) in [(5, 2), (2, 9), (9, 1), (1, 3)] {
        assert_eq!(bench.leave(leaves), [closed(leaves), opened(next)]);
    }
}

#[test]
fn a_client_that_leaves_meanwhile_is_forgotten_at_once() {
    let mut bench = decoding();
    bench.fail();
    assert_eq!(bench.leave(1), [closed(1)]);
    assert_eq!(bench.reopen(1, 5, 8), [], "its answer comes too late");
    assert_eq!(bench.reset(2, small()), []);
    assert_eq!(bench.coordinator.status().waiting, 0);
}

#[test]
fn a_session_that_is_not_restored_in_time_ends_with_what_happened() {
    let mut bench = decoding();
    bench.at(5).fail();
    bench.reopen(1, 5, 8);
    assert_eq!(bench.coordinator.deadline(bench.now), Some(Duration::from_secs(125)));
    assert_eq!(bench.at(124).on(Event::Tick), []);
    let loss = Loss::NotRestored { waited: RESTORE, reason: gone() };
    assert_eq!(loss.to_string(), "it was not restored within 120 s: stage 3 failed: gone");
    assert_eq!(bench.at(125).on(Event::Tick), [lost(1, loss)]);
    assert_eq!(bench.reset(2, small()), []);
    // one that does not even answer holds up nobody for longer
    let mut bench = decoding();
    bench.fail();
    bench.reset(2, small());
    assert_eq!(bench.at(61).open(2, 4, 4), []);
    let loss = Loss::NotRestored { waited: RESTORE, reason: "all places are taken".into() };
    assert_eq!(bench.at(119).on(Event::Tick), []);
    assert_eq!(bench.at(120).on(Event::Tick), [lost(1, loss), opened(2)]);
}

#[test]
fn where_no_other_row_is_placed_nobody_waits_for_one() {
    let mut bench = Bench::new(Limits { restore_deadline: Duration::ZERO, ..small() });
    bench.open(1, 4, 8);
    let loss = Loss::NotRestored { waited: Duration::ZERO, reason: gone() };
    assert_eq!(bench.fail(), [interrupted(1), lost(1, loss)]);
    assert_eq!(bench.reopen(1, 4, 8), []);
}

#[test]
fn a_placement_that_is_too_small_is_told_with_its_numbers() {
    let limits = || Limits { slots: 3, pages: 12, ..small() };
    let narrow = Limits { context: 10, ..limits() };
    let few = Limits { pages: 3, ..limits() };
    let long = Refusal::TooLong { tokens: 16, context: 10 };
    let large = Refusal::NeverFits { needed: 4, total: 3 };
    for (smaller, refusal) in [(narrow, long), (few, large)] {
        let mut bench = Bench::new(limits());
        bench.open(1, 4, 16);
        bench.open(2, 4, 8);
        bench.open(3, 4, 16);
        bench.open(4, 4, 16);
        bench.fail();
        bench.reopen(1, 5, 16);
        bench.reopen(2, 5, 8);
        let ended = [lost(1, Loss::TooSmall(refusal.clone())), refused(4, refusal.clone()), opened(2)];
        assert_eq!(bench.reset(2, smaller), ended);
        assert_eq!(bench.reopen(3, 5, 16), [lost(3, Loss::TooSmall(refusal))]);
    }
}

#[test]
fn a_session_that_takes_down_row_after_row_ends() {
    let mut bench = decoding();
    let fail = |bench: &mut Bench, epoch| {
        let actions = bench.fail();
        bench.reset(epoch, small());
        bench.reopen(1, 5, 8);
        bench.want(1, vec![7, 7, 7, 7, 8]);
        actions
    };
    for epoch in 2..=3 {
        assert_eq!(fail(&mut bench, epoch), [interrupted(1)]);
    }
    // that a placement makes room or is replaced is not its fault, and with a token it starts again
    assert_eq!(bench.on(Event::Ended), [interrupted(1)]);
    bench.reset(4, small());
    bench.reopen(1, 5, 8);
    bench.want(1, vec![7, 7, 7, 7, 8]);
    assert_eq!(fail(&mut bench, 5), [interrupted(1)]);
    let results = vec![ChunkResult { session: name(1), outcome: sampled(9) }];
    bench.on(Event::Done(StepDone { epoch: Epoch(5), step: StepId(0), results, times: vec![] }));
    for epoch in 6..=8 {
        assert_eq!(fail(&mut bench, epoch), [interrupted(1)]);
    }
    assert_eq!(fail(&mut bench, 9), [lost(1, Loss::Restores { restores: 3, reason: gone() })]);
    assert_eq!(bench.coordinator.status().running, 0);
}

#[test]
fn a_service_that_ends_ends_everybody_at_once() {
    for broken in [false, true] {
        let mut bench = decoding();
        bench.open(2, 4, 16);
        if broken {
            bench.fail();
            bench.reopen(1, 5, 8);
        }
        let actions = bench.on(Event::Stop);
        for number in 1..=2 {
            assert!(actions.contains(&lost(number, Loss::Stopped)), "{actions:?}");
        }
        assert_eq!(bench.reopen(1, 5, 8), []);
        let reason = Loss::Stopped.to_string();
        assert_eq!(bench.open(4, 4, 4), [refused(4, Refusal::Broken { reason })]);
        let accounts = bench.coordinator.accounts();
        assert_eq!((accounts.running, accounts.waiting, accounts.interrupted, accounts.steps), (0, 0, 0, 0));
    }
}
