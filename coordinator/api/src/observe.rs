//! A span, a log line and metrics for every request, until its last byte.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderMap, HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{HttpMessage, HttpResponse};
use bytes::Bytes;
use metrics::{counter, gauge, histogram};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, info, info_span};
use uuid::Uuid;

use crate::caller::Account;
use crate::error::{CLIENT_CLOSED_REQUEST, Error};
use crate::limits::Left;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of all paths that are no pages, so that nobody can make up metrics.
const NO_ENDPOINT: &str = "none";

/// The target of the events that make up the audit log: one for each request.
pub const AUDIT_TARGET: &str = "paceline_audit";

/// The pages whose errors have the shape of Anthropic's.
const ANTHROPIC_PATHS: &str = "/v1/messages";

/// Watches a request from its head to the end of its response.
pub(crate) async fn observe(
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let id = Uuid::new_v4().to_string();
    let endpoint = request.match_pattern().unwrap_or_else(|| NO_ENDPOINT.to_owned());
    let span = info_span!(
        "request",
        id,
        endpoint,
        model = Empty,
        status = Empty,
        prompt_tokens = Empty,
        completion_tokens = Empty,
        ms = Empty,
    );
    let account = Arc::new(Account::default());
    request.extensions_mut().insert(Arc::clone(&account));
    let watch = Watch::new(id.clone(), request.peer_addr(), endpoint, span.clone(), account);
    let mut response = next.call(request).instrument(span).await?.map_into_boxed_body();
    speak_dialect(&mut response, &id);
    let value = HeaderValue::from_str(&id).expect("a UUID is ASCII");
    let headers = response.headers_mut();
    // As clients of OpenAI know it, and as those of Anthropic do.
    headers.insert(REQUEST_ID, value.clone());
    headers.insert(HeaderName::from_static("request-id"), value);
    tell_limits(headers, &watch.account);
    Ok(response.map_body(|head, body| BoxBody::new(WatchedBody::new(body, head.status.as_u16(), watch))))
}

/// Tells an error in the shape that clients of the page expect.
fn speak_dialect(response: &mut ServiceResponse<BoxBody>, id: &str) {
    if !response.request().path().starts_with(ANTHROPIC_PATHS) {
        return;
    }
    let error = response.response().error().and_then(|error| error.as_error::<Error>());
    let Some(body) = error.map(|error| error.anthropic_body(Some(id)).to_string()) else { return };
    let response = response.response_mut();
    let old = std::mem::replace(response, HttpResponse::new(response.status()));
    *response = old.set_body(BoxBody::new(body));
}

/// Says what is left of a key's minute, with the names of OpenAI.
fn tell_limits(headers: &mut HeaderMap, account: &Account) {
    let Some(caller) = account.caller() else { return };
    let (requests, tokens) = caller.left();
    for (left, limit_name, left_name) in [
        (requests, "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
        (tokens, "x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens"),
    ] {
        let Some(Left { limit, left }) = left else { continue };
        headers.insert(HeaderName::from_static(limit_name), HeaderValue::from(limit));
        headers.insert(HeaderName::from_static(left_name), HeaderValue::from(left));
    }
}

/// Reports a request when it is dropped: after its response, or when the client has left.
struct Watch {
    id: String,
    peer: Option<SocketAddr>,
    account: Arc<Account>,
    endpoint: String,
    span: Span,
    began: Instant,
    status: u16,
}

impl Watch {
    fn new(id: String, peer: Option<SocketAddr>, endpoint: String, span: Span, account: Arc<Account>) -> Self {
        gauge!("paceline_http_requests_in_flight").increment(1.0);
        let began = Instant::now();
        Self { id, peer, account, endpoint, span, began, status: CLIENT_CLOSED_REQUEST }
    }

    /// Writes the line of the audit log: who asked for what, when, and what they used. Nothing of prompts and answers,
    /// unless bodies are wanted.
    fn audit(&self, time: Duration) {
        let Self { id, peer, account, endpoint, status, .. } = self;
        let (prompt_tokens, completion_tokens) = account.tokens();
        info!(
            target: AUDIT_TARGET,
            id,
            key = account.caller().map(|caller| caller.name()),
            peer = peer.map(|peer| peer.ip().to_string()),
            endpoint,
            status,
            prompt_tokens,
            completion_tokens,
            ms = time.as_millis() as u64,
            body = account.body().map(|body| String::from_utf8_lossy(body).into_owned()),
        );
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let (endpoint, status, time) = (self.endpoint.clone(), self.status, self.began.elapsed());
        gauge!("paceline_http_requests_in_flight").decrement(1.0);
        counter!("paceline_http_requests_total", "endpoint" => endpoint.clone(), "status" => status.to_string())
            .increment(1);
        histogram!("paceline_http_request_seconds", "endpoint" => endpoint).record(time.as_secs_f64());
        self.span.record("status", status);
        self.span.record("ms", time.as_millis() as u64);
        self.span.in_scope(|| debug!("request done"));
        self.audit(time);
    }
}

/// A body that holds the watch until it is sent.
struct WatchedBody {
    body: BoxBody,
    status: u16,
    watch: Watch,
}

impl WatchedBody {
    fn new(body: BoxBody, status: u16, mut watch: Watch) -> Self {
        // Streams count as answered when they end; of other bodies nobody may ask for the end.
        if body.size() != BodySize::Stream {
            watch.status = status;
        }
        Self { body, status, watch }
    }
}

impl MessageBody for WatchedBody {
    type Error = <BoxBody as MessageBody>::Error;

    fn size(&self) -> BodySize {
        self.body.size()
    }

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let next = Pin::new(&mut self.body).poll_next(context);
        if matches!(next, Poll::Ready(None)) {
            self.watch.status = self.status;
        }
        next
    }
}
