//! Placements of published and random shapes.

mod by_force;
mod caches;
mod clusters;
mod cost;
mod described;
mod shapes;

use std::ops::Range;

use paceline_gguf::{ModelShape, testing::PublishedShape};
use proptest::prelude::*;
use shapes::{any_shape, narrow, published};

use super::memory::SCRATCH_BYTES;
use super::*;

const GIB: u64 = 1 << 30;

/// More memory than anything here needs.
const LARGE: Host = Host { memory_bytes: 1 << 50, threads: 16 };

fn q8_0(shards: usize, context: usize, sessions: usize) -> Wishes {
    Wishes { key_type: KvType::Q8_0, value_type: KvType::Q8_0, ..Wishes::new(shards, context, sessions) }
}

fn message(shape: &ModelShape, wishes: &Wishes, host: &Host) -> String {
    plan(shape, wishes, host).unwrap_err().to_string()
}

/// Per shape: bytes of keys and values per token, state per session, attention and recurrent layers.
#[test]
fn published_models_have_the_known_figures_however_they_are_cut() {
    let cases =
        [(PublishedShape::B27, 34_816, "149.6 MiB", (16, 48)), (PublishedShape::B35_A3, 10_880, "62.8 MiB", (10, 30))];
    for (published_shape, key_value, state, kinds) in cases {
        let shape = published(published_shape);
        for shards in 1..=8 {
            let placement = plan(&shape, &q8_0(shards, 32_768, 4), &LARGE).unwrap();
            assert_eq!(placement.stages.len(), shards);
            assert_eq!(placement.key_value_per_token, key_value);
            assert_eq!(render::human(placement.state_per_session), state);
            let sum = |count: fn(&StagePlan) -> usize| placement.stages.iter().map(count).sum::<usize>();
            assert_eq!((sum(|stage| stage.attention_layers), sum(|stage| stage.recurrent_layers)), kinds);
            assert_eq!(sum(|stage| stage.threads), 16);
            let memory = placement.memory();
            assert_eq!(memory.key_value, key_value * 32_768 * 4);
            assert_eq!(memory.states, placement.state_per_session * 4);
            assert_eq!(memory.weights + memory.mapped, shape.total().bytes);
            assert_eq!(memory.mapped, shape.embedding.bytes);
            let reads: u64 = placement.stages.iter().map(|stage| stage.read_per_token).sum();
            let active: u64 = shape.layers.iter().map(|layer| layer.active().bytes).sum();
            assert_eq!(reads, active + shape.embedding.bytes / 248_320 + shape.head().bytes);
        }
    }
}

#[test]
fn the_head_makes_the_last_stage_shorter() {
    let placement = plan(&published(PublishedShape::B27), &q8_0(4, 32_768, 1), &LARGE).unwrap();
    let layers: Vec<Range<usize>> = placement.stages.iter().map(|stage| stage.layers.clone()).collect();
    assert_eq!(layers, [0..16, 16..32, 32..52, 52..64]);
    let average = placement.stages.iter().map(|stage| stage.read_per_token).sum::<u64>() / 4;
    assert!(placement.bottleneck() < average * 12 / 10);
}

#[test]
fn a_tied_embedding_is_reserved_as_the_head_only() {
    let shape = published(PublishedShape::B0_8);
    for shards in [1, 2, 6] {
        let placement = plan(&shape, &Wishes::new(shards, 4096, 1), &LARGE).unwrap();
        let memory = placement.memory();
        assert_eq!((memory.weights, memory.mapped), (shape.total().bytes, shape.embedding.bytes));
    }
}

#[test]
fn buffers_hold_what_layers_of_both_kinds_compute() {
    // 27B: the stream, 17,408 values twice, what a recurrent layer makes and what attention makes, per row; 513 rows
    // of a step, and the logits of two.
    let placement = plan(&published(PublishedShape::B27), &q8_0(1, 4096, 1), &LARGE).unwrap();
    let per_row = 5120 + 2 * 17_408 + (10_240 + 2 * 6144) + (3 * 6144 + 2 * 1024);
    let least = 4 * (513 * per_row + 2 * 248_320);
    let found = placement.memory().buffers;
    assert!((least..least * 2).contains(&found), "{found} for {least}");
}

