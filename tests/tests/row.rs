//! The scheduler and the stages together: whatever steps the coordinator composes, however many stages they travel,
//! each session's logits are bit for bit those of the model run alone.

use std::sync::Arc;

use paceline_core::coordinator::SpeculationCounts;
use paceline_core::drafts::{CHUNKS_UNDER_WAY, Draft};
use paceline_core::session::FinishReason;
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Frame, Operation, Outcome, PageId, Payload, Reused, SamplingSettings, SessionId, Slot,
    Step, StepId, Wanted,
};
use paceline_tests::golden::{Golden, distance};
use paceline_tests::model_run::{Layout, ModelRun, cpu};
use paceline_tests::models::model;
use paceline_tests::row::{Guesses, Row, RowLayout, single_stage};
use uuid::Uuid;

const TOKENS: usize = 12;
const SESSIONS: usize = 9;

fn prompt(session: usize) -> Vec<u32> {
    let length = [3, 40, 1, 100, 17, 64, 65, 200, 33][session % 9];
    (0..length as u32).map(|index| (index * 11 + index * index * 3 + session as u32 * 29) % 320).collect()
}

/// Greedy tokens of every session and the logits they were chosen from, by the model alone.
fn expected(model: &Arc<Gguf>) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let layout =
        Layout { key_value_type: KvType::F16, sessions: SESSIONS, context: 256, rows: 256, ..Layout::default() };
    let mut run = ModelRun::new(&cpu(), model, layout);
    let one = |session: usize| {
        let (mut tokens, mut logits) = (Vec::new(), Vec::new());
        let mut row = run.next(session as u32, &prompt(session), 256);
        for _ in 0..TOKENS {
            let best = row.iter().enumerate().max_by(|(at, a), (other, b)| a.total_cmp(b).then(other.cmp(at)));
            let token = best.expect("a row").0 as u32;
            logits.push(row.iter().copied().map(f32::to_bits).collect());
            tokens.push(token);
            row = run.next(session as u32, &[token], 1);
        }
        (tokens, logits)
    };
    (0..SESSIONS).map(one).collect()
}

fn layout(shards: usize, run_ahead: bool) -> RowLayout {
    RowLayout { shards, run_ahead, ..RowLayout::default() }
}

fn check(name: &str) {
    let model = model(name);
    let expected = expected(&model);
    for (shards, run_ahead) in [(1, false), (1, true), (2, false), (2, true), (4, true)] {
        let mut row = Row::new(&model, &layout(shards, run_ahead));
        // Two sessions, then the others while those run: five more than there are slots.
        let start = |row: &mut Row, session: usize| {
            row.start(session as u128, &prompt(session), TOKENS, SamplingSettings::default())
        };
        let mut ids: Vec<SessionId> = (0..2).map(|session| start(&mut row, session)).collect();
        for session in 2..SESSIONS {
            row.step();
            ids.push(start(&mut row, session));
        }
        row.finish();
        for (id, (tokens, logits)) in ids.iter().zip(&expected) {
            let answer = row.answer(*id);
            assert_eq!(&answer.tokens, tokens, "{name}, {shards} stages, run-ahead {run_ahead}");
            assert!(
                answer.logits[..TOKENS] == logits[..],
                "{name}, {shards} stages, run-ahead {run_ahead}: other bits"
            );
            assert_eq!(answer.finish.as_ref().map(|finish| &finish.reason), Some(&FinishReason::Length));
        }
        assert!(row.is_clean());
        assert_eq!(row.run_ahead_tokens() > 0, run_ahead, "{shards} stages");
    }
}

/// Guesses of which so many percent are right: the tokens that follow, and now and then another.
fn guesses(expected: &[(Vec<u32>, Vec<Vec<u32>>)], right: u64) -> Guesses {
    let texts: Vec<Vec<u32>> = expected.iter().map(|(tokens, _)| tokens.clone()).collect();
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    Box::new(move |session, got| {
        let text = &texts[session.0.as_u128() as usize];
        let mut guess = |token: &u32| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let token = if (random >> 33) % 100 < right { *token } else { (*token + 1) % 320 };
            Draft { token, chance: 0.9 }
        };
        text[got.min(text.len())..].iter().take(7 * CHUNKS_UNDER_WAY).map(&mut guess).collect()
    })
}

