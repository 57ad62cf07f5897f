//! Drafts change no token and no bit: whatever is guessed, accepted, rejected or sent ahead, on any number of stages,
//! and wherever memories move in between.

use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Operation, Outcome, PageId, Payload, Reused, SampledToken, SamplingSettings, SessionId,
    Slot, Verify, Wanted,
};
use paceline_shard::{Error, Taking, give};
use paceline_tests::drafting::{self, cuts};
use paceline_tests::hand_row::{HandRow, Said, by_chance};
use paceline_tests::models::{model, smollm2_path, with_draft};
use uuid::Uuid;

const SESSIONS: usize = 3;
const PAGES_EACH: u32 = 8;
/// Tokens of an answer.
const ANSWER: usize = 40;
/// The most uncertain tokens of a session: drafts of a chunk, and of one that is sent ahead.
const UNCERTAIN: usize = 9;

/// A row of stages that is fed by hand.
struct Row {
    row: HandRow,
    next: u64,
}

/// A session: its tokens, and how many of them are run for certain.
struct Talk {
    number: usize,
    tokens: Vec<u32>,
    run: usize,
    /// Everything that the tail said, and the bits of the logits that it was said from.
    said: Vec<(SampledToken, Vec<u32>)>,
    /// What the tail guesses to follow.
    guessed: Vec<u32>,
}

/// Small numbers from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

fn session(number: usize) -> SessionId {
    SessionId(Uuid::from_u128(number as u128 + 1))
}

impl Row {
    fn load(model: &Arc<Gguf>, stages: usize, isa: Isa) -> Row {
        let device = CpuDevice::new(2, Some(isa)).expect("threads");
        let memory = MemorySpec {
            page_tokens: 16,
            pages: SESSIONS * PAGES_EACH as usize,
            slots: SESSIONS + 1,
            key_type: KvType::F16,
            value_type: KvType::Q8_0,
            rows: 128,
            wanted: SESSIONS * (UNCERTAIN + 1),
            logs: LogSpec { sessions: SESSIONS, tokens: UNCERTAIN },
        };
        Row { row: drafting::row(model, stages, &device, memory, Epoch(1)), next: 0 }
    }

    /// Runs a step; from stage `void_from` on its last chunk is void.
    fn try_run(&mut self, operations: Vec<Operation>, chunks: Vec<Chunk>, void_from: usize) -> Result<Said, Error> {
        self.next += 1;
        self.row.run_changed(self.next - 1, operations, chunks, |index, frame| {
            if index >= void_from
                && let Some(chunk) = frame.step.chunks.last_mut()
                && !std::mem::replace(&mut chunk.void, true)
            {
                frame.payload = Payload::empty();
            }
        })
    }

    fn run(&mut self, operations: Vec<Operation>, chunks: Vec<Chunk>) -> Said {
        self.try_run(operations, chunks, usize::MAX).expect("the stages run")
    }
}

/// Greedy, by chance with penalties and log probabilities, and by chance alone.
fn sampling(number: usize) -> SamplingSettings {
    match number {
        0 => SamplingSettings::default(),
        1 => by_chance(),
        _ => SamplingSettings { temperature: 1.0, seed: 9, ..SamplingSettings::default() },
    }
}

impl Talk {
    fn new(number: usize) -> Talk {
        let length = [9, 40, 17][number] as u32;
        let tokens = (0..length).map(|at| (at * 11 + at * at * 3 + number as u32 * 29) % 320).collect();
        Talk { number, tokens, run: 0, said: Vec::new(), guessed: Vec::new() }
    }

    fn opening(&self) -> Vec<Operation> {
        let (session, slot) = (session(self.number), Slot(self.number as u32));
        // Pages of the sessions lie among each other.
        let pages = (0..PAGES_EACH).rev().map(|page| PageId(page * SESSIONS as u32 + self.number as u32)).collect();
        let generated_from = self.tokens.len() as u32;
        let sampling = Box::new(sampling(self.number));
        vec![
            Operation::Open { session, slot, sampling, generated_from, reused: Reused::default() },
            Operation::Grant { session, pages },
        ]
    }

