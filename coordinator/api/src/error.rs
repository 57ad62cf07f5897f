//! What can go wrong with a request, and how a client is told: in the shape of the API that it speaks.

use actix_web::http::header::{self, HeaderValue};
use actix_web::http::{Method, StatusCode};
use actix_web::{HttpResponse, ResponseError};
use paceline_coordinator::Error as EngineError;
use paceline_text::Error as TextError;
use serde_json::{Value, json};

use crate::limits::Exceeded;
use crate::scale::ScaleError;
use crate::serving::ModelError;

/// When a client may try again after the queue was full or too slow, while the stages are placed anew, or the service ends and
/// another takes its place.
const RETRY_AFTER_SECONDS: u64 = 2;

/// The status of a client that left before its answer; it reaches only the metrics.
pub(crate) const CLIENT_CLOSED_REQUEST: u16 = 499;

/// An error of the HTTP API.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The body is not JSON, or not an object.
    #[error("the request body is not valid JSON: {problem} at line {line} column {column}")]
    Json {
        /// What is wrong.
        problem: String,
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
    },
    /// No body at all.
    #[error("the request has no body; send a JSON object")]
    EmptyBody,
    /// A body of another type.
    #[error("the content type is {found:?}; send application/json")]
    ContentType {
        /// What the client says it is.
        found: String,
    },
    /// More bytes than allowed.
    #[error("the request body is larger than {limit} bytes")]
    BodyTooLarge {
        /// The most that is read.
        limit: usize,
    },
    /// The body did not arrive in time.
    #[error("the request body did not arrive within {seconds} s")]
    BodyTimeout {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The body broke off.
    #[error("the request body could not be read: {0}")]
    BodyUnreadable(String),
    /// A field is missing, of the wrong type, or out of range.
    #[error("{problem}")]
    Parameter {
        /// The field, with indices.
        param: String,
        /// What is wrong with it; names it.
        problem: String,
    },
    /// A text that is longer than the model reads.
    #[error("{problem}")]
    TooLong {
        /// The field, with indices.
        param: String,
        /// What is wrong with it, with the numbers.
        problem: String,
    },
    /// A field that would change the answer and is not served.
    #[error("{problem}")]
    Unsupported {
        /// The field.
        param: String,
        /// What would be served.
        problem: String,
    },
    /// A model that is not here.
    #[error("the model {wanted:?} does not exist, this server has {available}")]
    ModelNotFound {
        /// The name in the request.
        wanted: String,
        /// The names that would have worked.
        available: String,
    },
    /// A model that does something else than is asked.
    #[error("the model {wanted:?} is none that {task}: {purpose}")]
    WrongModel {
        /// The name in the request.
        wanted: String,
        /// What is asked.
        task: &'static str,
        /// What the model does, and where.
        purpose: &'static str,
    },
    /// No model does what is asked.
    #[error("this server has no model that {task}, only {available}")]
    NoSuchModel {
        /// What is asked.
        task: &'static str,
        /// The names of those there are.
        available: String,
    },
    /// A model that cannot be had now.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A response that is not kept here.
    #[error("there is no response {id:?}: it was not stored, or it is too old, or another key's")]
    ResponseNotFound {
        /// Its id.
        id: String,
    },
    /// No such page.
    #[error("there is no {method} {path}; GET / lists what there is")]
    UnknownRoute {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
    /// The page has other methods.
    #[error("{path} does not take {method}, only {allowed}")]
    MethodNotAllowed {
        /// The method.
        method: Method,
        /// The path.
        path: String,
        /// The methods it takes.
        allowed: &'static str,
    },
    /// No key, or an unknown one.
    #[error("the API key is {found}; send it as \"Authorization: Bearer KEY\" or \"x-api-key: KEY\"")]
    Unauthorized {
        /// Missing or wrong.
        found: &'static str,
    },
    /// The key has used up what it may.
    #[error("{0}")]
    Limited(Exceeded),
    /// The request took too long.
    #[error(
        "the answer is not complete after {seconds} s; ask for fewer tokens, or try again when the server is less busy"
    )]
    Deadline {
        /// The most that a request may take.
        seconds: u64,
    },
    /// The engine does not serve the request, or not to its end.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Text and tokens do not go together.
    #[error(transparent)]
    Text(#[from] TextError),
    /// The row is not changed.
    #[error(transparent)]
    Scale(#[from] ScaleError),
    /// A fault of this program.
    #[error("the server made a mistake: {0}")]
    Internal(String),
}

/// A result with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// What a client's program looks at.
struct Class<'e> {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
    param: Option<&'e str>,
}

