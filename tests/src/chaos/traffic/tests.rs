//! What is not exactly the expected answer is noticed.

use std::io::{Read, Write};
use std::net::TcpListener;

use super::*;

/// A server that says one thing to whoever asks, then closes the connection.
fn server(head: &'static str, body: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut request = [0; 4096];
        let mut seen = Vec::new();
        while !seen.ends_with(b"{}") {
            let count = stream.read(&mut request).expect("a request");
            seen.extend_from_slice(&request[..count]);
        }
        let answer = format!("HTTP/1.1 {head}\r\nconnection: close\r\n\r\n{body}");
        stream.write_all(answer.as_bytes()).expect("the client reads");
    });
    address
}

fn event(token: u64) -> String {
    format!("data: {{\"choices\": [{token}], \"usage\": null}}\n\n")
}

/// What comes of a stream of these tokens, where 1, 2 and 3 are expected.
fn outcome_of(tokens: &[u64], end: &str) -> Outcome {
    let body: String = tokens.iter().map(|token| event(*token)).collect();
    let address = server("200 OK", body + end);
    let expected = (1..=3).map(|token| told(&json!({"choices": [token]}))).collect();
    Case { path: "/", body: json!({}), expected }.stream(address, |_| Ok(()))
}

const DONE: &str = "data: [DONE]\n\n";

#[test]
fn every_difference_is_noticed() {
    assert!(matches!(outcome_of(&[1, 2, 3], DONE), Outcome::Answered));
    for wrong in [&[1, 2][..], &[1, 2, 4], &[1, 2, 2, 3], &[1, 3], &[1, 2, 3, 3], &[]] {
        let outcome = outcome_of(wrong, DONE);
        assert!(matches!(outcome, Outcome::Wrong(_)), "{wrong:?}: {outcome:?}");
    }
    assert!(matches!(outcome_of(&[1, 2, 3], ": still here\n\ndata: [DONE]\n\n"), Outcome::Answered));
}

#[test]
fn counts_are_compared_and_what_was_cached_is_not() {
    let usage = |prompt: u64, completion: u64, cached: u64| {
        let details = json!({"cached_tokens": cached});
        told(&json!({"choices": [], "usage": {
            "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion,
            "prompt_tokens_details": details,
        }}))
    };
    assert_eq!(usage(5, 7, 0), usage(5, 7, 4));
    assert_ne!(usage(5, 7, 0), usage(5, 8, 0));
    assert_ne!(usage(5, 7, 0), usage(6, 7, 0));
    assert_ne!(told(&json!({"choices": [1]})), told(&json!({"choices": [1], "error": {"message": "lost"}})));
}

#[test]
fn an_answer_that_ends_early_is_no_answer() {
    let error = "data: {\"error\": {\"message\": \"lost\"}}\n\n";
    for end in ["", error, "data: {\"choi"] {
        let outcome = outcome_of(&[1, 2], end);
        assert!(matches!(outcome, Outcome::Broken(_) | Outcome::Wrong(_)), "{end}: {outcome:?}");
    }
    assert!(matches!(outcome_of(&[1, 2, 3], ""), Outcome::Broken(_)));
    assert!(matches!(outcome_of(&[1, 4], ""), Outcome::Wrong(_)));
}

#[test]
fn refusals_are_of_a_type_and_say_when_to_come_again() {
    let cases = [
        ("503 Service Unavailable\r\nretry-after: 2", false),
        ("429 Too Many Requests\r\nretry-after: 2", false),
        ("503 Service Unavailable", true),
        ("500 Internal Server Error\r\nretry-after: 2", true),
    ];
    for (head, wrong) in cases {
        let board = Board::new(1, false);
        let address = server(head, "{}".to_owned());
        let case = Case { path: "/", body: json!({}), expected: Vec::new() };
        assert!(board.ended(0, case.stream(address, |_| Ok(()))), "{head}");
        assert_eq!(board.state().wrongs > 0, wrong, "{head}: {:?}", board.state().wrong);
    }
}

#[test]
fn lost_answers_are_wrong_unless_the_coordinator_is_killed() {
    for may_break in [false, true] {
        let board = Board::new(1, may_break);
        assert!(board.ended(0, Outcome::Broken("gone".to_owned())));
        assert_eq!(board.state().wrongs, u64::from(!may_break));
        assert_eq!(board.state().count(BROKEN), u64::from(may_break));
    }
}
