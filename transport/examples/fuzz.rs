//! Feeds mutated frames, replies, greetings and what is said about memories to their decoders: `fuzz COUNT`. Nothing may panic, and the process may
//! not grow, whatever lengths the bytes claim.

use std::error::Error;
use std::io::Write;
use std::time::Instant;

use bytes::Bytes;
use paceline_proto::{
    Activations, Chunk, ChunkInput, ChunkResult, Entry, EntryKey, Epoch, Frame, KeptEntry, Logprobs, MemoryHead,
    MemoryRequest, NodeId, OpenSession, Operation, Outcome, PageId, Payload, Reply, Reused, SampledToken,
    SamplerMemory, SamplingSettings, SessionId, SessionSampler, Slot, StageTime, Step, StepDone, StepId, Ticket,
    TierAnswer, TierOrder, TierOutcome, TierTask, TokenLogprob, Wanted,
};
use paceline_transport::hello::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Purpose, Refusal};
use paceline_transport::{LinkKey, LinkSettings, MoveKey};
use uuid::Uuid;

/// Bytes of address space that the process may grow by after it has warmed up.
const GROWTH: u64 = 512 << 10;
const WARM_UP: u64 = 100_000;
const HEADER_BYTES: usize = paceline_proto::frame::HEADER_BYTES;

fn main() -> Result<(), Box<dyn Error>> {
    let count: u64 = std::env::args().find_map(|word| word.parse().ok()).unwrap_or(1_000_000);
    let bases = bases();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut input = Vec::new();
    let (mut accepted, mut before) = (0, 0);
    let began = Instant::now();
    for round in 0..count {
        if round == WARM_UP {
            before = peak()?;
        }
        mutate(&bases, &mut random, &mut input);
        accepted += u64::from(decode(&input));
    }
    let (rate, after) = (count as f64 / began.elapsed().as_secs_f64(), peak()?);
    let grown = if count > WARM_UP { after - before } else { 0 };
    let (accepted, grown_kib) = (100.0 * accepted as f64 / count as f64, grown >> 10);
    writeln!(
        std::io::stdout(),
        "{count} inputs, {accepted:.1} % were accepted by a decoder, {rate:.0} per second, {grown_kib} KiB of growth"
    )?;
    if grown > GROWTH {
        return Err(format!("the process has grown by {grown} bytes").into());
    }
    Ok(())
}

/// The most address space that the process has ever had: it shows allocations that were never touched, too.
fn peak() -> Result<u64, Box<dyn Error>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).ok_or("no VmPeak")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}

/// Whether any decoder takes the bytes.
fn decode(input: &[u8]) -> bool {
    let bytes = Bytes::copy_from_slice(input);
    let frame = Frame::decode(&bytes).is_ok();
    let reply = Reply::decode(&bytes).is_ok();
    let hello = input.first_chunk::<HELLO_BYTES>().is_some_and(|bytes| Hello::decode(bytes).is_ok());
    let answer = input.first_chunk::<ANSWER_BYTES>().is_some_and(|bytes| Answer::decode(bytes).is_ok());
    let memories = MemoryRequest::decode(input).is_ok() || MemoryHead::decode(input).is_ok();
    let tiers = TierOrder::decode(input).is_ok() || TierAnswer::decode(input).is_ok();
    frame || reply || hello || answer || memories || tiers
}

fn mutate(bases: &[Vec<u8>], random: &mut Random, input: &mut Vec<u8>) {
    input.clear();
    input.extend_from_slice(&bases[random.below(bases.len())]);
    for _ in 0..=random.below(3) {
        change(bases, random, input);
    }
    // Mostly make the lengths agree again, so that the description is read.
    if random.below(4) != 0 && input.len() >= HEADER_BYTES && input.starts_with(b"PCLN") {
        let body = (input.len() - HEADER_BYTES) as u64;
        let description = u64::from_le_bytes(input[24..32].try_into().expect("eight bytes")).min(body);
        input[24..32].copy_from_slice(&description.to_le_bytes());
        input[32..40].copy_from_slice(&(body - description).to_le_bytes());
    }
}

