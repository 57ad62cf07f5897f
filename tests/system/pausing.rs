//! More sessions than there are pages for.

use serde_json::{Value, json};

use crate::http::post;
use crate::program::{Server, complaint};

/// A pool of pages that holds little more than one of these answers.
const TINY: [&str; 8] = ["--ctx", "1024", "--kv-tokens", "1024", "--sessions", "4", "--cache-ram", "0"];

fn body(number: usize) -> Value {
    json!({
        "prompt": format!("The code for Ruth is {number}821. The code for Abel is 7719. Tell me of the sea."),
        "temperature": 1.0, "seed": number, "max_tokens": 600, "ignore_eos": true, "return_token_ids": true,
    })
}

fn tokens(answer: &Value) -> Vec<u64> {
    let tokens = answer["choices"][0]["token_ids"].as_array().unwrap_or_else(|| panic!("token ids in {answer}"));
    tokens.iter().map(|token| token.as_u64().expect("a token")).collect()
}

#[test]
fn streams_that_exceed_the_pages_together_all_end_with_the_tokens_they_have_alone() {
    let server = Server::start(&TINY);
    let address = server.address;
    let ask = move |number: usize| {
        let response = post(address, "/v1/completions", &body(number));
        assert_eq!(response.status, 200, "{}", response.body);
        tokens(&response.json())
    };
    let alone: Vec<_> = (0..4).map(ask).collect();
    assert!(alone.iter().all(|tokens| tokens.len() == 600));
    assert_eq!(server.metric("paceline_sessions_paused_total"), 0.0);
    let together: Vec<_> = (0..4).map(|number| std::thread::spawn(move || ask(number))).collect();
    for (together, alone) in together.into_iter().zip(alone) {
        assert!(together.join().expect("an answer") == alone, "other tokens than alone");
    }
    assert!(server.metric("paceline_sessions_paused_total") >= 2.0, "they take 40 pages, and there are 16");
    server.await_metric("paceline_sessions_running", 0.0);
}

#[test]
fn a_pool_smaller_than_one_session_and_moved_chunks_are_refused() {
    let text = complaint(&["serve", "--ctx", "1024", "--kv-tokens", "512"]);
    assert!(text.contains("keys and values of 512 tokens are fewer than the 1024 that one session can have"), "{text}");
    for arguments in [&["serve", "--cache-reuse", "256"][..], &["serve", "--cache-reuse"]] {
        let text = complaint(arguments);
        assert!(text.contains("give other answers than a cold run"), "{text}");
    }
    let text = complaint(&["serve", "--cache-ram", "much"]);
    assert!(text.contains("such as 512M or 2G"), "{text}");
}
