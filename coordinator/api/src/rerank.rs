//! `POST /v1/rerank`: how well documents fit a query, in the shape that clients of Cohere, Jina and vLLM know.
//!
//! Only a cross-encoder does that, which reads query and document together. Distances between vectors are something else,
//! and are not passed off as it.

use actix_web::{HttpRequest, HttpResponse, web};
use paceline_coordinator::Embedder;
use paceline_proto::EncodeText;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::embeddings::{EmbeddingUsage, check_total, read_texts};
use crate::error::{Error, Result};
use crate::json::Document as Body;
use crate::prompt;
use crate::server::{Host, in_background};
use crate::serving::Task;
use crate::settings::integer;

/// The most documents of one request.
const MAX_DOCUMENTS: usize = 2048;

/// A query, and documents to be put in order.
#[derive(Debug, Default, Deserialize, Serialize, ToSchema)]
#[serde(default)]
struct RerankFields {
    model: Option<String>,
    query: Option<String>,
    documents: Option<Vec<Document>>,
    /// Only so many results, the best.
    top_n: Option<i64>,
    /// Whether results have the texts with them.
    return_documents: Option<bool>,
    /// Whether documents that are too long are cut at their end, and not refused.
    truncate: Option<bool>,
    /// Scores as the model gives them, of any size, and not between 0 and 1.
    raw_scores: Option<bool>,
}

/// A text, by itself or in an object.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a string or an object with a text")]
enum Document {
    Text(String),
    Object { text: String },
}

/// Documents with their scores, the best first.
#[derive(Debug, Serialize, ToSchema)]
struct Reranked {
    id: String,
    object: &'static str,
    model: String,
    usage: EmbeddingUsage,
    results: Vec<Ranked>,
}

/// How well a document fits.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct Ranked {
    /// Which document, from 0.
    index: usize,
    relevance_score: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RankedText>,
}

#[derive(Debug, PartialEq, Serialize, ToSchema)]
struct RankedText {
    text: String,
}

/// Puts documents in the order in which they fit a query.
#[utoipa::path(
    post,
    path = "/v1/rerank",
    request_body = RerankFields,
    responses(
        (status = 200, description = "The documents' scores", body = Reranked),
        (status = "default", description = "Why not", body = crate::openapi::ErrorBody),
    ),
)]
pub(crate) async fn create(host: web::Data<Host>, request: HttpRequest, body: web::Payload) -> Result<HttpResponse> {
    let fields: RerankFields = Body::receive(&request, body, &host.config).await?.read()?;
    let (embedder, held) = host.vectors(fields.model.as_deref(), Task::Scores).await?;
    let top = integer("top_n", fields.top_n, 1, u64::from(u32::MAX))?.map_or(usize::MAX, |count| count as usize);
    let (shown, raw) = (fields.return_documents.unwrap_or(false), fields.raw_scores.unwrap_or(false));
    let (limit, reader) = (host.config.prompt_bytes, embedder.clone());
    let (texts, pairs) = in_background(move || fields.read(&reader, limit)).await?;
    let (scores, tokens) = read_texts(&embedder, held, &request, pairs, host.config.request_deadline).await?;
    let scores = scores.iter().map(|score| relevance(score.first().copied().unwrap_or(f32::NAN), raw));
    Ok(HttpResponse::Ok().json(Reranked {
        id: format!("rerank-{}", Uuid::new_v4().simple()),
        object: "list",
        model: embedder.card().id.clone(),
        usage: EmbeddingUsage::new(tokens),
        results: ranked(scores, shown.then_some(texts), top),
    }))
}

impl RerankFields {
    /// The documents' texts, and what the model reads of each.
    fn read(self, embedder: &Embedder, limit: usize) -> Result<(Vec<String>, Vec<EncodeText>)> {
        let query = self.query.filter(|query| !query.is_empty());
        let query = query.ok_or_else(|| Error::parameter("query", "query is missing or empty, send a text"))?;
        let missing = || Error::parameter("documents", "documents is missing, send a list of texts");
        let texts: Vec<String> = self.documents.ok_or_else(missing)?.into_iter().map(Document::into_text).collect();
        let count = texts.len();
        if !(1..=MAX_DOCUMENTS).contains(&count) {
            let problem = format!("documents has {count} texts, from 1 to {MAX_DOCUMENTS} are possible");
            return Err(Error::parameter("documents", problem));
        }
        prompt::check_length("query", query.len(), limit)?;
        check_total("documents", &texts, limit)?;
        let truncate = self.truncate.unwrap_or(false);
        let pair = |(index, text): (usize, &String)| read_pair(embedder, &query, index, text, truncate);
        let pairs = texts.iter().enumerate().map(pair).collect::<Result<_>>()?;
        Ok((texts, pairs))
    }
}

fn read_pair(embedder: &Embedder, query: &str, index: usize, text: &str, truncate: bool) -> Result<EncodeText> {
    let mut pair = embedder.pair(query, text);
    let (tokens, context) = (pair.tokens.len(), embedder.card().context);
    let begins = pair.second.unwrap_or(tokens);
    if tokens > context && (!truncate || begins + 1 >= context) {
        let problem = format!(
            "query and documents[{index}] have {tokens} tokens together ({begins} of them the query's), the model reads \
             {context} at most; cut them, or set truncate"
        );
        return Err(Error::TooLong { param: format!("documents[{index}]"), problem });
    }
    if tokens > context {
        // What ends a text stays its end.
        let end = pair.tokens[tokens - 1];
        pair.tokens.truncate(context - 1);
        pair.tokens.push(end);
    }
    Ok(pair)
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object { text } => text,
        }
    }
}

/// Between 0 and 1, as clients expect it, unless it is wanted raw.
fn relevance(score: f32, raw: bool) -> f64 {
    let score = f64::from(score);
    if raw { score } else { 1.0 / (1.0 + (-score).exp()) }
}

/// The best first; of those that fit equally well, the one that came first.
fn ranked(scores: impl Iterator<Item = f64>, mut texts: Option<Vec<String>>, top: usize) -> Vec<Ranked> {
    let mut order: Vec<(usize, f64)> = scores.enumerate().collect();
    order.sort_by(|(_, one), (_, other)| other.total_cmp(one));
    let told = order.into_iter().take(top).map(|(index, relevance_score)| {
        let text = texts.as_mut().map(|texts| RankedText { text: std::mem::take(&mut texts[index]) });
        Ranked { index, relevance_score, document: text }
    });
    told.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first_and_equals_in_their_order() {
        let texts = || Some(["a", "b", "c"].map(str::to_owned).to_vec());
        let told = ranked([0.2, 0.9, 0.2].into_iter(), texts(), 9);
        assert_eq!(told.iter().map(|told| told.index).collect::<Vec<_>>(), [1, 0, 2]);
        assert_eq!(told[2].document, Some(RankedText { text: "c".to_owned() }));
        let told = ranked([0.2, 0.9, 0.2].into_iter(), None, 1);
        assert_eq!(told, [Ranked { index: 1, relevance_score: 0.9, document: None }]);
    }

    #[test]
    fn relevance_is_between_nothing_and_one() {
        assert_eq!((relevance(0.0, false), relevance(-3.5, true)), (0.5, -3.5));
        assert!(relevance(30.0, false) > 0.999 && relevance(-30.0, false) < 0.001);
    }
}