/// Whatever share of the drafts is right, however many stages and sessions there are, and with the row lost in between.
fn check_drafts(name: &str) {
    let model = model(name);
    let expected = expected(&model);
    let mut counts = SpeculationCounts::default();
    let blocks = ModelShape::read(&model).expect("a shape").blocks().len();
    for (shards, run_ahead, right) in [(1, false, 0), (1, true, 60), (2, false, 80), (2, true, 100), (4, false, 50)] {
        let layout = RowLayout { drafts: 7, caches: true, snapshots: 3, ..layout(shards.min(blocks), run_ahead) };
        let mut row = Row::new(&model, &layout);
        row.guesses = Some(guesses(&expected, right));
        let start = |session| row.start(session as u128, &prompt(session), TOKENS, SamplingSettings::default());
        let ids: Vec<SessionId> = (0..SESSIONS).map(start).collect();
        for _ in 0..20 {
            row.step();
        }
        row.fail();
        row.replace(&layout);
        row.finish();
        for (id, (tokens, logits)) in ids.iter().zip(&expected) {
            let answer = row.answer(*id);
            assert_eq!(&answer.tokens, tokens, "{name}, {shards} stages, {right}% right");
            assert!(answer.logits[..TOKENS] == logits[..], "{name}, {shards} stages, {right}% right: other bits");
        }
        assert!(row.is_clean());
        let SpeculationCounts { drafts, accepted, .. } = row.status().speculation;
        assert!(drafts > 20, "{drafts} drafts prove nothing");
        assert!(accepted <= drafts && (accepted > 0) == (right > 0), "{accepted} of {drafts}, {right}% right");
        counts.accepted += accepted;
        counts.drafts += drafts;
    }
    assert!(counts.accepted < counts.drafts, "{counts:?}");
}

/// Chunks sent ahead through four stages: the tokens and the bits of every row without drafts, with two sessions that come
/// one after the other, a row that is lost, and one who leaves.
#[test]
fn drafts_behind_drafts_change_nothing() {
    const LONG: usize = 60;
    let (mut right, mut void) = (0, 0);
    for name in ["mini16-Q8_0", "nano16-f32"] {
        let model = model(name);
        let plain = |session: usize| {
            let mut row = Row::new(&model, &layout(1, false));
            let id = row.start(session as u128, &prompt(session), LONG, sampling(session));
            row.finish();
            (row.answer(id).tokens.clone(), row.answer(id).logits.clone())
        };
        let expected: Vec<_> = (0..3).map(plain).collect();
        for (drafts, chance) in [(1, 80), (3, 95), (3, 70), (7, 100)] {
            let layout = RowLayout { drafts, caches: true, snapshots: 3, ..layout(4, false) };
            let mut row = Row::new(&model, &layout);
            row.guesses = Some(guesses(&expected, chance));
            let start =
                |row: &mut Row, session: usize| row.start(session as u128, &prompt(session), LONG, sampling(session));
            let first = start(&mut row, 0);
            (0..25).for_each(|_| _ = row.step());
            let leaves = start(&mut row, 2);
            (0..9).for_each(|_| _ = row.step());
            row.leave(leaves);
            row.fail();
            row.replace(&layout);
            row.finish();
            let second = start(&mut row, 1);
            row.finish();
            for (id, (tokens, logits)) in [first, second].iter().zip(&expected) {
                let answer = row.answer(*id);
                assert_eq!(&answer.tokens, tokens, "{name}, {drafts} drafts, {chance}% right");
                assert!(
                    answer.logits[..LONG] == logits[..LONG],
                    "{name}, {drafts} drafts, {chance}% right: other bits"
                );
            }
            assert!(expected[2].0.starts_with(&row.answer(leaves).tokens));
            assert!(row.is_clean());
            let counts = row.status().speculation;
            (right, void) = (right + counts.sent_ahead - counts.void, void + counts.void);
        }
    }
    assert!(right > 20 && void > 20, "{void} chunks sent ahead were void, {right} were not");
}

#[test]
fn drafts_change_nothing_in_a_hybrid() {
    check_drafts("mini16-Q8_0");
}

#[test]
fn drafts_change_nothing_without_recurrent_layers() {
    check_drafts("mini-llama-f32");
}

#[test]
fn a_hybrid_is_served_as_it_runs_alone() {
    check("nano16-f32");
}

#[test]
fn a_quantized_hybrid_with_experts_is_served_as_it_runs_alone() {
    check("nano-moe16-f32");
    check("mini16-Q8_0");
}

/// Everything that a tail must remember to choose the next token as if nothing had happened.
fn sampling(session: usize) -> SamplingSettings {
    SamplingSettings {
        temperature: 0.9,
        top_p: 0.98,
        seed: 7 + session as u64,
        repetition_penalty: 1.1,
        frequency_penalty: 0.3,
        presence_penalty: 0.2,
        penalty_window: 24,
        logprobs: Some(2),
        ..SamplingSettings::default()
    }
}

