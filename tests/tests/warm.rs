//! Warm equals cold on the real engine: whatever of a prompt is reused, tokens and logits are those of a cold run, bit for
//! bit; and as much is reused as should be.

use paceline_gguf::{KvType, ModelShape};
use paceline_tests::models::model;
use paceline_tests::row::RowLayout;
use paceline_tests::warm::{Ask, HotPrefix, Pair, Tally, hot_prefix, random_operations, text};

/// How far apart states are kept in long prompts here.
const STRIDE: usize = 64;
/// States closer than so many tokens count as one.
const APART: usize = 16;

fn layout(shards: usize, run_ahead: bool, key_value_type: KvType) -> RowLayout {
    RowLayout {
        shards,
        run_ahead,
        context: 400,
        kv_tokens: Some(4000),
        snapshots: 60,
        snapshot_stride: STRIDE,
        key_value_type,
        ..RowLayout::default()
    }
}

/// Plays a conversation on rows of one and three stages, with keys and values of each type; `exact` where a state is
/// kept at every position that can be hoped for.
fn on(name: &str, kinds: &[KvType], play: impl Fn(&mut Pair, bool)) {
    let model = model(name);
    let shape = ModelShape::read(&model).expect("a shape");
    let hybrid = shape.state_bytes(0..shape.layers.len()) > 0;
    for kind in kinds {
        for (shards, run_ahead) in [(1, true), (3.min(shape.blocks().len()), false)] {
            let mut pair = Pair::new(&model, &layout(shards, run_ahead, *kind));
            play(&mut pair, hybrid);
            assert!(pair.warm.is_clean(), "{name}, {kind}, {shards} stages");
        }
    }
}

fn everywhere(play: impl Fn(&mut Pair, bool)) {
    on("nano16-f32", &[KvType::F16], &play);
    on("mini16-Q8_0", &[KvType::Q8_0], &play);
    on("nano-moe16-f32", &[KvType::F16], &play);
    on("mini-llama-Q4_K_M", &[KvType::F16], &play);
}

fn joined(parts: &[&[u32]]) -> Vec<u32> {
    parts.concat()
}

#[test]
fn turns_that_are_appended_read_what_is_new() {
    everywhere(|pair, hybrid| {
        let mut prompt = text(1, 130);
        for turn in 0..4 {
            let ask = Ask::greedy(prompt.clone()).with(&[90, prompt.len() - 5]);
            let ask = if turn % 2 == 1 { ask.sampled(turn) } else { ask };
            let (answer, cached) = pair.ask(&ask);
            // the last token of the answer before was never run
            let known = if turn == 0 { 0 } else { prompt.len() - 20 - 1 };
            let nearest = known.saturating_sub(if hybrid { APART - 1 } else { 0 });
            assert!((nearest..=known).contains(&cached), "turn {turn}: {cached} of {known}");
            prompt = joined(&[&prompt, &answer, &text(50 + turn as usize, 20)]);
        }
    });
}

#[test]
fn an_answer_that_is_rendered_otherwise_costs_what_is_behind_the_boundary() {
    everywhere(|pair, hybrid| {
        let conversation = text(2, 120);
        let first = Ask::greedy(joined(&[&conversation, &[1, 2, 3, 4, 5]])).with(&[120]);
        pair.ask(&first);
        // Thinking is gone, and the answer comes without it.
        let (_, cached) = pair.ask(&Ask::greedy(joined(&[&conversation, &text(60, 40)])).with(&[150]));
        assert!((120 - usize::from(!hybrid)..=121).contains(&cached), "{cached}");
    });
}

#[test]
fn the_same_prompt_again_runs_its_last_token() {
    everywhere(|pair, _| {
        for length in [1, 2, 16, 17, 63, 64, 65, 150] {
            let ask = Ask::greedy(text(length, length)).sampled(3);
            assert_eq!(pair.ask(&ask).1, 0, "{length} tokens");
            for _ in 0..2 {
                assert_eq!(pair.ask(&ask).1, length - 1, "{length} tokens");
            }
        }
    });
}

