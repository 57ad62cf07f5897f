//! A server on a socket of its own, and the other side of its engine.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use paceline_api::{ApiConfig, Defaults, OneModel, Served};
use paceline_coordinator::testing::{Call, Played, played_engine};
use paceline_coordinator::{
    DraftSettings, FinishReason, Finished, Generation, Missed, ModelCard, Reuse, Tier, Timings, TokenUpdate, Update,
    Usage,
};
use paceline_proto::SessionId;
use paceline_text::{ChatTemplate, TokenKind, Tokenizer, Vocabulary, VocabularyModel};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::client::{Client, Response};

/// Tokens of the played model: one for each byte, two brackets, and two rows without a token.
pub(crate) const VOCABULARY: usize = 260;

/// `<|im_end|>`, which ends an answer.
pub(crate) const END: u32 = 257;

/// Nothing here takes long; who waits longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// A server that is stopped when dropped.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    pub(crate) played: Played,
    stop: Option<oneshot::Sender<()>>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Service {
    pub(crate) fn start(config: ApiConfig) -> Self {
        Self::with_template(config, &[], None)
    }

    /// With further tokens in the vocabulary, and a template of its own.
    pub(crate) fn with_template(config: ApiConfig, tags: &[&str], template: Option<&str>) -> Self {
        Self::with_defaults(config, Defaults::default(), tags, template)
    }

    /// The same with what holds for requests that do not say.
    pub(crate) fn with_defaults(config: ApiConfig, defaults: Defaults, tags: &[&str], template: Option<&str>) -> Self {
        let tokenizer = tokenizer(tags);
        let template = Arc::new(ChatTemplate::for_model(template, &tokenizer).unwrap());
        let card = ModelCard { vocabulary: VOCABULARY + tags.len(), ..model_card() };
        let (engine, played) = played_engine(card, tokenizer, Some(template));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let models = OneModel::serve(Served::Texts(engine), defaults, 0);
        let serving = tokio::spawn(paceline_api::serve(models, config, listener, async {
            let _ = stopped.await;
        }));
        Self { address, played, stop: Some(stop), serving }
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Client {
        Client::post(self.address, path, body).await
    }

    /// A request that the engine never sees.
    pub(crate) async fn exchange(&self, path: &str, body: &str) -> Response {
        patient(self.post(path, body).await.response()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
        patient(Client::send(self.address, request.as_bytes()).await.response()).await
    }

    /// The next request that reaches the engine.
    pub(crate) async fn call(&mut self) -> Call {
        patient(self.played.calls.recv()).await.expect("the server is gone")
    }

    /// Tells the server to stop.
    pub(crate) fn stop(&mut self) {
        self.stop = None;
    }

    /// Waits until the server has stopped.
    pub(crate) async fn stopped(self) {
        patient(self.serving).await.unwrap().unwrap();
    }
}

/// Waits for what must come.
pub(crate) async fn patient<T>(event: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, event).await.expect("this hangs")
}

/// Admits a request; what is sent is what its session says.
pub(crate) fn admit(call: Call) -> mpsc::Sender<Update> {
    let (sender, updates) = mpsc::channel(8);
    let session = SessionId(Uuid::new_v4());
    call.answer.send(Ok(Generation { session, reuse: known(), updates })).expect("the client is gone");
    sender
}

/// Tokens of a text: its bytes. The last token of a character brings its text.
pub(crate) fn tokens_of(text: &str) -> Vec<TokenUpdate> {
    let mut updates = Vec::new();
    for character in text.chars() {
        let mut buffer = [0; 4];
        for byte in character.encode_utf8(&mut buffer).bytes() {
            updates.push(TokenUpdate {
                token: u32::from(byte),
                text: String::new(),
                marks: Vec::new(),
                logprobs: None,
            });
        }
        updates.last_mut().unwrap().text = character.to_string();
    }
    updates
}

/// Plays a whole answer.
pub(crate) async fn answer(call: Call, text: &str, reason: FinishReason) {
    let prompt_tokens = call.request.prompt.len();
    let sender = admit(call);
    for update in tokens_of(text) {
        sender.send(Update::Token(update)).await.unwrap();
    }
    sender.send(finished(reason, prompt_tokens, text.len())).await.unwrap();
}

/// What the played cache has of every prompt.
fn known() -> Reuse {
    Reuse { cached: 2, matched: 2, tier: Tier::Ram, missed: Some(Missed::New) }
}

/// The end of an answer, with two tokens of the prompt from the cache.
pub(crate) fn finished(reason: FinishReason, prompt_tokens: usize, completion_tokens: usize) -> Update {
    Update::Finished(Finished {
        reason,
        text: String::new(),
        marks: Vec::new(),
        usage: Usage { prompt_tokens, completion_tokens, cached_tokens: 2, ..Usage::default() },
        reuse: known(),
        timings: Timings {
            queued: Duration::from_millis(5),
            prefill: Duration::from_millis(10),
            decode: Duration::from_millis(20),
        },
    })
}

/// Replaces what differs in every response, after checking its form.
pub(crate) fn timeless(mut response: Value) -> Value {
    let id = response["id"].as_str().unwrap();
    let (prefix, number) = id.split_once('-').unwrap();
    assert!(Uuid::try_parse(number).is_ok(), "{id}");
    response["id"] = Value::from(format!("{prefix}-ID"));
    assert!(response["created"].as_u64().unwrap() > 1_700_000_000);
    response["created"] = Value::from(0);
    response
}

fn model_card() -> ModelCard {
    ModelCard {
        id: "played".to_owned(),
        aliases: vec!["other/name".to_owned()],
        created: 1_750_000_000,
        architecture: "llama".to_owned(),
        context: 4096,
        trained_context: 8192,
        vocabulary: VOCABULARY,
        parameters: 1_000_000,
        file_bytes: 2_000_000,
        stages: 2,
        drafts: DraftSettings::NONE,
        draft_model: None,
    }
}

/// The played model's tokens, and `tags` from 258 on.
pub(crate) fn tokenizer(tags: &[&str]) -> Arc<Tokenizer> {
    let mut vocabulary = vocabulary();
    for tag in tags {
        vocabulary.tokens.push((*tag).into());
        vocabulary.kinds.push(TokenKind::UserDefined);
    }
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

/// Token `b` is byte `b`.
fn vocabulary() -> Vocabulary {
    let mut vocabulary = Vocabulary::new(VocabularyModel::Gpt2);
    vocabulary.pre = "gpt-2".to_owned();
    vocabulary.tokens = byte_alphabet().map(|character| character.to_string().into()).collect();
    vocabulary.kinds = vec![TokenKind::Normal; 256];
    for bracket in ["<|im_start|>", "<|im_end|>"] {
        vocabulary.tokens.push(bracket.into());
        vocabulary.kinds.push(TokenKind::Control);
    }
    vocabulary.eos = Some(END);
    vocabulary
}

/// How byte-level vocabularies spell bytes: printable ones as themselves, others moved up in order.
fn byte_alphabet() -> impl Iterator<Item = char> {
    let mut moved = 256_u32..;
    (0..=255_u32).map(move |byte| match byte {
        33..=126 | 161..=172 | 174..=255 => char::from_u32(byte).unwrap(),
        _ => char::from_u32(moved.next().unwrap()).unwrap(),
    })
}
