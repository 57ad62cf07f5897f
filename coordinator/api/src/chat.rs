//! `POST /v1/chat/completions`.

mod completion;
mod events;
mod fields;

use std::sync::Arc;

use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::{Engine, Generate};
use paceline_text::{AnswerParser, Tokenizer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use self::fields::ChatFields;
use crate::answers::Answers;
use crate::error::Result;
use crate::head::Head;
use crate::json::Document;
use crate::prompt::{self, Prompt};
use crate::server::{Api, Host};
use crate::settings::{CommonFields, Delivery};
use crate::structure::StructureFields;
use crate::unserved::UnservedFields;
use crate::{reuse, sse, transcript};

/// Says what was taken out of the messages ([`ClientNoise`](paceline_text::ClientNoise)).
const REMOVED: HeaderName = HeaderName::from_static("x-paceline-removed");

/// The whole request.
#[derive(ToSchema, Deserialize, Serialize)]
struct ChatRequest {
    #[serde(flatten)]
    chat: ChatFields,
    #[serde(flatten)]
    structure: StructureFields,
    #[serde(flatten)]
    common: CommonFields,
}

/// Fields that are refused elsewhere.
const SERVED: [&str; 10] = [
    "grammar",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "json_schema",
    "response_format",
    "structured_outputs",
    "thinking_budget_tokens",
    "tool_choice",
];

/// What the answers are told with.
pub(crate) struct Reply {
    head: Head,
    tokenizer: Arc<Tokenizer>,
    pub(crate) delivery: Delivery,
    logprobs: bool,
    prompt: Prompt,
}

impl Reply {
    fn new(engine: &Engine, delivery: Delivery, logprobs: bool, prompt: Prompt) -> Self {
        let object = if delivery.stream { "chat.completion.chunk" } else { "chat.completion" };
        let head = Head::new("chatcmpl", object, &engine.model().id);
        Self { head, tokenizer: Arc::clone(engine.tokenizer()), delivery, logprobs, prompt }
    }

    /// A parser for an answer, whose calls have ids that begin with `call_ids`.
    pub(crate) fn parser(&self, call_ids: String) -> AnswerParser {
        self.prompt.answer.parser(call_ids)
    }

    /// One for each choice.
    fn parsers(&self) -> Vec<AnswerParser> {
        let parser = |_| self.parser(format!("call_{}", Uuid::new_v4().simple()));
        (0..self.delivery.choices).map(parser).collect()
    }

    /// The name of a line that was taken out of the messages, where one was.
    pub(crate) fn removed(&self) -> Option<&'static str> {
        self.prompt.removed.first().map(|removed| removed.noise.name())
    }

    /// The ids of the prompt's tokens, if they were asked for.
    fn prompt_token_ids(&self) -> Option<&[u32]> {
        self.delivery.token_ids.then_some(&self.prompt.tokens)
    }
}

/// An answer that calls tools ends with that, unless it was cut short.
fn finish_reason(reason: &'static str, calls: bool) -> &'static str {
    if calls && reason == "stop" { "tool_calls" } else { reason }
}

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/chat/completions",
    request_body = ChatRequest,
    responses(
        (
            status = 200,
            description = "The answer, in one piece or as events",
            content((completion::ChatCompletion = "application/json"), (String = "text/event-stream")),
        ),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let api = host.texts(document.model()?.as_deref()).await?;
    let (requests, reply) = Api::in_background(&api, move |api| prepare(api, &document)).await?;
    let answers = Answers::start(&api, &request, requests)?;
    let removed = reply.removed();
    let mut response = if reply.delivery.stream {
        sse::respond(answers, events::ChatEvents::new(reply), &api.config).await?
    } else {
        let choices = reply.delivery.choices;
        let (transcripts, tally) = transcript::collect(answers, reply.parsers(), choices).await?;
        tally.record();
        let completion = completion::ChatCompletion::new(&reply, transcripts, &tally);
        reuse::tell(HttpResponse::Ok(), tally.reuse()).json(completion)
    };
    tell_removed(&mut response, removed);
    Ok(response)
}

/// Says what was taken out of the messages.
pub(crate) fn tell_removed(response: &mut HttpResponse, removed: Option<&'static str>) {
    if let Some(name) = removed {
        response.headers_mut().insert(REMOVED, HeaderValue::from_static(name));
    }
}

/// From the body to the work to be done; takes time with long conversations.
pub(crate) fn prepare(api: &Api, document: &Document) -> Result<(Vec<Generate>, Reply)> {
    document.read::<UnservedFields>()?.check(&SERVED)?;
    let fields: ChatFields = document.read()?;
    let logprobs = fields.logprobs()?;
    let (settings, delivery) = document.read::<CommonFields>()?.check(api, logprobs)?;
    let structure = document.read::<StructureFields>()?.structure()?;
    let conversation = fields.conversation(structure)?;
    let prompt = prompt::encode_conversation(api, conversation)?;
    let requests = (0..delivery.choices).map(|choice| settings.generate(&prompt, choice)).collect();
    Ok((requests, Reply::new(&api.engine, delivery, logprobs.is_some(), prompt)))
}
