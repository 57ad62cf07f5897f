//! Events in, actions out, case by case. What holds for all cases together is in the simulation.

mod ahead;
mod caching;
mod growing;
mod overdue;
mod restoring;
mod switching;

use paceline_proto::{Chunk, ChunkInput, ChunkResult, PageId, Reused, SampledToken, Slot, StageTime, StepId};
use uuid::Uuid;

use super::*;
use crate::reuse::Missed;

fn name(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(number))
}

/// A coordinator, and what it has sent.
struct Bench {
    coordinator: Coordinator,
    now: Duration,
}

/// Steps of 32 rows, one stage, four pages of four tokens, two slots, no run-ahead, no waiting for answers.
fn small() -> Limits {
    Limits {
        step_rows: 32,
        prefill_rows: 16,
        queue: 2,
        gather: Duration::ZERO,
        run_ahead: false,
        step_deadline: None,
        ..Limits::new(1, 2, 4, 4, 64)
    }
}

impl Bench {
    fn new(limits: Limits) -> Self {
        let mut coordinator = Coordinator::new(Epoch(1), limits);
        // As after the first tokens: a step of decode alone has gone out.
        assert!(coordinator.pace.asks());
        Self { coordinator, now: Duration::ZERO }
    }

    fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.coordinator.on(event, self.now, &mut actions);
        actions
    }

    fn open(&mut self, number: u128, prompt_tokens: usize, token_limit: usize) -> Vec<Action> {
        let tokens = new_tokens(number, prompt_tokens);
        let (boundaries, sampling) = ([].into(), Box::default());
        let opening = Opening { tokens, boundaries, prompt_tokens, token_limit, sampling, again: false };
        self.on(Event::Open { session: name(number), opening })
    }

    fn want(&mut self, number: u128, tokens: Vec<u32>) -> Vec<Action> {
        self.wish(number, Input::Tokens(tokens), Wanted::Sample)
    }

    fn wish(&mut self, number: u128, input: Input, wanted: Wanted) -> Vec<Action> {
        self.on(Event::Want { session: name(number), wish: Wish::new(input, wanted) })
    }

    fn leave(&mut self, number: u128) -> Vec<Action> {
        self.on(Event::Leave { session: name(number) })
    }

    fn done(&mut self, step: u64, outcomes: Vec<(u128, Outcome)>) -> Vec<Action> {
        self.done_in(step, outcomes, vec![StageTime { busy: 1000, ..StageTime::default() }])
    }

    fn done_in(&mut self, step: u64, outcomes: Vec<(u128, Outcome)>, times: Vec<StageTime>) -> Vec<Action> {
        let result = |(number, outcome)| ChunkResult { session: name(number), outcome };
        let results = outcomes.into_iter().map(result).collect();
        self.on(Event::Done(StepDone { epoch: Epoch(1), step: StepId(step), results, times }))
    }
}

/// Tokens of a session that no other one has.
fn new_tokens(number: u128, count: usize) -> Arc<[u32]> {
    (0..count).map(|place| (number * 1000) as u32 + place as u32).collect()
}

fn opened(number: u128) -> Action {
    let reuse = Reuse { missed: Some(Missed::Unknown), ..Reuse::default() };
    Action::Opened { session: name(number), reuse }
}

fn closed(number: u128) -> Action {
    Action::Closed { session: name(number) }
}

fn refused(number: u128, refusal: Refusal) -> Action {
    Action::Refused { session: name(number), refusal }
}

fn sampled(token: u32) -> Outcome {
    Outcome::Sampled(SampledToken { token, logprobs: None })
}

fn outcome(number: u128, token: u32, position: usize) -> Action {
    Action::Outcome { session: name(number), outcome: sampled(token), position, drafts: 0 }
}

fn step(actions: &[Action]) -> &Step {
    let steps: Vec<_> = actions.iter().filter(|action| matches!(action, Action::Send { .. })).collect();
    let [Action::Send { step, .. }] = steps[..] else { panic!("{} steps in {actions:?}", steps.len()) };
    step
}

fn chunk(number: u128, start: u32, input: ChunkInput) -> Chunk {
    Chunk { session: name(number), start, input, wanted: Wanted::Sample, void: false }
}

/// The session and the rows of each chunk.
fn rows(step: &Step) -> Vec<(SessionId, usize)> {
    step.chunks.iter().map(|chunk| (chunk.session, chunk.input.rows())).collect()
}

