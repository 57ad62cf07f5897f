//! `POST /tokenize` and `POST /detokenize`.

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_text::{Special, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::json::Document;
use crate::prompt::{self, Conversation};
use crate::server::{Host, in_background};
use crate::serving::{Served, Serving, Task};

/// A text or a conversation.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct TokenizeFields {
    model: Option<String>,
    #[serde(alias = "prompt")]
    content: Option<String>,
    #[schema(value_type = Option<Vec<crate::openapi::ChatMessage>>)]
    messages: Option<Vec<Value>>,
    tools: Option<Vec<Value>>,
    chat_template_kwargs: Option<Map<String, Value>>,
    #[serde(alias = "add_special_tokens")]
    add_special: Option<bool>,
    parse_special: Option<bool>,
    with_pieces: Option<bool>,
}

#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct DetokenizeFields {
    model: Option<String>,
    tokens: Option<Vec<i64>>,
}

/// The tokens of a text, or those that a conversation would be answered from.
#[utoipa::path(
    post,
    path = "/tokenize",
    request_body = TokenizeFields,
    responses(
        (status = 200, description = "The tokens", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn tokenize(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: TokenizeFields = document.read()?;
    // Conversations need a template, texts only tokens.
    let task = if fields.messages.is_some() { Task::Texts } else { Task::Anything };
    let serving = host.open(fields.model.as_deref(), task).await?;
    let answer = in_background(move || encode(&host, &serving, fields)).await?;
    Ok(HttpResponse::Ok().json(answer))
}

/// The text of tokens.
#[utoipa::path(
    post,
    path = "/detokenize",
    request_body = DetokenizeFields,
    responses(
        (status = 200, description = "The text", body = Object),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn detokenize(
    host: web::Data<Host>,
    request: HttpRequest,
    body: web::Payload,
) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: DetokenizeFields = document.read()?;
    let serving = host.open(fields.model.as_deref(), Task::Anything).await?;
    let answer = in_background(move || decode(&serving.served, fields)).await?;
    Ok(HttpResponse::Ok().json(answer))
}

fn encode(host: &Host, serving: &Serving, fields: TokenizeFields) -> Result<Value> {
    let with_pieces = fields.with_pieces.unwrap_or(false);
    let tokens = tokens_of(host, serving, fields)?;
    let count = tokens.len();
    if !with_pieces {
        return Ok(json!({ "tokens": tokens, "count": count }));
    }
    let tokenizer = serving.served.tokenizer();
    let pieces: Vec<Value> = tokens.iter().map(|token| piece(tokenizer, *token)).collect();
    Ok(json!({ "tokens": pieces, "count": count }))
}

fn tokens_of(host: &Host, serving: &Serving, fields: TokenizeFields) -> Result<Vec<u32>> {
    let limit = host.config.prompt_bytes;
    match (fields.content, fields.messages) {
        (Some(text), None) => {
            prompt::check_length("content", text.len(), limit)?;
            let special = if fields.parse_special.unwrap_or(true) { Special::Parse } else { Special::Plain };
            Ok(serving.served.tokenizer().encode(&text, special, fields.add_special.unwrap_or(false)))
        }
        (None, Some(messages)) => {
            let variables = fields.chat_template_kwargs.unwrap_or_default();
            let conversation = Conversation { messages, tools: fields.tools, variables, ..Conversation::default() };
            Ok(prompt::encode_conversation(&host.texts_of(serving.clone())?, conversation)?.tokens)
        }
        (Some(_), Some(_)) => Err(Error::parameter("content", "content and messages are both given, send one")),
        (None, None) => Err(Error::parameter("content", "content is missing, send a text or messages")),
    }
}

/// A token with its text, or its bytes where they are no text.
fn piece(tokenizer: &Tokenizer, token: u32) -> Value {
    let bytes = tokenizer.token_bytes(token);
    match std::str::from_utf8(bytes) {
        Ok(text) => json!({ "id": token, "piece": text }),
        Err(_) => json!({ "id": token, "piece": bytes }),
    }
}

fn decode(served: &Served, fields: DetokenizeFields) -> Result<Value> {
    let ids = fields.tokens.ok_or_else(|| Error::parameter("tokens", "tokens is missing, send a list of token ids"))?;
    // Models may have more rows than their vocabulary has tokens; those rows have no text.
    let tokens = prompt::check_tokens("tokens", &ids, served.tokenizer().vocabulary_size())?;
    Ok(json!({ "content": served.tokenizer().decode_with_special(&tokens)? }))
}
