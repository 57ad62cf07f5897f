//! What sessions find and what they leave, case by case.

use super::*;

/// Pages of four tokens, two slots and four snapshots; a state is kept where the text side says, or every 64 tokens.
fn caching() -> Limits {
    Limits {
        pages: 40,
        context: 100,
        snapshots: 4,
        snapshot_stride: 64,
        growth_tokens: 4,
        step_rows: 130,
        prefill_rows: 120,
        ..small()
    }
}

impl Bench {
    /// A session with these tokens comes.
    fn comes(&mut self, number: u128, tokens: &[u32], boundaries: &[usize]) -> Vec<Action> {
        let (prompt_tokens, sampling) = (tokens.len(), Box::default());
        let (tokens, boundaries, token_limit) = (tokens.into(), boundaries.into(), prompt_tokens + 8);
        let opening = Opening { tokens, boundaries, prompt_tokens, token_limit, sampling, again: false };
        self.on(Event::Open { session: name(number), opening })
    }

    /// It computes its prompt of two chunks, the first up to the boundary, in steps `step` and `step + 1`, and has a token.
    fn reads(&mut self, number: u128, tokens: &[u32], boundary: usize, step: u64) -> Vec<Action> {
        assert_eq!(self.comes(number, tokens, &[boundary]), [opened(number)]);
        let mut all = self.want(number, tokens.to_vec());
        all.extend(self.done(step, vec![(number, Outcome::Stored)]));
        assert_eq!(self.done(step + 1, vec![(number, sampled(8))]), [outcome(number, 8, tokens.len())]);
        all
    }
}

/// What is told of these tokens.
fn reuse(cached: usize, matched: usize, missed: Option<Missed>) -> Reuse {
    Reuse { cached, matched, missed, ..Reuse::default() }
}

fn told(number: u128, reuse: Reuse) -> Action {
    Action::Opened { session: name(number), reuse }
}

fn first_step(actions: &[Action]) -> &Step {
    let mut sent = actions.iter().filter_map(|one| if let Action::Send { step, .. } = one { Some(step) } else { None });
    sent.next().expect("a step")
}

fn text(number: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|place| number * 1000 + place).collect()
}

#[test]
fn a_second_user_goes_on_from_the_boundary_while_the_first_still_runs() {
    let mut bench = Bench::new(caching());
    let first = text(1, 50);
    let actions = bench.reads(1, &first, 42, 0);
    // the copy goes with the next chunk
    let steps: Vec<&Step> =
        actions.iter().filter_map(|one| if let Action::Send { step, .. } = one { Some(step) } else { None }).collect();
    assert_eq!(rows(steps[0]), [(name(1), 42)]);
    assert_eq!(steps[1].operations.last(), Some(&Operation::CopyState { from: Slot(0), to: Slot(1) }));

    let second = [&first[..45], &text(2, 20)].concat();
    // the branch is seen three tokens behind the state
    let found = reuse(42, 45, Some(Missed::NoState));
    assert_eq!(bench.comes(2, &second, &[]), [told(2, found)]);
    let actions = bench.want(2, second[42..].to_vec());
    let operations = &first_step(&actions).operations;
    let session = name(2);
    let reused = Reused { tokens: 42, last: vec![] };
    assert_eq!(
        operations[..2],
        [
            Operation::Open { session, slot: Slot(2), sampling: Box::default(), generated_from: 65, reused },
            Operation::CopyState { from: Slot(1), to: Slot(2) },
        ]
    );
    // ten full pages are shared, and two tokens of the eleventh are copied into the first of its own
    let Operation::Grant { pages, .. } = &operations[2] else { panic!("{operations:?}") };
    assert_eq!(pages[..10], (0..10).map(PageId).collect::<Vec<_>>());
    assert_eq!(operations[3], Operation::CopyPage { from: PageId(10), to: pages[10] });
    assert_eq!(rows(first_step(&actions)), [(name(2), 22)]);
    assert_eq!(first_step(&actions).chunks[0].start, 42);
    let status = bench.coordinator.status();
    assert_eq!((status.cache.hits, status.cache.cached_tokens, status.cache.reread_tokens), (1, 42, 3));
}

