//! Real stages of small models, a script of steps that they run, and a guest whose results tell whether anything
//! else has changed.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use paceline_compute::Device;
use paceline_compute::cpu::CpuDevice;
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_model::StageLayers;
use paceline_proto::{
    Chunk, ChunkInput, Epoch, Frame, Operation, PageId, Payload, Reused, SamplingSettings, SessionId, Slot, Step,
    StepId, Wanted,
};
use paceline_shard::{Feedback, Passed, Place, Stage, feedback};
use proptest::sample::Index;
use uuid::Uuid;

/// Tokens per page.
pub(crate) const PAGE_TOKENS: usize = 16;
/// The most rows of a step.
pub(crate) const ROWS: usize = 24;
/// The most wanted rows of a step.
pub(crate) const WANTED: usize = 2;

/// Slot 3 and pages 8 and 9 are the guest's; changes of the script may name them all the same.
const MEMORY: MemorySpec = MemorySpec {
    page_tokens: PAGE_TOKENS,
    pages: 10,
    slots: 4,
    key_type: KvType::F16,
    value_type: KvType::Q8_0,
    rows: ROWS,
    wanted: WANTED,
    logs: LogSpec { sessions: 2, tokens: 4 },
};
const GUEST: u128 = 100;

/// A stage to be.
pub(crate) struct Scene {
    model: Arc<Gguf>,
    layers: StageLayers,
    pub(crate) place: Place,
    pub(crate) width: usize,
    pub(crate) vocabulary: usize,
    guest: Vec<u8>,
}

static DEVICE: LazyLock<CpuDevice> = LazyLock::new(|| CpuDevice::new(1, None).expect("a thread"));
static SCENES: LazyLock<Vec<Scene>> = LazyLock::new(|| {
    let names = ["mini-llama-Q4_K_M", "mini-qwen3-Q4_K_M", "mini-Q4_K_M", "mini-moe-Q4_K_M"];
    names.into_iter().flat_map(Scene::of_model).collect()
});

/// The session of this number.
pub(crate) fn session(number: u128) -> SessionId {
    SessionId(Uuid::from_u128(number))
}

/// What a stage made of a frame, without the times.
pub(crate) fn made(passed: Passed) -> Vec<u8> {
    match passed {
        Passed::On(mut frame) => {
            frame.times.clear();
            frame.step.id = StepId(0);
            frame.encode().to_vec()
        }
        Passed::Done(done) => format!("{:?}", done.results).into_bytes(),
    }
}

