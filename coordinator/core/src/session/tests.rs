//! Events in, actions out.

use super::*;

fn request(max_tokens: Option<usize>) -> Request {
    let goal = TokenGoal {
        end_tokens: BTreeSet::from([2]),
        ignore_end: false,
        stop_tokens: BTreeSet::from([50]),
        max_tokens,
        context: 20,
    };
    let (prompt, boundaries) = (vec![7, 8, 9], Vec::new());
    Request {
        prompt,
        boundaries,
        sampling: SamplingSettings::default(),
        drafts: DraftSettings::NONE,
        goal: Goal::Tokens(goal),
    }
}

fn on(session: &mut Session, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    session.on(event, &mut actions);
    actions
}

fn opened(request: Request) -> Session {
    let mut session = Session::new(request);
    on(&mut session, Event::Begin);
    on(&mut session, Event::Opened(Reuse::default()));
    session
}

fn token(token: u32) -> SampledToken {
    SampledToken { token, logprobs: None }
}

fn sampled(id: u32, position: usize) -> Event {
    Event::Outcome { outcome: Outcome::Sampled(token(id)), position, drafts: 0 }
}

fn finish(reason: FinishReason, end_token: Option<u32>, completion_tokens: usize) -> Action {
    let usage = Usage { prompt_tokens: 3, completion_tokens, ..Usage::default() };
    Action::Finish(Finish { reason, end_token: end_token.map(token), usage, reuse: Reuse::default() })
}

/// It opens with these tokens, 3 of them its prompt's.
fn open(tokens: &[u32], again: bool) -> Action {
    let (tokens, boundaries, sampling) = (tokens.into(), [].into(), Box::default());
    Action::Open(Opening { tokens, boundaries, prompt_tokens: 3, token_limit: 8, sampling, again })
}

/// It wants these run, for the token after them.
fn wants(tokens: &[u32]) -> Action {
    Action::Want(Wish::new(Input::Tokens(tokens.to_vec()), Wanted::Sample))
}

fn limit(request: Request) -> usize {
    let actions = on(&mut Session::new(request), Event::Begin);
    let [Action::Open(Opening { tokens, token_limit, .. })] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(**tokens, [7, 8, 9]);
    *token_limit
}

#[test]
fn an_answer_from_its_prompt_to_its_end_token() {
    let mut session = Session::new(request(Some(5)));
    assert_eq!(on(&mut session, Event::Begin), [open(&[7, 8, 9], false)]);
    assert_eq!(on(&mut session, Event::Opened(Reuse::default())), [wants(&[7, 8, 9])]);
    assert_eq!(on(&mut session, Event::Outcome { outcome: Outcome::Stored, position: 2, drafts: 0 }), []);
    assert_eq!(on(&mut session, sampled(11, 3)), [Action::Emit(token(11)), wants(&[11])]);
    // the end token counts, but has no text
    assert_eq!(on(&mut session, sampled(2, 4)), [Action::Leave, finish(FinishReason::Stop, Some(2), 2)]);
    assert_eq!(on(&mut session, Event::ClientLeft), []);
}

#[test]
fn the_limit_is_what_was_asked_for_within_the_context() {
    assert_eq!(limit(request(Some(5))), 8);
    assert_eq!(limit(request(None)), 20);
    assert_eq!(limit(request(Some(usize::MAX))), 20);
    let mut full = request(Some(1));
    full.goal = Goal::Tokens(TokenGoal { context: 3, ..goal(&full) });
    assert_eq!(limit(full), 4); // over the context: the coordinator refuses it with the figures
    assert_eq!(limit(Request { goal: Goal::Vector, ..request(None) }), 3);
}

fn goal(request: &Request) -> TokenGoal {
    let Goal::Tokens(goal) = request.goal.clone() else { panic!("a request for tokens") };
    goal
}

#[test]
fn the_most_tokens_end_it() {
    let mut session = opened(request(Some(2)));
    on(&mut session, sampled(11, 3));
    let end = finish(FinishReason::Length, None, 2);
    assert_eq!(on(&mut session, sampled(12, 4)), [Action::Emit(token(12)), Action::Leave, end]);
    let mut none = Session::new(request(Some(0)));
    assert_eq!(on(&mut none, Event::Begin), [finish(FinishReason::Length, None, 0)]);
}

