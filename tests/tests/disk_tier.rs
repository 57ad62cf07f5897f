//! Real stages and their disk tier: what is kept of a prefix is found by other stages, cut in another way, in another
//! life; and what comes after it is bit for bit what would have come.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_proto::{
    Chunk, ChunkInput, Entry, EntryKey, Epoch, Frame, Operation, Outcome, PageId, Payload, Reused, SamplingSettings,
    SessionId, Slot, Step, StepId, Ticket, TierAnswer, TierCounts, TierOrder, TierOutcome, TierRefusal, TierTask,
    Wanted,
};
use paceline_shard::{DiskTier, Error, SharedStage, StageTier};
use paceline_tests::hand_row::{HandRow, Said};
use paceline_tests::models::model;
use paceline_tier::Store;
use tempfile::tempdir;
use uuid::Uuid;

const KEPT: TierOutcome = TierOutcome::Kept { evicted: Vec::new() };
const PAGE_TOKENS: usize = 16;
const PAGES: u32 = 16;
const SLOTS: u32 = 4;
/// Where the prompt is cut, and its end. Neither is the edge of a page.
const CUTS: [u32; 3] = [25, 50, 70];
/// Tokens that are generated.
const ANSWER: usize = 6;
const F16: [KvType; 2] = [KvType::F16; 2];
/// Far longer than anything takes.
const WAIT: Duration = Duration::from_secs(100);
const STAGING: u64 = 64 << 20;

/// Stages in a row with a disk tier, fed by hand.
struct Hand {
    row: HandRow,
    tiers: Vec<StageTier>,
    answers: Receiver<(usize, TierAnswer)>,
    next: u64,
    tickets: u64,
}

type Told = Vec<Said>;

fn session() -> SessionId {
    SessionId(Uuid::from_u128(5))
}

fn prompt() -> Vec<u32> {
    (0..CUTS[2]).map(|at| (at * 11 + at * at * 3) % 320).collect()
}

fn root() -> EntryKey {
    EntryKey::root(&[1; 32], "a model of the tests")
}

/// The entries between the cuts.
fn entries() -> [Entry; 2] {
    let prompt = prompt();
    let first = Entry { root: root(), parent: root(), start: 0, tokens: prompt[..CUTS[0] as usize].to_vec() };
    let tokens = prompt[CUTS[0] as usize..CUTS[1] as usize].to_vec();
    let second = Entry { root: root(), parent: first.key(), start: CUTS[0], tokens };
    [first, second]
}

impl Hand {
    /// `life` chooses another kind of device: what one has kept is for all of the same form.
    fn load(model: &Arc<Gguf>, cuts: &[Range<usize>], [key_type, value_type]: [KvType; 2], life: usize) -> Self {
        let kinds: Vec<Isa> = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
        let device = CpuDevice::new(1 + life % 2, Some(kinds[life % kinds.len()])).expect("threads");
        let (pages, slots) = (PAGES as usize, SLOTS as usize);
        let logs = LogSpec::NONE;
        let memory =
            MemorySpec { page_tokens: PAGE_TOKENS, pages, slots, key_type, value_type, rows: 32, wanted: 1, logs };
        let row = HandRow::load(model, cuts, &device, memory, Epoch(1));
        Self { row, tiers: Vec::new(), answers: sync_channel(1).1, next: 0, tickets: 0 }
    }

    /// All stages get the same tier, as in one process.
    fn attach(mut self, folder: &Path, staging: u64) -> Self {
        let tier = DiskTier::start(Store::open(folder, 1 << 30).expect("the folder"), staging).expect("a thread");
        let (sender, answers) = sync_channel(64);
        let attach = |(index, stage): (usize, &SharedStage)| {
            let sender: SyncSender<_> = sender.clone();
            tier.attach(stage, None, move |answer| sender.send((index, answer)).expect("somebody listens"))
                .expect("it runs")
        };
        self.tiers = self.row.stages.iter().enumerate().map(attach).collect();
        self.answers = answers;
        self
    }

    /// Gives an order to all stages, and returns their answers.
    fn order(&mut self, task: &TierTask) -> (Ticket, Vec<TierOutcome>) {
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let order = TierOrder { ticket, task: task.clone() };
        let order = TierOrder::decode(&order.encode()).expect("it survives the wire");
        self.tiers.iter().for_each(|tier| tier.order(order.clone()));
        let mut outcomes: Vec<_> =
            self.tiers.iter().map(|_| self.answers.recv_timeout(WAIT).expect("an answer")).collect();
        outcomes.sort_by_key(|(stage, _)| *stage);
        let outcome = |(_, answer): (usize, TierAnswer)| {
            assert_eq!(answer.ticket, ticket);
            TierAnswer::decode(&answer.encode()).expect("it survives the wire").outcome
        };
        (ticket, outcomes.into_iter().map(outcome).collect())
    }