    /// The tokens that are known and not run, and drafts behind them.
    fn chunk(&self, drafts: &[u32]) -> Chunk {
        let tokens = [&self.tokens[self.run..], drafts].concat();
        let verify = Verify { drafts: drafts.len() as u32, ..Verify::default() };
        self.piece(self.run, tokens, Wanted::Verify(verify))
    }

    /// The same, and so many guesses of the tail are wanted.
    fn proposing(&self, drafts: &[u32], propose: u32) -> Chunk {
        let mut chunk = self.chunk(drafts);
        if let Wanted::Verify(verify) = &mut chunk.wanted {
            verify.propose = propose;
        }
        chunk
    }

    fn piece(&self, start: usize, tokens: Vec<u32>, wanted: Wanted) -> Chunk {
        let (session, input) = (session(self.number), ChunkInput::Tokens(tokens));
        Chunk { session, start: start as u32, input, wanted, void: false }
    }

    /// Takes in what came of a chunk of this session; `logits` are those of its wanted rows. True if it was void.
    fn take(&mut self, outcome: Outcome, logits: &[Vec<u32>]) -> bool {
        let tokens = match outcome {
            Outcome::Void => return true,
            Outcome::Sampled(sampled) => vec![sampled],
            Outcome::Verified(verified) => {
                self.guessed = verified.drafted.iter().map(|drafted| drafted.token).collect();
                verified.tokens
            }
            other => panic!("{other:?} of session {}", self.number),
        };
        self.run = self.tokens.len() + tokens.len() - 1;
        self.tokens.extend(tokens.iter().map(|sampled| sampled.token));
        self.said.extend(tokens.into_iter().zip(logits.iter().cloned()));
        false
    }

    /// Drafts for the tokens behind those that are known: what was said without drafts, sometimes with a mistake.
    fn guess(&self, plain: &Talk, ahead: usize, count: usize, mistakes: usize, random: &mut Random) -> Vec<u32> {
        let from = self.tokens.len() + ahead;
        let known = plain.tokens.get(from..).unwrap_or_default();
        let guess = |token: &u32| if random.below(100) < mistakes { (token + 1) % 320 } else { *token };
        known.iter().take(count).map(guess).collect()
    }
}

/// Logits of a step, row by row.
fn rows(logits: &[u32], wanted: usize) -> Vec<Vec<u32>> {
    logits.chunks((logits.len() / wanted.max(1)).max(1)).map(<[u32]>::to_vec).collect()
}

/// What all sessions say when every token is run once it is known.
fn plain(model: &Arc<Gguf>) -> Vec<Talk> {
    let mut row = Row::load(model, 1, Isa::Scalar);
    let mut talks: Vec<Talk> = (0..SESSIONS).map(Talk::new).collect();
    for talk in &mut talks {
        let mut operations = talk.opening();
        while talk.said.len() < ANSWER {
            let chunk = talk.piece(talk.run, talk.tokens[talk.run..].to_vec(), Wanted::Sample);
            let (mut outcomes, logits) = row.run(std::mem::take(&mut operations), vec![chunk]);
            talk.take(outcomes.remove(0), &rows(&logits, 1));
        }
    }
    talks
}

/// All sessions together, with drafts of which `mistakes` of a hundred are wrong; every step has chunks of all sessions
/// that still have something to say. Returns them and how many drafts were accepted.
fn speculate(row: &mut Row, plain: &[Talk], mistakes: usize, seed: u64) -> (Vec<Talk>, usize) {
    let mut random = Random(seed);
    let mut talks: Vec<Talk> = (0..SESSIONS).map(Talk::new).collect();
    let mut operations: Vec<Operation> = talks.iter().flat_map(Talk::opening).collect();
    let mut accepted = 0;
    while talks.iter().any(|talk| talk.said.len() < ANSWER) {
        let running: Vec<usize> = (0..SESSIONS).filter(|number| talks[*number].said.len() < ANSWER).collect();
        let chunks: Vec<Chunk> = running
            .iter()
            .map(|number| {
                let (talk, count) = (&talks[*number], random.below(UNCERTAIN + 1));
                talk.chunk(&talk.guess(&plain[*number], 0, count, mistakes, &mut random))
            })
            .collect();
        let wanted: Vec<usize> = chunks.iter().map(|chunk| chunk.wanted.wanted_rows(chunk.input.rows())).collect();
        let (outcomes, logits) = row.run(std::mem::take(&mut operations), chunks);
        let mut logits = rows(&logits, wanted.iter().sum());
        for ((number, outcome), wanted) in running.iter().zip(outcomes).zip(wanted) {
            let own: Vec<Vec<u32>> = logits.drain(..wanted).collect();
            let said = talks[*number].said.len();
            assert!(!talks[*number].take(outcome, &own));
            accepted += talks[*number].said.len() - said - 1;
        }
    }
    (talks, accepted)
}

