//! Pages on demand.

use super::*;

/// Six pages of four tokens, three slots, and one token more than a session has when it opens.
fn growing() -> Limits {
    Limits { slots: 3, pages: 6, growth_tokens: 1, context: 24, ..small() }
}

fn paused(number: u128) -> Action {
    Action::Paused { session: name(number) }
}

impl Bench {
    /// A session of so many tokens runs its prompt in step `step`, and gets a token.
    fn decodes(&mut self, number: u128, prompt: usize, step: u64) {
        assert_eq!(self.open(number, prompt, 24), [opened(number)]);
        self.want(number, vec![7; prompt]);
        assert_eq!(self.done(step, vec![(number, sampled(8))]), [outcome(number, 8, prompt)]);
    }

    fn opens_again(&mut self, number: u128, tokens: usize, prompt_tokens: usize) -> Vec<Action> {
        let (tokens, boundaries, sampling) = (new_tokens(number, tokens), [].into(), Box::default());
        let opening = Opening { tokens, boundaries, prompt_tokens, token_limit: 24, sampling, again: true };
        self.on(Event::Open { session: name(number), opening })
    }
}

#[test]
fn a_session_gets_pages_as_it_grows() {
    let mut bench = Bench::new(growing());
    bench.decodes(1, 7, 0); // and one more: two pages
    let accounts = bench.coordinator.accounts();
    assert_eq!((accounts.pages_held, accounts.pages_promised), (2, 0));
    assert_eq!(step(&bench.want(1, vec![8])).operations, []);
    bench.done(1, vec![(1, sampled(8))]);
    let grant = Operation::Grant { session: name(1), pages: vec![PageId(2)] };
    assert_eq!(step(&bench.want(1, vec![8])).operations, [grant]);
}

/// Sessions 1 and 2 hold three pages each, all of them full but the last of 2, and have a token.
fn crowded() -> Bench {
    let mut bench = Bench::new(growing());
    bench.decodes(1, 11, 0);
    bench.want(1, vec![8]);
    bench.done(1, vec![(1, sampled(8))]);
    bench.decodes(2, 9, 2);
    assert_eq!(bench.coordinator.status().pages_free, 0);
    bench
}

#[test]
fn the_newest_makes_room_and_comes_back_when_there_are_pages_for_it() {
    let mut bench = crowded();
    let actions = bench.want(1, vec![8]);
    assert_eq!(actions[0], paused(2));
    let first = step(&actions);
    // its pages are free behind its close, and the first of them goes on at once
    let [Operation::Close { session }, Operation::Grant { session: granted, pages }] = &first.operations[..] else {
        panic!("{first:?}")
    };
    assert_eq!((*session, *granted, pages), (name(2), name(1), &vec![PageId(3)]));
    assert_eq!(rows(first), [(name(1), 1)]);
    assert_eq!(bench.want(2, vec![8]), [], "it had not heard of it");
    assert_eq!(bench.opens_again(2, 10, 9), [], "two pages are free, and three needed");
    let status = bench.coordinator.status();
    assert_eq!((status.running, status.interrupted, status.pauses, status.pages_free), (1, 1, 1, 2));
    // nobody who came later goes before it, and it waits as long as it must
    assert_eq!(bench.open(3, 4, 8), []);
    bench.now = Duration::from_secs(59);
    assert_eq!(bench.coordinator.deadline(bench.now), Some(Duration::from_secs(60)), "of the newcomer");
    bench.done(3, vec![(1, sampled(8))]);
    bench.now = Duration::from_secs(1000);
    let waited = bench.now;
    assert_eq!(bench.on(Event::Tick), [refused(3, Refusal::QueueDeadline { waited })]);
    assert_eq!(bench.leave(1)[..2], [closed(1), opened(2)]);
    let again = bench.want(2, vec![7; 10]);
    let session = name(2);
    let (slot, sampling, reused) = (Slot(0), Box::default(), Reused::default());
    let open = Operation::Open { session, slot, sampling, generated_from: 9, reused };
    assert!(step(&again).operations.contains(&open), "{again:?}");
    assert_eq!(step(&again).chunks, [chunk(2, 0, ChunkInput::Tokens(vec![7; 10]))]);
}