#[test]
fn wishes_that_cannot_be_are_refused() {
    let shape = narrow();
    let wishes = Wishes::new(2, 1024, 1);
    assert!(plan(&shape, &wishes, &LARGE).is_ok());
    let refused = |change: fn(&mut Wishes)| {
        let mut wishes = wishes.clone();
        change(&mut wishes);
        message(&shape, &wishes, &LARGE)
    };
    assert_eq!(refused(|w| w.shards = Some(0)), "shards is 0, at least 1 is needed");
    assert_eq!(refused(|w| w.context = 0), "context is 0, at least 1 is needed");
    assert_eq!(refused(|w| w.sessions = 0), "sessions is 0, at least 1 is needed");
    assert_eq!(refused(|w| w.page_tokens = 0), "page_tokens is 0, at least 1 is needed");
    assert_eq!(refused(|w| w.step_rows = 0), "step_rows is 0, at least 1 is needed");
    assert_eq!(
        refused(|w| w.shards = Some(5)),
        "5 shards are wanted, but the model has 4 blocks, which may not be cut: use at most 4 shards"
    );
    assert_eq!(
        refused(|w| w.context = 1025),
        "a context of 1025 tokens is wanted, but the model was trained for 1024: use at most 1024"
    );
    assert_eq!(
        refused(|w| w.value_type = KvType::Q8_0),
        "heads of 8 values cannot be stored as q8_0, which needs a multiple of 32"
    );
    assert_eq!(
        refused(|w| w.sessions = usize::MAX),
        "18446744073709551615 pages would be needed, at most 4294967295 can be numbered: use a smaller context or fewer sessions"
    );
    for threads in [0, usize::MAX] {
        let message = message(&shape, &wishes, &Host { threads, ..LARGE });
        assert_eq!(message, format!("the host has {threads} threads, 1 to 65536 are possible"));
    }
}

#[test]
fn a_stretched_context_and_shared_threads_are_noted() {
    let wishes = Wishes { scaled_rope: true, ..Wishes::new(3, 2048, 1) };
    let placement = plan(&narrow(), &wishes, &Host { threads: 2, ..LARGE }).unwrap();
    let notes: Vec<String> = placement.notes.iter().map(Note::to_string).collect();
    assert_eq!(
        notes,
        [
            "a context of 2048 tokens is longer than the 1024 that the model was trained for",
            "3 stages share 2 threads and take turns: fewer shards would be faster"
        ]
    );
    assert!(plan(&narrow(), &Wishes::new(2, 1024, 1), &LARGE).unwrap().notes.is_empty());
}

#[test]
fn what_does_not_fit_says_what_would() {
    let shape = published(PublishedShape::B27);
    let host = Host { memory_bytes: 32 * GIB, threads: 16 };
    let error = message(&shape, &Wishes::new(2, 131_072, 4), &host);
    assert_eq!(
        error,
        "48.1 GiB are needed (weights 14.7 GiB, keys and values 32.0 GiB, states 598.5 MiB, buffers 475.8 MiB, reserve 333.0 MiB), \
         but 32.0 GiB are available: it would fit with a context of 65088 tokens, or with 2 sessions, or \
         with keys and values of q4_0"
    );
    let error = message(&shape, &Wishes::new(2, 1024, 1), &Host { memory_bytes: 8 * GIB, threads: 16 });
    assert!(error.ends_with("use a smaller quantization of the model, smaller steps, or more memory"), "{error}");
}

#[test]
fn a_table_for_people() {
    let mut shape = published(PublishedShape::B27);
    shape.name = Some("Hybrid 27B".to_owned());
    let placement = plan(&shape, &q8_0(4, 32_768, 4), &Host { memory_bytes: 64 * GIB, threads: 16 }).unwrap();
    assert_eq!(render(&placement), include_str!("tests/27b.txt"));
    assert!(render(&placement).lines().all(|line| line.chars().count() <= 100));
}