fn assert_same(found: &[Talk], expected: &[Talk], what: &str) {
    for (found, expected) in found.iter().zip(expected) {
        for (index, (one, other)) in found.said.iter().zip(&expected.said).enumerate() {
            assert!(one == other, "{what}: session {} says something else at {index}", expected.number);
        }
        assert!(found.said.len() >= ANSWER);
    }
}

fn check(name: &str, stages: &[usize]) {
    let model = model(name);
    let expected = plain(&model);
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for stages in stages {
            for mistakes in [0, 30, 100] {
                let mut row = Row::load(&model, *stages, isa);
                let (found, accepted) = speculate(&mut row, &expected, mistakes, mistakes as u64 + 1);
                assert_same(&found, &expected, &format!("{name}, {isa:?}, {stages} stages, {mistakes}% mistakes"));
                assert_eq!(accepted == 0, mistakes == 100, "{accepted} drafts accepted at {mistakes}% mistakes");
            }
        }
    }
}

#[test]
fn a_hybrid_says_the_same_with_any_drafts() {
    check("nano16-f32", &[1, 2, 4]);
}

#[test]
fn a_hybrid_with_experts_says_the_same_with_any_drafts() {
    check("nano-moe16-f32", &[2]);
}

#[test]
fn a_quantized_hybrid_says_the_same_with_any_drafts() {
    check("mini16-Q8_0", &[4]);
}

#[test]
fn pure_attention_says_the_same_with_any_drafts() {
    check("mini-llama-f32", &[1, 2]);
}

/// What the tail guesses, `most` tokens at a time, is the same on any number of stages, whoever else is in the step, and
/// changes nothing. Returns how many guesses of the greedy session were run and how many were right, in each row.
fn check_tail(model: &Arc<Gguf>, rows_of: &[(usize, bool)], most: usize) -> Vec<(usize, usize)> {
    let expected = plain(model);
    let mut guesses: Option<Vec<Vec<u32>>> = None;
    let mut right = Vec::new();
    for (stages, together) in rows_of.iter().copied() {
        let mut row = Row::load(model, stages, Isa::detect());
        let mut talks: Vec<Talk> = (0..SESSIONS).map(Talk::new).collect();
        let mut found = vec![Vec::new(); SESSIONS];
        let mut operations: Vec<Operation> = talks.iter().flat_map(Talk::opening).collect();
        right.push((0, 0));
        while talks.iter().any(|talk| talk.said.len() < ANSWER) {
            let mut running: Vec<usize> = (0..SESSIONS).filter(|one| talks[*one].said.len() < ANSWER).collect();
            running.truncate(if together { SESSIONS } else { 1 });
            let chunk = |number: &usize| talks[*number].proposing(&talks[*number].guessed, most as u32);
            let chunks: Vec<Chunk> = running.iter().map(chunk).collect();
            let wanted: Vec<usize> = chunks.iter().map(|chunk| chunk.wanted.wanted_rows(chunk.input.rows())).collect();
            let (outcomes, logits) = row.run(std::mem::take(&mut operations), chunks);
            let mut logits = rows(&logits, wanted.iter().sum());
            for ((number, outcome), wanted) in running.into_iter().zip(outcomes).zip(wanted) {
                let own: Vec<Vec<u32>> = logits.drain(..wanted).collect();
                let said = talks[number].said.len();
                assert!(!talks[number].take(outcome, &own));
                if let (0, Some((run, right))) = (number, right.last_mut()) {
                    (*run, *right) = (*run + wanted - 1, *right + talks[number].said.len() - said - 1);
                }
                assert_eq!(talks[number].guessed.len(), most, "it guesses as often as it is asked");
                found[number].extend(talks[number].guessed.clone());
            }
        }
        assert_same(&talks, &expected, &format!("{stages} stages"));
        match &guesses {
            None => guesses = Some(found),
            Some(guesses) => assert!(*guesses == found, "other guesses on {stages} stages, together {together}"),
        }
    }
    right
}