impl<'e> Class<'e> {
    fn request(status: StatusCode, code: &'static str) -> Self {
        Self { status, kind: "invalid_request_error", code, param: None }
    }

    fn service(status: StatusCode, code: &'static str) -> Self {
        Self { status, kind: "server_error", code, param: None }
    }

    fn about(self, param: &'e str) -> Self {
        Self { param: Some(param), ..self }
    }
}

impl Error {
    pub(crate) fn parameter(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Parameter { param: param.into(), problem: problem.into() }
    }

    pub(crate) fn unsupported(param: impl Into<String>, problem: impl Into<String>) -> Self {
        Self::Unsupported { param: param.into(), problem: problem.into() }
    }

    /// The error as a client of Anthropic reads it: `{"type": "error", "error": {"type", "message"}, "request_id"}`.
    pub(crate) fn anthropic_body(&self, request_id: Option<&str>) -> Value {
        let kind = match self.class().status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            504 => "timeout_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        let message = self.to_string();
        json!({ "type": "error", "error": { "type": kind, "message": message }, "request_id": request_id })
    }

    /// The error as a client of OpenAI reads it: `{"error": {"message", "type", "param", "code"}}`.
    pub(crate) fn body(&self) -> Value {
        let Class { kind, code, param, .. } = self.class();
        json!({ "error": { "message": self.to_string(), "type": kind, "param": param, "code": code } })
    }

