//! `POST /v1/messages` and `POST /v1/messages/count_tokens`: the API of Anthropic.

mod block_events;
mod blocks;
mod events;
mod message;
mod request;

use actix_web::{HttpRequest, HttpResponse, web};
use serde::Serialize;
use utoipa::ToSchema;
use uuid::Uuid;

use self::events::MessageEvents;
use self::message::{Blocks, Message, MessageUsage, Stop};
use self::request::MessagesFields;
use crate::answers::{Answers, Progress};
use crate::chat;
use crate::error::Result;
use crate::json::Document;
use crate::server::Host;
use crate::turn::{Spoken, Turn};
use crate::usage::Tally;
use crate::{reuse, sse};

/// How the names of Anthropic's own models begin. Its clients ask for them unless they are told otherwise, some in the
/// middle of their work for a smaller one; they all mean the model that is here.
const THEIR_MODELS: &str = "claude-";

/// How many tokens a conversation has.
#[derive(Debug, Serialize, ToSchema)]
struct TokenCount {
    input_tokens: usize,
}

/// Answers a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages",
    request_body = MessagesFields,
    responses(
        (
            status = 200,
            description = "The answer, in one piece or as events",
            content((Message = "application/json"), (String = "text/event-stream")),
        ),
        (status = "default", description = "Why not", body = crate::openapi::AnthropicErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: MessagesFields = read(&document)?;
    let api = host.texts(fields.model.as_deref()).await?;
    let chat = fields.into_chat()?;
    let call_ids = format!("toolu_{}", Uuid::new_v4().simple());
    let Turn { request: work, spoken, stream, removed } = Turn::prepare(&api, chat, call_ids).await?;
    let answers = Answers::start(&api, &request, vec![work])?;
    let mut response = if stream {
        sse::respond(answers, MessageEvents::new(spoken), &api.config).await?
    } else {
        whole(answers, spoken).await?
    };
    chat::tell_removed(&mut response, removed);
    Ok(response)
}

/// Counts the tokens of a conversation.
#[utoipa::path(
    post,
    path = "/v1/messages/count_tokens",
    request_body = MessagesFields,
    responses(
        (status = 200, description = "The answer", body = TokenCount),
        (status = "default", description = "Why not", body = crate::openapi::AnthropicErrorBody),
    ),
)]
pub(crate) async fn count(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: MessagesFields = read(&document)?;
    let api = host.texts(fields.model.as_deref()).await?;
    let chat = fields.into_count()?;
    let turn = Turn::prepare(&api, chat, String::new()).await?;
    Ok(HttpResponse::Ok().json(TokenCount { input_tokens: turn.spoken.prompt_tokens }))
}

fn read(document: &Document) -> Result<MessagesFields> {
    let mut fields: MessagesFields = document.read()?;
    if fields.model.as_deref().is_some_and(|model| model.starts_with(THEIR_MODELS)) {
        fields.model = None;
    }
    Ok(fields)
}

async fn whole(mut answers: Answers, mut spoken: Spoken) -> Result<HttpResponse> {
    let (mut blocks, mut tally) = (Blocks::default(), Tally::default());
    let mut message = None;
    while let Some((_, progress)) = answers.next().await {
        match progress {
            Progress::Admitted(_) => {}
            Progress::Token(update) => spoken.token(&update).into_iter().for_each(|part| blocks.push(part)),
            Progress::Finished(finished) => {
                spoken.finished(&finished).into_iter().for_each(|part| blocks.push(part));
                let stop = Stop::new(&finished, spoken.has_calls(), spoken.context);
                tally.add(&finished, true);
                message = Some((stop, MessageUsage::of(&finished)));
            }
            Progress::Failed(error) => return Err(error),
        }
    }
    tally.record();
    let (stop, usage) = message.ok_or_else(Answers::without_end)?;
    let message = Message::complete(spoken.model, blocks.finish(), stop, usage);
    Ok(reuse::tell(HttpResponse::Ok(), tally.reuse()).json(message))
}
