//! `GET /openapi.json`: the description of every page, generated from the code that serves them.
//!
//! Handlers are described where they are, and bodies by the structs that read and write them. What is read more freely than a
//! struct can say, such as messages, is described by the structs here.

use std::sync::LazyLock;

use actix_web::HttpResponse;
use serde::Serialize;
use utoipa::{OpenApi, ToSchema};

use crate::{cache, chat, completions, embeddings, messages, models, page, rerank, responses, scale, status, tokenize};

/// Made once; it never changes.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| {
    let description = Description::openapi();
    serde_json::to_string(&description).expect("a description has text keys and is written to memory")
});

/// All pages.
#[derive(OpenApi)]
#[openapi(
    info(title = "Paceline", description = "One large language model, over the APIs that clients already speak."),
    paths(
        chat::create,
        completions::create,
        responses::create,
        responses::show,
        responses::remove,
        responses::input_items,
        messages::create,
        messages::count,
        embeddings::create,
        rerank::create,
        models::list,
        models::show,
        tokenize::tokenize,
        tokenize::detokenize,
        page::show,
        page::file,
        status::health,
        status::live,
        status::metrics,
        status::report,
        scale::create,
        cache::list,
        cache::pin,
        cache::unpin,
        cache::forget,
        show,
    )
)]
struct Description;

/// The description itself.
#[utoipa::path(
    get,
    path = "/openapi.json",
    responses((status = 200, description = "This description", body = Object)),
)]
pub(crate) async fn show() -> HttpResponse {
    HttpResponse::Ok().content_type("application/json").body(DESCRIPTION.as_str())
}

/// An error of the pages in the shape of OpenAI.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs writes")]
pub(crate) struct ErrorBody {
    error: ErrorCard,
}

/// What went wrong.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs writes")]
struct ErrorCard {
    /// For people.
    message: String,
    /// The kind: whose fault it is.
    #[serde(rename = "type")]
    kind: String,
    /// The field of the request that it is about.
    #[schema(required)]
    param: Option<String>,
    /// For programs.
    code: String,
}

/// An error of the pages in the shape of Anthropic.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs writes")]
pub(crate) struct AnthropicErrorBody {
    /// Always `error`.
    #[serde(rename = "type")]
    kind: String,
    error: AnthropicErrorCard,
    /// The same as in the header.
    request_id: Option<String>,
}

/// What went wrong.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what error.rs writes")]
struct AnthropicErrorCard {
    /// The kind: whose fault it is.
    #[serde(rename = "type")]
    kind: String,
    /// For people.
    message: String,
}

/// A message of a chat.
#[derive(ToSchema)]
#[expect(dead_code, reason = "describes what prompt.rs reads")]
pub(crate) struct ChatMessage {
    role: ChatRole,
    /// A text, or parts of type `text`. The assistant may have called tools instead.
    content: Option<ChatContent>,
    /// Calls of tools, in the shape of OpenAI.
    tool_calls: Option<Vec<serde_json::Value>>,
    /// Which call a message of a tool answers.
    tool_call_id: Option<String>,
}

/// Who speaks.
#[derive(ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "describes what prompt.rs reads")]
enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

/// A text, or parts.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what prompt.rs reads")]
enum ChatContent {
    Text(String),
    Parts(Vec<TextPart>),
}

/// A part of a text.
#[derive(Serialize, ToSchema)]
struct TextPart {
    #[serde(rename = "type")]
    kind: TextPartKind,
    text: String,
}

/// Texts alone.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
#[expect(dead_code, reason = "describes what prompt.rs reads")]
enum TextPartKind {
    Text,
}

/// A block of content in the shape of Anthropic.
#[derive(Serialize, ToSchema)]
pub(crate) struct ContentBlock {
    #[serde(rename = "type")]
    kind: ContentBlockKind,
    /// Of a `text`.
    text: Option<String>,
    /// Of `thinking`.
    thinking: Option<String>,
    /// Of `tool_use`.
    id: Option<String>,
    /// Of `tool_use`.
    name: Option<String>,
    /// Of `tool_use`.
    #[schema(value_type = Option<Object>)]
    input: Option<serde_json::Value>,
    /// Of `tool_result`.
    tool_use_id: Option<String>,
    /// Of `tool_result`: a text or blocks.
    content: Option<serde_json::Value>,
    /// Of `tool_result`.
    is_error: Option<bool>,
    /// Of `document`, which must be text.
    #[schema(value_type = Option<Object>)]
    source: Option<serde_json::Value>,
}

/// The kinds that are served.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what messages/blocks.rs reads")]
enum ContentBlockKind {
    Text,
    Document,
    ToolUse,
    ToolResult,
    Thinking,
    RedactedThinking,
}

/// An item of the input of a response.
#[derive(Serialize, ToSchema)]
pub(crate) struct InputItem {
    /// A message if there is none.
    #[serde(rename = "type")]
    kind: Option<InputItemKind>,
    /// Of a message.
    role: Option<String>,
    /// Of a message: a text or parts.
    content: Option<serde_json::Value>,
    /// Of a call, and of what it gave.
    call_id: Option<String>,
    /// Of a call.
    name: Option<String>,
    /// Of a call: JSON as a text.
    arguments: Option<String>,
    /// Of what a call gave: a text or parts.
    output: Option<serde_json::Value>,
}

/// The kinds that are served.
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[expect(dead_code, reason = "describes what responses/items.rs reads")]
enum InputItemKind {
    Message,
    Reasoning,
    FunctionCall,
    FunctionCallOutput,
    CustomToolCall,
    CustomToolCallOutput,
}

/// A text, or blocks.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what messages/request.rs reads")]
pub(crate) enum MessageContent {
    Text(String),
    Blocks(Vec<ContentBlock>),
}

/// A text, or items.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "describes what responses/request.rs reads")]
pub(crate) enum ResponseInput {
    Text(String),
    Items(Vec<InputItem>),
}
