//! Memories that move, between two steps, to stages that are cut in another way: whatever comes after is bit for bit
//! what would have come.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Frame, MemoryHead, MemoryRequest, Operation, Outcome, PageId, Payload, Reused,
    SamplingSettings, SessionId, Slot, Step, StepId, Wanted,
};
use paceline_shard::{Error, SharedStage, Taking, give};
use paceline_tests::hand_row::{HandRow, Said, by_chance};
use paceline_tests::models::model;
use uuid::Uuid;

const PAGE_TOKENS: usize = 16;
const PAGES: u32 = 24;
const SLOTS: u32 = 4;
/// Rows of a prompt in a step.
const CHUNK: usize = 20;
/// Steps of a whole run.
const STEPS: usize = 14;

/// What a session has read and said.
#[derive(Clone)]
struct Talk {
    session: SessionId,
    tokens: Vec<u32>,
    /// Tokens that the row has read.
    read: usize,
}

/// A kind of device for every epoch: memories move between instruction sets.
fn device(epoch: u32) -> CpuDevice {
    let available: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
    let isa = available[epoch as usize % available.len()];
    CpuDevice::new(1 + epoch as usize % 2, Some(isa)).expect("threads")
}

fn memory([key_type, value_type]: [KvType; 2]) -> MemorySpec {
    let (pages, slots) = (PAGES as usize, SLOTS as usize);
    MemorySpec {
        page_tokens: PAGE_TOKENS,
        pages,
        slots,
        key_type,
        value_type,
        rows: 3 * CHUNK,
        wanted: 3,
        logs: LogSpec::NONE,
    }
}

/// A row on a device of this epoch's kind.
fn load(model: &Arc<Gguf>, cuts: &[Range<usize>], kinds: [KvType; 2], epoch: u32) -> HandRow {
    HandRow::load(model, cuts, &device(epoch), memory(kinds), Epoch(epoch))
}

/// Moves all memories of a row, cut so, into another.
fn give_all(from: &HandRow, own: &[Range<usize>], to: &HandRow, cuts: &[Range<usize>]) {
    for (stage, cut) in to.stages.iter().zip(cuts) {
        let mut taking = taking(stage);
        let mut sources: Vec<(usize, Range<usize>)> = own
            .iter()
            .map(|own| own.start.max(cut.start)..own.end.min(cut.end))
            .enumerate()
            .filter(|(_, layers)| !layers.is_empty())
            .collect();
        let tail = stage.place().last;
        let last = own.len() - 1;
        if tail && sources.last().is_none_or(|(source, _)| *source != last) {
            sources.push((last, 0..0));
        }
        for (source, layers) in sources {
            let request = taking.request(layers.start as u32..layers.end as u32, tail && source == last);
            let bytes = given(&from.stages[source], &request);
            taking.read(&request, &mut bytes.as_slice()).expect("it fits");
        }
        taking.finish().expect("everything is here");
    }
}

/// Pages and slots that no session has would only be moved in vain, but some are among these.
fn taking(stage: &SharedStage) -> Taking {
    let (pages, slots) = ((0..PAGES).rev().map(PageId).collect(), (0..SLOTS).map(Slot).collect());
    Taking::new(stage.clone(), pages, slots).expect("a new stage")
}

fn given(stage: &SharedStage, request: &MemoryRequest) -> Vec<u8> {
    let request = MemoryRequest::decode(&request.encode()).expect("it survives the wire");
    let mut bytes = Vec::new();
    give(stage, &request, &mut bytes).expect("the stage has it");
    bytes
}

/// Three sessions: greedy, by chance with penalties, and one whose settings cannot be used.
fn sampling(index: usize) -> SamplingSettings {
    match index {
        0 => SamplingSettings::default(),
        1 => by_chance(),
        _ => SamplingSettings { temperature: f32::NAN, ..SamplingSettings::default() },
    }
}

fn talks() -> Vec<Talk> {
    let prompt = |index: u32, length: u32| (0..length).map(|at| (at * 11 + at * at * 3 + index * 29) % 320).collect();
    let talk = |(index, length)| Talk {
        session: SessionId(Uuid::from_u128(u128::from(index) + 1)),
        tokens: prompt(index, length),
        read: 0,
    };
    [(0, 9), (1, 70), (2, 33)].into_iter().map(talk).collect()
}

