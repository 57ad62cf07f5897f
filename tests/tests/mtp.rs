//! The block for multi-token prediction: its logits are the reference's, and what it guesses changes no text.

use paceline_compute::LoadedStage;
use paceline_compute::device::{ChunkLog, ChunkRows, Device, LogSpec, MemorySpec, StepInputs};
use paceline_compute::program::Buffer;
use paceline_gguf::KvType;
use paceline_model::{Overrides, has_mtp, record_mtp};
use paceline_tests::golden::{Golden, distance};
use paceline_tests::model_run::cpu;
use paceline_tests::models::model;

/// The draft model alone.
struct Mtp {
    stage: Box<dyn LoadedStage>,
    logits: Buffer,
    hidden: Buffer,
}

impl Mtp {
    fn load(name: &str) -> Mtp {
        let model = model(name);
        let program = record_mtp(&model, &Overrides::default()).expect("the file has a block");
        let (logits, hidden) = (program.logits.expect("logits"), program.hidden.expect("a hidden row"));
        let memory = MemorySpec {
            page_tokens: 16,
            pages: 8,
            slots: 0,
            key_type: KvType::F32,
            value_type: KvType::F32,
            rows: 64,
            wanted: 64,
            logs: LogSpec::NONE,
        };
        let stage = cpu().load(program, &model, memory, &mut |_| {}).expect("memory");
        Mtp { stage, logits, hidden }
    }

    /// Reads tokens from position `start` on, each with the hidden row behind the token before it. Returns the logits
    /// and the hidden rows of all.
    fn run(&mut self, start: usize, tokens: &[u32], vectors: &[f32]) -> [Vec<f32>; 2] {
        let rows = tokens.len();
        let pages: Vec<u32> = (0..8).rev().collect();
        let chunks = [ChunkRows { first_row: 0, rows, start, slot: 0, pages: &pages, log: ChunkLog::default() }];
        let positions: Vec<[u32; 4]> = (start as u32..).take(rows).map(|at| [at, at, at, 0]).collect();
        let wanted: Vec<u32> = (0..rows as u32).collect();
        let inputs = StepInputs { chunks: &chunks, tokens, vectors, positions: &positions, wanted: &wanted };
        self.stage.run(&inputs).expect("a step");
        [self.logits, self.hidden].map(|buffer| {
            let mut values = vec![0.0; rows * self.stage.program().width(buffer)];
            self.stage.read(buffer, 0..rows, &mut values).expect("rows");
            values
        })
    }
}

fn check(name: &str, most: f32, rms: f32) {
    let golden = Golden::named(name);
    let near = |what: &str, found: &[f32], expected: &[f32]| {
        let distance = distance(found, expected);
        println!("{name}, {what}: {distance:?}");
        assert!(distance.max <= most && distance.rms <= rms, "{name}, {what}: {distance:?}");
    };
    let (tokens, hidden) = (golden.tokens("prompt_tokens"), golden.f32("h_nextn"));
    let width = hidden.values.len() / tokens.len();
    let shifted = [&vec![0.0; width], &hidden.values[..(tokens.len() - 1) * width]].concat();
    let mut mtp = Mtp::load(name);
    // In two pieces: it remembers.
    let mut logits = Vec::new();
    for piece in [0..40, 40..64] {
        let vectors = &shifted[piece.start * width..piece.end * width];
        logits.extend(mtp.run(piece.start, &tokens[piece], vectors).into_iter().next().expect("logits"));
    }
    near("prompt", &logits, &golden.f32("mtp_prompt_logits").values);

    let mut newest = golden.tokens("decode_tokens")[0];
    let mut vector = hidden.values[(tokens.len() - 1) * width..].to_vec();
    let expected = golden.f32("mtp_draft_logits");
    for (index, draft) in golden.tokens("mtp_draft_tokens").into_iter().enumerate() {
        let [logits, next] = mtp.run(tokens.len() + index, &[newest], &vector);
        near(&format!("draft {index}"), &logits, expected.rows().nth(index).expect("a row"));
        (newest, vector) = (draft, next);
    }
}

#[test]
fn logits_are_those_of_the_reference() {
    check("nano-mtp-f32", 1e-3, 1e-3);
    check("mini-mtp-f32", 1e-3, 1e-3);
}

/// The reference quantizes activations to 8 bits, as for the model itself.
#[test]
fn logits_of_quantized_weights_are_near_those_of_the_reference() {
    check("mini16-mtp-Q8_0", 1.0, 0.12);
}

#[test]
fn a_file_without_the_block_is_refused() {
    let model = model("nano-f32");
    assert!(!has_mtp(&model).expect("a shape"));
    let error = record_mtp(&model, &Overrides::default()).expect_err("there is none");
    assert_eq!(error.to_string(), "the file has 0 blocks for multi-token prediction; drafts are made with exactly one");
}
