//! Who may use the API.

use std::sync::Arc;

use actix_web::body::{BoxBody, MessageBody};
use actix_web::dev::{ServiceRequest, ServiceResponse};
use actix_web::http::Method;
use actix_web::http::header::{self, HeaderMap, HeaderValue};
use actix_web::middleware::Next;
use actix_web::web;

use crate::caller::{Account, Caller};
use crate::error::{Error, Result};
use crate::keys::ApiKeys;
use crate::page;
use crate::server::Host;

/// The pages that need no key: whoever restarts servers must be able to see them, and the page for browsers asks for the key.
const OPEN_PATHS: [&str; 3] = ["/", "/health", "/live"];

/// Lets requests with a key through as long as the key may make more, and those to the open pages.
pub(crate) async fn authorize(
    host: web::Data<Host>,
    request: ServiceRequest,
    next: Next<impl MessageBody + 'static>,
) -> std::result::Result<ServiceResponse<BoxBody>, actix_web::Error> {
    let admitted = admit(&host.config.api_keys, &request);
    match admitted {
        Err(error) if !is_open(request.path()) => Ok(ServiceResponse::from_err(error, request.into_parts().0)),
        _ => Ok(next.call(request).await?.map_into_boxed_body()),
    }
}

fn is_open(path: &str) -> bool {
    OPEN_PATHS.contains(&path) || path.starts_with(page::FOLDER)
}

/// Finds out who calls, and counts what asks for work.
fn admit(keys: &ApiKeys, request: &ServiceRequest) -> Result<()> {
    let caller = identify(keys, request.headers())?;
    Account::of(request).belongs_to(caller);
    if request.method() == Method::POST {
        caller.request().map_err(Error::Limited)?;
    }
    Ok(())
}

/// Whose request it is.
fn identify<'k>(keys: &'k ApiKeys, headers: &HeaderMap) -> Result<&'k Arc<Caller>> {
    if keys.is_open() {
        return Ok(keys.anyone());
    }
    let key = shown_key(headers).ok_or(Error::Unauthorized { found: "missing" })?;
    keys.caller(key).ok_or(Error::Unauthorized { found: "wrong" })
}

/// The key that a request shows, as OpenAI's or as Anthropic's clients do.
fn shown_key(headers: &HeaderMap) -> Option<&[u8]> {
    let Some(authorization) = headers.get(header::AUTHORIZATION) else {
        return headers.get("x-api-key").map(HeaderValue::as_bytes);
    };
    let (scheme, key) = authorization.as_bytes().split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key.trim_ascii())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::ApiKey;

    fn check(keys: &[&str], name: &'static str, value: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::HeaderName::from_static(name), value.parse().unwrap());
        identify(&ApiKeys::new(keys.iter().map(|key| ApiKey::new(key))), &headers).is_ok()
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
