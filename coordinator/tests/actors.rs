//! The actors around a row that is played by the test: every step is answered at once, with tokens that can be told
//! apart. Nothing here waits for time to pass: a test goes on when the service has nothing left to do.

use std::path::Path;
use std::sync::Arc;

use paceline_coordinator::actor::{Control, Row, Shards, start};
use paceline_coordinator::{Engine, Error, FinishReason, Generate, ModelCard, Update};
use paceline_core::Limits;
use paceline_gguf::Gguf;
use paceline_proto::{
    ChunkResult, Epoch, Frame, Outcome, Reply, SampledToken, SamplingSettings, SessionId, StageTime, StepDone, Wanted,
};
use paceline_text::Tokenizer;
use paceline_transport::{FrameSender, ReplySender, local};

/// Tokens of the played model are printable and never end tokens.
const FIRST_TOKEN: u32 = 40;

/// Answers each step in the moment it is sent.
struct PlayedRow {
    replies: local::LocalReplies,
    /// Fails instead of running this many steps.
    fails_after: Option<usize>,
}

impl FrameSender for PlayedRow {
    fn send(&mut self, frame: Frame) -> paceline_transport::Result<()> {
        if let Some(left) = &mut self.fails_after {
            if *left == 0 {
                return self.replies.reply(Reply::Failed { stage: 1, reason: "played".to_owned() });
            }
            *left -= 1;
        }
        let result = |chunk: &paceline_proto::Chunk| {
            let position = chunk.start + chunk.input.rows() as u32;
            let outcome = match chunk.wanted {
                Wanted::Sample => Outcome::Sampled(SampledToken { token: token_at(position), logprobs: None }),
                _ => Outcome::Stored,
            };
            ChunkResult { session: chunk.session, outcome }
        };
        let results = frame.step.chunks.iter().map(result).collect();
        let times = vec![StageTime { busy: 1 }];
        self.replies.reply(Reply::Done(StepDone { epoch: frame.step.epoch, step: frame.step.id, results, times }))
    }
}

struct NoShards;

impl Shards for NoShards {
    fn cancel(&self, _: SessionId) {}
}

fn token_at(position: u32) -> u32 {
    FIRST_TOKEN + position % 50
}

fn service(fails_after: Option<usize>) -> (Engine, Control) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/models/tiny-hybrid-q8_0.gguf");
    let gguf = Gguf::open(&path).expect("the embedded model");
    let (replies, receiver) = local::replies(8);
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
        stages: 1,
    };
    start(Row {
        model,
        tokenizer: Arc::new(Tokenizer::from_gguf(&gguf).expect("a vocabulary")),
        template: None,
        limits: Limits::new(1, 2, 128, 64, 4096),
        epoch: Epoch::default(),
        head: Box::new(PlayedRow { replies, fails_after }),
        replies: receiver,
        shards: Box::new(NoShards),
    })
}

fn request(tokens: usize) -> Generate {
    Generate {
        prompt: vec![1, 2, 3],
        max_tokens: Some(tokens),
        stop: vec![],
        sampling: SamplingSettings::default(),
        ignore_end: false,
        show_special: false,
    }
}

/// Lets everything run that can run, until nothing more happens.
async fn settle(engine: &Engine) {
    let mut last = (0, 0);
    loop {
        for _ in 0..200 {
            tokio::task::yield_now().await;
        }
        let status = engine.status().await.expect("the coordinator lives");
        let now = (status.steps, status.running);
        if now == last {
            return;
        }
        last = now;
    }
}

fn run(test: impl Future<Output = ()>) {
    actix::System::new().block_on(test);
}