/// Sessions that come one after the other while those before them run; `after` every step something may happen.
fn serve(row: &mut Row, mut after: impl FnMut(&mut Row, usize)) -> Vec<SessionId> {
    let mut ids = Vec::new();
    for steps in 1.. {
        let session = ids.len();
        if session < DISTURBED {
            ids.push(row.start(session as u128, &prompt(session), TOKENS, sampling(session)));
        }
        if !row.step() && ids.len() == DISTURBED {
            break;
        }
        after(row, steps);
    }
    ids
}

/// Three prompts of several chunks among them; more than there are slots.
const DISTURBED: usize = 6;

type Told = Vec<(Vec<u32>, Vec<Vec<u32>>)>;

fn told(row: &Row, ids: &[SessionId]) -> Told {
    let whole = |id: &SessionId| {
        let answer = row.answer(*id);
        assert_eq!(answer.finish.as_ref().map(|finish| &finish.reason), Some(&FinishReason::Length));
        (answer.tokens.clone(), answer.logits[..TOKENS].to_vec())
    };
    assert!(row.is_clean());
    ids.iter().map(whole).collect()
}

/// What comes when nothing happens, and in how many steps.
fn undisturbed(model: &Arc<Gguf>, layout: &RowLayout) -> (Told, usize) {
    let (mut row, mut steps) = (Row::new(model, layout), 0);
    let ids = serve(&mut row, |_, step| steps = step);
    (told(&row, &ids), steps)
}

/// Kills the row once, after every `stride`-th step there is, and then again and again.
fn check_kills(name: &str, stride: usize) {
    let model = model(name);
    let expected = undisturbed(&model, &layout(1, false)).0;
    for (shards, run_ahead) in [(1, false), (1, true), (2, false), (2, true), (4, false), (4, true)] {
        let layout = layout(shards, run_ahead);
        let (quiet, steps) = undisturbed(&model, &layout);
        assert!(quiet == expected, "{name}, {shards} stages, run-ahead {run_ahead}: other bits without any trouble");
        let kills = (1..=steps).step_by(stride).map(|at| at..at + 1).chain(std::iter::once(0..usize::MAX));
        for kill in kills {
            let mut row = Row::new(&model, &layout);
            let ids = serve(&mut row, |row, step| {
                let again = kill.len() == 1 || step % 40 == 17;
                if kill.contains(&step) && again {
                    row.fail();
                    row.replace(&layout);
                }
            });
            let same = told(&row, &ids) == expected;
            assert!(same, "{name}, {shards} stages, run-ahead {run_ahead}, killed in {kill:?}: other tokens or bits");
        }
    }
}

#[test]
fn a_row_that_dies_at_any_step_changes_no_bit() {
    check_kills("nano16-f32", 3);
}

#[test]
fn a_quantized_row_that_dies_changes_no_bit() {
    check_kills("mini16-Q8_0", 23);
    check_kills("nano-moe16-f32", 23);
}

#[test]
fn a_row_that_is_replaced_by_one_of_other_stages_changes_no_bit() {
    let model = model("nano16-f32");
    let (expected, steps) = undisturbed(&model, &layout(1, false));
    for first in 1..steps.min(60) {
        let mut row = Row::new(&model, &layout(2, true));
        let ids = serve(&mut row, |row, step| {
            if step >= first && (step - first).is_multiple_of(50) {
                let shards = [4, 1, 3, 2][(step - first) / 50 % 4];
                row.replace(&layout(shards, shards != 3));
            }
        });
        assert!(told(&row, &ids) == expected, "first replaced after {first} steps");
    }
}

#[test]
fn sessions_that_make_room_for_others_change_no_bit() {
    let answers = |model: &Arc<Gguf>, layout: &RowLayout| -> (Told, u64) {
        let mut row = Row::new(model, layout);
        let start = |session: usize| row.start(session as u128, &prompt(session), 60, sampling(session));
        let ids: Vec<_> = [4, 0, 2, 8].map(start).into();
        row.finish();
        assert!(row.is_clean());
        let whole = |id: &SessionId| (row.answer(*id).tokens.clone(), row.answer(*id).logits[..60].to_vec());
        (ids.iter().map(whole).collect(), row.pauses())
    };
    for name in ["nano16-f32", "mini-llama-Q4_K_M"] {
        let model = model(name);
        let (expected, pauses) = answers(&model, &layout(1, false));
        assert_eq!(pauses, 0);
        for (shards, run_ahead) in [(1, false), (1, true), (2, true)] {
            // Seven pages: enough for the prompts and for any one answer, of 19 for all.
            let few = RowLayout { kv_tokens: Some(112), context: 112, growth_tokens: 4, ..layout(shards, run_ahead) };
            let (found, pauses) = answers(&model, &few);
            assert!(found == expected, "{name}, {shards} stages, run-ahead {run_ahead}: other tokens or bits");
            assert!(pauses > 1, "{name}, {shards} stages, run-ahead {run_ahead}: {pauses} made room");
        }
    }
}