#[test]
fn a_last_message_that_is_edited_is_read_from_where_it_begins() {
    everywhere(|pair, _| {
        for begin in [47, 48, 49, 120] {
            let (before, message) = (text(begin, begin), text(70, 60));
            let ask = |edited: usize| {
                let mut message = message.clone();
                message[edited] += 1;
                Ask::greedy(joined(&[&before, &message])).with(&[begin, begin + 55])
            };
            assert_eq!(pair.ask(&ask(1)).1, 0);
            let (_, cached) = pair.ask(&ask(0));
            assert_eq!(cached, begin, "both begin with the tokens before the message");
        }
    });
}

#[test]
fn branches_anywhere_cost_less_than_the_stride_and_nothing_the_second_time() {
    everywhere(|pair, hybrid| {
        for branch in [79, 80, 81, 130, 193] {
            let trunk = text(branch, 230);
            pair.ask(&Ask::greedy(trunk.clone()).with(&[225]));
            let side = |number: usize| {
                let mut prompt = trunk[..branch].to_vec();
                // not the trunk's next token
                prompt.push((trunk[branch] + 1 + number as u32) % 320);
                prompt.extend(text(80 + number, 60));
                Ask::greedy(prompt).with(&[branch + 55])
            };
            let (_, cached) = pair.ask(&side(0));
            assert!(cached <= branch && branch - cached < STRIDE + APART, "{cached} cached before {branch}");
            let (_, cached) = pair.ask(&side(1));
            let near = if hybrid { APART } else { 1 };
            assert!(cached <= branch && branch - cached < near, "{cached} cached before {branch}, which was seen");
        }
    });
}

#[test]
fn a_second_user_reads_nothing_of_the_system_prompt() {
    everywhere(|pair, _| {
        let system = text(4, 203);
        for user in 0..4 {
            let prompt = joined(&[&system, &text(90 + user, 30)]);
            let (_, cached) = pair.ask(&Ask::greedy(prompt).with(&[203, 228]).sampled(user as u64));
            assert_eq!(cached, if user == 0 { 0 } else { 203 });
        }
    });
}

#[test]
fn copies_that_run_at_the_same_time_read_the_prompt_once() {
    everywhere(|pair, _| {
        let asks: Vec<Ask> = (0..5).map(|seed| Ask::greedy(text(5, 200)).sampled(seed)).collect();
        let before = pair.warm.status().prefill_tokens;
        let ids: Vec<_> = asks.iter().map(|ask| pair.start(ask)).collect();
        pair.warm.finish();
        let read = pair.warm.status().prefill_tokens - before;
        for (ask, id) in asks.iter().zip(ids) {
            pair.compare(ask, id);
        }
        assert!(read <= 200 + 4 * 16, "{read} tokens were read for five copies of 200");
    });
}

fn random(name: &str, layout: &RowLayout, seeds: std::ops::Range<u64>, operations: usize) -> Tally {
    let model = model(name);
    let mut all = Tally::default();
    for seed in seeds {
        let one = random_operations(&model, layout, seed, operations);
        all.compared += one.compared;
        all.hits += one.hits;
        all.left += one.left;
        all.restarts += one.restarts;
        all.pauses += one.pauses;
        all.evicted += one.evicted;
        all.kept += one.kept;
        all.fetched += one.fetched;
    }
    println!("{name}: {all:?}");
    all
}

/// Pages of two sessions, and few snapshots.
fn tiny(shards: usize, run_ahead: bool) -> RowLayout {
    RowLayout {
        context: 240,
        kv_tokens: Some(256),
        snapshots: 7,
        growth_tokens: 3,
        ..layout(shards, run_ahead, KvType::F16)
    }
}