#[test]
fn a_slow_reader_pauses_its_session_and_loses_nothing() {
    run(async {
        let (engine, _control) = service(None);
        let mut slow = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        let paused = engine.status().await.expect("status");
        assert!(
            paused.decode_tokens < 80,
            "{} tokens were computed for a client that reads none",
            paused.decode_tokens
        );
        // Another one is served meanwhile.
        let mut quick = engine.generate(request(300)).await.expect("admitted");
        let mut tokens = 0;
        while let Some(update) = quick.updates.recv().await {
            tokens += usize::from(matches!(update, Update::Token(_)));
        }
        assert_eq!(tokens, 300);
        let mut position = 3;
        loop {
            match slow.updates.recv().await.expect("an update") {
                Update::Token(update) => assert_eq!(update.token, token_at(position)),
                Update::Finished(finished) => {
                    assert_eq!((finished.reason, finished.usage.completion_tokens), (FinishReason::Length, 1000));
                    break;
                }
                Update::Failed(error) => panic!("{error}"),
            }
            position += 1;
        }
        assert_eq!(position, 1003);
        assert_eq!(engine.status().await.expect("status").running, 0);
    });
}

#[test]
fn an_answer_that_ends_while_its_reader_sleeps_is_kept_whole() {
    // Around the size of the channel every way to be full at the end comes up.
    for tokens in 55..75 {
        run(async move {
            let (engine, _control) = service(None);
            let mut slow = engine.generate(request(tokens)).await.expect("admitted");
            settle(&engine).await;
            let mut count = 0;
            loop {
                match slow.updates.recv().await.expect("an update") {
                    Update::Token(_) => count += 1,
                    Update::Finished(_) => break,
                    Update::Failed(error) => panic!("{error}"),
                }
            }
            assert_eq!(count, tokens);
        });
    }
}

#[test]
fn a_client_that_leaves_frees_its_pages_wherever_it_is() {
    run(async {
        let (engine, _control) = service(None);
        let paused = engine.generate(request(1000)).await.expect("admitted");
        let other = engine.generate(request(1000)).await.expect("admitted");
        settle(&engine).await;
        // Both places are taken: this one waits, and leaves while waiting.
        let waits = tokio::time::timeout(std::time::Duration::ZERO, engine.generate(request(5))).await;
        assert!(waits.is_err(), "there was a place for a third");
        settle(&engine).await;
        assert_eq!(engine.status().await.expect("status").waiting, 0);
        drop((paused, other));
        settle(&engine).await;
        let status = engine.status().await.expect("status");
        assert_eq!((status.running, status.pages_used), (0, 0));
    });
}

#[test]
fn a_failed_stage_is_told_to_everyone_and_nobody_is_let_in() {
    run(async {
        let (engine, _control) = service(Some(5));
        let mut lost = engine.generate(request(1000)).await.expect("admitted");
        let mut last = None;
        while let Some(update) = lost.updates.recv().await {
            last = Some(update);
        }
        assert!(
            matches!(last, Some(Update::Failed(Error::Lost { ref reason })) if reason.contains("played")),
            "{last:?}"
        );
        let refused = engine.generate(request(5)).await.expect_err("the row is broken");
        assert!(matches!(refused, Error::Lost { .. }), "{refused}");
        assert!(!engine.status().await.expect("status").ready);
    });
}

#[test]
fn draining_lets_answers_finish_and_admits_nobody() {
    run(async {
        let (engine, control) = service(None);
        let mut running = engine.generate(request(200)).await.expect("admitted");
        let drained = tokio::spawn(async move { control.drain().await });
        settle(&engine).await;
        assert!(matches!(engine.generate(request(5)).await, Err(Error::ShuttingDown)));
        let mut tokens = 0;
        while let Some(update) = running.updates.recv().await {
            tokens += usize::from(matches!(update, Update::Token(_)));
        }
        assert_eq!(tokens, 200);
        drained.await.expect("drained");
    });
}

#[test]
fn impossible_requests_are_refused_with_their_numbers() {
    run(async {
        let (engine, _control) = service(None);
        let refusal = |prompt: Vec<u32>| {
            let engine = engine.clone();
            async move { engine.generate(Generate { prompt, ..request(5) }).await.expect_err("impossible") }
        };
        assert_eq!(refusal(vec![]).await, Error::EmptyPrompt);
        assert_eq!(refusal(vec![5000]).await, Error::TokenOutOfRange { token: 5000, vocabulary: 2048 });
        assert_eq!(refusal(vec![1; 4096]).await, Error::ContextLength { tokens: 4096, context: 4096 });
    });
}