#[test]
fn who_leaves_is_void_at_once_and_changes_nobody() {
    let model = model("nano16-f32");
    let expected = expected(&model);
    for shards in [1, 2] {
        for leaves_after in 0..14 {
            let mut row = Row::new(&model, &layout(shards, true));
            let stays = row.start(1, &prompt(1), TOKENS, SamplingSettings::default());
            let leaves = row.start(7, &prompt(7), TOKENS, SamplingSettings::default());
            for _ in 0..leaves_after {
                row.step();
            }
            row.leave(leaves);
            row.finish();
            assert_eq!(row.answer(stays).tokens, expected[1].0, "{shards} stages, left after {leaves_after} steps");
            assert_eq!(row.answer(leaves).finish.as_ref().map(|finish| &finish.reason), Some(&FinishReason::Cancelled));
            assert!(row.answer(leaves).tokens.len() <= leaves_after);
            assert!(row.is_clean());
        }
    }
}

#[test]
fn chunks_under_way_when_their_client_leaves_are_not_computed() {
    let model = model("nano16-f32");
    let mut row = Row::new(&model, &layout(2, false));
    let leaves = row.start(7, &prompt(7), TOKENS, SamplingSettings::default());
    row.step();
    row.leave(leaves);
    row.finish();
    assert!(row.void_chunks > 0, "a prompt of 200 tokens has several chunks under way");
    assert!(row.is_clean());
}

#[test]
fn settings_that_cannot_be_used_fail_their_own_session_only() {
    let model = model("nano16-f32");
    let expected = expected(&model);
    let mut row = Row::new(&model, &layout(2, false));
    let good = row.start(1, &prompt(1), TOKENS, SamplingSettings::default());
    let wrong = SamplingSettings { temperature: f32::NAN, ..SamplingSettings::default() };
    let bad = row.start(2, &prompt(2), TOKENS, wrong);
    row.finish();
    assert_eq!(row.answer(good).tokens, expected[1].0);
    let reason = row.answer(bad).finish.as_ref().map(|finish| finish.reason.clone());
    assert!(
        matches!(&reason, Some(FinishReason::Lost(loss)) if loss.to_string().contains("temperature")),
        "{reason:?}"
    );
    assert!(row.is_clean());
}

#[test]
fn rows_of_vectors_travel_like_tokens() {
    let golden = Golden::named("mini-mrope");
    let (tokens, vectors, logits) = (golden.tokens("text_tokens"), golden.f32("embd"), golden.f32("logits"));
    let components = golden.i32("pos4");
    let rows = components.shape[1];
    let place = |row: usize| [0, 1, 2, 3].map(|component| components.values[component * rows + row] as u32);
    let model = model("mini-f32");
    let mut stage = single_stage(&model);
    let session = SessionId(Uuid::from_u128(1));
    let sampling = Box::new(SamplingSettings::default());
    let image = vectors.values.len() / 256;
    let inputs = [
        (ChunkInput::Tokens(tokens[..10].to_vec()), Payload::empty()),
        (
            ChunkInput::Rows { positions: (10..10 + image).map(place).collect() },
            Payload::from_rows(256, &vectors.values),
        ),
    ];
    let mut start = 0;
    for (index, (input, payload)) in inputs.into_iter().enumerate() {
        let operations = if index == 0 {
            let pages = (0..4).map(PageId).collect();
            vec![
                Operation::Open {
                    session,
                    slot: Slot(0),
                    sampling: sampling.clone(),
                    generated_from: 0,
                    reused: Reused::default(),
                },
                Operation::Grant { session, pages },
            ]
        } else {
            Vec::new()
        };
        let count = input.rows() as u32;
        let chunk = Chunk { session, start, input, wanted: Wanted::Sample, void: false };
        let step = Step { epoch: Epoch::default(), id: StepId(index as u64), operations, chunks: vec![chunk] };
        let done = stage.run(Frame { step, payload, times: vec![] }).expect("the stage runs");
        let paceline_shard::Passed::Done(done) = done else { panic!("one stage is the tail") };
        assert!(matches!(done.results[0].outcome, Outcome::Sampled(_)));
        start += count;
        let found = stage.logits().expect("the tail");
        let golden = logits.rows().nth(start as usize - 1).expect("a row");
        let off = distance(&found, golden).max;
        assert!(off < 1e-2, "after chunk {index}: {off}");
    }
}
