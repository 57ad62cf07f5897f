//! Who may use the API, how much of it, and over what.

use std::sync::Arc;
use std::time::Duration;

use paceline_api::{ApiConfig, ApiKey, ApiKeys};
use paceline_coordinator::FinishReason;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::{Client, Response};
use crate::harness::{Service, admit, answer, patient};

const CHAT: &str = "/v1/chat/completions";
const MESSAGES: &str = "/v1/messages";

fn keys(lines: &[&str]) -> ApiConfig {
    let keys: Vec<ApiKey> = lines.iter().map(|line| line.parse().unwrap()).collect();
    ApiConfig { api_keys: ApiKeys::new(keys), ..ApiConfig::default() }
}

/// The end of a POST whose head begins with these lines.
fn post(path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

async fn send(service: &Service, request: &str) -> Client {
    Client::send(service.address, request.as_bytes()).await
}

async fn exchange(service: &Service, request: &str) -> Response {
    patient(send(service, request).await.response()).await
}

fn hello() -> String {
    json!({ "messages": [{ "role": "user", "content": "hi" }], "max_tokens": 5 }).to_string()
}

fn check_refusal(response: &Response, says: &str) {
    let error = &response.json()["error"];
    assert_eq!((response.status, &error["type"]), (429, &json!("rate_limit_error")), "{response:?}");
    assert!(error["message"].as_str().unwrap().contains(says), "{error}");
    let seconds: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&seconds), "{seconds}");
}

