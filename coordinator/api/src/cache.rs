//! `GET /admin/v1/cache` and `POST /admin/v1/cache/{pin,unpin,drop}`: what is remembered, what of it must stay, and what
//! must go.

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::{CacheChange, CacheStatus, CachedPath};
use paceline_text::Tokenizer;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::json::Document;
use crate::prompt::{self, Conversation};
use crate::server::{Api, Host};

/// Paths that are told where nobody says how many.
const USUAL_PATHS: usize = 50;
/// The most paths in one answer.
const MOST_PATHS: usize = 500;

/// What `GET /admin/v1/cache` answers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CacheReport {
    /// Everything together.
    pub totals: CacheStatus,
    /// Texts that are remembered, the last used first.
    pub paths: Vec<PathCard>,
    /// How many more there are.
    pub left_off: usize,
}

/// A text that is remembered: a way through the index to one of its ends.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PathCard {
    /// Its tokens.
    pub tokens: usize,
    /// The text of its first tokens.
    pub begins: String,
    /// The text of its last tokens, where it is longer than what `begins` shows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<String>,
    /// Positions on it at which a recurrent state is kept.
    pub snapshots: Vec<usize>,
    /// Its pages; others may share them.
    pub pages: usize,
    /// How often it was used again.
    pub reuses: u64,
    /// It stays until it is unpinned.
    pub pinned: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ListQuery {
    model: Option<String>,
    limit: Option<usize>,
}

/// Which text: as it would be sent to be answered.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct ChangeFields {
    model: Option<String>,
    prompt: Option<PromptField>,
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or a list of token ids")]
enum PromptField {
    Text(String),
    Tokens(Vec<i64>),
}

/// Says what is remembered.
#[utoipa::path(
    get,
    path = "/admin/v1/cache",
    params(
        ("limit" = Option<usize>, Query, description = "Texts that are listed"),
        ("model" = Option<String>, Query, description = "Whose; the first that writes texts if not given"),
    ),
    responses(
        (status = 200, description = "What is remembered", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn list(host: web::Data<Host>, request: HttpRequest) -> Result<HttpResponse> {
    let query = web::Query::<ListQuery>::from_query(request.query_string());
    let query = query.map_err(|error| Error::parameter("limit", format!("limit: {error}")))?;
    let limit = query.limit.unwrap_or(USUAL_PATHS);
    if limit > MOST_PATHS {
        return Err(Error::parameter("limit", format!("limit is {limit}, the most is {MOST_PATHS}")));
    }
    let api = host.texts(query.model.as_deref()).await?;
    let (totals, list) = (api.engine.status().await?.cache, api.engine.cache(limit).await?);
    let tokenizer = api.engine.tokenizer();
    let paths = list.paths.into_iter().map(|path| card(tokenizer, path)).collect();
    Ok(HttpResponse::Ok().json(CacheReport { totals, paths, left_off: list.left_off }))
}

fn card(tokenizer: &Tokenizer, path: CachedPath) -> PathCard {
    let CachedPath { tokens, begins, ends, snapshots, pages, reuses, pinned } = path;
    let text = |tokens: &[u32]| {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| tokenizer.token_bytes(*token)).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (begins, ends) = (text(&begins), (!ends.is_empty()).then(|| text(&ends)));
    PathCard { tokens, begins, ends, snapshots, pages, reuses, pinned }
}

/// Keeps a text whatever else needs room.
#[utoipa::path(
    post,
    path = "/admin/v1/cache/pin",
    request_body = ChangeFields,
    responses(
        (status = 200, description = "What was changed", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn pin(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    change(host, request, body, CacheChange::Pin).await
}

/// Lets a text go when room is needed.
#[utoipa::path(
    post,
    path = "/admin/v1/cache/unpin",
    request_body = ChangeFields,
    responses(
        (status = 200, description = "What was changed", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn unpin(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    change(host, request, body, CacheChange::Unpin).await
}

/// Forgets a text and all that goes on from it.
#[utoipa::path(
    post,
    path = "/admin/v1/cache/drop",
    request_body = ChangeFields,
    responses(
        (status = 200, description = "What was changed", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn forget(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    change(host, request, body, CacheChange::Drop).await
}

async fn change(
    host: web::Data<Host>,
    request: HttpRequest,
    body: web::Payload,
    change: CacheChange,
) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let api = host.texts(document.model()?.as_deref()).await?;
    let tokens = Api::in_background(&api, move |api| tokens_of(api, document.read()?)).await?;
    Ok(HttpResponse::Ok().json(api.engine.change_cache(change, tokens).await?))
}

fn tokens_of(api: &Api, fields: ChangeFields) -> Result<Vec<u32>> {
    let tokens = match (fields.prompt, fields.messages) {
        (Some(PromptField::Text(text)), None) => prompt::encode_text(&api.engine, &text, api.config.prompt_bytes)?,
        (Some(PromptField::Tokens(ids)), None) => prompt::check_tokens("prompt", &ids, api.engine.model().vocabulary)?,
        (None, Some(messages)) => {
            let variables = fields.chat_template_kwargs.unwrap_or_default();
            let tools = fields.tools.filter(|tools| !tools.is_empty());
            prompt::encode_unanswered(api, Conversation { messages, tools, variables, ..Conversation::default() })?
        }
        (Some(_), Some(_)) => return Err(Error::parameter("prompt", "prompt and messages are both given, send one")),
        (None, None) => {
            let problem = "prompt is missing, send a text, a list of token ids, or messages";
            return Err(Error::parameter("prompt", problem));
        }
    };
    if tokens.is_empty() { Err(Error::parameter("prompt", "prompt has no tokens")) } else { Ok(tokens) }
}
