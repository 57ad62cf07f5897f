//! Frames that are wrong in any way, run by real stages: a typed error or a result, never a panic, and nobody else's
//! results change.

mod scene;

use paceline_compute::Error as DeviceError;
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Frame, Operation, Outcome, PageId, Payload, Reused, SamplingSettings, Slot, StepId,
    Ticket, Wanted,
};
use paceline_shard::{Error, Passed, Stage};
use proptest::prelude::*;
use scene::{PAGE_TOKENS, ROWS, Scene, WANTED, made, session};

/// Runs the script with one frame changed and returns the error of that frame.
fn refused(scene: &Scene, at: usize, change: impl FnOnce(&mut Frame)) -> Error {
    let (mut stage, mut frames) = (scene.stage(), scene.script());
    change(&mut frames[at]);
    for frame in frames.drain(..at) {
        stage.run(frame).expect("the script is right");
    }
    let error = stage.run(frames.remove(0)).expect_err("the frame is wrong");
    for frame in [scene.guest(at as u64 + 1), scene.guest(at as u64)] {
        assert!(matches!(stage.run(frame), Err(Error::Stopped)), "a stage that has failed runs nothing more");
    }
    error
}

fn tokens(chunk: &mut Chunk) -> &mut Vec<u32> {
    match &mut chunk.input {
        ChunkInput::Tokens(tokens) => tokens,
        other => panic!("{other:?} are no tokens"),
    }
}

#[test]
fn the_script_runs_on_every_stage() {
    for scene in Scene::all() {
        let mut stage = scene.stage();
        for frame in scene.script() {
            stage.run(frame).expect("the script is right");
        }
        let guest = made(stage.run(scene.guest(scene.script().len() as u64)).expect("so is the guest"));
        assert_eq!(guest, scene.guest_alone());
    }
}

#[test]
fn chunks_that_cannot_be_are_refused_on_every_stage() {
    for scene in Scene::all() {
        let error = |change: &dyn Fn(&mut Chunk)| refused(scene, 0, |frame| change(&mut frame.step.chunks[0]));
        let granted = 2 * PAGE_TOKENS;
        assert!(matches!(error(&|chunk| tokens(chunk).clear()), Error::EmptyChunk { .. }));
        for start in [granted as u32 - 4, u32::MAX - 5, u32::MAX - 4, u32::MAX] {
            let beyond = error(&|chunk| chunk.start = start);
            assert!(matches!(beyond, Error::BeyondPages { granted: 32, .. }), "{beyond}");
        }
        assert!(matches!(error(&|chunk| chunk.session = session(9)), Error::UnknownSession { .. }));
        assert!(matches!(error(&|chunk| chunk.session = session(2)), Error::TwoChunks { .. }));
        let sampled = error(&|chunk| chunk.input = ChunkInput::Sampled { step: StepId(0) });
        match scene.place.first {
            true => assert!(matches!(sampled, Error::NotSampled { .. }), "{sampled}"),
            false => assert!(matches!(sampled, Error::Unresolved { .. }), "{sampled}"),
        }
        let rows = refused(scene, 2, |frame| {
            for (number, pages) in [(1, 4), (2, 4)] {
                let pages = vec![PageId(5); pages];
                frame.step.operations.push(Operation::Grant { session: session(number), pages });
            }
            frame.step.chunks.iter_mut().for_each(|chunk| chunk.input = ChunkInput::Tokens(vec![1; ROWS - 1]));
        });
        assert!(matches!(rows, Error::OverLimit { what: "rows in a step", limit: ROWS, .. }), "{rows}");
    }
}

#[test]
fn tokens_that_do_not_exist_are_refused_at_the_head() {
    for scene in Scene::all().filter(|scene| scene.place.first) {
        for token in [scene.vocabulary as u32, u32::MAX - 1, u32::MAX] {
            let error = refused(scene, 0, |frame| tokens(&mut frame.step.chunks[0])[2] = token);
            // The largest number stands for a row that comes as a vector, and none came.
            let expected = match &error {
                Error::Device(DeviceError::Unknown { what, .. }) => *what == "token",
                Error::Device(DeviceError::Inconsistent { what, .. }) => *what == "values in vectors",
                _ => false,
            };
            assert!(expected, "{error}");
        }
    }
}

