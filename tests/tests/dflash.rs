//! DFlash draft models: keys, values and logits are the reference's, whatever the cut of the target into stages.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::LoadedStage;
use paceline_compute::device::{ChunkLog, ChunkRows, Device, LogSpec, MemorySpec, StepInputs};
use paceline_compute::program::{Buffer, Program};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_model::{DRAFT, INJECT, Overrides, StageLayers, record, record_dflash, record_tapped};
use paceline_tests::drafting::cuts;
use paceline_tests::golden::{Golden, distance};
use paceline_tests::model_run::cpu;
use paceline_tests::models::{model, with_draft};

/// Ranges of layers.
type Cuts<'a> = &'a [Range<usize>];

const MEMORY: MemorySpec = MemorySpec {
    page_tokens: 16,
    pages: 8,
    slots: 1,
    key_type: KvType::F32,
    value_type: KvType::F32,
    rows: 64,
    wanted: 64,
    logs: LogSpec::NONE,
};

/// What a stage is given besides rows of vectors, of one session.
struct Feed<'a> {
    entry: usize,
    start: usize,
    rows: usize,
    tokens: &'a [u32],
    wanted: &'a [u32],
}

fn run(stage: &mut dyn LoadedStage, feed: &Feed<'_>, vectors: &[f32]) {
    let Feed { entry, start, rows, tokens, wanted } = *feed;
    let pages: Vec<u32> = (0..8).rev().collect();
    let chunks = [ChunkRows { first_row: 0, rows, start, slot: 0, pages: &pages, log: ChunkLog::default() }];
    let positions: Vec<[u32; 4]> = (start as u32..).take(rows).map(|at| [at, at, at, 0]).collect();
    let inputs = StepInputs { chunks: &chunks, tokens, vectors, positions: &positions, wanted };
    stage.run_entry(entry, &inputs).expect("a step");
}

fn read(stage: &mut dyn LoadedStage, buffer: Buffer, rows: usize) -> Vec<f32> {
    let mut values = vec![0.0; rows * stage.program().width(buffer)];
    stage.read(buffer, 0..rows, &mut values).expect("rows");
    values
}