    fn keep(&mut self, entry: &Entry, pages: &[u32], state: Option<Slot>) -> Vec<TierOutcome> {
        let pages = pages.iter().copied().map(PageId).collect();
        self.order(&TierTask::Keep { entry: entry.clone(), pages, state }).1
    }

    fn counts(&mut self) -> TierCounts {
        match self.order(&TierTask::Count).1[0] {
            TierOutcome::Counted(counts) => counts,
            ref other => panic!("{other:?} is no count"),
        }
    }

    fn run(&mut self, operations: Vec<Operation>, chunk: Chunk) -> Said {
        self.next += 1;
        self.row.run(self.next - 1, operations, vec![chunk])
    }

    /// Runs the tokens from `from` on, and then as many as are generated.
    fn answer(&mut self, from: u32, mut operations: Vec<Operation>) -> Told {
        let mut tokens = prompt()[from as usize..].to_vec();
        let (mut start, mut told) = (from, Vec::new());
        for _ in 0..ANSWER {
            let input = ChunkInput::Tokens(tokens.clone());
            let chunk = Chunk { session: session(), start, input, wanted: Wanted::Sample, void: false };
            start += tokens.len() as u32;
            let (outcomes, logits) = self.run(std::mem::take(&mut operations), chunk);
            match &outcomes[0] {
                Outcome::Sampled(sampled) => tokens = vec![sampled.token],
                other => panic!("{other:?} is no token"),
            }
            told.push((outcomes, logits));
        }
        told
    }

    /// Reads the prompt in pieces, with snapshots in slots 2 and 3, and answers.
    fn cold(&mut self, pages: &[u32]) -> Told {
        let prompt = prompt();
        let mut operations = opening(0, pages);
        let mut start = 0;
        for (end, snapshot) in CUTS.into_iter().zip([2, 3]) {
            let input = ChunkInput::Tokens(prompt[start as usize..end as usize].to_vec());
            let chunk = Chunk { session: session(), start, input, wanted: Wanted::Nothing, void: false };
            self.run(std::mem::take(&mut operations), chunk);
            operations = vec![Operation::CopyState { from: Slot(1), to: Slot(snapshot) }];
            start = end;
        }
        self.answer(start, operations)
    }
}

fn opening(reused: u32, pages: &[u32]) -> Vec<Operation> {
    let sampling = Box::new(SamplingSettings::default());
    let reused = Reused { tokens: reused, last: Vec::new() };
    vec![
        Operation::Open { session: session(), slot: Slot(1), sampling, generated_from: CUTS[2], reused },
        Operation::Grant { session: session(), pages: pages.iter().copied().map(PageId).collect() },
    ]
}

/// A row that has run the prompt, kept it, and ended; and what it said.
fn kept_by(model: &Arc<Gguf>, cuts: &[Range<usize>], kinds: [KvType; 2], folder: &Path) -> Told {
    let pages = [9, 2, 7, 4, 1, 3, 15];
    let mut row = Hand::load(model, cuts, kinds, 0).attach(folder, STAGING);
    let told = row.cold(&pages);
    let [first, second] = entries();
    // Tokens 0..25 lie in the first two pages, 25..50 in the second to the fourth.
    assert!(row.keep(&first, &pages[..2], Some(Slot(2))).iter().all(|outcome| *outcome == KEPT));
    // Pages first, and the state as an afterthought.
    assert!(row.keep(&second, &pages[1..4], None).iter().all(|outcome| *outcome == KEPT));
    let before = row.counts();
    assert!(row.keep(&second, &pages[1..4], Some(Slot(3))).iter().all(|outcome| *outcome == KEPT));
    assert!(row.keep(&second, &pages[1..4], Some(Slot(3))).iter().all(|outcome| *outcome == KEPT));
    let after = row.counts();
    assert_eq!((after.entries, after.refused, after.skipped), (2, 0, 0));
    let states =
        usize::from(ModelShape::read(model).expect("a shape").layers.iter().any(|layer| !layer.is_attention()));
    assert_eq!(after.kept_bytes > before.kept_bytes, states == 1, "only states are kept in addition");
    told
}