#[test]
fn ignored_end_tokens_are_banned_but_the_clients_stop_tokens_hold() {
    let mut asked = request(Some(5));
    asked.goal = Goal::Tokens(TokenGoal { ignore_end: true, ..goal(&asked) });
    let actions = on(&mut Session::new(asked.clone()), Event::Begin);
    let [Action::Open(Opening { sampling, .. })] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!(sampling.banned, [2]);
    let mut session = opened(asked);
    assert_eq!(on(&mut session, sampled(2, 3)), [Action::Emit(token(2)), wants(&[2])]);
    assert_eq!(on(&mut session, sampled(50, 4)), [Action::Leave, finish(FinishReason::Stop, Some(50), 2)]);
}

#[test]
fn a_stop_string_cuts_the_count() {
    let mut session = opened(request(None));
    on(&mut session, sampled(11, 3));
    on(&mut session, sampled(12, 4));
    let end = finish(FinishReason::Stop, None, 1);
    assert_eq!(on(&mut session, Event::Stopped { tokens: 1 }), [Action::Leave, end]);
    assert_eq!(on(&mut session, sampled(13, 5)), []);
}

#[test]
fn a_stop_string_in_the_last_token_allowed_is_a_stop() {
    let mut session = opened(request(Some(1)));
    let [.., Action::Finish(end)] = &on(&mut session, sampled(11, 3))[..] else { panic!("it has not ended") };
    assert_eq!(on(&mut session, Event::Stopped { tokens: 1 }), []);
    assert_eq!(Action::Finish(end.clone().stopped(1)), finish(FinishReason::Stop, None, 1));
}

#[test]
fn a_slow_reader_wants_nothing_until_there_is_room() {
    let mut session = opened(request(None));
    on(&mut session, sampled(11, 3));
    assert_eq!(on(&mut session, Event::Full), []);
    assert_eq!(on(&mut session, sampled(12, 4)), [Action::Emit(token(12))]);
    assert_eq!(on(&mut session, Event::Room), [wants(&[12])]);
    assert_eq!(on(&mut session, Event::Full), []);
    assert_eq!(on(&mut session, Event::Room), []); // nothing was put off
    assert_eq!(on(&mut session, sampled(13, 5)), [Action::Emit(token(13)), wants(&[13])]);
}

#[test]
fn an_interrupted_session_goes_on_after_its_last_token() {
    let mut session = opened(request(Some(5)));
    // before its first token
    assert_eq!(on(&mut session, Event::Interrupted), [open(&[7, 8, 9], true)]);
    assert_eq!(on(&mut session, Event::Opened(Reuse::default())), [wants(&[7, 8, 9])]);
    on(&mut session, sampled(11, 3));
    on(&mut session, sampled(12, 4));
    assert_eq!(on(&mut session, Event::Interrupted), [open(&[7, 8, 9, 11, 12], true)]);
    assert_eq!(on(&mut session, Event::Opened(Reuse::default())), [wants(&[7, 8, 9, 11, 12])]);
    assert_eq!(on(&mut session, sampled(13, 5)), [Action::Emit(token(13)), wants(&[13])]);
    on(&mut session, sampled(14, 6));
    // limits and counts are those of the whole answer
    let end = finish(FinishReason::Length, None, 5);
    assert_eq!(on(&mut session, sampled(15, 7)), [Action::Emit(token(15)), Action::Leave, end]);
    assert_eq!(on(&mut session, Event::Interrupted), []);
}

#[test]
fn an_interrupted_session_with_a_slow_reader_wants_nothing_until_there_is_room() {
    let mut session = opened(request(Some(5)));
    on(&mut session, Event::Full);
    assert_eq!(on(&mut session, sampled(11, 3)), [Action::Emit(token(11))]);
    assert_eq!(on(&mut session, Event::Interrupted), [open(&[7, 8, 9, 11], true)]);
    assert_eq!(on(&mut session, Event::Room), [], "it has no place");
    on(&mut session, Event::Full);
    assert_eq!(on(&mut session, Event::Opened(Reuse::default())), []);
    assert_eq!(on(&mut session, Event::Room), [wants(&[7, 8, 9, 11])]);
}

#[test]
fn an_interrupted_session_can_end_before_it_is_restored() {
    let interrupted = || {
        let mut session = opened(request(None));
        on(&mut session, sampled(11, 3));
        on(&mut session, Event::Interrupted);
        session
    };
    let left = finish(FinishReason::Cancelled, None, 1);
    assert_eq!(on(&mut interrupted(), Event::ClientLeft), [Action::Leave, left]);
    let stopped = finish(FinishReason::Stop, None, 1);
    assert_eq!(on(&mut interrupted(), Event::Stopped { tokens: 1 }), [Action::Leave, stopped]);
    let lost = finish(FinishReason::Lost(Loss::Stopped), None, 1);
    assert_eq!(on(&mut interrupted(), Event::Lost(Loss::Stopped)), [lost]);
}