#[test]
fn a_session_from_its_opening_to_its_close() {
    let mut bench = Bench::new(small());
    assert_eq!(bench.open(1, 5, 9), [opened(1)]);
    let session = name(1);

    let first = bench.want(1, vec![7; 5]);
    assert_eq!(
        step(&first).operations,
        [
            Operation::Open {
                session,
                slot: Slot(0),
                sampling: Box::default(),
                generated_from: 5,
                reused: Reused::default()
            },
            Operation::Grant { session, pages: vec![PageId(0), PageId(1)] },
        ]
    );
    assert_eq!(step(&first).chunks, [chunk(1, 0, ChunkInput::Tokens(vec![7; 5]))]);

    assert_eq!(bench.done(0, vec![(1, sampled(8))]), [outcome(1, 8, 5)]);
    let second = bench.want(1, vec![8]);
    assert_eq!(step(&second).operations, []);
    assert_eq!(step(&second).chunks, [chunk(1, 5, ChunkInput::Tokens(vec![8]))]);

    assert_eq!(bench.done(1, vec![(1, sampled(9))]), [outcome(1, 9, 6)]);
    let last = bench.leave(1);
    assert_eq!(last[0], closed(1));
    assert_eq!(step(&last).operations, [Operation::Close { session }]);
    assert_eq!(bench.coordinator.status().pages_free, 4);
}

#[test]
fn refusals_name_the_figures() {
    let mut bench = Bench::new(Limits { pages: 10, ..small() });
    assert_eq!(bench.open(1, 0, 4), [refused(1, Refusal::EmptyPrompt)]);
    let over = Refusal::OverOwnLimit { prompt_tokens: 5, token_limit: 4 };
    assert_eq!(bench.open(1, 5, 4), [refused(1, over)]);
    assert_eq!(bench.open(1, 5, 65), [refused(1, Refusal::TooLong { tokens: 65, context: 64 })]);
    assert_eq!(bench.open(1, 5, 41), [refused(1, Refusal::NeverFits { needed: 11, total: 10 })]);
    assert_eq!(bench.open(1, 5, 40), [opened(1)]);
    assert_eq!(bench.open(1, 5, 40), [refused(1, Refusal::Duplicate { session: name(1) })]);
    assert_eq!(bench.open(2, 5, 40), []);
    assert_eq!(bench.open(2, 5, 40), [refused(2, Refusal::Duplicate { session: name(2) })]);
    assert_eq!(bench.open(3, 5, 40), []);
    assert_eq!(bench.open(4, 5, 40), [refused(4, Refusal::QueueFull { waiting: 2, limit: 2 })]);
}

#[test]
fn a_name_is_not_free_before_its_chunks_are_back() {
    let mut bench = Bench::new(small());
    bench.open(1, 2, 4);
    bench.want(1, vec![7, 7]);
    assert_eq!(bench.leave(1)[..2], [Action::Cancel { session: name(1) }, closed(1)]);
    assert_eq!(bench.open(1, 2, 4), [refused(1, Refusal::Duplicate { session: name(1) })]);
    bench.done(0, vec![(1, Outcome::Void)]);
    assert_eq!(bench.open(1, 2, 4), [opened(1)]);
}

#[test]
fn a_large_session_in_front_is_not_overtaken() {
    let mut bench = Bench::new(small());
    assert_eq!(bench.open(1, 4, 8), [opened(1)]);
    assert_eq!(bench.open(2, 4, 16), []); // all pages
    assert_eq!(bench.open(3, 4, 4), []); // would fit
    assert_eq!(bench.leave(1), [closed(1), opened(2)]);
    assert_eq!(bench.leave(2), [closed(2), opened(3)]);
}

#[test]
fn waiting_ends_at_the_deadline_and_frees_those_behind() {
    let mut bench = Bench::new(Limits { queue_deadline: Duration::from_secs(3), ..small() });
    bench.open(1, 4, 8);
    bench.open(2, 4, 16);
    bench.now = Duration::from_secs(1);
    bench.open(3, 4, 4);
    assert_eq!(bench.coordinator.deadline(bench.now), Some(Duration::from_secs(3)));
    bench.now = Duration::from_secs(3);
    let waited = Duration::from_secs(3);
    assert_eq!(bench.on(Event::Tick), [refused(2, Refusal::QueueDeadline { waited }), opened(3)]);
    assert_eq!(bench.coordinator.deadline(bench.now), None);
}

#[test]
fn who_leaves_the_queue_is_closed_at_once() {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 16);
    bench.open(2, 4, 4);
    assert_eq!(bench.leave(2), [closed(2)]);
    assert_eq!(bench.leave(1), [closed(1)]); // never sent anything, so there is nothing to close on the stages
    assert_eq!(bench.leave(1), []);
}