/// Fetches the path into other pages and another slot, and goes on behind it.
fn warm(row: &mut Hand, path: &[EntryKey]) -> Told {
    let pages = [0, 5, 6, 8, 10, 11, 12];
    let (ticket, outcomes) = row.order(&TierTask::Fetch { path: path.to_vec(), state: true });
    assert!(outcomes.iter().all(|outcome| matches!(outcome, TierOutcome::Staged { .. })), "{outcomes:?}");
    let mut operations = opening(CUTS[1], &pages);
    let granted = pages[..4].iter().copied().map(PageId).collect();
    operations.insert(1, Operation::Install { ticket, pages: granted, slot: Some(Slot(1)) });
    // The rest of the prompt as it was run, with the same next chunk.
    let input = ChunkInput::Tokens(prompt()[CUTS[1] as usize..].to_vec());
    let chunk = Chunk { session: session(), start: CUTS[1], input, wanted: Wanted::Sample, void: false };
    let first = row.run(operations, chunk);
    let Outcome::Sampled(sampled) = &first.0[0] else { panic!("a token") };
    let (mut token, mut told) = (sampled.token, vec![first]);
    for start in (CUTS[2]..).take(ANSWER - 1) {
        let input = ChunkInput::Tokens(vec![token]);
        let next = row.run(vec![], Chunk { session: session(), start, input, wanted: Wanted::Sample, void: false });
        let Outcome::Sampled(sampled) = &next.0[0] else { panic!("a token") };
        token = sampled.token;
        told.push(next);
    }
    told
}

fn check(name: &str, kinds: [KvType; 2], cuts: &[&[Range<usize>]]) {
    let model = model(name);
    let folder = tempdir().expect("a folder");
    let expected = kept_by(&model, cuts[0], kinds, folder.path());
    for (life, cuts) in (1..).zip(cuts) {
        let mut row = Hand::load(&model, cuts, kinds, life).attach(folder.path(), STAGING);
        let (_, listed) = row.order(&TierTask::List { root: root(), after: None });
        let keys = entries().each_ref().map(Entry::key);
        for outcome in listed {
            let TierOutcome::Listed { entries, next: None } = outcome else { panic!("{outcome:?} is no list") };
            let found: Vec<_> = entries.iter().map(|kept| (kept.entry.key(), kept.state)).collect();
            assert!(keys.iter().all(|key| found.contains(&(*key, true))) && found.len() == 2, "{name}: {found:?}");
        }
        let found = warm(&mut row, &keys);
        assert!(found == expected, "{name} with {kinds:?} in {cuts:?}: other tokens or bits");
        assert_eq!(row.counts().refused, 0);
    }
}

fn halves(name: &str) -> [Vec<Range<usize>>; 2] {
    let layers = ModelShape::read(&model(name)).expect("a shape").layers.len();
    [vec![0..layers / 2, layers / 2..layers], std::iter::once(0..layers).collect()]
}

#[test]
fn a_hybrid_finds_its_prefix_again_however_it_is_cut() {
    let one: Vec<_> = std::iter::once(0..16).collect();
    check("nano16-f32", F16, &[&[0..8, 8..16], &one, &[0..4, 4..8, 8..16]]);
    check("nano16-f32", [KvType::F32, KvType::BF16], &[&one, &[0..8, 8..12, 12..16]]);
    check("mini16-Q8_0", [KvType::Q8_0; 2], &[&[0..4, 4..16], &[0..12, 12..16]]);
}

#[test]
fn mixtures_and_pure_attention_find_theirs() {
    for name in ["mini-moe-Q4_K_M", "mini-llama-Q4_K_M", "mini-qwen3-Q4_K_M"] {
        check(name, F16, &halves(name).each_ref().map(|cuts| &cuts[..]));
    }
}

