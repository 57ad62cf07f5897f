//! Chunks sent ahead: what is sent, what comes of it, and what is refused.

use paceline_proto::Verified;

use super::*;

const PROMPT: usize = 1;

/// Four stages with logs for twelve uncertain tokens of a session.
fn four_stages() -> Limits {
    let small = Limits { pages: 40, step_wanted: 12, growth_tokens: 8, ..small() };
    Limits { stages: 4, credits: 8, log_sessions: 1, log_tokens: 12, chunk_drafts: 4, ..small }
}

/// The token at a position of every text.
fn token(position: usize) -> u32 {
    1000 + position as u32
}

fn tokens(range: std::ops::Range<usize>) -> Outcome {
    let tokens = range.map(|position| SampledToken { token: token(position), logprobs: None }).collect();
    Outcome::Verified(Verified { tokens, drafted: Vec::new() })
}

/// The steps that were sent.
fn sent(actions: &[Action]) -> Vec<Chunk> {
    let chunk = |action: &Action| match action {
        Action::Send { step, .. } => step.chunks.first().cloned(),
        _ => None,
    };
    actions.iter().filter_map(chunk).collect()
}

fn told(actions: &[Action]) -> Vec<&Outcome> {
    let mut outcomes = Vec::new();
    for action in actions {
        if let Action::Outcome { outcome, .. } = action {
            outcomes.push(outcome);
        }
    }
    outcomes
}

impl Bench {
    /// Wants the token at a position, with so many drafts behind it that are all right.
    fn want_with(&mut self, position: usize, drafts: usize) -> Vec<Action> {
        let wish = Wish::new(Input::Tokens(vec![token(position)]), Wanted::Sample);
        let draft = |position| Draft { token: token(position), chance: 0.95 };
        let drafts = (position + 1..).take(drafts).map(draft).collect();
        self.on(Event::Want { session: name(1), wish: Wish { drafts, ..wish } })
    }

    fn opens(&mut self, number: u128, tokens: Arc<[u32]>) -> Vec<Action> {
        let (prompt_tokens, boundaries) = (tokens.len(), [].into());
        let (token_limit, sampling) = (60, Box::default());
        let opening = Opening { tokens, boundaries, prompt_tokens, token_limit, sampling, again: false };
        self.on(Event::Open { session: name(number), opening })
    }

    /// The oldest step with a chunk comes back, in eight milliseconds.
    fn back(&mut self, outcome: Outcome) -> Vec<Action> {
        self.now += Duration::from_millis(8);
        let times = vec![StageTime { busy: 1000, ..StageTime::default() }; 4];
        while self.coordinator.steps[0].chunks.is_empty() {
            self.done_in(self.coordinator.steps[0].id.0, Vec::new(), times.clone());
        }
        self.done_in(self.coordinator.steps[0].id.0, vec![(1, outcome)], times)
    }

    /// A session whose chunk with drafts is under way, and the chunks sent ahead of its result. The
    /// session has a token more than its prompt and the two that it got.
    fn ahead(limits: Limits) -> (Self, Vec<Chunk>) {
        let mut bench = Self::new(limits);
        bench.opens(1, (0..PROMPT).map(token).collect());
        bench.want(1, (0..PROMPT).map(token).collect());
        bench.back(sampled(token(PROMPT)));
        assert_eq!(sent(&bench.want_with(PROMPT, 0)).len(), 1, "nothing is known of times");
        bench.back(sampled(token(PROMPT + 1)));
        let mut chunks = sent(&bench.want_with(PROMPT + 1, 30));
        let first = chunks.remove(0);
        assert_eq!((first.start as usize, first.wanted.drafts() as usize + 1), (PROMPT + 1, first.input.rows()));
        (bench, chunks)
    }
}

/// Where a chunk starts and where it ends.
fn places(chunk: &Chunk) -> std::ops::Range<usize> {
    chunk.start as usize..chunk.start as usize + chunk.input.rows()
}

#[test]
fn idle_stages_get_drafts_behind_drafts() {
    let (bench, ahead) = Bench::ahead(four_stages());
    assert!(ahead.len() >= 2, "{ahead:?}");
    let certain = PROMPT + 2;
    for (chunk, next) in ahead.iter().zip(&ahead[1..]) {
        assert_eq!(places(chunk).end, places(next).start);
    }
    for chunk in &ahead {
        let place = places(chunk);
        assert_eq!(chunk.wanted.drafts() as usize, place.end - certain, "all since the last certain token");
        assert_eq!(chunk.input, ChunkInput::Tokens(place.map(token).collect()));
        assert!(chunk.wanted.drafts() <= 12 && chunk.input.rows() <= 4);
    }
    let status = bench.coordinator.status();
    assert_eq!(status.speculation.sent_ahead, ahead.len() as u64);
    assert!(status.steps_in_flight < status.credits, "whoever comes finds a credit");
    for limits in [Limits { log_tokens: 1, ..four_stages() }, Limits { stages: 1, ..four_stages() }] {
        assert_eq!(Bench::ahead(limits).1, []);
    }
}