#[tokio::test]
async fn a_key_may_make_so_many_requests_and_no_other_pays_for_it() {
    let service = Service::start(keys(&["one requests=2", "two"]));
    let detokenize = |key: &str| post("/detokenize", key, r#"{"tokens": [65]}"#);
    let first = exchange(&service, &detokenize("one")).await;
    assert_eq!((first.status, first.header("x-ratelimit-remaining-requests")), (200, Some("1")));
    assert_eq!(first.header("x-ratelimit-limit-requests"), Some("2"));
    assert_eq!(exchange(&service, &detokenize("one")).await.status, 200);
    let refused = exchange(&service, &detokenize("one")).await;
    check_refusal(&refused, "its 2 requests a minute");
    assert_eq!(refused.json()["error"]["code"], "rate_limit_exceeded");
    let other = exchange(&service, &detokenize("two")).await;
    assert_eq!((other.status, other.header("x-ratelimit-limit-requests")), (200, None));
    // Looking is free.
    let look = "GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer one\r\n\r\n";
    assert_eq!(exchange(&service, look).await.status, 200);
}

#[tokio::test]
async fn a_key_may_have_so_many_sessions_at_once() {
    let mut service = Service::start(keys(&["one sessions=1"]));
    let mut running = send(&service, &post(CHAT, "one", &hello())).await;
    let call = service.call().await;
    check_refusal(&exchange(&service, &post(CHAT, "one", &hello())).await, "its 1 sessions at once");
    check_refusal(&exchange(&service, &post(MESSAGES, "one", &hello())).await, "its 1 sessions at once");
    answer(call, "ok", FinishReason::EndToken).await;
    assert_eq!(patient(running.response()).await.status, 200);
    let mut next = send(&service, &post(CHAT, "one", &hello())).await;
    answer(service.call().await, "ok", FinishReason::EndToken).await;
    assert_eq!(patient(next.response()).await.status, 200, "the place is free again");
}

#[tokio::test]
async fn a_client_that_leaves_gives_its_place_back() {
    let mut service = Service::start(keys(&["one sessions=1"]));
    let leaving = send(&service, &post(CHAT, "one", &hello())).await;
    let mut call = service.call().await;
    drop(leaving);
    patient(call.answer.closed()).await;
    let mut next = send(&service, &post(CHAT, "one", &hello())).await;
    answer(service.call().await, "ok", FinishReason::EndToken).await;
    assert_eq!(patient(next.response()).await.status, 200);
}

#[tokio::test]
async fn tokens_are_paid_for_as_they_come() {
    let mut service = Service::start(keys(&["one tokens=20"]));
    let mut running = send(&service, &post(CHAT, "one", &hello())).await;
    answer(service.call().await, "okay", FinishReason::EndToken).await;
    let response = patient(running.response()).await;
    let used = response.json()["usage"]["total_tokens"].as_u64().unwrap();
    assert!(used >= 20, "the prompt alone has more: {used}");
    assert_eq!(response.header("x-ratelimit-limit-tokens"), Some("20"));
    check_refusal(&exchange(&service, &post(CHAT, "one", &hello())).await, "its 20 tokens a minute");
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up() {
    let config = ApiConfig { request_deadline: Duration::from_millis(50), ..ApiConfig::default() };
    let mut service = Service::start(config);
    let mut client = service.post(CHAT, &hello()).await;
    let mut call = service.call().await;
    let response = patient(client.response()).await;
    assert_eq!((response.status, &response.json()["error"]["code"]), (504, &json!("deadline_exceeded")));
    patient(call.answer.closed()).await;
    let mut stream = hello();
    stream.insert_str(1, "\"stream\": true, ");
    let mut client = service.post(CHAT, &stream).await;
    let updates = admit(service.call().await);
    patient(client.head()).await;
    let events = patient(client.events()).await;
    assert!(events.last().unwrap().contains("deadline_exceeded"), "{events:?}");
    patient(updates.closed()).await;
}

#[tokio::test]
async fn errors_have_the_shape_of_the_page() {
    let service = Service::start(keys(&["one"]));
    for (request, status, kind) in [
        (post(MESSAGES, "wrong", "{}"), 401, "authentication_error"),
        (post(MESSAGES, "one", "{"), 400, "invalid_request_error"),
        (
            post(
                MESSAGES,
                "one",
                r#"{"model": "nobody", "max_tokens": 1, "messages": [{"role":"user","content":"a"}]}"#,
            ),
            404,
            "not_found_error",
        ),
        (post("/v1/messages/nothing", "one", "{}"), 404, "not_found_error"),
        (post("/v1/messages/count_tokens", "one", "{}"), 400, "invalid_request_error"),
    ] {
        let response = exchange(&service, &request).await;
        let body = response.json();
        assert_eq!((response.status, &body["type"], &body["error"]["type"]), (status, &json!("error"), &json!(kind)));
        assert!(body["error"]["message"].is_string());
        assert_eq!(body["request_id"].as_str(), response.header("request-id"));
    }
    let openai = exchange(&service, &post(CHAT, "one", "{}")).await;
    assert!(openai.json()["error"]["code"].is_string());
}

#[tokio::test]
async fn web_pages_may_use_it_only_where_they_are_let_in() {
    let preflight = "OPTIONS /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n\
                     Access-Control-Request-Method: GET\r\nAccess-Control-Request-Headers: authorization\r\n\r\n";
    let get = "GET /v1/models HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\nAuthorization: Bearer one\r\n\r\n";
    let closed = Service::start(keys(&["one"]));
    assert_eq!(exchange(&closed, preflight).await.status, 401);
    assert_eq!(exchange(&closed, get).await.header("access-control-allow-origin"), None);
    for (origin, allowed) in
        [("https://a.example", Some("https://a.example")), ("https://b.example", None), ("*", Some("*"))]
    {
        let open = Service::start(ApiConfig { cors_origins: vec![origin.to_owned()], ..keys(&["one"]) });
        let answer = exchange(&open, preflight).await;
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{origin}: {answer:?}");
        let answer = exchange(&open, get).await;
        assert_eq!(answer.header("access-control-allow-origin"), allowed, "{origin}: {answer:?}");
        // A page must be able to read why it was refused.
        let refused = exchange(&open, &get.replace("one", "wrong")).await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, allowed));
    }
}

#[tokio::test]
async fn it_is_served_over_tls_where_there_is_a_certificate() {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider));
    let server = server.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let server = server.with_single_cert(vec![certificate.clone()], key).unwrap();
    let service = Service::start(ApiConfig { tls: Some(Arc::new(server)), ..ApiConfig::default() });

    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let connector = TlsConnector::from(Arc::new(client.with_root_certificates(roots).with_no_client_auth()));
    let stream = TcpStream::connect(service.address).await.unwrap();
    let mut stream = patient(connector.connect(ServerName::try_from("localhost").unwrap(), stream)).await.unwrap();
    stream.write_all(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut text = Vec::new();
    // A server may close without a word of parting.
    let _ = patient(stream.read_to_end(&mut text)).await;
    let text = String::from_utf8(text).unwrap();
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("\"played\""), "{text}");

    let mut plain = TcpStream::connect(service.address).await.unwrap();
    plain.write_all(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = patient(plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "nothing is said in the clear");
}