#[test]
fn a_finished_session_lingers_until_its_last_row_is_back_and_leaves_its_state() {
    let mut bench = Bench::new(Limits { run_ahead: true, ..caching() });
    let prompt = text(1, 20);
    bench.comes(1, &prompt, &[20]);
    bench.want(1, prompt.clone()); // the token is run ahead in step 1
    bench.done(0, vec![(1, sampled(8))]);
    assert_eq!(bench.leave(1), [closed(1)], "nobody voids the row that is under way");
    assert_eq!(bench.coordinator.status().running, 0);
    let last = bench.done(1, vec![(1, sampled(9))]);
    assert!(step(&last).operations.contains(&Operation::Close { session: name(1) }));
    // the prompt and its first token are all there
    let again = [&prompt[..], &[8, 5, 5]].concat();
    // the state behind the boundary before it is as good: closer ones are not kept
    assert_eq!(bench.comes(2, &again, &[]), [told(2, reuse(20, 21, Some(Missed::NoState)))]);
    assert_eq!(bench.leave(2), [closed(2)]);
}

#[test]
fn who_begins_alike_waits_for_the_first_and_goes_on_from_there() {
    let mut bench = Bench::new(caching());
    let prompt = text(1, 60);
    assert_eq!(bench.comes(1, &prompt, &[50]), [opened(1)]);
    assert_eq!(bench.comes(2, &prompt, &[50]), [], "it waits");
    bench.want(1, prompt.clone());
    // the state was copied with the first one's next chunk, and now what it holds is verified
    let actions = bench.done(0, vec![(1, Outcome::Stored)]);
    assert_eq!(actions.last(), Some(&told(2, reuse(50, 50, Some(Missed::New)))), "{actions:?}");
    assert_eq!(bench.want(2, prompt[50..].to_vec()), [], "the first one is about to decode");
    assert_eq!(rows(first_step(&bench.done(1, vec![(1, sampled(8))]))), [(name(2), 10)]);
}

#[test]
fn when_the_first_leaves_the_others_go_on_by_themselves() {
    let mut bench = Bench::new(caching());
    let prompt = text(1, 60);
    bench.comes(1, &prompt, &[50]);
    assert_eq!(bench.comes(2, &prompt, &[50]), []);
    let actions = bench.leave(1);
    assert_eq!(actions, [closed(1), opened(2)]);
    assert_eq!(rows(first_step(&bench.want(2, prompt.clone()))), [(name(2), 50)]);
}

#[test]
fn a_row_that_is_still_names_what_is_cached_and_one_that_fails_has_nothing() {
    let mut bench = Bench::new(caching());
    let prompt = text(1, 30);
    bench.reads(1, &prompt, 20, 0);
    bench.leave(1);
    bench.done(2, vec![]);
    let actions = bench.on(Event::Hold);
    let [Action::Still { pages, slots }] = &actions[..] else { panic!("{actions:?}") };
    // the session's state of 30 tokens is closer to that of 20 than is worth a slot
    assert_eq!((pages.len(), slots.len()), (8, 1));
    bench.on(Event::Resume);
    bench.on(Event::Failed { stage: 0, reason: "gone".into() });
    let accounts = bench.coordinator.accounts();
    assert_eq!((accounts.pages_free, accounts.snapshots_free), (40, 4));
    bench.on(Event::Reset { epoch: Epoch(1), limits: Box::new(caching()) });
    assert_eq!(bench.comes(2, &prompt, &[]), [opened(2)]);
}

#[test]
fn penalties_are_told_the_tokens_that_are_not_run() {
    let mut bench = Bench::new(caching());
    let prompt = text(1, 30);
    bench.reads(1, &prompt, 20, 0);
    let sampling = Box::new(SamplingSettings { repetition_penalty: 1.5, penalty_window: 3, ..Default::default() });
    let (tokens, boundaries) = (prompt.as_slice().into(), [].into());
    let opening =
        Opening { tokens, boundaries, prompt_tokens: 30, token_limit: 40, sampling: sampling.clone(), again: false };
    bench.on(Event::Open { session: name(2), opening });
    let actions = bench.want(2, prompt[20..].to_vec());
    let Operation::Open { reused, .. } = &first_step(&actions).operations[0] else { panic!("{actions:?}") };
    assert_eq!(*reused, Reused { tokens: 20, last: prompt[17..20].to_vec() });
}