#[test]
fn a_token_that_was_not_sampled_is_never_waited_for() {
    for scene in Scene::all().filter(|scene| scene.place.first) {
        // Step 0 sampled one, but that of step 1 came after it.
        for step in [0, 1, 2, 3, u64::MAX].into_iter().filter(|step| *step != 1 || !scene.place.last) {
            let ask = |frame: &mut Frame| frame.step.chunks[0].input = ChunkInput::Sampled { step: StepId(step) };
            let error = refused(scene, 2, ask);
            // Step 1 sampled one; a head without a tail behind it cannot get it.
            match step {
                1 => assert!(matches!(error, Error::Link(_)), "{error}"),
                _ => assert!(matches!(error, Error::NotSampled { .. }), "{error}"),
            }
        }
    }
}

#[test]
fn activations_of_another_model_are_refused() {
    for scene in Scene::all() {
        let with = |width: u32, values: usize| {
            move |frame: &mut Frame| frame.payload = Payload::Host { width, rows: vec![0; 4 * values].into() }
        };
        // The second frame of the script carries rows on every stage.
        let width = scene.width;
        for (claimed, values) in [(0, width), (1, 3 * width), (u32::MAX, 3 * width), (width as u32 / 2, 3 * width)] {
            let error = refused(scene, 1, with(claimed, values));
            assert!(matches!(error, Error::Width { found, .. } if found == claimed as usize), "{error}");
        }
        for values in [0, 1, width, width + 1, 100 * width] {
            let error = refused(scene, 1, with(width as u32, values));
            assert!(matches!(error, Error::Rows { found, .. } if found == values), "{error}");
        }
    }
}

#[test]
fn memory_that_does_not_exist_is_refused() {
    for scene in Scene::all() {
        let error = |operation: Operation| refused(scene, 1, |frame| frame.step.operations.push(operation));
        let open = |number, slot| {
            let sampling = Box::new(SamplingSettings::default());
            Operation::Open {
                session: session(number),
                slot: Slot(slot),
                sampling,
                generated_from: 0,
                reused: Reused::default(),
            }
        };
        let grant = |number, pages: Vec<PageId>| Operation::Grant { session: session(number), pages };
        let reusing = |tokens, told| {
            let (sampling, reused) = (Box::default(), Reused { tokens, last: vec![0; told] });
            Operation::Open { session: session(3), slot: Slot(2), sampling, generated_from: 0, reused }
        };
        assert!(matches!(error(reusing(u32::MAX, 0)), Error::OverLimit { what: "reused tokens of a session", .. }));
        assert!(matches!(error(reusing(4, 5)), Error::Reused { tokens: 4, told: 5, .. }));
        assert!(matches!(error(open(1, 3)), Error::OpenTwice { .. }));
        assert!(matches!(error(open(3, 0)), Error::SlotTaken { slot: 0, .. }));
        assert!(matches!(error(open(3, u32::MAX)), Error::OverLimit { what: "state slots", .. }));
        assert!(matches!(error(grant(9, vec![])), Error::UnknownSession { .. }));
        assert!(matches!(error(grant(1, vec![PageId(u32::MAX)])), Error::UnknownPage { .. }));
        assert!(matches!(error(grant(1, vec![PageId(1); 1000])), Error::OverLimit { .. }));
        assert!(matches!(error(Operation::Close { session: session(9) }), Error::UnknownSession { .. }));
        let install = Operation::Install { ticket: Ticket(3), pages: vec![PageId(1)], slot: None };
        assert!(matches!(error(install), Error::NotStaged { ticket: 3 }));
        let (page, state) = (|id| PageId(id), |id| Slot(id));
        for (from, to) in [(0, 999), (999, 0), (u32::MAX, u32::MAX)] {
            let copied = error(Operation::CopyPage { from: page(from), to: page(to) });
            assert!(matches!(copied, Error::Device(DeviceError::Unknown { what: "page", .. })), "{copied}");
            let copied = error(Operation::CopyState { from: state(from), to: state(to) });
            assert!(matches!(copied, Error::Device(DeviceError::Unknown { what: "state slot", .. })), "{copied}");
        }
    }
}

#[test]
fn frames_of_another_epoch_or_out_of_order_are_refused() {
    for scene in Scene::all() {
        assert!(matches!(refused(scene, 1, |frame| frame.step.epoch = Epoch(7)), Error::Epoch { .. }));
        for id in [0, 2, u64::MAX] {
            assert!(matches!(refused(scene, 1, |frame| frame.step.id = StepId(id)), Error::Order { .. }));
        }
    }
}

