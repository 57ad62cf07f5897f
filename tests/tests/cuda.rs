//! Stages on a GPU, which is emulated here: the tokens of the reference and the bits of the CPU, alone and in rows whose
//! stages are on both, whatever is cut, cached, drafted, rejected or lost on the way.

use std::sync::Arc;

use paceline_compute::Device;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_core::drafts::{CHUNKS_UNDER_WAY, Draft};
use paceline_cuda::CudaDevice;
use paceline_emulation::{EmulatedDriver, Order};
use paceline_gguf::{Gguf, KvType};
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Operation, Outcome, PageId, Reused, SamplingSettings, SessionId, Slot, Verify, Wanted,
};
use paceline_tests::drafting;
use paceline_tests::golden::{Golden, greedy};
use paceline_tests::hand_row::Said;
use paceline_tests::model_run::{self, Layout, ModelRun, cpu};
use paceline_tests::models::{model, with_draft};
use paceline_tests::row::{Devices, Guesses, Row, RowLayout};
use uuid::Uuid;

fn gpu(order: Order) -> CudaDevice {
    CudaDevice::new(Arc::new(EmulatedDriver::new(order)))
}

fn prompt(session: usize, length: usize) -> Vec<u32> {
    (0..length as u32).map(|index| (index * 11 + index * index * 3 + session as u32 * 29) % 320).collect()
}

fn bits(rows: &[Vec<f32>]) -> Vec<u32> {
    rows.concat().into_iter().map(f32::to_bits).collect()
}

/// The tokens of the reference for the hybrid that the program embeds: prompts, and greedy tokens behind them.
#[test]
fn the_embedded_model_answers_as_in_the_reference() {
    let golden = Golden::named("tiny-hybrid");
    let layout = Layout { context: 512, sessions: 1, rows: 256, ..Layout::default() };
    let model = model("tiny-hybrid-mtp-q8_0");
    let (device, other) = (gpu(Order::Forwards), cpu());
    let mut run = ModelRun::new(&device, &model, layout.clone());
    let mut beside = ModelRun::new(&other, &model, layout);
    let ids = golden.tokens("short_ids");
    let tokens = golden.tokens("short_greedy64");
    let leads = golden.f32("short_greedy64_margin").values;
    let (mut logits, mut expected) = (run.next(1, &ids, 256), beside.next(1, &ids, 256));
    let mut compared = 0;
    for (token, lead) in tokens.iter().zip(&leads).take(32) {
        assert_eq!(bits(std::slice::from_ref(&logits)), bits(std::slice::from_ref(&expected)));
        // Where the reference was hardly sure, rounding weights to 8 bits may change the token.
        if *lead > 0.5 {
            assert_eq!(greedy(&logits), *token);
            compared += 1;
        }
        (logits, expected) = (run.next(1, &[*token], 1), beside.next(1, &[*token], 1));
    }
    assert!(compared > 16, "{compared} tokens prove little");
}

/// Every architecture, and weights of many types: the same bits as the CPU, which is held against the reference.
#[test]
fn every_architecture_has_the_bits_of_the_cpu() {
    let names = [
        "nano16-f32",
        "nano-moe16-f32",
        "mini-mtp-f32",
        "mini-qwen3-Q4_K_M",
        "mini-llama-f32",
        "mini-Q2_K",
        "mini-Q3_K_M",
        "mini-Q5_K_M",
        "mini-Q6_K",
        "mini-Q4_0",
        "mini-IQ4_XS",
        "mini-BF16",
        "mini-moe-MXFP4_MOE",
    ];
    for (name, key_value_type) in names.into_iter().zip(KvType::ALL.into_iter().cycle()) {
        let model = model(name);
        let layout = Layout { key_value_type, ..Layout::default() };
        let all = |device: &dyn Device, chunk: usize| {
            let mut run = ModelRun::new(device, &model, layout.clone());
            let mut rows = run.text(1, &prompt(1, 20), chunk);
            run.fork(1, 2);
            let chunks = [(1, 3), (2, 5)].map(|(session, seed)| model_run::Chunk::text(session, &prompt(seed, 4)));
            rows.extend(run.step(&chunks));
            rows
        };
        let expected = bits(&all(&cpu(), 20));
        assert!(bits(&all(&gpu(Order::Forwards), 20)) == expected, "{name}, {key_value_type}");
        assert!(bits(&all(&gpu(Order::Backwards), 7)) == expected, "{name}, {key_value_type}, in chunks of 7");
    }
}

/// Layers on both devices, in any order.
#[test]
fn a_row_may_be_cut_between_cpu_and_gpu() {
    let model = model("mini16-Q8_0");
    let layout = |splits| Layout { splits, key_value_type: KvType::Q8_0, ..Layout::default() };
    let text = prompt(4, 24);
    let expected = bits(&ModelRun::new(&cpu(), &model, layout(Vec::new())).text(1, &text, 24));
    let (cpu, gpu): (&dyn Device, &dyn Device) = (&cpu(), &gpu(Order::Forwards));
    for devices in [[gpu, cpu], [cpu, gpu]] {
        let mut run = ModelRun::on(&devices, &model, layout(vec![0..4, 4..8, 8..16]));
        assert!(bits(&run.text(1, &text, 9)) == expected);
    }
}

const TOKENS: usize = 10;
const SESSIONS: usize = 4;

