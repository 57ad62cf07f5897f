//! Bad requests: each gets a typed error with the number or name that matters, and the server answers the next.

use serde_json::{Value, json};

use crate::http::{self, post};
use crate::program::Server;

/// Path, body, status, and words that the message must have.
type Case = (&'static str, Value, u16, &'static [&'static str]);

fn chat(changes: &Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0});
    for (key, value) in changes.as_object().expect("an object") {
        body[key] = value.clone();
    }
    body
}

fn cases() -> Vec<Case> {
    const CHAT: &str = "/v1/chat/completions";
    const TEXT: &str = "/v1/completions";
    let long = "word ".repeat(3000);
    vec![
        (CHAT, chat(&json!({"messages": []})), 400, &["messages"]),
        (CHAT, chat(&json!({"messages": "Hello"})), 400, &["messages"]),
        (CHAT, chat(&json!({"messages": [{"role": "king", "content": "Hello"}]})), 400, &["king"]),
        (CHAT, chat(&json!({"messages": [{"content": "Hello"}]})), 400, &["role"]),
        (CHAT, chat(&json!({"messages": [{"role": "user", "content": 5}]})), 400, &["content"]),
        (
            CHAT,
            chat(
                &json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}),
            ),
            400,
            &["image"],
        ),
        (CHAT, chat(&json!({"messages": [{"role": "user", "content": long}]})), 400, &["512"]),
        (CHAT, chat(&json!({"model": "nobody"})), 404, &["nobody"]),
        (CHAT, chat(&json!({"temperature": -0.5})), 400, &["temperature", "-0.5"]),
        (CHAT, chat(&json!({"temperature": "hot"})), 400, &["temperature"]),
        (CHAT, chat(&json!({"top_p": 1.5})), 400, &["top_p", "1.5"]),
        (CHAT, chat(&json!({"min_p": -1})), 400, &["min_p", "-1"]),
        (CHAT, chat(&json!({"top_k": -3})), 400, &["top_k", "-3"]),
        (CHAT, chat(&json!({"frequency_penalty": 9})), 400, &["frequency_penalty", "9"]),
        (CHAT, chat(&json!({"presence_penalty": -9})), 400, &["presence_penalty", "-9"]),
        (CHAT, chat(&json!({"repetition_penalty": 0})), 400, &["repetition_penalty", "0"]),
        (CHAT, chat(&json!({"max_tokens": -1})), 400, &["max_tokens", "-1"]),
        (CHAT, chat(&json!({"max_tokens": 1.5})), 400, &["max_tokens", "1.5"]),
        (CHAT, chat(&json!({"n": 0})), 400, &["n", "0"]),
        (CHAT, chat(&json!({"n": 1000})), 400, &["n", "1000"]),
        (CHAT, chat(&json!({"logprobs": true, "top_logprobs": 500})), 400, &["top_logprobs", "500"]),
        (CHAT, chat(&json!({"logit_bias": {"99999": 1}})), 400, &["99999"]),
        (CHAT, chat(&json!({"logit_bias": {"one": 1}})), 400, &["one"]),
        (CHAT, chat(&json!({"logit_bias": {"5": 200}})), 400, &["200"]),
        (CHAT, chat(&json!({"stop": vec!["a"; 40]})), 400, &["stop", "40"]),
        (CHAT, chat(&json!({"stop": 5})), 400, &["stop"]),
        (CHAT, chat(&json!({"response_format": {"type": "xml"}})), 400, &["response_format"]),
        (CHAT, chat(&json!({"seed": "seven"})), 400, &["seed"]),
        (CHAT, json!([1, 2]), 400, &[]),
        (TEXT, json!({"max_tokens": 3}), 400, &["prompt"]),
        (TEXT, json!({"prompt": "", "max_tokens": 3}), 400, &["prompt"]),
        (TEXT, json!({"prompt": [1, 99999], "max_tokens": 3}), 400, &["99999", "2048"]),
        (TEXT, json!({"prompt": [-1], "max_tokens": 3}), 400, &["-1"]),
        (TEXT, json!({"prompt": [], "max_tokens": 3}), 400, &["prompt"]),
        (TEXT, json!({"prompt": "a", "suffix": "b"}), 400, &["suffix"]),
        (TEXT, json!({"prompt": vec![5; 600], "max_tokens": 3}), 400, &["600", "512"]),
        ("/tokenize", json!({}), 400, &["content"]),
        ("/detokenize", json!({"tokens": [99999]}), 400, &["99999"]),
        ("/v1/nothing", json!({}), 404, &["/v1/nothing"]),
    ]
}

fn check(server: &Server, what: &str, response: &http::Response, status: u16, words: &[&str]) {
    assert_eq!(response.status, status, "{what}: {}", response.body);
    let error = response.json()["error"].clone();
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{what}: no message in {}", response.body));
    for word in words {
        assert!(message.contains(word), "{what}: {message:?} does not name {word}");
    }
    assert!(error["type"].is_string(), "{what}: no type in {}", response.body);
    let next = post(server.address, "/v1/chat/completions", &chat(&json!({})));
    assert_eq!(next.status, 200, "after {what}: {}", next.body);
}

#[test]
fn every_bad_request_is_told_what_is_wrong() {
    let mut server = Server::start(&["--ctx", "512"]);
    for (path, body, status, words) in cases() {
        let response = post(server.address, path, &body);
        check(&server, &format!("{path} {body:.200}"), &response, status, words);
    }
    assert!(server.is_alive());
}

#[test]
fn what_is_not_even_a_request_is_told_so() {
    let server = Server::start(&["--ctx", "512"]);
    let cases: [(&str, &str, Vec<u8>, u16); 8] = [
        ("POST", "/v1/chat/completions", b"{\"messages\": [".to_vec(), 400),
        ("POST", "/v1/chat/completions", b"".to_vec(), 400),
        ("POST", "/v1/chat/completions", vec![0xff, 0xfe, 0x00], 400),
        ("POST", "/v1/chat/completions", "[".repeat(100_000).into_bytes(), 400),
        ("POST", "/v1/chat/completions", vec![b' '; 9 << 20], 413),
        ("GET", "/v1/chat/completions", vec![], 405),
        ("DELETE", "/v1/models", vec![], 405),
        ("GET", "/v1/models/nobody", vec![], 404),
    ];
    for (method, path, body, status) in cases {
        let what = format!("{method} {path} with {} bytes", body.len());
        let response = http::request(server.address, method, path, &body);
        check(&server, &what, &response, status, &[]);
    }
}