impl Scene {
    /// All models, whole and in two halves.
    pub(crate) fn all() -> impl Iterator<Item = &'static Scene> {
        SCENES.iter()
    }

    /// One of them.
    pub(crate) fn any(index: Index) -> &'static Scene {
        index.get(&SCENES)
    }

    fn of_model(name: &str) -> Vec<Scene> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/models");
        let model = Arc::new(Gguf::open(&folder.join(format!("{name}.gguf"))).expect("a model of the tests"));
        let shape = ModelShape::read(&model).expect("its shape");
        let (count, half) = (shape.layers.len(), shape.layers.len() / 2);
        let scene = |(index, layers)| {
            let layers = StageLayers::of(layers, count);
            let place = Place { index, first: layers.first, last: layers.last, epoch: Epoch(1) };
            let (width, vocabulary) = (shape.embedding_length, shape.vocabulary);
            let mut scene = Scene { model: Arc::clone(&model), layers, place, width, vocabulary, guest: Vec::new() };
            scene.guest = made(scene.stage().run(scene.guest(0)).expect("the guest is right"));
            scene
        };
        [(0, 0..count), (0, 0..half), (1, half..count)].into_iter().map(scene).collect()
    }

    /// The stage, loaded.
    pub(crate) fn stage(&self) -> Stage {
        let program = paceline_model::record(&self.model, &self.layers).expect("the stage is recorded");
        let loaded = DEVICE.load(program, &self.model, MEMORY, &mut |_| {}).expect("the stage is loaded");
        // The other end is gone: nothing can be waited for.
        let end = match (self.place.first, self.place.last) {
            (true, true) => Feedback::own(),
            (true, false) => feedback(1).0,
            _ => Feedback::own(),
        };
        Stage::new(self.place, loaded, end)
    }

    /// Two sessions that read, sample, see vectors, and end.
    pub(crate) fn script(&self) -> Vec<Frame> {
        let chunk =
            |number, start, input, wanted| Chunk { session: session(number), start, input, wanted, void: false };
        let text = |tokens: &[u32]| ChunkInput::Tokens(tokens.to_vec());
        // What the tail sampled is known only where the tail is.
        let sampled = |step| match self.place.first && self.place.last {
            true => ChunkInput::Sampled { step: StepId(step) },
            false => text(&[7]),
        };
        let image = ChunkInput::Rows { positions: vec![[3, 3, 3, 0], [3, 3, 4, 0]] };
        let begin = [open(1, 0, &[0, 1]), open(2, 1, &[2, 3])].concat();
        let end = vec![
            Operation::CopyPage { from: PageId(0), to: PageId(4) },
            Operation::CopyState { from: Slot(0), to: Slot(2) },
            Operation::Grant { session: session(1), pages: vec![PageId(5)] },
        ];
        [
            (
                begin,
                vec![
                    chunk(1, 0, text(&[1, 2, 3, 4, 5]), Wanted::Sample),
                    chunk(2, 0, text(&[9, 8, 7]), Wanted::Nothing),
                ],
            ),
            (vec![], vec![chunk(1, 5, sampled(0), Wanted::Sample), chunk(2, 3, image, Wanted::Vector)]),
            (end, vec![chunk(1, 6, text(&[1, 2]), Wanted::Sample), chunk(2, 5, text(&[3]), Wanted::Sample)]),
        ]
        .into_iter()
        .zip(0..)
        .map(|((operations, chunks), id)| self.frame(id, operations, chunks))
        .collect()
    }

    /// A step in which a session comes that nothing before it should have to do with.
    pub(crate) fn guest(&self, id: u64) -> Frame {
        let input = ChunkInput::Tokens((1..=10).collect());
        let chunk = Chunk { session: session(GUEST), start: 0, input, wanted: Wanted::Vector, void: false };
        self.frame(id, open(GUEST, 3, &[8, 9]), vec![chunk])
    }

    /// What a new stage makes of the guest.
    pub(crate) fn guest_alone(&self) -> &[u8] {
        &self.guest
    }

    /// Gives a frame the rows that its chunks need.
    pub(crate) fn carry(&self, frame: &mut Frame) {
        let carried = |chunk: &&Chunk| !chunk.void;
        let rows = frame.step.chunks.iter().filter(carried).map(|chunk| match &chunk.input {
            ChunkInput::Rows { positions } => positions.len(),
            _ if self.place.first => 0,
            input => input.rows(),
        });
        let values = rows.sum::<usize>() * self.width;
        let values: Vec<f32> = (0..values).map(|index| (index % 17) as f32 / 8.0 - 1.0).collect();
        frame.payload = Payload::from_rows(self.width, &values);
    }

    fn frame(&self, id: u64, operations: Vec<Operation>, chunks: Vec<Chunk>) -> Frame {
        let step = Step { epoch: Epoch(1), id: StepId(id), operations, chunks };
        let mut frame = Frame { step, payload: Payload::empty(), times: Vec::new() };
        self.carry(&mut frame);
        frame
    }
}

fn open(number: u128, slot: u32, pages: &[u32]) -> Vec<Operation> {
    let (session, sampling) = (session(number), Box::new(SamplingSettings::default()));
    let pages = pages.iter().copied().map(PageId).collect();
    let open = Operation::Open { session, slot: Slot(slot), sampling, generated_from: 0, reused: Reused::default() };
    vec![open, Operation::Grant { session, pages }]
}