#[test]
fn a_model_that_drafts_is_counted_at_the_last_stage_alone() {
    let mut shape = published(PublishedShape::B27);
    let draft = TailDrafter::Model { key_type: KvType::F16, value_type: KvType::F16 };
    let wishes = q8_0(3, 32_768, 4).with_drafts(15);
    let with_draft = Wishes { drafter: Some(draft), ..wishes.clone() };
    assert_eq!(message(&shape, &with_draft, &LARGE), "the model was opened without another one that drafts for it");
    let small = published(PublishedShape::B0_8);
    let weights = small.total().bytes;
    shape.draft = Some(Box::new(small.clone()));
    let [plain, drafted] = [&wishes, &with_draft].map(|wishes| plan(&shape, wishes, &LARGE).unwrap());
    let memories = |placement: &Placement| placement.stages.iter().map(|stage| stage.memory).collect::<Vec<_>>();
    let (plain, drafter, memories) = (memories(&plain), drafted.drafter_memory, memories(&drafted));
    assert_eq!((memories[0], memories[1]), (plain[0], plain[1]));
    assert_eq!(memories[2], plain[2] + drafter);
    assert_eq!(drafter.weights, weights);
    assert_eq!(drafter.key_value, small.key_value_bytes_per_token(0..24, KvType::F16, KvType::F16) * 32_768 * 4);
    let logs = small.log_bytes_per_token(0..24) * wishes.logs.rows() as u64;
    assert_eq!(drafter.states, small.state_bytes(0..24) * 4 + logs);
    let table = render(&drafted);
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("the last stage has the model that makes some of them of the last stage "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    // As it is kept for the coordinator's next life.
    let text = serde_json::to_string(&drafted).unwrap();
    assert_eq!(serde_json::from_str::<Placement>(&text).unwrap(), drafted);
}

#[test]
fn a_name_from_a_file_cannot_steer_the_terminal() {
    let placement = plan(&narrow(), &Wishes::new(1, 1024, 1), &LARGE).unwrap();
    assert!(render(&placement).starts_with("narrow\u{fffd}[31m: 1 stage, 1 session of 1024 tokens"));
}

#[test]
fn bytes_for_people() {
    let table = [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (34_816, "34.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (GIB, "1.0 GiB"),
        (u64::MAX, "16777216.0 TiB"),
    ];
    for (bytes, text) in table {
        assert_eq!(render::human(bytes), text);
    }
}

/// Bytes that the slowest of these stages reads per token, by adding up.
fn bottleneck(shape: &ModelShape, stages: &[Range<usize>]) -> u64 {
    let cost = |stage: &Range<usize>| {
        let layers: u64 = shape.layers[stage.clone()].iter().map(|layer| layer.active().bytes).sum();
        let row = if stage.start == 0 { shape.embedding.bytes / shape.vocabulary as u64 } else { 0 };
        let head = if stage.end == shape.layers.len() { shape.head().bytes } else { 0 };
        layers + row + head
    };
    stages.iter().map(cost).max().unwrap()
}

/// Every way to make so many stages of the blocks.
fn all_cuts(blocks: &[Range<usize>], shards: usize) -> Vec<Vec<Range<usize>>> {
    let inner = &blocks[1..];
    (0..1u32 << inner.len())
        .filter(|cuts| cuts.count_ones() as usize == shards - 1)
        .map(|cuts| {
            let chosen = inner.iter().enumerate().filter(|(bit, _)| cuts >> bit & 1 == 1);
            let mut starts: Vec<usize> = std::iter::once(0).chain(chosen.map(|(_, block)| block.start)).collect();
            starts.push(blocks[blocks.len() - 1].end);
            starts.windows(2).map(|pair| pair[0]..pair[1]).collect()
        })
        .collect()
}

prop_compose! {
    fn any_wishes()(
        shards in 1usize..6,
        context in 1usize..500,
        sessions in 1usize..6,
        snapshots in 0usize..4,
        cached_pages in 0usize..9,
        key in 0usize..7,
        value in 0usize..7,
        page_tokens in 1usize..100,
        step_rows in 1usize..20,
        step_wanted in 1usize..5,
    ) -> Wishes {
        let (key_type, value_type) = (KvType::ALL[key], KvType::ALL[value]);
        Wishes {
            context, sessions, cache: Cache { snapshots, pages: cached_pages }, key_type, value_type, page_tokens, step_rows, step_wanted,
            ..Wishes::new(shards, context, sessions)
        }
    }
}

/// What would fit does, and nothing larger would.
fn assert_largest_that_fit(would_fit: &WouldFit, wishes: &Wishes, fits: impl Fn(Wishes) -> bool) {
    let with_context = |context| fits(Wishes { context, ..wishes.clone() });
    match would_fit.context {
        Some(context) => assert!(context < wishes.context && with_context(context) && !with_context(context + 1)),
        None => assert!(!with_context(wishes.page_tokens.min(wishes.context))),
    }
    let with_sessions = |sessions| fits(Wishes { sessions, ..wishes.clone() });
    match would_fit.sessions {
        Some(sessions) => assert!(with_sessions(sessions) && !with_sessions(sessions + 1)),
        None => assert!(!with_sessions(1)),
    }
    let with_type = |kind| fits(Wishes { key_type: kind, value_type: kind, ..wishes.clone() });
    match would_fit.key_value_type {
        Some(kind) => assert!(with_type(kind)),
        None => assert!(!with_type(KvType::Q4_0) || wishes.key_type != KvType::F32),
    }
}

proptest! {
    #[test]
    fn stages_are_the_layers_cut_between_blocks_with_the_least_bottleneck(shape in any_shape(), wishes in any_wishes()) {
        let (blocks, shards) = (shape.blocks(), wishes.shards.unwrap());
        match plan(&shape, &wishes, &LARGE) {
            Ok(placement) => {
                let stages: Vec<Range<usize>> = placement.stages.iter().map(|stage| stage.layers.clone()).collect();
                prop_assert_eq!(stages.len(), shards);
                prop_assert!(all_cuts(&blocks, shards).contains(&stages));
                let least = all_cuts(&blocks, shards).iter().map(|cut| bottleneck(&shape, cut)).min();
                prop_assert_eq!(Some(placement.bottleneck()), least);
                prop_assert_eq!(bottleneck(&shape, &stages), placement.bottleneck());
                for (index, stage) in placement.stages.iter().enumerate() {
                    prop_assert_eq!((stage.first, stage.last), (index == 0, index + 1 == stages.len()));
                }
            }
            Err(error) => {
                prop_assert!(matches!(error, Error::TooManyShards { .. }), "{}", error);
                prop_assert!(shards > blocks.len());
            }
        }
    }

    #[test]
    fn memory_is_never_overcommitted_and_what_would_fit_does(
        shape in any_shape(),
        wishes in any_wishes(),
        beyond_scratch in 0u64..400_000,
    ) {
        let shards = wishes.shards.unwrap();
        prop_assume!(shards <= shape.blocks().len());
        let memory_bytes = shards as u64 * SCRATCH_BYTES + beyond_scratch;
        let host = Host { memory_bytes, threads: 3 };
        match plan(&shape, &wishes, &host) {
            Ok(placement) => prop_assert!(placement.memory().total() <= memory_bytes),
            Err(Error::DoesNotFit { needed, available, would_fit }) => {
                prop_assert_eq!(available, memory_bytes);
                prop_assert!(needed.total() > memory_bytes);
                assert_largest_that_fit(&would_fit, &wishes, |wishes| plan(&shape, &wishes, &host).is_ok());
            }
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn sums_over_stages_do_not_depend_on_the_cut(shape in any_shape(), wishes in any_wishes()) {
        let whole = plan(&shape, &Wishes { shards: Some(1), ..wishes.clone() }, &LARGE).unwrap();
        for shards in 2..=shape.blocks().len() {
            let placement = plan(&shape, &Wishes { shards: Some(shards), ..wishes.clone() }, &LARGE).unwrap();
            let (sum, one) = (placement.memory(), whole.memory());
            prop_assert_eq!((sum.key_value, sum.states), (one.key_value, one.states));
            let others = shape.other.bytes * (shards as u64 - 1);
            prop_assert_eq!(sum.weights, one.weights + others);
        }
    }
}