#[test]
fn random_operations_in_little_memory_give_no_wrong_token() {
    let hybrid = random("nano16-f32", &tiny(3, false), 0..2, 125);
    let experts = random("nano-moe16-f32", &tiny(1, true), 2..4, 65);
    let attention = random("mini-llama-Q4_K_M", &tiny(2, true), 4..6, 60);
    for one in [hybrid, experts, attention] {
        assert!(one.compared > 50 && one.hits > one.compared / 8, "{one:?}: too little to prove anything");
        assert!(one.evicted > 20 && one.left > 2, "{one:?}: too little to prove anything");
    }
    assert!(hybrid.restarts + experts.restarts + attention.restarts > 1);
}

#[test]
fn random_operations_with_a_disk_and_restarts_give_no_wrong_token() {
    for (name, shards, budget) in [("nano16-f32", 3, 1 << 30), ("mini-llama-Q4_K_M", 2, 1 << 22)] {
        let folder = tempfile::tempdir().expect("a folder");
        let disk = Some((folder.path().to_owned(), budget));
        let one = random(name, &RowLayout { disk, ..tiny(shards, false) }, 7..9, 125);
        assert!(one.kept > 50 && one.fetched > 5, "{one:?}: too little to prove anything");
        assert!(one.restarts > 0 && one.evicted > 20, "{one:?}: too little to prove anything");
    }
}

#[test]
fn what_a_row_of_before_has_kept_is_installed_bit_for_bit() {
    let folder = tempfile::tempdir().expect("a folder");
    let layout = RowLayout { disk: Some((folder.path().to_owned(), 1 << 30)), ..layout(2, false, KvType::Q8_0) };
    let mut pair = Pair::new(&model("nano16-f32"), &layout);
    let document = text(5, 180);
    pair.ask(&Ask::greedy(document.clone()).with(&[100, 180]));
    // Another cut of the same process: its layers are all in one folder.
    pair.restart(3);
    let next = Ask::greedy(joined(&[&document, &text(9, 20)])).sampled(3);
    let (_, cached) = pair.ask(&next);
    assert_eq!(cached, 180);
    assert_eq!(pair.warm.status().cache.disk_tokens, 180);
}

/// Many prompts that come once do not push out one that comes again and again.
#[test]
fn a_hot_prefix_stays() {
    let model = model("nano16-f32");
    let small = RowLayout { context: 300, kv_tokens: Some(1200), snapshots: 12, ..layout(1, true, KvType::F16) };
    let mut pair = Pair::new(&model, &small);
    let system = text(6, 150);
    for round in 0..40 {
        let once = Ask::greedy(text(200 + round, 240)).with(&[235]);
        pair.ask(&once);
        if round % 4 == 0 {
            let hot = Ask::greedy(joined(&[&system, &text(500 + round, 20)])).with(&[150, 165]);
            let (_, cached) = pair.ask(&hot);
            assert!(cached <= 150 && (cached + STRIDE > 150 || round == 0), "round {round}: {cached}");
        }
    }
    let status = pair.warm.status();
    assert!(status.index.evicted_pages > 50 && status.index.evicted_snapshots > 20, "{status:?}");
}

#[test]
fn a_hot_prefix_stays_among_many_texts_that_come_once() {
    for (name, hybrid) in [("nano16-f32", true), ("mini-llama-Q4_K_M", false)] {
        let layout = RowLayout { kv_tokens: Some(900), snapshots: 12, ..layout(1, true, KvType::F16) };
        let plan = HotPrefix { tokens: 100, others: 40, other_tokens: 250, every: 5 };
        let tally = hot_prefix(&model(name), &layout, plan);
        assert_eq!(tally.asked, 8);
        assert!(tally.least_cached >= 100 - APART, "{name}: {tally:?}");
        assert!(tally.evicted.0 > 100, "{name}: {tally:?}");
        assert!(!hybrid || (tally.evicted.1 > 20 && tally.least_kept.1 >= 6 && tally.least_kept.0 >= 16), "{tally:?}");
    }
}
