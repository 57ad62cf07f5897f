//! `POST /v1/embeddings`: vectors of texts.

mod vector;

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use actix_web::{HttpRequest, HttpResponse, web};
use metrics::{counter, histogram};
use paceline_coordinator::Embedder;
use paceline_proto::EncodeText;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::{Instant, timeout};
use utoipa::ToSchema;

use self::vector::{Vector, normalized};
use crate::caller::Account;
use crate::error::{Error, Result};
use crate::json::Document;
use crate::prompt;
use crate::server::{Host, in_background};
use crate::serving::Task;
use crate::settings::integer;

/// The most texts of one request, as OpenAI has it.
const MAX_TEXTS: usize = 2048;

/// A request for vectors.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct EmbeddingsFields {
    model: Option<String>,
    input: Option<Input>,
    encoding_format: Option<Encoding>,
    /// Only the first values, normalized again: for models that were trained for it.
    dimensions: Option<i64>,
    /// Of no consequence.
    user: Option<Value>,
}

/// One or several texts, or their tokens. Tokens are read as they are, without those that begin and end a text.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a string, a list of strings, a list of token ids or a list of such lists")]
enum Input {
    Text(String),
    Texts(Vec<String>),
    Tokens(Vec<i64>),
    TokenLists(Vec<Vec<i64>>),
}

/// How vectors are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    /// As numbers.
    #[default]
    Float,
    /// As the bytes of 32-bit floats, lowest first, in base64: exact, and a third of the size.
    Base64,
}

/// The vectors.
#[derive(Debug, Serialize, ToSchema)]
struct EmbeddingList {
    object: &'static str,
    data: Vec<Embedding>,
    model: String,
    usage: EmbeddingUsage,
}

/// The vector of one text.
#[derive(Debug, Serialize, ToSchema)]
struct Embedding {
    object: &'static str,
    /// Which text, from 0.
    index: usize,
    embedding: Vector,
}

/// What the texts took.
#[derive(Debug, Clone, Copy, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingUsage {
    pub(crate) fn new(tokens: usize) -> Self {
        Self { prompt_tokens: tokens, total_tokens: tokens }
    }
}

/// Makes vectors of texts.
#[utoipa::path(
    post,
    path = "/v1/embeddings",
    request_body = EmbeddingsFields,
    responses(
        (status = 200, description = "The vectors", body = EmbeddingList),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let document = Document::receive(&request, body, &host.config).await?;
    let fields: EmbeddingsFields = document.read()?;
    let (embedder, held) = host.vectors(fields.model.as_deref(), Task::Vectors).await?;
    let width = embedder.card().dimensions;
    let dimensions = integer("dimensions", fields.dimensions, 1, width as u64)?.map_or(width, |count| count as usize);
    let encoding = fields.encoding_format.unwrap_or_default();
    let input =
        fields.input.ok_or_else(|| Error::parameter("input", "input is missing, send a text or a list of texts"))?;
    let (limit, reader) = (host.config.prompt_bytes, embedder.clone());
    let texts = in_background(move || input.read(&reader, limit)).await?;
    let (vectors, tokens) = read_texts(&embedder, held, &request, texts, host.config.request_deadline).await?;
    let data = vectors.into_iter().enumerate().map(|(index, vector)| Embedding {
        object: "embedding",
        index,
        embedding: Vector::new(normalized(vector, dimensions), encoding),
    });
    let (data, usage, model) = (data.collect(), EmbeddingUsage::new(tokens), embedder.card().id.clone());
    Ok(HttpResponse::Ok().json(EmbeddingList { object: "list", data, model, usage }))
}

/// Has texts read by the model, and counts them for whoever asks. Returns what came of each, and all their tokens.
pub(crate) async fn read_texts(
    embedder: &Embedder,
    _held: Arc<dyn Any + Send + Sync>,
    request: &HttpRequest,
    texts: Vec<EncodeText>,
    deadline: Duration,
) -> Result<(Vec<Vec<f32>>, usize)> {
    let (began, count) = (Instant::now(), texts.len());
    let tokens = texts.iter().map(|text| text.tokens.len()).sum();
    let _permit = Account::of(request).open(1, tokens)?;
    let late = |_| Error::Deadline { seconds: deadline.as_secs() };
    let vectors = timeout(deadline, embedder.encode(texts)).await.map_err(late)??;
    let model = embedder.card().id.clone();
    counter!("paceline_embedded_texts_total", "model" => model.clone()).increment(count as u64);
    counter!("paceline_embedded_tokens_total", "model" => model.clone()).increment(tokens as u64);
    histogram!("paceline_embedding_seconds", "model" => model).record(began.elapsed().as_secs_f64());
    Ok((vectors, tokens))
}

impl Input {
    fn read(self, embedder: &Embedder, limit: usize) -> Result<Vec<EncodeText>> {
        let count = self.count();
        if !(1..=MAX_TEXTS).contains(&count) {
            return Err(Error::parameter(
                "input",
                format!("input has {count} texts, from 1 to {MAX_TEXTS} are possible"),
            ));
        }
        let vocabulary = embedder.card().vocabulary;
        let tokens = |param: &str, ids: &[i64]| -> Result<EncodeText> {
            if ids.is_empty() {
                return Err(Error::parameter(param, format!("{param} is empty, send at least one token")));
            }
            Ok(EncodeText::single(prompt::check_tokens(param, ids, vocabulary)?))
        };
        match self {
            Self::Text(text) => Ok(vec![read_text(embedder, "input", &text, limit)?]),
            Self::Texts(texts) => {
                check_total("input", &texts, limit)?;
                let numbered = texts.iter().enumerate();
                numbered.map(|(index, text)| read_text(embedder, &format!("input[{index}]"), text, limit)).collect()
            }
            Self::Tokens(ids) => Ok(vec![tokens("input", &ids)?]),
            Self::TokenLists(lists) => {
                lists.iter().enumerate().map(|(index, ids)| tokens(&format!("input[{index}]"), ids)).collect()
            }
        }
    }

    fn count(&self) -> usize {
        match self {
            Self::Text(_) | Self::Tokens(_) => 1,
            Self::Texts(texts) => texts.len(),
            Self::TokenLists(lists) => lists.len(),
        }
    }
}

/// All texts of a request together may have as many bytes as a prompt.
pub(crate) fn check_total(param: &str, texts: &[String], limit: usize) -> Result<()> {
    prompt::check_length(param, texts.iter().map(String::len).sum(), limit)
}

fn read_text(embedder: &Embedder, param: &str, text: &str, limit: usize) -> Result<EncodeText> {
    if text.is_empty() {
        return Err(Error::parameter(
            param,
            format!("{param} is an empty string, there is nothing to make a vector of"),
        ));
    }
    prompt::check_length(param, text.len(), limit)?;
    let read = embedder.text(text);
    let (tokens, context) = (read.tokens.len(), embedder.card().context);
    if tokens > context {
        let problem = format!("{param} has {tokens} tokens, the model reads {context} at most; cut it into parts");
        return Err(Error::TooLong { param: param.to_owned(), problem });
    }
    Ok(read)
}