fn change(bases: &[Vec<u8>], random: &mut Random, input: &mut Vec<u8>) {
    let at = random.below(input.len() + 1);
    match random.below(8) {
        0..3 if at < input.len() => input[at] = random.next() as u8,
        3 if at < input.len() => input[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
        4 => input.truncate(at),
        5 => {
            let other = &bases[random.below(bases.len())];
            let from = random.below(other.len());
            input.truncate(at);
            input.extend_from_slice(&other[from..]);
        }
        6 => {
            // A count of 2^60 or so, as postcard writes it.
            let absurd = [0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1 << random.below(7)];
            input.splice(at..(at + random.below(3)).min(input.len()), absurd);
        }
        _ => {
            let more = random.below(64);
            input.extend((0..more).map(|_| random.next() as u8));
        }
    }
}

fn bases() -> Vec<Vec<u8>> {
    let session = SessionId(Uuid::from_u128(77));
    let sampling = SamplingSettings { logit_bias: vec![(1, 2.0); 9], banned: vec![7; 20], ..Default::default() };
    let operations = vec![
        Operation::Open {
            session,
            slot: Slot(3),
            sampling: Box::new(sampling),
            generated_from: 7,
            reused: Reused::default(),
        },
        Operation::Grant { session, pages: (0..40).map(PageId).collect() },
        Operation::CopyPage { from: PageId(1), to: PageId(2) },
        Operation::Install { ticket: Ticket(3), pages: (0..9).map(PageId).collect(), slot: Some(Slot(1)) },
        Operation::Close { session },
    ];
    let chunk = |input| Chunk { session, start: 9, input, wanted: Wanted::Sample, void: false };
    let chunks = vec![
        chunk(ChunkInput::Tokens((0..100).collect())),
        chunk(ChunkInput::Rows { positions: vec![[1, 2, 3, 0]; 5] }),
        chunk(ChunkInput::Sampled { step: StepId(8) }),
    ];
    let step = Step { epoch: Epoch(1), id: StepId(2), operations, chunks };
    let values: Vec<f32> = (0..300).map(|value| value as f32).collect();
    let frame = Frame {
        step,
        payload: Payload::from_rows(50, &values),
        times: vec![StageTime { busy: 900, idle: 70, sent: 1 << 20 }; 3],
    };
    let mut bases: Vec<Vec<u8>> = [Activations::F32, Activations::F16, Activations::Int8]
        .iter()
        .map(|activations| frame.encode_as(*activations).to_vec())
        .collect();
    bases.extend(replies(session));
    bases.extend(greetings());
    bases.extend(memories());
    bases.extend(tiers());
    bases
}

fn replies(session: SessionId) -> [Vec<u8>; 2] {
    let top = vec![TokenLogprob { token: 3, logprob: -0.5 }; 20];
    let logprobs = Some(Box::new(Logprobs { chosen: -0.25, top }));
    let outcomes = [
        Outcome::Stored,
        Outcome::Vector(vec![1.0; 64]),
        Outcome::Sampled(SampledToken { token: 5, logprobs }),
        Outcome::Failed("no token".into()),
    ];
    let results = outcomes.into_iter().map(|outcome| ChunkResult { session, outcome }).collect();
    let done = StepDone {
        epoch: Epoch(2),
        step: StepId(9),
        results,
        times: vec![StageTime { busy: 12, ..StageTime::default() }],
    };
    [Reply::Done(done), Reply::Failed { stage: 2, reason: "no memory".into() }].map(|reply| reply.encode().to_vec())
}

fn greetings() -> [Vec<u8>; 4] {
    let [from, to] = [1, 2].map(|node| NodeId(Uuid::from_u128(node)));
    let key = LinkKey { epoch: Epoch(1), link: 2, secret: [3; 16] };
    let settings = LinkSettings { frames: 8, frame_bytes: 1 << 20, activations: Activations::F16 };
    let hello = |purpose| Hello { from, to, purpose }.encode().to_vec();
    let answer = Answer { node: to, refusal: Some(Refusal::Settings) };
    let memories = Purpose::Memories(MoveKey { epoch: key.epoch, secret: key.secret });
    [hello(Purpose::Link(key, settings)), hello(Purpose::Pieces), hello(memories), answer.encode().to_vec()]
}

fn memories() -> [Vec<u8>; 2] {
    let (session, pages) = (SessionId(Uuid::from_u128(5)), vec![PageId(1), PageId(4)]);
    let request = MemoryRequest { layers: 2..9, pages: pages.clone(), slots: vec![Slot(0)], samplers: true };
    let settings = SamplingSettings::default();
    let memory = SamplerMemory { settings, generated_from: Some(2), tokens: vec![(0, 7), (1, 9)] };
    let head = MemoryHead {
        form: "cpu".into(),
        bytes: 1 << 30,
        next: StepId(9),
        sessions: vec![OpenSession { session, slot: Slot(0), pages, certain: 3, uncertain: 1 }],
        samplers: vec![SessionSampler { session, sampler: Ok(memory) }],
    };
    [request.encode(), head.encode()]
}

fn tiers() -> [Vec<u8>; 3] {
    let root = EntryKey([7; 32]);
    let entry = Entry { root, parent: root, start: 0, tokens: (0..90).collect() };
    let pages = (0..6).map(PageId).collect();
    let order = |task| TierOrder { ticket: Ticket(5), task }.encode();
    let kept = KeptEntry { entry: entry.clone(), state: true };
    let outcome = TierOutcome::Listed { entries: vec![kept; 3], next: Some(root) };
    [
        order(TierTask::Keep { entry, pages, state: Some(Slot(2)) }),
        order(TierTask::Fetch { path: vec![root; 9], state: true }),
        TierAnswer { ticket: Ticket(5), outcome }.encode(),
    ]
}

/// xorshift64*: the same inputs on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, most: usize) -> usize {
        (self.next() % most as u64) as usize
    }
}