#[test]
fn pages_of_a_cancelled_session_go_on_behind_its_close() {
    let mut bench = Bench::new(small());
    bench.open(1, 16, 16);
    bench.want(1, vec![7; 16]);
    bench.open(2, 4, 16);
    assert_eq!(bench.leave(1), [Action::Cancel { session: name(1) }, closed(1), opened(2)]);
    let next = bench.want(2, vec![9; 4]);
    assert_eq!(
        step(&next).operations,
        [
            Operation::Close { session: name(1) },
            Operation::Open {
                session: name(2),
                slot: Slot(0),
                sampling: Box::default(),
                generated_from: 4,
                reused: Reused::default()
            },
            Operation::Grant { session: name(2), pages: vec![PageId(0)] },
        ]
    );
    assert_eq!(bench.done(0, vec![(1, sampled(1))]), []); // nobody waits for it
}

#[test]
fn a_prompt_is_sent_in_chunks_that_follow_each_other_at_once() {
    let mut bench = Bench::new(Limits { pages: 16, credits: 3, ..small() });
    bench.open(1, 40, 41);
    let actions = bench.want(1, (0..40).collect());
    let chunks: Vec<_> = actions.iter().map(|action| step(std::slice::from_ref(action)).chunks[0].clone()).collect();
    let wanted: Vec<_> = chunks.iter().map(|chunk| (chunk.start, chunk.input.rows(), chunk.wanted)).collect();
    assert_eq!(wanted, [(0, 16, Wanted::Nothing), (16, 16, Wanted::Nothing), (32, 8, Wanted::Sample)]);
    assert_eq!(chunks[1].input, ChunkInput::Tokens((16..32).collect()));
    let stored = Action::Outcome { session: name(1), outcome: Outcome::Stored, position: 16, drafts: 0 };
    assert_eq!(bench.done(0, vec![(1, Outcome::Stored)]), [stored]);
}

