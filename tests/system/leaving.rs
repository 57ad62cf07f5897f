//! Clients that leave: in the queue, in prefill and in decode. Their pages are free at once, and nobody else's
//! answer changes.

use std::io::BufReader;

use serde_json::{Value, json};

use crate::http::{self, post, read_chunk, read_head};
use crate::program::{Server, greedy};

const QUESTION: &str = "The code for Ruth is 4821. What is the code for Ruth?";

/// A request whose answer takes longer than the test: thousands of tokens.
fn endless(prompt: &str, stream: bool) -> Value {
    json!({
        "messages": [{"role": "user", "content": prompt}],
        "temperature": 0, "max_tokens": 30_000, "ignore_eos": true, "stream": stream,
    })
}

/// A text of about `words` tokens.
fn long_text(words: usize) -> String {
    let words: Vec<String> = (0..words).map(|number| format!("w{}", number % 97)).collect();
    words.join(" ")
}

#[test]
fn in_decode() {
    let server = Server::start(&["--ctx", "32768", "--sessions", "3"]);
    let alone = server.chat(QUESTION);
    for stream in [true, false] {
        let before = server.metric("paceline_decode_tokens_total");
        let body = endless("Tell me everything.", stream).to_string();
        let connection = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
        if stream {
            let mut reader = BufReader::new(connection.try_clone().expect("a second handle"));
            assert_eq!(read_head(&mut reader).0, 200);
            assert!(read_chunk(&mut reader).is_some());
        }
        server.await_metric_above("paceline_decode_tokens_total", before + 5.0);
        let among = server.chat(QUESTION);
        assert_eq!(among["choices"], alone["choices"]);
        assert!(server.metric("paceline_pages_used") > 0.0);
        drop(connection);
        server.await_metric("paceline_sessions_running", 0.0);
        server.await_metric("paceline_pages_used", 0.0);
    }
    assert_eq!(server.chat(QUESTION)["choices"], alone["choices"]);
}

#[test]
fn in_prefill() {
    // Without a cache the prompt is read from its beginning every time.
    let flags = ["--ctx", "32768", "--sessions", "2", "--threads", "1", "--prefill-chunk", "32", "--cache-ram", "0"];
    let server = Server::start(&flags);
    let alone = server.chat(QUESTION);
    let prompt = long_text(9_000);
    for stream in [true, false] {
        let before = server.metric("paceline_prefill_tokens_total");
        let body = endless(&prompt, stream).to_string();
        let connection = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
        server.await_metric_above("paceline_prefill_tokens_total", before);
        drop(connection);
        server.await_metric("paceline_sessions_running", 0.0);
        server.await_metric("paceline_pages_used", 0.0);
        let read = server.metric("paceline_prefill_tokens_total") - before;
        assert!(read < 9_000.0, "the whole prompt was read ({read} tokens) although nobody waited");
    }
    assert_eq!(server.chat(QUESTION)["choices"], alone["choices"]);
}

#[test]
fn in_the_queue() {
    let server = Server::start(&["--ctx", "32768", "--sessions", "1"]);
    let alone = server.chat(QUESTION);
    let body = endless("Tell me everything.", true).to_string();
    let running = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
    server.await_metric("paceline_sessions_running", 1.0);
    for stream in [true, false] {
        let body = endless("And me.", stream).to_string();
        let waiting = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
        server.await_metric("paceline_sessions_waiting", 1.0);
        drop(waiting);
        server.await_metric("paceline_sessions_waiting", 0.0);
        assert_eq!(server.metric("paceline_sessions_running"), 1.0);
    }
    drop(running);
    server.await_metric("paceline_sessions_running", 0.0);
    assert_eq!(server.chat(QUESTION)["choices"], alone["choices"]);
}

#[test]
fn a_full_queue_refuses_and_says_when_to_come_again() {
    let server = Server::start(&["--ctx", "32768", "--sessions", "1", "--queue", "1"]);
    let body = endless("Tell me everything.", true).to_string();
    let running = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
    server.await_metric("paceline_sessions_running", 1.0);
    let waiting = http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes());
    server.await_metric("paceline_sessions_waiting", 1.0);
    let refused = post(server.address, "/v1/chat/completions", &greedy("Hello"));
    assert_eq!(refused.status, 429, "{}", refused.body);
    drop((running, waiting));
    server.await_metric("paceline_sessions_running", 0.0);
    server.chat("Hello");
}