    fn class(&self) -> Class<'_> {
        match self {
            Self::Json { .. } => Class::request(StatusCode::BAD_REQUEST, "invalid_json"),
            Self::EmptyBody => Class::request(StatusCode::BAD_REQUEST, "empty_body"),
            Self::ContentType { .. } => Class::request(StatusCode::UNSUPPORTED_MEDIA_TYPE, "wrong_content_type"),
            Self::BodyTooLarge { .. } => Class::request(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            Self::BodyTimeout { .. } => Class::request(StatusCode::REQUEST_TIMEOUT, "body_timeout"),
            Self::BodyUnreadable(_) => Class::request(StatusCode::BAD_REQUEST, "body_unreadable"),
            Self::Parameter { param, .. } => Class::request(StatusCode::BAD_REQUEST, "invalid_value").about(param),
            Self::TooLong { param, .. } => {
                Class::request(StatusCode::BAD_REQUEST, "context_length_exceeded").about(param)
            }
            Self::Unsupported { param, .. } => {
                Class::request(StatusCode::BAD_REQUEST, "unsupported_parameter").about(param)
            }
            Self::ModelNotFound { .. } => Class::request(StatusCode::NOT_FOUND, "model_not_found").about("model"),
            Self::WrongModel { .. } | Self::NoSuchModel { .. } => {
                Class::request(StatusCode::BAD_REQUEST, "wrong_model").about("model")
            }
            Self::Model(error) => classify_model(error),
            Self::ResponseNotFound { .. } => Class::request(StatusCode::NOT_FOUND, "response_not_found"),
            Self::UnknownRoute { .. } => Class::request(StatusCode::NOT_FOUND, "unknown_url"),
            Self::MethodNotAllowed { .. } => Class::request(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            Self::Unauthorized { .. } => Class::request(StatusCode::UNAUTHORIZED, "invalid_api_key"),
            Self::Limited(_) => Class {
                kind: "rate_limit_error",
                ..Class::request(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded")
            },
            Self::Deadline { .. } => Class::service(StatusCode::GATEWAY_TIMEOUT, "deadline_exceeded"),
            Self::Engine(error) => classify_engine(error),
            Self::Text(error) => classify_text(error),
            Self::Scale(error) => classify_scale(error),
            Self::Internal(_) => Class::service(StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }
}

fn classify_engine(error: &EngineError) -> Class<'static> {
    match error {
        EngineError::EmptyPrompt => Class::request(StatusCode::BAD_REQUEST, "empty_prompt").about("prompt"),
        EngineError::TokenOutOfRange { .. } => {
            Class::request(StatusCode::BAD_REQUEST, "token_out_of_range").about("prompt")
        }
        EngineError::ContextLength { .. } | EngineError::NeverFits { .. } => {
            Class::request(StatusCode::BAD_REQUEST, "context_length_exceeded")
        }
        EngineError::EmptyText { .. } => Class::request(StatusCode::BAD_REQUEST, "empty_input").about("input"),
        EngineError::TextLength { .. } => {
            Class::request(StatusCode::BAD_REQUEST, "context_length_exceeded").about("input")
        }
        EngineError::Request { .. } => Class::request(StatusCode::BAD_REQUEST, "invalid_value"),
        EngineError::QueueFull { .. } => {
            Class { kind: "rate_limit_error", ..Class::service(StatusCode::TOO_MANY_REQUESTS, "queue_full") }
        }
        EngineError::QueueDeadline { .. } => Class::service(StatusCode::SERVICE_UNAVAILABLE, "queue_deadline"),
        EngineError::ShuttingDown => Class::service(StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        EngineError::Restoring { .. } => Class::service(StatusCode::SERVICE_UNAVAILABLE, "restoring"),
        EngineError::Lost { .. } => Class::service(StatusCode::INTERNAL_SERVER_ERROR, "answer_lost"),
        EngineError::NotCached { .. } => Class::request(StatusCode::NOT_FOUND, "not_cached"),
        EngineError::TooMuchPinned { .. } => Class::request(StatusCode::CONFLICT, "too_much_pinned"),
        EngineError::ClientLeft => Class::request(
            StatusCode::from_u16(CLIENT_CLOSED_REQUEST).expect("499 is between 100 and 999"),
            "client_left",
        ),
    }
}

fn classify_model(error: &ModelError) -> Class<'static> {
    match error {
        ModelError::QueueFull { .. } => {
            Class { kind: "rate_limit_error", ..Class::service(StatusCode::TOO_MANY_REQUESTS, "queue_full") }
        }
        ModelError::NoRoom { .. } => Class::service(StatusCode::SERVICE_UNAVAILABLE, "no_room_for_model"),
        ModelError::Failed { .. } => Class::service(StatusCode::SERVICE_UNAVAILABLE, "model_not_loaded"),
        ModelError::ShuttingDown => Class::service(StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
    }
}

fn classify_text(error: &TextError) -> Class<'static> {
    match error {
        TextError::NoChatTemplate => Class::request(StatusCode::BAD_REQUEST, "no_chat_template"),
        TextError::TokenOutOfRange { .. } => {
            Class::request(StatusCode::BAD_REQUEST, "token_out_of_range").about("tokens")
        }
        // Templates fail on conversations they were not written for, far more often than by their own fault.
        TextError::TemplateFailed(_) | TextError::TemplateLimit(_) => {
            Class::request(StatusCode::BAD_REQUEST, "template_failed").about("messages")
        }
        error if error.is_client_error() => Class::request(StatusCode::BAD_REQUEST, "invalid_value").about("messages"),
        _ => Class::service(StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
    }
}

fn classify_scale(error: &ScaleError) -> Class<'static> {
    match error {
        ScaleError::NotNow(_) => Class::request(StatusCode::CONFLICT, "not_now"),
        ScaleError::UnknownNode { .. } => Class::request(StatusCode::NOT_FOUND, "node_not_found").about("nodes"),
        ScaleError::Ambiguous { .. } => Class::request(StatusCode::BAD_REQUEST, "ambiguous_node").about("nodes"),
        ScaleError::Impossible(_) => Class::request(StatusCode::UNPROCESSABLE_ENTITY, "impossible"),
        ScaleError::ShuttingDown => Class::service(StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
    }
}

impl ResponseError for Error {
    fn status_code(&self) -> StatusCode {
        self.class().status
    }

    fn error_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status_code()).json(self.body());
        let headers = response.headers_mut();
        match self {
            Self::Engine(
                EngineError::QueueFull { .. }
                | EngineError::QueueDeadline { .. }
                | EngineError::Restoring { .. }
                | EngineError::ShuttingDown,
            ) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            Self::Model(_) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_SECONDS));
            }
            Self::Limited(exceeded) => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(exceeded.seconds()));
            }
            Self::MethodNotAllowed { allowed, .. } => {
                headers.insert(header::ALLOW, HeaderValue::from_static(allowed));
            }
            Self::Unauthorized { .. } => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
