//! How many of a tail's drafts its model accepts, greedy.
//!
//! `cargo run --release -p paceline-tests --example acceptance MODEL.gguf TASKS.jsonl PROSE.txt DRAFTS STAGES [DRAFT.gguf]`:
//! drafts are made by the DFlash model in DRAFT.gguf, or by the model's own block for multi-token prediction. Each line of
//! the tasks has a `prompt`; of the prose twelve pieces of 96 tokens are prompts. Up to 96 tokens follow each, or fewer
//! if the model ends its answer.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_gguf::{Gguf, KvType};
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Operation, Outcome, PageId, Reused, SamplingSettings, SessionId, Slot, Verified, Verify,
    Wanted,
};
use paceline_tests::drafting;
use paceline_tests::hand_row::HandRow;
use paceline_text::{Special, Tokenizer};
use uuid::Uuid;

/// Tasks that are asked, and pieces of prose that are continued.
const TASKS: usize = 60;
const PIECES: usize = 12;
/// Tokens of a piece, and the most that follow a prompt.
const TOKENS: usize = 96;
/// Tokens that the pages hold.
const CONTEXT: usize = 8192;
/// Rows of a prompt in a step.
const ROWS: usize = 512;

/// What became of drafts.
#[derive(Debug, Default)]
struct Count {
    drafted: usize,
    accepted: usize,
    passes: usize,
    tokens: usize,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, tasks, prose, drafts, stages, draft @ ..] = arguments.as_slice() else {
        panic!("acceptance MODEL.gguf TASKS.jsonl PROSE.txt DRAFTS STAGES [DRAFT.gguf]");
    };
    let drafts = drafts.parse().expect("how many drafts");
    let stages = stages.parse().expect("how many stages");
    let open = |path: &str| Gguf::open(Path::new(path)).expect("a model file");
    let model = match draft {
        [draft] => Arc::new(open(model).with_draft(open(draft))),
        _ => Arc::new(open(model)),
    };
    let tokenizer = Tokenizer::from_gguf(&model).expect("a tokenizer");
    let encode = |text: &str| tokenizer.encode(text, Special::Parse, false);
    let read = |path: &str| std::fs::read_to_string(path).expect("a text");
    let lines = read(tasks);
    let every = lines.lines().count() / TASKS;
    let prompt = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("JSON")["prompt"].to_string();
    let prompt = |line: &str| serde_json::from_str::<String>(&prompt(line)).expect("a text");
    let tasks: Vec<Vec<u32>> =
        lines.lines().step_by(every.max(1)).take(TASKS).map(|line| encode(&prompt(line))).collect();
    let text = encode(&read(prose));
    let apart = text.len() / PIECES;
    let pieces: Vec<Vec<u32>> = text.chunks_exact(apart).take(PIECES).map(|part| part[..TOKENS].to_vec()).collect();
    for (what, prompts) in [("tasks", tasks), ("prose", pieces)] {
        let mut count = Count::default();
        for prompt in prompts {
            let row = load(&model, stages);
            speculate(&row, &tokenizer, prompt, drafts, &mut count);
        }
        let Count { drafted, accepted, passes, tokens } = count;
        let share = 100.0 * accepted as f64 / drafted as f64;
        let each = tokens as f64 / passes as f64;
        writeln!(std::io::stdout(), "{what}: {accepted} of {drafted} accepted, {share:.1}%, {each:.2} tokens a pass")
            .expect("standard output");
    }
}

/// A row that guesses.
fn load(model: &Arc<Gguf>, stages: usize) -> HandRow {
    let device = CpuDevice::new(2, None).expect("threads");
    let (key_type, value_type) = (KvType::F32, KvType::F32);
    let memory = MemorySpec {
        page_tokens: 16,
        pages: CONTEXT / 16,
        slots: 1,
        key_type,
        value_type,
        rows: ROWS,
        wanted: 16,
        logs: LogSpec { sessions: 1, tokens: 15 },
    };
    drafting::row(model, stages, &device, memory, Epoch(0))
}

/// Runs a prompt and up to [`TOKENS`] tokens after it.
fn speculate(row: &HandRow, tokenizer: &Tokenizer, mut tokens: Vec<u32>, drafts: u32, count: &mut Count) {
    let mut id = 0;
    let session = SessionId(Uuid::from_u128(1));
    let (sampling, reused) = (Box::new(SamplingSettings::default()), Reused::default());
    let mut operations = vec![
        Operation::Open { session, slot: Slot(0), sampling, generated_from: tokens.len() as u32, reused },
        Operation::Grant { session, pages: (0..(CONTEXT / 16) as u32).map(PageId).collect() },
    ];
    let (prompt, mut run, mut guesses) = (tokens.len(), 0, Vec::new());
    while tokens.len() < prompt + TOKENS && !tokens[prompt..].iter().any(|one| tokenizer.is_end_of_generation(*one)) {
        let end = tokens.len().min(run + ROWS);
        let is_last = end == tokens.len();
        let drafted: &[u32] = if is_last { &guesses } else { &[] };
        let rows = [&tokens[run..end], drafted].concat();
        let verify = Verify { drafts: drafted.len() as u32, propose: drafts, least_probability: 0 };
        let wanted = if is_last { Wanted::Verify(verify) } else { Wanted::Nothing };
        let chunk = Chunk { session, start: run as u32, input: ChunkInput::Tokens(rows), wanted, void: false };
        let (mut outcomes, _) = row.run(id, std::mem::take(&mut operations), vec![chunk]);
        id += 1;
        run = end;
        if let Outcome::Verified(Verified { tokens: said, drafted }) = outcomes.remove(0) {
            if !guesses.is_empty() {
                count.drafted += guesses.len();
                count.accepted += said.len() - 1;
                count.passes += 1;
                count.tokens += said.len();
            }
            run = tokens.len() + said.len() - 1;
            tokens.extend(said.iter().map(|sampled| sampled.token));
            guesses = drafted.into_iter().map(|guess| guess.token).collect();
        }
    }
}
