//! A row whose stages are played: every step is answered in the moment it is sent, with tokens that can be told apart.

use std::path::Path;
use std::sync::{Arc, Mutex};

use paceline_coordinator::actor::{Control, start};
use paceline_coordinator::{DraftSettings, Engine, Generate, ModelCard, Placed, Service, Shards, StageCard};
use paceline_core::Limits;
use paceline_gguf::Gguf;
use paceline_proto::{
    Chunk, ChunkResult, Epoch, Frame, Outcome, Reply, SampledToken, SamplingSettings, SessionId, StageTime, StepDone,
    TierOrder, Wanted,
};
use paceline_text::Tokenizer;
use paceline_transport::{FrameSender, ReplySender, local};

/// Tokens of the played model are printable and never end tokens.
const FIRST_TOKEN: u32 = 40;
/// Replies that a played row may have under way.
const REPLIES: usize = 8;

/// What the played row does with steps.
#[derive(Debug, Clone)]
pub(crate) enum Script {
    /// Answers each.
    Answers,
    /// Answers so many, then fails.
    FailsAfter(usize),
    /// Answers so many, then keeps them here.
    HoldsAfter(usize, Arc<Mutex<Vec<Frame>>>),
}

struct PlayedRow {
    replies: local::LocalReplies,
    script: Script,
    steps: usize,
}

impl FrameSender for PlayedRow {
    fn send(&mut self, frame: Frame) -> paceline_transport::Result<()> {
        self.steps += 1;
        match &self.script {
            Script::FailsAfter(steps) if self.steps > *steps => {
                self.replies.reply(Reply::Failed { stage: 1, reason: "played".to_owned() })
            }
            Script::HoldsAfter(steps, held) if self.steps > *steps => {
                held.lock().expect("no test panics with it").push(frame);
                Ok(())
            }
            _ => self.replies.reply(answer(&frame)),
        }
    }
}

/// The results of a step.
pub(crate) fn answer(frame: &Frame) -> Reply {
    let result = |chunk: &Chunk| {
        let position = chunk.start + chunk.input.rows() as u32;
        let outcome = match chunk.wanted {
            Wanted::Sample => Outcome::Sampled(SampledToken { token: token_at(position), logprobs: None }),
            _ => Outcome::Stored,
        };
        ChunkResult { session: chunk.session, outcome }
    };
    let results = frame.step.chunks.iter().map(result).collect();
    let times = vec![StageTime { busy: 1, ..StageTime::default() }];
    Reply::Done(StepDone { epoch: frame.step.epoch, step: frame.step.id, results, times })
}

struct NoShards;

impl Shards for NoShards {
    fn cancel(&self, _: SessionId) {}

    fn order(&self, _: usize, _: TierOrder) -> bool {
        false
    }
}

pub(crate) fn token_at(position: u32) -> u32 {
    FIRST_TOKEN + position % 50
}

/// A placed row of one stage for two sessions, and its way back.
pub(crate) fn placed(epoch: u32, script: Script) -> (Placed, local::LocalReplies) {
    let (replies, receiver) = local::replies(REPLIES);
    let placed = Placed {
        epoch: Epoch(epoch),
        limits: Limits::new(1, 2, 128, 64, 4096),
        head: Box::new(PlayedRow { replies: replies.clone(), script, steps: 0 }),
        replies: receiver,
        shards: Box::new(NoShards),
        tiers: tokio::sync::mpsc::channel(1).1,
        stages: vec![StageCard::default()],
    };
    (placed, replies)
}

/// The text side of the played model.
pub(crate) fn text_side() -> Service {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/models/tiny-hybrid-mtp-q8_0.gguf");
    let gguf = Gguf::open(&path).expect("the embedded model");
    let model = ModelCard {
        id: "played".to_owned(),
        aliases: vec![],
        created: 0,
        architecture: "played".to_owned(),
        context: 4096,
        trained_context: 4096,
        vocabulary: 2048,
        parameters: 1,
        file_bytes: 1,
        stages: 0,
        drafts: DraftSettings::NONE,
        draft_model: None,
    };
    let tokenizer = Arc::new(Tokenizer::from_gguf(&gguf).expect("a vocabulary"));
    Service { model, tokenizer, template: None }
}

/// A service whose first placement follows the script.
pub(crate) fn service(script: Script) -> (Engine, Control) {
    start(text_side(), placed(1, script).0)
}

pub(crate) fn request(tokens: usize) -> Generate {
    Generate {
        prompt: vec![1, 2, 3],
        boundaries: vec![],
        max_tokens: Some(tokens),
        stop: vec![],
        sampling: SamplingSettings::default(),
        ignore_end: false,
        show_special: false,
    }
}

/// Lets everything run that can run, until nothing more happens.
pub(crate) async fn settle(engine: &Engine) {
    let mut last = (0, 0, 0);
    loop {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let status = engine.status().await.expect("the coordinator lives");
        let now = (status.steps, status.running, status.waiting);
        if now == last {
            return;
        }
        last = now;
    }
}

pub(crate) fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}
