//! Rows that are held, switched and resumed.

use super::*;

fn still(pages: &[u32], slots: &[u32]) -> Action {
    Action::Still {
        pages: pages.iter().copied().map(PageId).collect(),
        slots: slots.iter().copied().map(Slot).collect(),
    }
}

impl Bench {
    fn switch(&mut self, epoch: u32, limits: Limits) -> Vec<Action> {
        self.on(Event::Switch { epoch: Epoch(epoch), limits: Box::new(limits) })
    }

    fn done_of(&mut self, epoch: u32, step: u64, outcomes: Vec<(u128, Outcome)>) -> Vec<Action> {
        let result = |(number, outcome)| ChunkResult { session: name(number), outcome };
        let results = outcomes.into_iter().map(result).collect();
        self.on(Event::Done(StepDone { epoch: Epoch(epoch), step: StepId(step), results, times: Vec::new() }))
    }
}

/// A row of two stages that has the memory of `small`.
fn longer() -> Limits {
    Limits { credits: 3, ..Limits { stages: 2, ..small() } }
}

#[test]
fn an_idle_row_is_still_at_once_and_steps_go_on_in_the_next() {
    let mut bench = Bench::new(small());
    assert_eq!(bench.on(Event::Hold), [still(&[], &[])]);
    assert_eq!(bench.on(Event::Hold), [], "it is said once");
    assert_eq!(bench.switch(2, longer()), []);
    bench.open(1, 4, 8);
    let first = bench.want(1, vec![7; 4]);
    assert_eq!((step(&first).epoch, step(&first).id), (Epoch(2), StepId(0)));
}

#[test]
fn a_session_runs_on_in_another_row_as_if_nothing_had_happened() {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    assert_eq!(bench.on(Event::Hold), [], "a step is under way");
    assert_eq!(bench.done(0, vec![(1, sampled(8))]), [outcome(1, 8, 4), still(&[0], &[0])]);
    assert_eq!(bench.want(1, vec![8]), [], "it waits with the next step");
    assert_eq!(bench.open(2, 4, 8), [opened(2)], "newcomers are let in");
    assert_eq!(bench.want(2, vec![6; 4]), []);

    let next = bench.switch(2, longer());
    assert_eq!(next.len(), 2, "{next:?}");
    let steps: Vec<&Step> = next
        .iter()
        .map(|action| if let Action::Send { step, .. } = action { step } else { panic!("{next:?}") })
        .collect();
    assert_eq!(
        [(steps[0].epoch, steps[0].id), (steps[1].epoch, steps[1].id)],
        [(Epoch(2), StepId(1)), (Epoch(2), StepId(2))]
    );
    assert_eq!(steps[0].chunks, [chunk(1, 4, ChunkInput::Tokens(vec![8]))]);
    assert_eq!(steps[1].chunks, [chunk(2, 0, ChunkInput::Tokens(vec![6; 4]))]);
    assert_eq!(bench.done(1, vec![(1, sampled(5))]), [], "of the old row");
    assert_eq!(bench.done_of(2, 1, vec![(1, sampled(9))]), [outcome(1, 9, 5)]);
    assert_eq!(bench.coordinator.status().interrupted, 0);
}

#[test]
fn what_is_closed_is_closed_before_the_row_is_still_and_what_leaves_then_waits() {
    let mut bench = Bench::new(small());
    for (number, step) in [(2, 0), (1, 1)] {
        bench.open(number, 4, 8);
        bench.want(number, vec![7; 4]);
        bench.done(step, vec![(number, sampled(8))]);
    }
    bench.want(1, vec![8]);
    bench.on(Event::Hold);
    let left = bench.leave(1);
    assert_eq!(left, [Action::Cancel { session: name(1) }, closed(1)]);
    let closes = bench.done(2, vec![(1, Outcome::Void)]);
    assert_eq!(step(&closes).operations, [Operation::Close { session: name(1) }]);
    assert_eq!((step(&closes).id, &step(&closes).chunks[..]), (StepId(3), &[][..]));
    assert_eq!(bench.done(3, vec![]), [still(&[0], &[0])]);

    assert_eq!(bench.leave(2), [closed(2)]);
    assert_eq!(
        bench.open(3, 4, 8),
        [opened(3)],
        "it has the slot and the pages of one that is still open on the stages"
    );
    assert_eq!(bench.want(3, vec![5; 4]), []);
    let next = bench.switch(2, small());
    let operations = &step(&next).operations;
    assert_eq!(operations[0], Operation::Close { session: name(2) }, "the old owner goes first");
    assert!(matches!(operations[1], Operation::Open { slot: Slot(0), .. }), "{operations:?}");
}

#[test]
fn a_token_that_was_run_ahead_is_told_in_the_next_row() {
    let mut bench = Bench::new(Limits { run_ahead: true, ..small() });
    bench.open(1, 4, 12);
    assert_eq!(bench.want(1, vec![7; 4]).len(), 2, "the prompt, and the token after it");
    bench.on(Event::Hold);
    assert_eq!(bench.done(0, vec![(1, sampled(8))]), [outcome(1, 8, 4)]);
    assert_eq!(bench.done(1, vec![(1, sampled(9))]), [still(&[0, 1], &[0])], "it is held back");
    assert_eq!(bench.switch(2, longer()), []);
    assert_eq!(bench.want(1, vec![8]), [outcome(1, 9, 5)]);
    let next = bench.want(1, vec![9]);
    assert_eq!((step(&next).epoch, step(&next).id), (Epoch(2), StepId(2)));
    assert_eq!(step(&next).chunks, [chunk(1, 5, ChunkInput::Tokens(vec![9]))]);
}

#[test]
fn a_row_that_is_resumed_goes_on() {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    bench.on(Event::Hold);
    bench.done(0, vec![(1, sampled(8))]);
    bench.want(1, vec![8]);
    let next = bench.on(Event::Resume);
    assert_eq!((step(&next).epoch, step(&next).id), (Epoch(1), StepId(1)));
    assert_eq!(bench.switch(2, small()), [], "it is not still any more");
    assert_eq!(bench.done(1, vec![(1, sampled(9))]), [outcome(1, 9, 5)]);
    // Before it is still, too.
    bench.want(1, vec![9]);
    bench.on(Event::Hold);
    assert_eq!(bench.on(Event::Resume), []);
    assert_eq!(bench.done(2, vec![(1, sampled(9))]), [outcome(1, 9, 6)]);
}

#[test]
fn a_row_that_fails_while_it_is_held_is_over() {
    for back in [false, true] {
        let mut bench = Bench::new(small());
        bench.open(1, 4, 8);
        bench.want(1, vec![7; 4]);
        bench.on(Event::Hold);
        if back {
            bench.done(0, vec![(1, sampled(8))]);
            assert!(bench.coordinator.is_still());
        }
        let failed = bench.on(Event::Failed { stage: 0, reason: "gone".into() });
        assert_eq!(failed, [Action::Interrupted { session: name(1) }]);
        assert!(!bench.coordinator.is_still());
        assert_eq!(bench.switch(2, small()), [], "there is nothing to take over");
        assert_eq!(bench.on(Event::Hold), [], "nor to hold");
        assert_eq!(bench.on(Event::Resume), []);
        assert_eq!(bench.coordinator.status().broken.as_deref(), Some("stage 0 failed: gone"));
    }
}