/// Stages, and whether all sessions are in the same steps.
const TAILS: [(usize, bool); 4] = [(1, false), (1, true), (2, true), (4, false)];

#[test]
fn drafts_of_the_tail_change_nothing() {
    check_tail(&model("nano-mtp-f32"), &TAILS, 3);
}

#[test]
fn drafts_of_another_model_change_nothing() {
    for [model, draft] in
        [["nano16-f32", "nano-f32"], ["nano16-f32", "mini-llama-f32"], ["mini16-Q8_0", "nano-moe-f32"]]
    {
        check_tail(&with_draft(model, draft), &TAILS, 5);
    }
    check_tail(&with_draft("mini-llama-f32", "nano16-f32"), &TAILS[..3], 5);
}

/// Greedy guesses of the very same model are what it says, to the last.
#[test]
fn a_model_that_drafts_for_itself_is_right() {
    for name in ["nano16-f32", "nano-moe-f32", "tiny-hybrid-mtp-q8_0"] {
        for (run, right) in check_tail(&with_draft(name, name), &TAILS, UNCERTAIN - 1) {
            assert!(run > ANSWER / 2 && run == right, "{name}: {right} of {run} guesses were right");
        }
    }
    let Some(path) = smollm2_path() else { return };
    let open = || Gguf::open(&path).expect("the fetched model is valid");
    for (run, right) in check_tail(&Arc::new(open().with_draft(open())), &[(2, true)], 4) {
        assert!(run > ANSWER / 2 && run == right, "SmolLM2: {right} of {run} guesses were right");
    }
}

/// As many as a block has, and fewer. What a target says that is read for the draft model is what it says alone.
#[test]
fn drafts_of_a_dflash_model_change_nothing() {
    let model = with_draft("mini-f32", "mini-dflash-f32");
    assert_same(&plain(&model), &plain(&self::model("mini-f32")), "with a draft model");
    for most in [7, 3] {
        check_tail(&model, &TAILS, most);
    }
}

/// A chunk goes out before the result of the one before it is back. Where that one's drafts are wrong it is void, also
/// where some stages have run it and others have not.
#[test]
fn chunks_sent_ahead_say_the_same() {
    let model = model("nano16-f32");
    let expected = plain(&model);
    let (mut void, mut right) = (0, 0);
    for (stages, mistakes) in [(1, 20), (2, 20), (4, 20), (4, 0)] {
        let mut row = Row::load(&model, stages, Isa::detect());
        let mut random = Random(stages as u64);
        let mut talks: Vec<Talk> = (0..SESSIONS).map(Talk::new).collect();
        for talk in &mut talks {
            let plain = &expected[talk.number];
            let mut operations = talk.opening();
            while talk.said.len() < ANSWER {
                let drafts = talk.guess(plain, 0, 1 + random.below(4), mistakes, &mut random);
                let first = talk.chunk(&drafts);
                let more = talk.guess(plain, drafts.len(), 1 + random.below(4), mistakes, &mut random);
                let end = talk.tokens.len() + drafts.len();
                let uncertain = (drafts.len() + more.len()) as u32;
                let ahead = Wanted::Verify(Verify { drafts: uncertain, ..Verify::default() });
                let second = talk.piece(end, more, ahead);
                let chunks = [first, second].into_iter().filter(|chunk| chunk.input.rows() > 0);
                let mut known_void = false;
                let chunks: Vec<Chunk> = chunks.collect();
                let count = chunks.len();
                let mut told = Vec::new();
                for (index, chunk) in chunks.into_iter().enumerate() {
                    let wanted = chunk.wanted.wanted_rows(chunk.input.rows());
                    // Sometimes it is found to be void while it is under way.
                    known_void |= index == 1 && random.below(4) == 0;
                    let from = if known_void { random.below(stages) } else { usize::MAX };
                    let ran = row.try_run(std::mem::take(&mut operations), vec![chunk], from);
                    let (mut outcomes, logits) = ran.expect("the stages run");
                    told.push((outcomes.remove(0), rows(&logits, wanted)));
                }
                for (index, (outcome, logits)) in told.into_iter().enumerate() {
                    let is_void = talk.take(outcome, &logits);
                    assert!(index == 1 || !is_void, "the first of {count} chunks is never void");
                    void += usize::from(is_void);
                    right += usize::from(index == 1 && !is_void);
                }
            }
        }
        assert_same(&talks, &expected, &format!("{stages} stages, {mistakes}% mistakes"));
    }
    assert!(void > 20 && right > 20, "{void} chunks sent ahead were void, {right} were right");
}