fn opening(index: usize, talk: &Talk) -> [Operation; 2] {
    let (session, slot) = (talk.session, Slot([2, 0, 3][index]));
    // Pages of the sessions lie among each other, and the last are not in order.
    let pages = (0..PAGES / 3).rev().map(|page| PageId(page * 3 + index as u32)).collect();
    let generated_from = talk.tokens.len() as u32;
    let sampling = Box::new(sampling(index));
    [
        Operation::Open { session, slot, sampling, generated_from, reused: Reused::default() },
        Operation::Grant { session, pages },
    ]
}

/// The next chunk of a session, which then counts as read.
fn chunk(talk: &mut Talk) -> Chunk {
    let tokens: Vec<u32> = talk.tokens[talk.read..].iter().copied().take(CHUNK).collect();
    let start = talk.read as u32;
    talk.read += tokens.len();
    let wanted = if talk.read == talk.tokens.len() { Wanted::Sample } else { Wanted::Nothing };
    Chunk { session: talk.session, start, input: ChunkInput::Tokens(tokens), wanted, void: false }
}

/// Runs all sessions, over these cuts one after the other: after every `each` steps everything moves to the next.
fn told(name: &str, kinds: [KvType; 2], cuts: &[&[Range<usize>]], each: usize) -> Vec<Said> {
    let model = model(name);
    let mut row = load(&model, cuts[0], kinds, 0);
    let (mut talks, mut told, mut at) = (talks(), Vec::new(), 0);
    for step in 0..STEPS {
        if step > 0 && step % each == 0 && at + 1 < cuts.len() {
            let next = load(&model, cuts[at + 1], kinds, at as u32 + 1);
            give_all(&row, cuts[at], &next, cuts[at + 1]);
            (row, at) = (next, at + 1);
        }
        // Each session comes a step after the one before.
        let operations = talks.get(step).map(|talk| opening(step, talk).to_vec()).unwrap_or_default();
        let running = talks.iter_mut().take(step + 1).filter(|talk| talk.read < talk.tokens.len());
        let chunks: Vec<Chunk> = running.map(chunk).collect();
        let (outcomes, logits) = row.run(step as u64, operations, chunks.clone());
        for (chunk, outcome) in chunks.iter().zip(&outcomes) {
            let talk = talks.iter_mut().find(|talk| talk.session == chunk.session).expect("it runs");
            if let Outcome::Sampled(sampled) = outcome {
                talk.tokens.push(sampled.token);
            }
        }
        told.push((outcomes, logits));
    }
    assert_eq!(at, cuts.len() - 1, "it moved as often as it should");
    told
}

fn check(name: &str, kinds: [KvType; 2], cuts: &[&[Range<usize>]]) {
    let expected = told(name, kinds, &cuts[..1], 1);
    let sampled = |(outcomes, _): &Said| outcomes.iter().any(|o| matches!(o, Outcome::Sampled(_)));
    assert!(expected.iter().filter(|step| sampled(step)).count() > 8, "{name}: most steps sample");
    for each in 1..=STEPS / cuts.len() {
        let found = told(name, kinds, cuts, each);
        assert!(found == expected, "{name} with {kinds:?}, moved after every {each} steps: other tokens or bits");
    }
}

const F16: [KvType; 2] = [KvType::F16; 2];

/// One stage of the models with 16 layers.
fn whole() -> Vec<Range<usize>> {
    std::iter::once(0..16).collect()
}

#[test]
fn a_hybrid_moves_between_any_cuts() {
    let layers = ModelShape::read(&model("nano16-f32")).expect("a shape").layers.len();
    assert_eq!(layers, 16, "the cuts below are of so many");
    let one = whole();
    let two = [0..8, 8..16];
    let three = [0..4, 4..8, 8..16];
    let shifted = [0..8, 8..12, 12..16];
    check("nano16-f32", F16, &[&one, &two, &three, &shifted, &two, &one]);
    check("nano16-f32", [KvType::F32, KvType::BF16], &[&three, &one, &shifted]);
}

#[test]
fn quantized_memories_move() {
    let quantized = [KvType::Q8_0; 2];
    check("mini16-Q8_0", quantized, &[&whole(), &[0..4, 4..16], &[0..12, 12..16]]);
    for kinds in [[KvType::Q4_1, KvType::Q4_0], [KvType::Iq4Nl, KvType::Q4_1]] {
        check("mini16-Q8_0", kinds, &[&[0..8, 8..16], &whole()]);
    }
    check(
        "mini-moe-Q4_K_M",
        [KvType::Q8_0, KvType::F16],
        &halves_and_whole("mini-moe-Q4_K_M").each_ref().map(|cuts| &cuts[..]),
    );
}

