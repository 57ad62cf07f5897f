//! `POST /tokenize` and `POST /detokenize`.

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_text::{Special, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use crate::error::{Error, Result};
use crate::json::Document;
use crate::prompt::{self, Conversation};
use crate::server::Api;

/// A text or a conversation.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct TokenizeFields {
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
pub(crate) async fn tokenize(api: web::Data<Api>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &api.config).await?;
    let answer = Api::in_background(&api, move |api| encode(api, document.read()?)).await?;
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
pub(crate) async fn detokenize(api: web::Data<Api>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &api.config).await?;
    let answer = Api::in_background(&api, move |api| decode(api, document.read()?)).await?;
    Ok(HttpResponse::Ok().json(answer))
}

fn encode(api: &Api, fields: TokenizeFields) -> Result<Value> {
    let with_pieces = fields.with_pieces.unwrap_or(false);
    let tokens = tokens_of(api, fields)?;
    let count = tokens.len();
    if !with_pieces {
        return Ok(json!({ "tokens": tokens, "count": count }));
    }
    let tokenizer = api.engine.tokenizer();
    let pieces: Vec<Value> = tokens.iter().map(|token| piece(tokenizer, *token)).collect();
    Ok(json!({ "tokens": pieces, "count": count }))
}

fn tokens_of(api: &Api, fields: TokenizeFields) -> Result<Vec<u32>> {
    let limit = api.config.prompt_bytes;
    match (fields.content, fields.messages) {
        (Some(text), None) => {
            prompt::check_length("content", text.len(), limit)?;
            let special = if fields.parse_special.unwrap_or(true) { Special::Parse } else { Special::Plain };
            Ok(api.engine.tokenizer().encode(&text, special, fields.add_special.unwrap_or(false)))
        }
        (None, Some(messages)) => {
            let variables = fields.chat_template_kwargs.unwrap_or_default();
            let conversation = Conversation { messages, tools: fields.tools, variables, ..Conversation::default() };
            Ok(prompt::encode_conversation(api, conversation)?.tokens)
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

fn decode(api: &Api, fields: DetokenizeFields) -> Result<Value> {
    let ids = fields.tokens.ok_or_else(|| Error::parameter("tokens", "tokens is missing, send a list of token ids"))?;
    // Models may have more rows than their vocabulary has tokens; those rows have no text.
    let tokens = prompt::check_tokens("tokens", &ids, api.engine.tokenizer().vocabulary_size())?;
    Ok(json!({ "content": api.engine.tokenizer().decode_with_special(&tokens)? }))
}
