//! Who may use the API.

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use actix_web::middleware::Next;
use actix_web::{ResponseError, web};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};

use crate::error::{Error, Result};
use crate::server::Api;

/// The pages that need no key: whoever restarts servers must be able to see them.
const OPEN_PATHS: [&str; 2] = ["/health", "/live"];

/// The keys that open the API. Only their hashes are kept.
#[derive(Debug, Clone, Default)]
pub struct ApiKeys {
    hashes: Vec<[u8; 32]>,
}

impl ApiKeys {
    /// Takes keys as clients show them. No keys: everyone may come in.
    pub fn new(keys: impl IntoIterator<Item: AsRef<str>>) -> Self {
        Self { hashes: keys.into_iter().map(|key| hash(key.as_ref().as_bytes())).collect() }
    }

    /// Whether no key is asked for.
    pub fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Whether `key` is one of the keys. Takes the same time for every wrong key: hashes of equal length are
    /// compared in constant time, all of them.
    fn contains(&self, key: &[u8]) -> bool {
        let shown = hash(key);
        self.hashes.iter().fold(Choice::from(0), |found, known| found | known.ct_eq(&shown)).into()
    }

    fn check(&self, headers: &HeaderMap) -> Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let key = shown_key(headers).ok_or(Error::Unauthorized { found: "missing" })?;
        if self.contains(key) { Ok(()) } else { Err(Error::Unauthorized { found: "wrong" }) }
    }
}

fn hash(key: &[u8]) -> [u8; 32] {
    Sha256::digest(key).into()
}

/// The key that a request shows, as OpenAI's or as Anthropic's clients do.
fn shown_key(headers: &HeaderMap) -> Option<&[u8]> {
    let Some(authorization) = headers.get(header::AUTHORIZATION) else {
        return headers.get("x-api-key").map(HeaderValue::as_bytes);
    };
    let (scheme, key) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}

/// Lets requests with a key through, and those to the open pages.
pub(crate) async fn authorize(
    api: web::Data<Api>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> std::result::Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let checked = api.config.api_keys.check(request.headers());
    match checked {
        Err(error) if !OPEN_PATHS.contains(&request.path()) => Ok(request.into_response(error.error_response())),
        _ => Ok(next.call(request).await?.map_into_boxed_body()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(keys: &[&str], name: &'static str, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HeaderName::from_static(name), value.parse().unwrap());
        ApiKeys::new(keys).check(&headers).is_ok()
    }

    #[test]
    fn any_of_the_keys_opens_in_either_header() {
        let keys = ["first", "second"];
        for (name, value, opens) in [
            ("authorization", "Bearer first", true),
            ("authorization", "bearer second", true),
            ("authorization", "Bearer  second ", true),
            ("x-api-key", "second", true),
            ("authorization", "Bearer third", false),
            ("authorization", "Bearer ", false),
            ("authorization", "Basic first", false),
            ("authorization", "first", false),
            ("x-api-key", "", false),
            ("x-other", "first", false),
        ] {
            assert_eq!(check(&keys, name, value), opens, "{name}: {value}");
        }
    }

    #[test]
    fn without_keys_everything_is_open() {
        assert!(check(&[], "x-other", "x"));
    }
}