#[test]
fn more_wanted_rows_than_reserved_are_refused_at_the_tail() {
    for scene in Scene::all().filter(|scene| scene.place.last) {
        let error = refused(scene, 0, |frame| {
            let chunk = frame.step.chunks[0].clone();
            let sampling = Box::new(SamplingSettings::default());
            let open = Operation::Open {
                session: session(3),
                slot: Slot(2),
                sampling,
                generated_from: 0,
                reused: Reused::default(),
            };
            let grant = Operation::Grant { session: session(3), pages: vec![PageId(6)] };
            frame.step.operations.extend([open, grant]);
            frame.step.chunks.push(Chunk { session: session(3), ..chunk });
            frame.step.chunks.iter_mut().for_each(|chunk| chunk.wanted = Wanted::Sample);
            scene.carry(frame);
        });
        assert!(matches!(error, Error::OverLimit { what: "rows wanted of a step", limit: WANTED, .. }), "{error}");
    }
}

#[test]
fn settings_that_cannot_be_used_fail_their_own_session_only() {
    for scene in Scene::all().filter(|scene| scene.place.last) {
        let (mut stage, mut script) = (scene.stage(), scene.script());
        for operation in &mut script[0].step.operations {
            if let Operation::Open { session: opened, sampling, .. } = operation
                && *opened == session(1)
            {
                sampling.temperature = f32::NAN;
                sampling.logit_bias = vec![(u32::MAX, f32::INFINITY)];
            }
        }
        let Passed::Done(done) = stage.run(script.remove(0)).expect("the others go on") else { panic!("not done") };
        assert!(matches!(done.results[0].outcome, Outcome::Failed(_)) && done.results[1].outcome == Outcome::Stored);
    }
}

/// Numbers at which something may go wrong, and others.
fn wild() -> impl Strategy<Value = u32> {
    let borders = [0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 319, 320, u32::MAX / 4, u32::MAX - 1, u32::MAX];
    prop_oneof![4 => prop::sample::select(borders.to_vec()), 1 => any::<u32>()]
}

/// One change of a frame.
#[derive(Debug, Clone)]
struct Change {
    what: u8,
    at: prop::sample::Index,
    numbers: [u32; 4],
    length: usize,
}

fn change() -> impl Strategy<Value = Change> {
    let length = prop_oneof![3 => 0_usize..5, 1 => 5_usize..200];
    let parts = (0_u8..27, any::<prop::sample::Index>(), [wild(), wild(), wild(), wild()], length);
    parts.prop_map(|(what, at, numbers, length)| Change { what, at, numbers, length })
}

impl Change {
    fn apply(&self, frame: &mut Frame) {
        match self.what {
            0..10 => self.change_operations(&mut frame.step.operations),
            10..21 => self.change_chunks(&mut frame.step.chunks),
            _ => self.change_rest(frame),
        }
    }

    fn operation(&self) -> Operation {
        let ([one, other, ..], session) = (self.numbers, session(u128::from(self.numbers[2] % 5)));
        match self.what {
            0 | 1 => {
                let floats = self.numbers.map(f32::from_bits);
                let sampling = SamplingSettings {
                    temperature: floats[0],
                    top_p: floats[3],
                    penalty_window: other,
                    repetition_penalty: 1.5,
                    top_k: one,
                    logit_bias: vec![(one, floats[1])],
                    logprobs: Some(other),
                    ..SamplingSettings::default()
                };
                let reused = Reused { tokens: other % 99, last: vec![one; self.length % 99] };
                let (slot, sampling) = (Slot(one), Box::new(sampling));
                Operation::Open { session, slot, sampling, generated_from: other, reused }
            }
            2 => Operation::Grant { session, pages: self.numbers.map(PageId).into() },
            3 => Operation::Grant { session, pages: vec![PageId(one % 8); self.length] },
            4 => Operation::Close { session },
            5 => Operation::CopyPage { from: PageId(one), to: PageId(other) },
            _ if one % 2 == 0 => Operation::CopyState { from: Slot(one), to: Slot(other) },
            _ => {
                let pages = self.numbers.map(PageId).into();
                Operation::Install { ticket: Ticket(other.into()), pages, slot: Some(Slot(one)) }
            }
        }
    }

    fn change_operations(&self, operations: &mut Vec<Operation>) {
        let at = self.at.index(operations.len() + 1);
        match self.what {
            0..7 => operations.insert(at, self.operation()),
            7 if at < operations.len() => drop(operations.remove(at)),
            8 if at < operations.len() => operations.push(operations[at].clone()),
            _ => operations.reverse(),
        }
    }

