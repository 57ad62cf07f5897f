//! Copies of states and pages on real kernels: whoever goes on from a copy gets the bits of a cold run, whatever becomes
//! of the original, and the original too.

use std::collections::BTreeMap;
use std::sync::Arc;

use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_tests::exactness::splits;
use paceline_tests::model_run::{Layout, ModelRun, cpu};
use paceline_tests::models::model;
use proptest::prelude::*;

const SESSIONS: usize = 5;
const CONTEXT: usize = 96;

/// What happens next; numbers that are too large begin anew.
#[derive(Debug, Clone)]
enum Act {
    /// A session runs so many tokens in chunks of so many.
    Run { session: usize, tokens: usize, chunk: usize, first: u32 },
    /// Another begins where it is.
    Fork { session: usize },
    /// It ends, and its memory is written by others.
    End { session: usize },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        6 => (0..SESSIONS, 1..40_usize, 1..40_usize, 0..300_u32)
            .prop_map(|(session, tokens, chunk, first)| Act::Run { session, tokens, chunk, first }),
        4 => (0..SESSIONS).prop_map(|session| Act::Fork { session }),
        1 => (0..SESSIONS).prop_map(|session| Act::End { session }),
    ];
    prop::collection::vec(act, 8..20)
}

fn layout(model: &Gguf, shards: usize, key_value_type: KvType) -> Layout {
    let splits = splits(model, shards);
    // A page for each copy of one that is partly filled.
    let context = CONTEXT + 16;
    Layout { splits, key_value_type, context, sessions: SESSIONS + 1, rows: CONTEXT, ..Layout::default() }
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().copied().map(f32::to_bits).collect()
}

/// Carries the acts out, and compares every result with that of a cold run of the same tokens.
fn play(model: &Arc<Gguf>, shards: usize, kind: KvType, acts: &[Act]) -> usize {
    let mut run = ModelRun::new(&cpu(), model, layout(model, shards, kind));
    let mut cold = ModelRun::new(&cpu(), model, layout(model, 1, kind));
    let mut texts: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    let (mut next, mut compared) = (0, 0);
    for act in acts {
        let nth = |index: usize| texts.keys().nth(index % texts.len().max(1)).copied();
        match act {
            Act::Run { session, tokens, chunk, first } => {
                let session = nth(*session).unwrap_or_else(|| {
                    next += 1;
                    next
                });
                let text = texts.entry(session).or_default();
                let new: Vec<u32> = (0..*tokens as u32).map(|token| (first + token * 7) % 320).collect();
                let new = &new[..new.len().min(CONTEXT - text.len())];
                if new.is_empty() {
                    continue;
                }
                text.extend(new);
                let warm = run.next(session, new, *chunk);
                let expected = cold.next(0, text, CONTEXT);
                cold.end(0);
                assert!(bits(&warm) == bits(&expected), "session {session} after {} tokens: {acts:?}", text.len());
                compared += 1;
            }
            Act::Fork { session } => {
                let Some(session) = nth(*session).filter(|_| texts.len() < SESSIONS) else { continue };
                next += 1;
                run.fork(session, next);
                texts.insert(next, texts[&session].clone());
            }
            Act::End { session } => {
                let Some(session) = nth(*session).filter(|_| texts.len() > 1) else { continue };
                run.end(session);
                texts.remove(&session);
            }
        }
    }
    compared
}

/// Plays acts on a model cut into some stages, with keys and values in each of these types.
fn check(name: &str, kinds: &[KvType], cases: u32) {
    let model = model(name);
    let blocks = ModelShape::read(&model).expect("a shape").blocks().len();
    for (kind, shards) in kinds.iter().flat_map(|kind| [1, 3].map(|shards| (*kind, shards.min(blocks)))) {
        let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(acts in acts())| {
            let runs = acts.iter().any(|act| matches!(act, Act::Run { .. }));
            prop_assert_eq!(play(&model, shards, kind, &acts) > 0, runs);
        });
    }
}

#[test]
fn a_hybrid_goes_on_from_copies() {
    check("nano16-f32", &[KvType::F16, KvType::F32, KvType::BF16], 12);
}

#[test]
fn a_hybrid_with_keys_and_values_in_blocks_goes_on_from_copies() {
    check("mini16-Q8_0", &[KvType::Q8_0, KvType::Q4_1, KvType::Iq4Nl], 6);
}

#[test]
fn a_hybrid_with_experts_goes_on_from_copies() {
    check("nano-moe16-f32", &[KvType::F16], 8);
}

#[test]
fn models_of_attention_alone_go_on_from_copies() {
    check("mini-llama-Q4_K_M", &[KvType::F16, KvType::Q8_0], 6);
    check("mini-qwen3-Q4_K_M", &[KvType::F16], 6);
}
