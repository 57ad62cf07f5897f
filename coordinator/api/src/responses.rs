//! `POST /v1/responses` and the pages of responses that are kept: the newer API of OpenAI.

mod events;
mod items;
mod output;
mod request;
mod response;
mod shelf;
mod store;
mod tools;

use std::sync::Arc;

use actix_web::{HttpMessage, HttpRequest, HttpResponse, web};
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use self::events::ResponseEvents;
use self::request::{Asked, ResponsesFields};
use self::response::Telling;
pub(crate) use self::shelf::Kept;
pub use self::store::{ResponseLimits, ResponseShelf};
use crate::answers::{Answers, Progress};
use crate::caller::Account;
use crate::chat;
use crate::error::{Error, Result};
use crate::json::Document;
use crate::server::{Host, in_background};
use crate::turn::Turn;
use crate::{reuse, sse};

/// The answer to `DELETE /v1/responses/{id}`.
#[derive(Debug, Serialize, ToSchema)]
struct Deleted {
    id: String,
    object: &'static str,
    deleted: bool,
}

/// The answer to `GET /v1/responses/{id}/input_items`.
#[derive(Debug, Serialize, ToSchema)]
struct ItemList<'r> {
    object: &'static str,
    #[schema(value_type = Vec<Object>)]
    data: &'r [Value],
    first_id: Option<&'r str>,
    last_id: Option<&'r str>,
    has_more: bool,
}

/// Answers a conversation, or goes on with one that was kept.
#[utoipa::path(
    post,
    path = "/v1/responses",
    request_body = ResponsesFields,
    responses(
        (
            status = 200,
            description = "The answer, in one piece or as events",
            content((response::Response = "application/json"), (String = "text/event-stream")),
        ),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: ResponsesFields = document.read()?;
    let owner = owner_of(&request);
    let before = match fields.previous() {
        Some(id) => host.kept.get(id, &owner)?.messages.clone(),
        None => Vec::new(),
    };
    let Asked { chat, input, messages, tools, store, echo } = fields.ask(before)?;
    let call_ids = items::new_id("call");
    let api = host.texts(document.model()?.as_deref()).await?;
    let Turn { request: work, spoken, stream, removed } = Turn::prepare(&api, chat, call_ids).await?;
    let answers = Answers::start(&api, &request, vec![work])?;
    let keeping = store.then(|| response::Keeping { kept: Arc::clone(&host.kept), owner, input, messages });
    let telling = Telling::new(spoken, tools, echo, keeping);
    let mut response = if stream {
        sse::respond(answers, ResponseEvents::new(telling), &api.config).await?
    } else {
        whole(answers, telling).await?
    };
    chat::tell_removed(&mut response, removed);
    Ok(response)
}

/// A response that was kept.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The response", body = response::Response),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn show(host: web::Data<Host>, request: HttpRequest, id: web::Path<String>) -> Result<HttpResponse> {
    let record = host.kept.get(&id, &owner_of(&request))?;
    Ok(HttpResponse::Ok().json(&record.response))
}

/// What it was asked with.
#[utoipa::path(
    get,
    path = "/v1/responses/{id}/input_items",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "The items", body = ItemList),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn input_items(
    host: web::Data<Host>,
    request: HttpRequest,
    id: web::Path<String>,
) -> Result<HttpResponse> {
    let record = host.kept.get(&id, &owner_of(&request))?;
    let id_of = |item: Option<&'_ Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
    let (first, last) = (id_of(record.input.first()), id_of(record.input.last()));
    Ok(HttpResponse::Ok().json(ItemList {
        object: "list",
        data: &record.input,
        first_id: first.as_deref(),
        last_id: last.as_deref(),
        has_more: false,
    }))
}

/// Forgets a response.
#[utoipa::path(
    delete,
    path = "/v1/responses/{id}",
    params(("id" = String, Path, description = "Its id")),
    responses(
        (status = 200, description = "It is forgotten", body = Deleted),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn remove(host: web::Data<Host>, request: HttpRequest, id: web::Path<String>) -> Result<HttpResponse> {
    let owner = owner_of(&request);
    let id = id.into_inner();
    let forgotten = id.clone();
    in_background(move || host.kept.remove(&forgotten, &owner)).await?;
    Ok(HttpResponse::Ok().json(Deleted { id, object: "response", deleted: true }))
}

/// Whose responses a request may see.
fn owner_of(request: &impl HttpMessage) -> String {
    Account::of(request).caller().map(|caller| caller.name().to_owned()).unwrap_or_default()
}

async fn whole(mut answers: Answers, mut telling: Telling) -> Result<HttpResponse> {
    while let Some((_, progress)) = answers.next().await {
        match progress {
            Progress::Admitted(_) => {}
            Progress::Token(update) => drop(telling.token(&update)),
            Progress::Finished(finished) => drop(telling.finished(&finished)),
            Progress::Failed(error) => return Err(error),
        }
    }
    let reuse = telling.reuse();
    let response = telling.complete().ok_or_else(Answers::without_end)?;
    Ok(reuse::tell(HttpResponse::Ok(), reuse).json(response))
}

/// A response that is not kept, or no longer.
fn not_found(id: &str) -> Error {
    Error::ResponseNotFound { id: id.to_owned() }
}