#[test]
fn what_is_damaged_or_not_there_is_refused_and_the_stage_goes_on() {
    let cuts = halves("nano16-f32");
    let model = model("nano16-f32");
    let folder = tempdir().expect("a folder");
    let expected = kept_by(&model, &cuts[0], F16, folder.path());
    let keys = entries().each_ref().map(Entry::key);
    // Other types of keys and values: nothing of that is kept.
    let mut row = Hand::load(&model, &cuts[0], [KvType::Q8_0; 2], 1).attach(folder.path(), STAGING);
    let fetch = TierTask::Fetch { path: keys.to_vec(), state: true };
    let missing = |key| TierOutcome::Refused(TierRefusal::Missing(key));
    assert_eq!(row.order(&fetch).1, [missing(keys[0]), missing(keys[0])]);
    let (_, listed) = row.order(&TierTask::List { root: root(), after: None });
    assert_eq!(listed[0], TierOutcome::Listed { entries: vec![], next: None });
    drop(row);
    // One bit of the first stage's first layer of pages.
    let mut files: Vec<_> = fs::read_dir(folder.path().join("data"))
        .expect("it is there")
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    assert_eq!(files.len(), 6, "two stages, two entries, and the state of one by itself");
    let mut damaged = fs::read(&files[0]).expect("it is there");
    damaged[100] ^= 1;
    fs::write(&files[0], damaged).expect("written");
    let mut row = Hand::load(&model, &cuts[0], F16, 1).attach(folder.path(), STAGING);
    let (_, outcomes) = row.order(&fetch);
    assert_eq!(outcomes, [missing(keys[0]), missing(keys[0])], "it is gone for all");
    assert_eq!(row.counts().refused, 1);
    // It is computed again, and kept again.
    let pages = [0, 1, 2, 3, 4, 5, 6];
    assert!(row.cold(&pages) == expected);
    assert_eq!(row.keep(&entries()[0], &pages[..2], Some(Slot(2))), [KEPT, KEPT]);
    drop(row);
    let mut row = Hand::load(&model, &cuts[1], F16, 0).attach(folder.path(), STAGING);
    assert!(warm(&mut row, &keys) == expected);
}

#[test]
fn orders_that_cannot_be_carried_out_say_why() {
    let cuts = halves("mini-Q4_K_M");
    let model = model("mini-Q4_K_M");
    let folder = tempdir().expect("a folder");
    kept_by(&model, &cuts[1], F16, folder.path());
    let keys = entries().each_ref().map(Entry::key);
    // Too little memory for what is fetched.
    let mut row = Hand::load(&model, &cuts[1], F16, 0).attach(folder.path(), 1000);
    let fetch = |path: &[EntryKey]| TierTask::Fetch { path: path.to_vec(), state: true };
    assert_eq!(row.order(&fetch(&keys)).1, [TierOutcome::Refused(TierRefusal::NoRoom)]);
    drop(row);
    let mut row = Hand::load(&model, &cuts[1], F16, 0).attach(folder.path(), STAGING);
    let refused = |outcomes: &[TierOutcome]| match outcomes {
        [TierOutcome::Refused(TierRefusal::Failed(reason))] => reason.clone(),
        other => panic!("{other:?} is not refused"),
    };
    let [first, _] = entries();
    assert_eq!(refused(&row.order(&fetch(&[keys[1], keys[0]])).1), "entries that do not follow one another");
    let alone = Entry { tokens: vec![7; 20], ..first };
    assert_eq!(refused(&row.keep(&alone, &[0], None)), "an entry of 2 pages, 1 are given");
    let unknown = refused(&row.keep(&alone, &[0, PAGES], None));
    assert!(unknown.contains("page 16"), "{unknown}");
    // An end of a path alone is installed behind what is there already; its first page is the one it begins in.
    let (ticket, outcomes) = row.order(&fetch(&keys[1..]));
    assert!(matches!(outcomes[0], TierOutcome::Staged { .. }));
    let install =
        |ticket, pages: Range<u32>, slot| Operation::Install { ticket, pages: pages.map(PageId).collect(), slot };
    let run = |operation| {
        let stage = Hand::load(&model, &cuts[1], F16, 0).attach(tempdir().expect("a folder").path(), STAGING);
        let step = Step { epoch: Epoch(1), id: StepId(0), operations: vec![operation], chunks: vec![] };
        let frame = Frame { step, payload: Payload::empty(), times: Vec::new() };
        stage.row.stages[0].with(|stage| stage.run(frame)).expect_err("nothing is staged there")
    };
    assert!(matches!(run(install(ticket, 0..3, None)), Error::NotStaged { ticket: 1..=9 }));
    let step = |operation| Step { epoch: Epoch(1), id: StepId(0), operations: vec![operation], chunks: vec![] };
    let frame = Frame { step: step(install(ticket, 0..2, Some(Slot(0)))), payload: Payload::empty(), times: vec![] };
    let error = row.row.stages[0].with(|stage| stage.run(frame)).expect_err("three pages are staged");
    assert!(matches!(error, Error::OtherPlaces { staged: 3, given: 2, .. }), "{error}");
    // A stage that has failed gives nothing away.
    assert!(refused(&row.keep(&alone, &[0, 1], None)).contains("runs nothing more"));
    row.row.stages[0].close();
    assert!(!refused(&row.keep(&alone, &[0, 1], None)).is_empty());
}
