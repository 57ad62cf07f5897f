//! A span, a log line and metrics for every request, until its last byte.

use std::pin::Pin;
use std::task::{Context, Poll};

use actix_web::body::{BodySize, BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{HeaderName, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web;
use bytes::Bytes;
use metrics::{counter, gauge, histogram};
use tokio::time::Instant;
use tracing::field::Empty;
use tracing::{Instrument, Span, debug, info_span};
use uuid::Uuid;

use crate::error::CLIENT_CLOSED_REQUEST;
use crate::server::Api;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The name of all paths that are no pages, so that nobody can make up metrics.
const NO_ENDPOINT: &str = "none";

/// Watches a request from its head to the end of its response.
pub(crate) async fn observe(
    api: web::Data<Api>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let id = Uuid::new_v4().to_string();
    let endpoint = request.match_pattern().unwrap_or_else(|| NO_ENDPOINT.to_owned());
    let span = info_span!(
        "request",
        id,
        endpoint,
        model = api.engine.model().id,
        status = Empty,
        prompt_tokens = Empty,
        completion_tokens = Empty,
        ms = Empty,
    );
    let watch = Watch::new(endpoint, span.clone());
    let mut response = next.call(request).instrument(span).await?;
    let value = HeaderValue::from_str(&id).expect("a UUID is ASCII");
    response.headers_mut().insert(REQUEST_ID, value);
    Ok(response.map_body(|head, body| BoxBody::new(WatchedBody::new(body.boxed(), head.status.as_u16(), watch))))
}

/// Reports a request when it is dropped: after its response, or when the client has left.
struct Watch {
    endpoint: String,
    span: Span,
    began: Instant,
    status: u16,
}

impl Watch {
    fn new(endpoint: String, span: Span) -> Self {
        gauge!("paceline_http_requests_in_flight").increment(1.0);
        Self { endpoint, span, began: Instant::now(), status: CLIENT_CLOSED_REQUEST }
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
