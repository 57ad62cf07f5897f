//! Reading request bodies: limits, and errors that say where.

use actix_web::http::header;
use actix_web::{HttpRequest, web};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;
use serde_json::{Map, Value};
use tokio::time::timeout;

use crate::caller::Account;
use crate::config::ApiConfig;
use crate::error::{Error, Result};

/// A body of the right type and size, not parsed yet. Nesting is limited to 128 levels where values are read.
#[derive(Debug, Clone)]
pub(crate) struct Document {
    bytes: Bytes,
}

/// The one field that says who is to read the others.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ModelField {
    model: Option<String>,
}

impl Document {
    /// Receives the body of `request`, within the limits of `config`.
    pub(crate) async fn receive(request: &HttpRequest, body: web::Payload, config: &ApiConfig) -> Result<Self> {
        check_content_type(request)?;
        let body = timeout(config.body_timeout, read_all(body, config.body_bytes)).await;
        let bytes = body.map_err(|_| Error::BodyTimeout { seconds: config.body_timeout.as_secs() })??;
        if config.audit_bodies {
            Account::of(request).keep_body(&bytes);
        }
        Ok(Self { bytes })
    }

    /// A document that was made here.
    pub(crate) fn of(value: &Value) -> Self {
        Self { bytes: Bytes::from(value.to_string()) }
    }

    #[cfg(test)]
    pub(crate) fn new(text: &str) -> Self {
        Self { bytes: Bytes::copy_from_slice(text.as_bytes()) }
    }

    /// Reads the fields that `T` knows; others are ignored. Fields of `T` must all have defaults.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T> {
        self.check_object()?;
        serde_json::from_slice(&self.bytes).map_err(|error| match error.classify() {
            Category::Data => self.blame_field::<T>(&error),
            _ => malformed(&error),
        })
    }

    /// The model that the request names, if it names one.
    pub(crate) fn model(&self) -> Result<Option<String>> {
        Ok(self.read::<ModelField>()?.model)
    }

    /// A struct can also be read from an array; a request cannot.
    fn check_object(&self) -> Result<()> {
        match self.bytes.iter().find(|byte| !byte.is_ascii_whitespace()) {
            None => Err(Error::EmptyBody),
            Some(b'{') => Ok(()),
            Some(_) => match serde_json::from_slice::<serde::de::IgnoredAny>(&self.bytes) {
                Err(error) => Err(malformed(&error)),
                Ok(_) => Err(Error::Json { problem: "expected an object".to_owned(), line: 1, column: 1 }),
            },
        }
    }

    /// Finds the field that made reading `T` fail, by reading each alone.
    fn blame_field<T: DeserializeOwned>(&self, error: &serde_json::Error) -> Error {
        let Ok(fields) = serde_json::from_slice::<Map<String, Value>>(&self.bytes) else { return malformed(error) };
        for (name, value) in fields {
            let alone = Value::Object(Map::from_iter([(name.clone(), value)]));
            if let Err(error) = serde_json::from_value::<T>(alone) {
                return Error::parameter(&name, format!("{name}: {error}"));
            }
        }
        malformed(error)
    }
}

fn check_content_type(request: &HttpRequest) -> Result<()> {
    let Some(found) = request.headers().get(header::CONTENT_TYPE) else { return Ok(()) };
    let essence = found.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
    if essence.trim_ascii().eq_ignore_ascii_case(b"application/json") {
        return Ok(());
    }
    Err(Error::ContentType { found: String::from_utf8_lossy(found.as_bytes()).into_owned() })
}

async fn read_all(mut body: web::Payload, limit: usize) -> Result<Bytes> {
    let mut bytes = BytesMut::new();
    while let Some(piece) = body.next().await {
        let piece = piece.map_err(|error| Error::BodyUnreadable(error.to_string()))?;
        if bytes.len() + piece.len() > limit {
            return Err(Error::BodyTooLarge { limit });
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes.freeze())
}

fn malformed(error: &serde_json::Error) -> Error {
    let (line, column) = (error.line(), error.column());
    let text = error.to_string();
    let problem = text.strip_suffix(&format!(" at line {line} column {column}")).unwrap_or(&text);
    Error::Json { problem: problem.to_owned(), line, column }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default, serde::Deserialize)]
    #[serde(default)]
    struct Fields {
        count: Option<u32>,
        names: Option<Vec<String>>,
    }

    fn read(text: &str) -> std::result::Result<(Option<u32>, Option<Vec<String>>), String> {
        let fields = Document::new(text).read::<Fields>().map_err(|error| error.to_string())?;
        Ok((fields.count, fields.names))
    }

    #[test]
    fn known_fields_are_read_and_others_ignored() {
        assert_eq!(read(r#" {"other": [{}], "count": 3} "#), Ok((Some(3), None)));
        assert_eq!(read(r#"{"names": ["a"], "count": null}"#), Ok((None, Some(vec!["a".to_owned()]))));
    }

    #[test]
    fn errors_say_where_or_which() {
        for (text, message) in [
            ("", "the request has no body; send a JSON object"),
            ("  ", "the request has no body; send a JSON object"),
            ("{\n\"count\": }", "the request body is not valid JSON: expected value at line 2 column 10"),
            ("[1]", "the request body is not valid JSON: expected an object at line 1 column 1"),
            ("nul", "the request body is not valid JSON: EOF while parsing a value at line 1 column 3"),
            ("{} x", "the request body is not valid JSON: trailing characters at line 1 column 4"),
            (r#"{"count": "3"}"#, "count: invalid type: string \"3\", expected u32"),
            (r#"{"names": ["a", 5], "count": 3}"#, "names: invalid type: integer `5`, expected a string"),
            (r#"{"count": -1}"#, "count: invalid value: integer `-1`, expected u32"),
            (
                r#"{"count": 1, "count": 2}"#,
                "the request body is not valid JSON: duplicate field `count` at line 1 column 20",
            ),
        ] {
            assert_eq!(read(text).unwrap_err(), message, "{text}");
        }
    }

    #[test]
    fn deep_nesting_is_refused_without_a_stack_overflow() {
        let deep = format!("{{\"names\": {}{}}}", "[".repeat(100_000), "]".repeat(100_000));
        assert!(read(&deep).is_err());
        assert!(read(&deep.replace("names", "other")).is_ok(), "what is ignored may be deep");
    }
}