#[test]
fn vectors_travel_beside_their_step() {
    let mut bench = Bench::new(small());
    bench.open(1, 16, 16);
    let positions: Vec<_> = (0..12).map(|row| [row, 0, 0, 0]).collect();
    let vectors = Input::Rows { positions: positions.clone(), values: (0..24).map(|value| value as f32).collect() };
    bench.wish(1, Input::Tokens(vec![1; 4]), Wanted::Nothing);
    let actions = bench.wish(1, vectors, Wanted::Vector);
    let [Action::Send { step, rows }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((step.chunks[0].start, &step.chunks[0].input), (4, &ChunkInput::Rows { positions }));
    assert_eq!(rows.len(), 24);
}

#[test]
fn decode_comes_first_and_leaves_room_for_prompts() {
    let limits = Limits { slots: 4, pages: 64, step_rows: 18, step_wanted: 3, credits: 1, ..small() };
    let mut bench = Bench::new(limits);
    for number in 1..=3 {
        bench.open(number, 1, 20);
        bench.want(number, vec![7]);
    }
    bench.done(0, vec![(1, sampled(8))]);
    bench.done(1, vec![(2, sampled(8)), (3, sampled(8))]);
    bench.open(4, 40, 50);
    let prompt = bench.want(4, vec![9; 40]);
    assert_eq!(rows(step(&prompt)), [(name(4), 16)]);
    for number in 1..=3 {
        bench.want(number, vec![8]);
    }
    // two decode rows beside the least prefill: the third waits for its turn, then it is the first
    let mixed = bench.done(2, vec![(4, Outcome::Stored)]);
    assert_eq!(rows(step(&mixed)), [(name(1), 1), (name(2), 1), (name(4), 16)]);
    let next = bench.done(3, vec![(1, sampled(8)), (2, sampled(8)), (4, Outcome::Stored)]);
    assert_eq!(rows(step(&next)), [(name(3), 1), (name(4), 8)]);
}

#[test]
fn a_step_waits_for_those_who_just_got_a_token() {
    let mut bench = Bench::new(Limits { pages: 8, gather: Duration::from_micros(500), ..small() });
    for number in 1..=2 {
        bench.open(number, 8, 12);
    }
    bench.want(1, vec![7; 8]);
    bench.want(2, vec![7; 8]);
    bench.done(0, vec![(1, sampled(8))]);
    assert_eq!(rows(step(&bench.want(1, vec![8]))), [(name(1), 1), (name(2), 8)]);
    bench.done(1, vec![(1, sampled(8)), (2, sampled(8))]);
    assert_eq!(bench.want(1, vec![8]), []);
    assert_eq!(rows(step(&bench.want(2, vec![8]))), [(name(1), 1), (name(2), 1)]);

    bench.done(2, vec![(1, sampled(8)), (2, sampled(8))]);
    assert_eq!(bench.want(1, vec![8]), []);
    assert_eq!(bench.coordinator.deadline(bench.now), Some(Duration::from_micros(500)));
    bench.now = Duration::from_micros(500);
    assert_eq!(rows(step(&bench.on(Event::Tick))), [(name(1), 1)]); // the other's reader is slow
    assert_eq!(bench.coordinator.deadline(bench.now), None);
}

fn ahead() -> Bench {
    let mut bench = Bench::new(Limits { run_ahead: true, ..small() });
    bench.open(1, 5, 8);
    let actions = bench.want(1, vec![7; 5]);
    let [Action::Send { .. }, Action::Send { step, .. }] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(step.chunks, [chunk(1, 5, ChunkInput::Sampled { step: StepId(0) })]);
    bench
}

#[test]
fn a_token_run_ahead_is_matched_and_not_sent_again() {
    let mut bench = ahead();
    assert_eq!(bench.done(0, vec![(1, sampled(8))]), [outcome(1, 8, 5)]);
    let next = bench.want(1, vec![8]);
    assert_eq!(step(&next).chunks, [chunk(1, 6, ChunkInput::Sampled { step: StepId(1) })]);
    bench.done(1, vec![(1, sampled(9))]);
    // the token after that is the last of its limit: it is not run
    assert_eq!(bench.want(1, vec![9]), []);
    assert_eq!(bench.done(2, vec![(1, sampled(10))]), [outcome(1, 10, 7)]);
}

#[test]
fn what_was_run_ahead_is_held_back_until_it_is_wanted() {
    let mut bench = ahead();
    bench.done(0, vec![(1, sampled(8))]);
    assert_eq!(bench.done(1, vec![(1, sampled(9))]), []);
    let held = bench.want(1, vec![8]);
    assert_eq!(held[0], outcome(1, 9, 6));
}

#[test]
fn who_leaves_has_what_was_run_ahead_cancelled() {
    let mut bench = ahead();
    bench.done(0, vec![(1, sampled(8))]);
    let actions = bench.leave(1);
    assert_eq!(actions[..2], [Action::Cancel { session: name(1) }, closed(1)]);
    bench.done(1, vec![(1, Outcome::Void)]);
    assert_eq!(bench.coordinator.status().pages_free, 4);
}

#[test]
fn a_longer_row_runs_ahead_only_when_nothing_else_is_ready() {
    let beside_a_prompt = |stages| {
        let limits = Limits { stages, credits: 2, run_ahead: true, pages: 64, context: 300, ..small() };
        let mut bench = Bench::new(limits);
        bench.open(2, 200, 201);
        bench.want(2, vec![1; 200]);
        bench.open(1, 4, 20);
        bench.want(1, vec![7; 4]);
        let both = bench.done(0, vec![(2, Outcome::Stored)]);
        assert_eq!(rows(step(&both)), [(name(1), 4), (name(2), 12)]);
        let next = bench.done(1, vec![(2, Outcome::Stored)]);
        rows(step(&next))
    };
    assert_eq!(beside_a_prompt(1), [(name(1), 1), (name(2), 16)]);
    assert_eq!(beside_a_prompt(2), [(name(2), 16)]);

    let mut alone = Bench::new(Limits { stages: 2, credits: 4, run_ahead: true, ..small() });
    alone.open(1, 4, 16);
    alone.want(1, vec![7; 4]);
    assert_eq!(alone.coordinator.status().run_ahead_tokens, 1);
}

#[test]
fn misuse_loses_the_session_alone() {
    let tokens = |tokens: usize| Input::Tokens(vec![7; tokens]);
    let cases = [
        (vec![tokens(0)], Misuse::Shape { rows: 0, values: 0 }),
        (vec![Input::Rows { positions: vec![[0; 4]; 2], values: vec![0.0; 3] }], Misuse::Shape { rows: 2, values: 3 }),
        (vec![Input::Rows { positions: vec![], values: vec![] }], Misuse::Shape { rows: 0, values: 0 }),
        (vec![tokens(9)], Misuse::OverLimit { tokens: 9, limit: 8 }),
        (vec![tokens(4), tokens(1)], Misuse::TooEarly),
    ];
    for (wishes, misuse) in cases {
        let mut bench = Bench::new(small());
        bench.open(2, 4, 8);
        bench.open(1, 4, 8);
        let mut actions = Vec::new();
        for input in wishes {
            actions = bench.wish(1, input, Wanted::Sample);
        }
        let lost = Action::Lost { session: name(1), loss: misuse.into() };
        assert!(actions.contains(&lost), "{actions:?}");
        assert_eq!(bench.coordinator.status().running, 1);
    }
}

#[test]
fn misuse_of_what_was_run_ahead_and_of_the_queue_is_found() {
    let mut bench = ahead();
    bench.done(0, vec![(1, sampled(8))]);
    let lost = |number, misuse: Misuse| Action::Lost { session: name(number), loss: misuse.into() };
    assert!(bench.want(1, vec![9]).contains(&lost(1, Misuse::NotTheToken)));
    let mut bench = Bench::new(small());
    bench.open(1, 16, 16);
    bench.open(2, 4, 4);
    assert_eq!(bench.want(2, vec![7]), [lost(2, Misuse::NotOpened)]);
}

#[test]
fn results_that_do_not_belong_to_the_step_break_the_row() {
    let cases = [
        vec![],
        vec![(2, sampled(8))],
        vec![(1, Outcome::Stored)],
        vec![(1, Outcome::Vector(vec![]))],
        vec![(1, Outcome::Void)],
        vec![(1, sampled(8)), (1, sampled(8))],
    ];
    for results in cases {
        let mut bench = Bench::new(small());
        bench.open(1, 4, 8);
        bench.want(1, vec![7; 4]);
        assert_eq!(bench.done(0, results), [Action::Interrupted { session: name(1) }]);
        assert_eq!(bench.coordinator.broken(), Some(&Loss::Results { step: StepId(0) }));
    }
}

#[test]
fn a_step_that_overtakes_another_breaks_the_row() {
    let mut bench = Bench::new(Limits { stages: 2, ..small() });
    for number in 1..=2 {
        bench.open(number, 4, 8);
        bench.want(number, vec![7; 4]);
    }
    let interrupted = |number| Action::Interrupted { session: name(number) };
    assert_eq!(bench.done(1, vec![(2, sampled(8))]), [interrupted(1), interrupted(2)]);
    let loss = Loss::Missing { missing: StepId(0), came: StepId(1) };
    assert_eq!(bench.coordinator.broken(), Some(&loss));
}

#[test]
fn a_session_without_a_token_is_lost_alone() {
    let mut bench = Bench::new(small());
    bench.open(1, 4, 8);
    bench.want(1, vec![7; 4]);
    let actions = bench.done(0, vec![(1, Outcome::Failed("all banned".into()))]);
    let loss = Loss::Session { reason: "all banned".into() };
    assert_eq!(actions[0], Action::Lost { session: name(1), loss });
    assert_eq!(bench.coordinator.status().broken, None);
}

/// Three chunks for two credits.
fn three_chunks() -> Bench {
    let mut bench = Bench::new(Limits { pages: 16, ..small() });
    bench.open(1, 40, 60);
    bench.want(1, vec![7; 40]);
    assert_eq!(bench.coordinator.status().steps_in_flight, 2);
    bench
}

#[test]
fn waiting_for_a_credit_is_counted_and_only_that() {
    let mut bench = three_chunks();
    let wait = |bench: &Bench| bench.coordinator.status().credit_wait;
    bench.now = Duration::from_secs(3);
    bench.done(0, vec![(1, Outcome::Stored)]);
    assert_eq!(wait(&bench), Duration::from_secs(3));
    bench.now = Duration::from_secs(8);
    bench.done(1, vec![(1, Outcome::Stored)]);
    assert_eq!(wait(&bench), Duration::from_secs(3), "all of the prompt was on its way");
    let mut bench = three_chunks();
    bench.on(Event::Failed { stage: 0, reason: "test".into() });
    bench.now = Duration::from_secs(9);
    bench.on(Event::Tick);
    assert_eq!(wait(&bench), Duration::ZERO, "a broken row waits for no credit");
}

#[test]
fn what_stages_say_of_themselves_is_summed_until_the_next_placement() {
    let mut bench = three_chunks();
    let done = |step, times: Vec<StageTime>| {
        let results = vec![ChunkResult { session: name(1), outcome: Outcome::Stored }];
        Event::Done(StepDone { epoch: Epoch(1), step: StepId(step), results, times })
    };
    let time = StageTime { busy: 5, idle: 7, sent: 11 };
    bench.on(done(0, vec![time]));
    // More stages than there are, and figures that no sum can hold.
    bench.on(done(1, vec![StageTime { busy: u64::MAX, ..time }, time, time]));
    let totals = StageTotals { steps: 2, busy: u64::MAX, idle: 14, sent: 22 };
    assert_eq!(bench.coordinator.status().stages, [totals]);
    bench.on(Event::Reset { epoch: Epoch(2), limits: Box::new(small()) });
    let status = bench.coordinator.status();
    assert_eq!((status.stages, status.steps), (vec![], 3));
}