#[test]
fn what_was_sent_ahead_comes_next_where_its_assumption_holds() {
    let (mut bench, ahead) = Bench::ahead(four_stages());
    let (first, second) = (places(&ahead[0]), places(&ahead[1]));
    let came = bench.back(tokens(PROMPT + 2..first.start + 1));
    assert_eq!(told(&came), [&tokens(PROMPT + 2..first.start + 1)]);
    // Its result is held back until its token is wanted.
    assert_eq!(told(&bench.back(tokens(first.start + 1..second.start + 1))), [] as [&Outcome; 0]);
    let held = bench.want_with(first.start, 30);
    assert_eq!(told(&held), [&tokens(first.start + 1..second.start + 1)]);
    // With the next wish come further drafts, behind all that is under way.
    let more = sent(&bench.want_with(second.start, 30));
    assert!(!more.is_empty());
    assert_eq!(places(&more[0]).start, places(&ahead[ahead.len() - 1]).end);
    let uncertain = places(&more[0]).end - (second.start + 1);
    assert_eq!(more[0].wanted.drafts() as usize, uncertain, "what the session has accepted is certain");
    let other = bench.want_with(second.start, 0);
    let is_lost = |action: &Action| matches!(action, Action::Lost { loss: Loss::Misuse(Misuse::TooEarly), .. });
    assert!(other.iter().any(is_lost), "{other:?}");
}

#[test]
fn where_it_fails_the_next_chunk_goes_out_at_once() {
    let (mut bench, ahead) = Bench::ahead(four_stages());
    let came = bench.back(tokens(PROMPT + 2..PROMPT + 3));
    assert_eq!(told(&came).len(), 1);
    let next = sent(&bench.want_with(PROMPT + 2, 0));
    assert_eq!(next.len(), 1);
    assert_eq!((places(&next[0]).start, next[0].wanted.drafts()), (PROMPT + 2, 0));
    for _ in &ahead {
        assert_eq!(bench.back(Outcome::Void), []);
    }
    let last = bench.back(sampled(token(PROMPT + 3)));
    assert_eq!(told(&last), [&sampled(token(PROMPT + 3))]);
    assert_eq!(bench.coordinator.status().speculation.void, ahead.len() as u64);
    assert_eq!(bench.coordinator.broken(), None);
}

#[test]
fn a_session_may_want_nothing_but_the_token_that_is_run() {
    let (mut bench, ahead) = Bench::ahead(four_stages());
    bench.back(tokens(PROMPT + 2..places(&ahead[0]).start + 1));
    let lost = bench.want_with(places(&ahead[0]).start + 1, 0);
    assert!(lost.iter().any(|action| matches!(action, Action::Lost { loss: Loss::Misuse(Misuse::NotTheToken), .. })));
}

#[test]
fn results_that_contradict_what_is_known_break_the_row() {
    for holds in [true, false] {
        let (mut bench, ahead) = Bench::ahead(four_stages());
        let place = places(&ahead[0]);
        bench.back(tokens(PROMPT + 2..if holds { place.start + 1 } else { PROMPT + 3 }));
        bench.back(if holds { Outcome::Void } else { tokens(place.start + 1..place.end + 1) });
        assert!(matches!(bench.coordinator.broken(), Some(Loss::Results { .. })), "{holds}");
    }
    // And one that nobody knows anything of is not void.
    let (mut bench, _) = Bench::ahead(four_stages());
    bench.back(Outcome::Void);
    assert!(bench.coordinator.broken().is_some());
}

#[test]
fn a_session_that_ends_settles_behind_what_it_accepted() {
    let (mut bench, ahead) = Bench::ahead(Limits { snapshots: 2, ..four_stages() });
    let place = places(&ahead[0]);
    bench.back(tokens(PROMPT + 2..place.start + 1));
    bench.back(tokens(place.start + 1..places(&ahead[1]).start + 1));
    let left = bench.leave(1);
    assert!(!left.contains(&Action::Cancel { session: name(1) }), "{left:?}");
    let last = sent(&left);
    assert_eq!((last.len(), last[0].wanted), (1, Wanted::Nothing));
    assert_eq!(places(&last[0]), place.start..place.start + 1);
    for _ in &ahead[1..] {
        bench.back(Outcome::Void);
    }
    assert_eq!(bench.coordinator.broken(), None);
    let closed = bench.back(Outcome::Stored);
    assert_eq!(step(&closed).operations, [Operation::Close { session: name(1) }]);
    let same = (0..place.end + 3).map(token).collect();
    let Action::Opened { reuse, .. } = &bench.opens(2, same)[0] else { panic!("there is room") };
    assert_eq!(reuse.cached, place.start + 1, "its state is kept");
}

#[test]
fn with_others_in_the_row_nothing_is_sent_ahead_of_them() {
    let (mut bench, ahead) = Bench::ahead(four_stages());
    assert_eq!(bench.open(2, 9, 20), [opened(2)]);
    let prompt = bench.want(2, vec![7; 9]);
    assert_eq!(step(&prompt).chunks[0].session, name(2), "a prompt finds a credit");
    bench.back(tokens(PROMPT + 2..places(&ahead[0]).start + 1));
    let more = sent(&bench.want_with(places(&ahead[0]).start, 30));
    assert!(more.iter().all(|chunk| chunk.session == name(2)), "while a prompt is read: {more:?}");
}