/// A stage that finds the rows before a chunk sent ahead void takes that chunk out of the frame, and nobody else's rows.
#[test]
fn a_chunk_that_becomes_void_at_a_later_stage_changes_nobody() {
    let model = model("nano16-f32");
    let expected = plain(&model);
    for (stages, void_from) in [(2, 1), (4, 1), (4, 2), (4, 3)] {
        for first in [true, false] {
            let mut row = Row::load(&model, stages, Isa::detect());
            let (one, mut other) = (Talk::new(0), Talk::new(1));
            row.run([one.opening(), other.opening()].concat(), Vec::new());
            let drafts = expected[0].tokens[one.tokens.len()..][..3].to_vec();
            let lost = row.try_run(Vec::new(), vec![one.chunk(&drafts)], void_from).expect("the stages run");
            assert_eq!(lost.0, [Outcome::Void]);
            let end = one.tokens.len() + drafts.len();
            let ahead = Wanted::Verify(Verify { drafts: 5, ..Verify::default() });
            let ahead = one.piece(end, expected[0].tokens[end..][..2].to_vec(), ahead);
            let mut chunks = vec![ahead, other.chunk(&[])];
            if !first {
                chunks.reverse();
            }
            let (mut outcomes, logits) = row.run(Vec::new(), chunks);
            assert_eq!(outcomes.remove(usize::from(!first)), Outcome::Void);
            assert!(!other.take(outcomes.remove(0), &rows(&logits, 1)));
            assert!(other.said[0] == expected[1].said[0], "{stages} stages, void from {void_from}");
        }
    }
}

/// Memories move while tokens are uncertain, from stages that are cut in one way to stages cut in another.
#[test]
fn logs_move_with_their_states() {
    let model = model("nano16-f32");
    move_while_drafting(&model, &plain(&model), |talk, expected, random| {
        talk.chunk(&talk.guess(expected, 0, 4, 30, random))
    });
}

/// What a draft model remembers does not move with them: it guesses on, and the text is the same.
#[test]
fn a_dflash_model_guesses_on_where_it_remembers_nothing() {
    let model = with_draft("mini-f32", "mini-dflash-f32");
    move_while_drafting(&model, &plain(&self::model("mini-f32")), |talk, _, _| talk.proposing(&talk.guessed, 4));
}

fn move_while_drafting(model: &Arc<Gguf>, expected: &[Talk], next_chunk: impl Fn(&Talk, &Talk, &mut Random) -> Chunk) {
    let [from, to] = [2, 3];
    let mut row = Row::load(model, from, Isa::Scalar);
    let mut talk = Talk::new(1);
    let mut random = Random(3);
    let mut operations = talk.opening();
    for moves in 0..4 {
        for _ in 0..3 {
            let chunk = next_chunk(&talk, &expected[1], &mut random);
            let wanted = chunk.wanted.wanted_rows(chunk.input.rows());
            let (mut outcomes, logits) = row.run(std::mem::take(&mut operations), vec![chunk]);
            assert!(!talk.take(outcomes.remove(0), &rows(&logits, wanted)));
        }
        let [own, next] = if moves % 2 == 0 { [from, to] } else { [to, from] };
        row = row.moved(model, own, next);
    }
    for (index, (found, expected)) in talk.said.iter().zip(&expected[1].said).enumerate() {
        assert!(found == expected, "something else at {index}");
    }
    assert!(talk.said.len() >= 12);
}