#[test]
fn pure_attention_moves() {
    for name in ["mini-llama-Q4_K_M", "mini-qwen3-Q4_K_M"] {
        check(name, F16, &halves_and_whole(name).each_ref().map(|cuts| &cuts[..]));
    }
}

/// Two stages, one, and two again.
fn halves_and_whole(name: &str) -> [Vec<Range<usize>>; 3] {
    let layers = ModelShape::read(&model(name)).expect("a shape").layers.len();
    let half = layers / 2;
    [vec![0..half, half..layers], std::iter::once(0..layers).collect(), vec![0..half, half..layers]]
}

/// A row of two stages that has run some steps, and a new stage for each half.
fn half_way() -> (HandRow, HandRow) {
    let model = model("nano16-f32");
    let cuts = [0..8, 8..16];
    let row = load(&model, &cuts, F16, 0);
    let mut talks = talks();
    let operations = opening(0, &talks[0]).into_iter().chain(opening(1, &talks[1])).collect();
    let chunks = talks[..2].iter_mut().map(chunk).collect();
    row.run(0, operations, chunks);
    (row, load(&model, &cuts, F16, 1))
}

#[test]
fn a_stage_gives_only_what_it_has() {
    let (row, _) = half_way();
    let request = |layers: Range<u32>, page: u32, slot: u32, samplers| MemoryRequest {
        layers,
        pages: vec![PageId(0), PageId(page)],
        slots: vec![Slot(slot)],
        samplers,
    };
    let refused = |request: &MemoryRequest| {
        let mut bytes = Vec::new();
        let error = give(&row.stages[0], request, &mut bytes).expect_err("the stage does not have it");
        assert!(bytes.is_empty(), "it is known before the first byte: {error}");
        error
    };
    assert!(matches!(refused(&request(4..9, 1, 0, false)), Error::UnknownLayer { layer: 8 }));
    assert!(matches!(refused(&request(0..u32::MAX, 1, 0, false)), Error::UnknownLayer { layer: 8 }));
    assert!(matches!(refused(&request(0..8, PAGES, 0, false)), Error::OverLimit { what: "pages", .. }));
    assert!(matches!(refused(&request(0..8, u32::MAX, 0, false)), Error::OverLimit { what: "pages", .. }));
    assert!(matches!(refused(&request(0..8, 1, SLOTS, false)), Error::OverLimit { what: "state slots", .. }));
    assert!(matches!(refused(&request(0..8, 1, 0, true)), Error::NotTail));
}

#[test]
fn what_does_not_fit_is_refused_and_never_half_taken() {
    let (row, new) = half_way();
    let request = taking(&new.stages[0]).request(0..8, false);
    let sound = given(&row.stages[0], &request);
    let length = 4 + u32::from_le_bytes(sound[..4].try_into().expect("four bytes")) as usize;
    let refused = |what: &str, bytes: &[u8]| {
        let mut taking = taking(&new.stages[0]);
        let error = taking.read(&request, &mut &bytes[..]).expect_err(what);
        assert!(taking.finish().is_err(), "{what}: the stage does not go on");
        error
    };
    for cut in [0, 3, 4, length - 1, length, length + 1, sound.len() - 1] {
        let error = refused("less than announced", &sound[..cut]);
        assert!(matches!(error, Error::Moving(_) | Error::Wire(_)), "{cut}: {error}");
    }
    let longer = [&sound[..], &[0]].concat();
    assert!(matches!(refused("more than announced", &longer), Error::Memories { .. }));
    let endless = [&u32::MAX.to_le_bytes()[..], &sound[4..]].concat();
    assert!(matches!(refused("an endless head", &endless), Error::Head { .. }));
    let with = |change: fn(&mut MemoryHead)| {
        let mut head = MemoryHead::decode(&sound[4..length]).expect("a head");
        change(&mut head);
        let head = head.encode();
        [&(head.len() as u32).to_le_bytes()[..], &head, &sound[length..]].concat()
    };
    let form = refused("another form", &with(|head| head.form.push('x')));
    assert!(form.to_string().contains("of the form cpu 2"), "{form}");
    assert!(matches!(refused("other bytes", &with(|head| head.bytes -= 1)), Error::Memories { .. }));

    let brought = |change: fn(&mut MemoryHead)| {
        let mut taking = taking(&new.stages[0]);
        taking.read(&request, &mut with(change).as_slice()).expect("it can be read");
        taking.finish()
    };
    let twice = brought(|head| head.sessions.push(head.sessions[0].clone()));
    assert!(matches!(twice, Err(Error::OpenTwice { .. })), "{twice:?}");
}