#[test]
fn it_ends_once_whatever_ends_it() {
    let lost = Loss::Session { reason: "no token".into() };
    let left = finish(FinishReason::Cancelled, None, 0);
    let mut new = Session::new(request(None));
    assert_eq!(on(&mut new, Event::ClientLeft), std::slice::from_ref(&left));
    let mut waiting = Session::new(request(None));
    on(&mut waiting, Event::Begin);
    assert_eq!(on(&mut waiting, Event::ClientLeft), [Action::Leave, left]);
    assert_eq!(on(&mut waiting, Event::Opened(Reuse::default())), []);
    let mut refused = Session::new(request(None));
    on(&mut refused, Event::Begin);
    let reason = FinishReason::Refused(Refusal::EmptyPrompt);
    assert_eq!(on(&mut refused, Event::Refused(Refusal::EmptyPrompt)), [finish(reason, None, 0)]);
    let mut running = opened(request(None));
    on(&mut running, sampled(11, 3));
    assert_eq!(on(&mut running, Event::Lost(lost.clone())), [finish(FinishReason::Lost(lost), None, 1)]);
}

#[test]
fn a_vector_ends_it() {
    let mut session = opened(Request { goal: Goal::Vector, ..request(None) });
    let came = on(&mut session, Event::Outcome { outcome: Outcome::Vector(vec![0.5]), position: 3, drafts: 0 });
    assert_eq!(came, [Action::Vector(vec![0.5]), Action::Leave, finish(FinishReason::Stop, None, 0)]);
}

#[test]
#[should_panic(expected = "tokens came out of order")]
fn a_token_out_of_order_is_noticed() {
    on(&mut opened(request(None)), sampled(11, 4));
}

/// These tokens came, of a chunk with so many drafts.
fn verified(tokens: &[u32], position: usize, drafts: usize) -> Event {
    let verified = Verified { tokens: tokens.iter().map(|id| token(*id)).collect(), drafted: Vec::new() };
    Event::Outcome { outcome: Outcome::Verified(verified), position, drafts }
}

fn looks_up(request: Request) -> Request {
    Request { drafts: DraftSettings { most: 4, least_chance: 0.0, lookup: true, proposals: 0 }, ..request }
}

#[test]
fn a_run_of_tokens_ends_where_its_end_token_is() {
    let mut session = opened(request(Some(9)));
    let actions = on(&mut session, verified(&[11, 12, 2, 13], 6, 3));
    let usage = Usage { prompt_tokens: 3, completion_tokens: 3, drafts: 3, accepted_drafts: 3, ..Usage::default() };
    let end = Finish { reason: FinishReason::Stop, end_token: Some(token(2)), usage, reuse: Reuse::default() };
    let emits = [11, 12].map(|id| Action::Emit(token(id)));
    assert_eq!(actions, [&emits[..], &[Action::Leave, Action::Finish(end)]].concat());
}

#[test]
fn a_run_of_tokens_ends_at_the_limit() {
    let mut session = opened(request(Some(2)));
    let actions = on(&mut session, verified(&[11, 12, 13], 5, 2));
    let usage = Usage { prompt_tokens: 3, completion_tokens: 2, drafts: 2, accepted_drafts: 2, ..Usage::default() };
    let end = Finish { reason: FinishReason::Length, end_token: None, usage, reuse: Reuse::default() };
    let emits = [11, 12].map(|id| Action::Emit(token(id)));
    assert_eq!(actions, [&emits[..], &[Action::Leave, Action::Finish(end)]].concat());
}

#[test]
fn drafts_are_what_came_before_and_never_reach_the_last_place() {
    let mut repeats = looks_up(request(Some(5)));
    repeats.prompt = vec![7, 8, 9, 10, 11, 7, 8];
    let mut session = opened(repeats);
    let tokens_of = |actions: &[Action]| match actions.last() {
        Some(Action::Want(wish)) => wish.drafts.iter().map(|draft| draft.token).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    // 12 tokens are allowed: the eighth is run with three drafts, behind which the twelfth is sampled
    assert_eq!(tokens_of(&on(&mut session, sampled(9, 7))), [10, 11, 7]);
    assert_eq!(tokens_of(&on(&mut session, verified(&[10, 11], 9, 3))), [7]);
    assert_eq!(tokens_of(&on(&mut session, sampled(5, 10))), [0; 0], "the last one is not run");
}