impl Row {
    /// Everything, in stages that are cut in another way.
    fn moved(&self, model: &Arc<Gguf>, own: usize, cut: usize) -> Row {
        let layers = ModelShape::read(model).expect("a shape").layers.len();
        let mut to = Row::load(model, cut, Isa::detect());
        for (stage, wanted) in to.row.stages.iter().zip(cuts(layers, cut)) {
            let pages = (0..SESSIONS as u32 * PAGES_EACH).map(PageId).collect();
            let mut taking = Taking::new(stage.clone(), pages, (0..SESSIONS as u32).map(Slot).collect()).expect("new");
            for (source, have) in self.row.stages.iter().zip(cuts(layers, own)) {
                let both = wanted.start.max(have.start)..wanted.end.min(have.end);
                let samplers = stage.place().last && source.place().last;
                if both.is_empty() && !samplers {
                    continue;
                }
                let request = taking.request(both.start as u32..both.end.max(both.start) as u32, samplers);
                let mut bytes = Vec::new();
                give(source, &request, &mut bytes).expect("the stage has it");
                taking.read(&request, &mut bytes.as_slice()).expect("it fits");
            }
            taking.finish().expect("everything is here");
        }
        to.next = self.next;
        to
    }
}

/// What contradicts what a stage knows is refused, and says why.
#[test]
fn chunks_that_do_not_go_on_are_refused() {
    let model = model("nano16-f32");
    let refused = |start: usize, drafts: u32, tokens: usize| {
        let (mut row, mut talk) = (Row::load(&model, 1, Isa::detect()), Talk::new(0));
        row.run(talk.opening(), vec![talk.chunk(&[1, 2, 3])]);
        talk.run = start;
        let verify = Wanted::Verify(Verify { drafts, ..Verify::default() });
        let chunk = talk.piece(start, vec![5; tokens], verify);
        row.try_run(Vec::new(), vec![chunk], usize::MAX).map(|_| ()).map_err(|error| error.to_string())
    };
    // Nine tokens are certain, and three behind them are not.
    let told = |start, drafts| {
        let session = session(0);
        let certain = "9 of its tokens are certain, and 3 logged behind them";
        Err(format!("session {session} goes on at token {start} with {drafts} uncertain ones; {certain}"))
    };
    assert_eq!(refused(9, 0, 1), Ok(()));
    assert_eq!(refused(12, 5, 2), Ok(()));
    assert_eq!(refused(8, 0, 1), told(8, 0));
    assert_eq!(refused(13, 0, 1), told(13, 0));
    assert_eq!(refused(9, 3, 2), told(9, 3));
    // Sent ahead of rows that are not here: void, and no error.
    assert_eq!(refused(13, 9, 2), Ok(()));
    let many = refused(9, UNCERTAIN as u32 + 1, UNCERTAIN + 1);
    assert_eq!(many, Err(format!("{} uncertain tokens of a session, but {UNCERTAIN} were reserved", UNCERTAIN + 1)));
}

#[test]
fn a_state_with_uncertain_tokens_is_not_copied() {
    let model = model("nano16-f32");
    let (mut row, talk) = (Row::load(&model, 1, Isa::detect()), Talk::new(0));
    row.run(talk.opening(), vec![talk.chunk(&[1, 2, 3])]);
    let copy = vec![Operation::CopyState { from: Slot(0), to: Slot(SESSIONS as u32) }];
    let error = row.try_run(copy, Vec::new(), usize::MAX).expect_err("three tokens are uncertain");
    assert!(matches!(error, Error::Uncertain { slot: 0, tokens: 3, .. }), "{error}");
}