    fn change_chunks(&self, chunks: &mut Vec<Chunk>) {
        if chunks.is_empty() {
            return;
        }
        let at = self.at.index(chunks.len());
        let ([one, other, third, _], chunk) = (self.numbers, &mut chunks[at]);
        match self.what {
            10 => chunk.session = session(u128::from(one % 5)),
            11 => chunk.start = one,
            12 => chunk.input = ChunkInput::Tokens(vec![one % 320; self.length]),
            13 => chunk.input = ChunkInput::Tokens(vec![one, other]),
            14 => chunk.input = ChunkInput::Rows { positions: vec![self.numbers; self.length] },
            15 => chunk.input = ChunkInput::Sampled { step: StepId(u64::from(one)) },
            16 => chunk.wanted = [Wanted::Nothing, Wanted::Sample, Wanted::Vector][third as usize % 3],
            17 => chunk.void ^= true,
            18 => drop(chunks.remove(at)),
            19 => chunks.push(chunks[at].clone()),
            _ => chunk.start = chunk.start.wrapping_add(one % 16),
        }
    }

    fn change_rest(&self, frame: &mut Frame) {
        let Payload::Host { width, rows } = frame.payload.clone();
        let mut bytes = rows.to_vec();
        let mut claimed = width;
        match self.what {
            21 => claimed = self.numbers[0],
            22 => bytes.truncate(self.at.index(bytes.len() + 1)),
            23 => bytes.extend(self.numbers.map(u32::to_le_bytes).as_flattened().repeat(self.length)),
            24 => bytes = self.numbers.map(u32::to_le_bytes).as_flattened().repeat(bytes.len() / 16),
            25 => frame.step.id = StepId(u64::from(self.numbers[0])),
            _ => frame.times.clear(),
        }
        frame.payload = Payload::Host { width: claimed, rows: bytes.into() };
    }
}

/// Runs frames until one fails, and says whether none did.
fn run_all(stage: &mut Stage, frames: Vec<Frame>) -> Result<(), TestCaseError> {
    for frame in frames {
        let id = frame.step.id;
        if let Err(error) = stage.run(frame) {
            prop_assert!(!matches!(error, Error::Stopped), "step {} is the first to fail", id);
            prop_assert!(!error.to_string().is_empty());
            return Ok(());
        }
    }
    Ok(())
}

/// A stage that has failed runs nothing; one that has not runs a guest as if it were alone.
fn check_afterwards(scene: &Scene, stage: &mut Stage, steps: usize) -> Result<(), TestCaseError> {
    match stage.run(scene.guest(steps as u64)) {
        Ok(passed) => prop_assert_eq!(made(passed), scene.guest_alone()),
        Err(Error::Stopped | Error::OpenTwice { .. } | Error::SlotTaken { .. }) => {}
        Err(other) => prop_assert!(false, "the guest is refused: {}", other),
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn changed_steps_never_panic_and_change_nobody_elses_results(
        scene in any::<prop::sample::Index>(),
        changes in prop::collection::vec((0_usize..3, change(), any::<bool>()), 1..5),
    ) {
        let scene = Scene::any(scene);
        let (mut stage, mut frames) = (scene.stage(), scene.script());
        for (at, change, carries) in &changes {
            change.apply(&mut frames[*at]);
            // With rows that fit the change, it gets further.
            if *carries {
                scene.carry(&mut frames[*at]);
            }
        }
        let steps = frames.len();
        run_all(&mut stage, frames)?;
        check_afterwards(scene, &mut stage, steps)?;
    }

    #[test]
    fn changed_bytes_of_frames_never_panic(
        scene in any::<prop::sample::Index>(),
        frame in 0_usize..3,
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let scene = Scene::any(scene);
        let (mut stage, mut frames) = (scene.stage(), scene.script());
        let mut bytes = frames[frame].encode().to_vec();
        for (at, value) in changes {
            // Most of a frame are activations, whatever their values; the rest says what they are.
            let at = at.index(bytes.len().min(400));
            bytes[at] = value;
        }
        let Ok(changed) = Frame::decode(&bytes.into()) else { return Ok(()) };
        frames[frame] = changed;
        let steps = frames.len();
        run_all(&mut stage, frames)?;
        check_afterwards(scene, &mut stage, steps)?;
    }
}