#[test]
fn stages_that_disagree_and_missing_layers_are_told() {
    let (row, _) = half_way();
    let whole = load(&model("nano16-f32"), &whole(), F16, 2);
    let mut one = taking(&whole.stages[0]);
    let request = one.request(0..8, false);
    one.read(&request, &mut given(&row.stages[0], &request).as_slice()).expect("it fits");
    let missing = one.finish().expect_err("half of it");
    assert!(missing.to_string().contains("nothing for layer 8"), "{missing}");

    let mut other = taking(&whole.stages[0]);
    let request = other.request(0..8, false);
    other.read(&request, &mut given(&row.stages[0], &request).as_slice()).expect("it fits");
    // The tail has run a step more than the head.
    let step = Step { epoch: Epoch(0), id: StepId(1), operations: Vec::new(), chunks: Vec::new() };
    let frame = Frame { step, payload: Payload::empty(), times: Vec::new() };
    row.stages[1].with(|stage| stage.run(frame)).expect("an empty step");
    let request = other.request(8..16, true);
    let error = other.read(&request, &mut given(&row.stages[1], &request).as_slice()).expect_err("they disagree");
    assert!(error.to_string().contains("another step"), "{error}");
}

#[test]
fn sessions_come_with_all_their_memory() {
    let (row, _) = half_way();
    let whole = load(&model("nano16-f32"), &whole(), F16, 2);
    let few = Taking::new(whole.stages[0].clone(), vec![PageId(1)], vec![Slot(0)]);
    let mut few = few.expect("a new stage");
    for (source, layers, samplers) in [(0, 0..8, false), (1, 8..16, true)] {
        let request = few.request(layers, samplers);
        few.read(&request, &mut given(&row.stages[source], &request).as_slice()).expect("it fits");
    }
    let few = few.finish().expect_err("sessions have other pages");
    assert!(few.to_string().contains("not all of its pages"), "{few}");

    let mut samplers = taking(&whole.stages[0]);
    for (source, layers) in [(0, 0..8), (1, 8..16)] {
        let request = samplers.request(layers, false);
        samplers.read(&request, &mut given(&row.stages[source], &request).as_slice()).expect("it fits");
    }
    let missing = samplers.finish().expect_err("no samplers");
    assert!(missing.to_string().contains("sampler"), "{missing}");
    let stopped = Taking::new(whole.stages[0].clone(), Vec::new(), Vec::new());
    assert!(matches!(stopped.err(), Some(Error::NotNew)), "what failed half-way is of no more use");
}

#[test]
fn a_stage_that_runs_on_is_not_taken_and_loses_nothing() {
    let (row, new) = half_way();
    let request = taking(&new.stages[1]).request(8..16, true);
    let mut first = true;
    // The old row goes on after the first bytes have been given.
    let mut interrupted = Interrupted(|| {
        if std::mem::take(&mut first) {
            row.run(1, Vec::new(), Vec::new());
        }
    });
    let error = give(&row.stages[1], &request, &mut interrupted).expect_err("a step was run meanwhile");
    assert!(matches!(error, Error::RunsOn { step: StepId(2) }), "{error}");
    row.run(2, Vec::new(), Vec::new());
}

/// A writer in front of which something happens.
struct Interrupted<F: FnMut()>(F);

impl<F: FnMut()> std::io::Write for Interrupted<F> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        (self.0)();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stage_that_has_run_takes_nothing() {
    let (row, _) = half_way();
    let none = Taking::new(row.stages[0].clone(), Vec::new(), Vec::new());
    assert!(matches!(none.err(), Some(Error::NotNew)));
    let fresh = load(&model("nano16-f32"), &whole(), F16, 1);
    let beyond = Taking::new(fresh.stages[0].clone(), vec![PageId(PAGES)], Vec::new());
    assert!(matches!(beyond.err(), Some(Error::OverLimit { what: "pages", .. })));
}