#[test]
fn who_is_the_newest_itself_waits_for_those_before_it() {
    let mut bench = Bench::new(growing());
    bench.decodes(1, 15, 0);
    bench.decodes(2, 7, 1);
    bench.want(2, vec![8]);
    bench.done(2, vec![(2, sampled(8))]);
    assert_eq!(bench.coordinator.status().pages_free, 0);
    let actions = bench.want(2, vec![8]);
    assert_eq!(actions[0], paused(2));
    assert_eq!(step(&actions).operations, [Operation::Close { session: name(2) }]);
    assert_eq!(step(&actions).chunks, []);
    bench.done(3, vec![]);
    assert_eq!(bench.opens_again(2, 9, 7), [], "two pages are free, and three needed");
    assert_eq!(bench.leave(1)[..2], [closed(1), opened(2)]);
}

#[test]
fn the_oldest_is_never_paused_and_ends() {
    let mut bench = Bench::new(growing());
    for number in 1..=3 {
        bench.decodes(number, 7, number as u64 - 1);
    }
    let (mut step, mut who) = (3, Vec::new());
    for tokens in 8..24 {
        let actions = bench.want(1, vec![8]);
        who.extend(actions.iter().filter(|action| matches!(action, Action::Paused { .. })).cloned());
        let came = bench.done(step, vec![(1, sampled(8))]);
        assert_eq!(came, [outcome(1, 8, tokens)]);
        step += 1;
    }
    assert_eq!(who, [paused(3), paused(2)]);
}

#[test]
fn what_was_under_way_is_ignored_and_nothing_is_opened_before_it_is_back() {
    let mut bench = crowded();
    assert_eq!(rows(step(&bench.want(2, vec![8]))), [(name(2), 1)]);
    assert_eq!(bench.want(1, vec![8])[0], paused(2));
    bench.opens_again(2, 10, 9);
    // the other leaves, so that there is room; but a result of what it was is still to come
    assert_eq!(bench.leave(1), [closed(1)]);
    assert_eq!(bench.coordinator.status().running, 0);
    assert_eq!(bench.done(3, vec![(2, sampled(8))])[0], opened(2), "its result is nobody's");
    assert_eq!(bench.coordinator.broken(), None);
}

#[test]
fn a_slow_reader_is_paused_as_any_other() {
    let mut bench = crowded();
    bench.now = Duration::from_secs(10); // session 2 has its token, and wants nothing
    assert_eq!(bench.want(1, vec![8])[0], paused(2));
    assert_eq!(bench.coordinator.accounts().awaited, 0);
}

#[test]
fn who_is_paused_when_the_row_fails_waits_for_the_next_as_others_do() {
    let mut bench = crowded();
    bench.want(1, vec![8]);
    bench.now = Duration::from_secs(500);
    let interrupted = Action::Interrupted { session: name(1) };
    assert_eq!(bench.on(Event::Failed { stage: 0, reason: "gone".into() }), [interrupted]);
    assert_eq!(bench.coordinator.deadline(bench.now), Some(Duration::from_secs(620)));
    bench.now = Duration::from_secs(620);
    assert_eq!(bench.on(Event::Tick).len(), 2, "both are lost");
    // and that it was paused is nobody's fault: with a limit of no restores at all it is none
    let mut bench = crowded();
    bench.coordinator.limits.restores = 0;
    assert_eq!(bench.want(1, vec![8])[0], paused(2));
}

#[test]
fn nobody_is_paused_for_a_token_that_is_run_ahead() {
    let mut bench = crowded();
    bench.coordinator.limits.run_ahead = true;
    // session 2 has three places left in its pages: one for this token, two for those that are run ahead
    let first = bench.want(2, vec![8]);
    assert_eq!(first.len(), 2, "the token and the one after it: {first:?}");
    bench.done(3, vec![(2, sampled(8))]);
    assert_eq!(rows(step(&bench.want(2, vec![8]))), [(name(2), 1)]);
    bench.done(4, vec![(2, sampled(8))]);
    assert_eq!(bench.want(2, vec![8]), [], "it is run already, and there is no page for the next");
    assert_eq!(bench.coordinator.status().pauses, 0);
    assert_eq!(bench.done(5, vec![(2, sampled(8))]), [outcome(2, 8, 12)]);
}