fn start(row: &mut Row, session: usize) -> SessionId {
    row.start(session as u128, &prompt(session, [3, 40, 17, 65][session]), TOKENS, SamplingSettings::default())
}

/// What sessions say on the CPU, one after another.
fn said_alone(model: &Arc<Gguf>) -> Vec<(Vec<u32>, Vec<Vec<u32>>)> {
    let one = |session: usize| {
        let mut row = Row::new(model, &RowLayout::default());
        let id = start(&mut row, session);
        row.finish();
        (row.answer(id).tokens.clone(), row.answer(id).logits.clone())
    };
    (0..SESSIONS).map(one).collect()
}

/// Guesses of which two thirds are right.
fn guesses(expected: &[(Vec<u32>, Vec<Vec<u32>>)]) -> Guesses {
    let texts: Vec<Vec<u32>> = expected.iter().map(|(tokens, _)| tokens.clone()).collect();
    Box::new(move |session, got| {
        let text = &texts[session.0.as_u128() as usize];
        let rest = text[got.min(text.len())..].iter().enumerate().take(3 * CHUNKS_UNDER_WAY);
        let guess = |(at, token): (usize, &u32)| if (got + at) % 3 == 2 { (token + 1) % 320 } else { *token };
        rest.map(|draft| Draft { token: guess(draft), chance: 0.9 }).collect()
    })
}

/// The scheduler, the sessions, and stages of both kinds: drafts, caches, a row that is lost, and one that takes over.
#[test]
fn sessions_are_served_by_rows_of_both() {
    let model = model("mini16-Q8_0");
    let expected = said_alone(&model);
    let cpu: Arc<dyn Device> = Arc::new(cpu());
    let gpu: Arc<dyn Device> = Arc::new(gpu(Order::Forwards));
    for (devices, shards, drafts) in [
        (vec![Arc::clone(&gpu)], 1, 3),
        (vec![Arc::clone(&gpu), Arc::clone(&cpu)], 2, 0),
        (vec![Arc::clone(&cpu), Arc::clone(&gpu)], 2, 3),
    ] {
        let layout = RowLayout {
            shards,
            drafts,
            caches: true,
            snapshots: 2,
            run_ahead: drafts == 0,
            devices: Devices(devices),
            ..RowLayout::default()
        };
        let mut row = Row::new(&model, &layout);
        row.guesses = (drafts > 0).then(|| guesses(&expected));
        let ids: Vec<SessionId> = (0..SESSIONS).map(|session| start(&mut row, session)).collect();
        (0..12).for_each(|_| _ = row.step());
        row.fail();
        row.replace(&layout);
        row.finish();
        for (id, (tokens, logits)) in ids.iter().zip(&expected) {
            let answer = row.answer(*id);
            assert_eq!(&answer.tokens, tokens, "{layout:?}");
            assert!(answer.logits[..TOKENS] == logits[..TOKENS], "{layout:?}: other bits");
        }
        assert!(row.is_clean());
        assert_eq!(row.status().speculation.accepted > 0, drafts > 0);
    }
}

/// Steps of one session whose tail makes drafts, all of them wrong now and then.
fn drafted(model: &Arc<Gguf>, device: &dyn Device) -> Vec<Said> {
    let memory = MemorySpec {
        page_tokens: 16,
        pages: 8,
        slots: 2,
        key_type: KvType::F16,
        value_type: KvType::Q8_0,
        rows: 64,
        wanted: 8,
        logs: LogSpec { sessions: 1, tokens: 6 },
    };
    let row = drafting::row(model, 1, device, memory, Epoch(1));
    let session = SessionId(Uuid::from_u128(1));
    let open = Operation::Open {
        session,
        slot: Slot(0),
        sampling: Box::default(),
        generated_from: 12,
        reused: Reused::default(),
    };
    let mut operations = vec![open, Operation::Grant { session, pages: (0..8).rev().map(PageId).collect() }];
    let (mut known, mut run, mut drafts) = (prompt(3, 12), 0, Vec::new());
    let mut said = Vec::new();
    for step in 0..6 {
        let verify = Verify { drafts: drafts.len() as u32, propose: 3, ..Verify::default() };
        let tokens = [&known[run..], &drafts[..]].concat();
        let (input, wanted) = (ChunkInput::Tokens(tokens), Wanted::Verify(verify));
        let chunk = Chunk { session, start: run as u32, input, wanted, void: false };
        let all = row.run(step, std::mem::take(&mut operations), vec![chunk]);
        let Outcome::Verified(verified) = &all.0[0] else { panic!("{:?}", all.0) };
        run = known.len() + verified.tokens.len() - 1;
        known.extend(verified.tokens.iter().map(|sampled| sampled.token));
        drafts = verified.drafted.iter().map(|drafted| drafted.token).collect();
        if step % 2 == 1 {
            drafts.iter_mut().for_each(|draft| *draft = (*draft + 1) % 320);
        }
        said.push(all);
    }
    said
}

#[test]
fn tails_draft_as_on_the_cpu() {
    let models = [model("mini16-mtp-Q8_0"), with_draft("mini16-Q8_0", "mini-llama-f32")];
    for model in models {
        assert!(drafted(&model, &gpu(Order::Forwards)) == drafted(&model, &cpu()));
    }
}