/// The rows that the draft model reads of these tokens, made by a target that is cut so, and the widths of the rows
/// that travel between its stages.
fn features(model: &Arc<Gguf>, cuts: Cuts<'_>, tokens: &[u32]) -> (Vec<f32>, Vec<usize>) {
    let layers = ModelShape::read(model).expect("a shape").layers.len();
    let (mut vectors, mut widths) = (Vec::new(), Vec::new());
    for cut in cuts {
        let part = StageLayers::of(cut.clone(), layers);
        let program = record_tapped(model, &part, &Overrides::default()).expect("a program");
        let out = if part.last { program.features } else { program.output };
        let out = out.expect("rows for the draft model or the next stage");
        let mut stage = cpu().load(program, model, MEMORY, &mut |_| {}).expect("memory");
        let own: &[u32] = if part.first { tokens } else { &[] };
        let feed = Feed { entry: 0, start: 0, rows: tokens.len(), tokens: own, wanted: &[] };
        run(stage.as_mut(), &feed, &vectors);
        vectors = read(stage.as_mut(), out, tokens.len());
        widths.push(stage.program().width(out));
    }
    widths.pop();
    (vectors, widths)
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn keys_and_logits_are_those_of_the_reference() {
    let golden = Golden::named("mini-dflash");
    let near = |what: &str, found: &[f32], expected: &[f32]| {
        let distance = distance(found, expected);
        println!("{what}: {distance:?}");
        assert!(distance.max <= 1e-3 && distance.rms <= 1e-3, "{what}: {distance:?}");
    };
    let model = with_draft("mini-f32", "mini-dflash-f32");
    let tokens = Golden::named("mini-f32").tokens("prompt_tokens");
    let (features, _) = features(&model, &cuts(4, 1), &tokens);
    let (program, shape) = record_dflash(&model).expect("a draft model");
    assert_eq!((shape.block, &shape.target_layers[..], shape.mask_token), (8, &[1, 2, 3][..], 5));
    let encoded = buffer(&program, "dflash_encoded");
    let mut draft = cpu().load(program, &model, MEMORY, &mut |_| {}).expect("memory");
    // In two pieces: it remembers.
    let mut found = Vec::new();
    for piece in [0..40, 40..64] {
        let (start, rows) = (piece.start, piece.len());
        let feed = Feed { entry: INJECT, start, rows, tokens: &[], wanted: &[] };
        run(draft.as_mut(), &feed, &features[piece.start * 256..piece.end * 256]);
        found.extend(read(draft.as_mut(), encoded, rows));
    }
    near("encoded", &found, &golden.f32("encoded").values);

    let (block, all) = (golden.tokens("block_tokens"), Vec::from_iter(0..8));
    let feed = Feed { entry: DRAFT, start: 64, rows: 8, tokens: &block, wanted: &all };
    run(draft.as_mut(), &feed, &[]);
    let logits = draft.program().logits.expect("logits");
    near("logits", &read(draft.as_mut(), logits, 8), &golden.f32("draft_logits").values);
}

fn buffer(program: &Program, name: &str) -> Buffer {
    let index = program.buffers.iter().position(|spec| spec.name == name).expect("a buffer of that name");
    Buffer(index as u16)
}

/// The sum that the draft model reads is the same bits however the target is cut, and only links behind the first layer
/// that it reads carry it.
#[test]
fn features_do_not_depend_on_the_cut() {
    let model = with_draft("mini-f32", "mini-dflash-f32");
    let tokens: Vec<u32> = (0..50).map(|at| (at * 7 + 3) % 320).collect();
    let (expected, _) = features(&model, &cuts(4, 1), &tokens);
    let ways: [(Cuts<'_>, &[usize]); 4] = [
        (&[0..1, 1..4], &[256]),
        (&[0..2, 2..4], &[512]),
        (&[0..1, 1..2, 2..3, 3..4], &[256, 512, 512]),
        (&[0..1, 1..3, 3..4], &[256, 512]),
    ];
    for (cut, widths) in ways {
        let (found, links) = features(&model, cut, &tokens);
        assert_eq!(links, widths, "{cut:?}");
        assert!(bits(&found) == bits(&expected), "other features where the target is cut {cut:?}");
    }
}

/// What a draft model reads changes nothing of what a stage computes.
#[test]
fn stages_that_are_read_compute_the_same() {
    let (plain, read_of) = (model("mini-f32"), with_draft("mini-f32", "mini-dflash-f32"));
    let tokens: Vec<u32> = (0..50).map(|at| (at * 5 + 1) % 320).collect();
    let part = StageLayers::of(0..4, 4);
    let programs = [
        (&plain, record(&plain, &part).expect("a program")),
        (&read_of, record_tapped(&read_of, &part, &Overrides::default()).expect("a program")),
    ];
    let [one, other] = programs.map(|(model, program)| {
        let logits = program.logits.expect("logits");
        let mut stage = cpu().load(program, model, MEMORY, &mut |_| {}).expect("memory");
        let wanted: Vec<u32> = (0..50).collect();
        run(stage.as_mut(), &Feed { entry: 0, start: 0, rows: 50, tokens: &tokens, wanted: &wanted }, &[]);
        bits(&read(stage.as_mut(), logits, 50))
    });
    assert!(one == other);
}

#[test]
fn a_model_without_a_draft_is_refused() {
    let error = record_dflash(&model("mini-f32")).expect_err("there is none");
    assert_eq!(error.to_string(), "the model was opened without a DFlash draft model");
    let error = record_dflash(&with_draft("nano-f32", "mini-dflash-f32")).expect_err("it does not fit");
    assert!(
        error.to_string().contains("\"dflash.embedding_length\" is 256, which is not that of the model"),
        "{error}"
    );
}
