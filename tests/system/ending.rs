//! How a service ends at a signal: first nobody is admitted any more, then running answers finish, then everything is
//! closed.

use std::io::{BufReader, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::cluster::{Cluster, Options, pause};
use crate::http::{self, post, read_chunk, read_head};
use crate::program::{Server, greedy};

/// A stream that has begun and would go on for longer than any test.
fn endless(server: &Server) -> BufReader<TcpStream> {
    let body = json!({"prompt": [5, 6, 7], "max_tokens": 30_000, "ignore_eos": true, "stream": true}).to_string();
    let mut reader = BufReader::new(http::send(server.address, "POST", "/v1/completions", body.as_bytes()));
    assert_eq!(read_head(&mut reader).0, 200);
    read_chunk(&mut reader).expect("the first token");
    reader
}

/// Waits until the service says that it drains.
fn await_draining(server: &Server) {
    let begun = Instant::now();
    loop {
        let health = http::get(server.address, "/health");
        if health.status == 503 && health.json()["status"] == "draining" {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not drain: {}", health.body);
        pause();
    }
}

fn the_three_phases(server: Server) {
    let mut running = endless(&server);
    server.signal("-TERM");
    await_draining(&server);
    // Nobody is admitted, and is told when to come again; what needs no stage is still answered.
    let body = greedy("Hello").to_string();
    let mut refused = BufReader::new(http::send(server.address, "POST", "/v1/chat/completions", body.as_bytes()));
    let (status, head) = read_head(&mut refused);
    assert_eq!(status, 503);
    assert!(head.iter().any(|line| line.to_lowercase().starts_with("retry-after: ")), "{head:?}");
    assert_eq!(http::get(server.address, "/live").status, 200);
    assert_eq!(http::get(server.address, "/admin/v1/status").json()["draining"], true);
    // Who runs, runs on; the end comes with the last of them.
    for _ in 0..3 {
        read_chunk(&mut running).expect("a token");
    }
    drop(running);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn running_answers_go_on_while_nobody_is_admitted() {
    the_three_phases(Server::start(&["--ctx", "32768", "--drain-timeout", "3600"]));
}

#[test]
fn a_coordinator_ends_in_the_same_way() {
    let options = Options { coordinator: &["--ctx", "32768", "--drain-timeout", "3600"], ..Options::default() };
    let Cluster { coordinator, mut shards, folder } = Cluster::start(2, &options);
    the_three_phases(coordinator);
    // The shards wait for the next one.
    for shard in &mut shards {
        assert!(shard.0.try_wait().expect("its state").is_none(), "a shard has ended");
    }
    drop(folder);
}

#[test]
fn answers_that_do_not_end_are_ended_with_a_reason() {
    let server = Server::start(&["--ctx", "32768", "--drain-timeout", "1"]);
    let mut running = endless(&server);
    server.signal("-INT");
    let mut rest = String::new();
    running.read_to_string(&mut rest).expect("the stream ends as streams do");
    assert!(rest.contains("\"error\""), "it ends without a reason: ..{}", &rest[rest.len().saturating_sub(300)..]);
    drop(running);
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_second_signal_ends_it_at_once() {
    let server = Server::start(&["--ctx", "32768", "--drain-timeout", "3600"]);
    let _running = endless(&server);
    server.signal("-TERM");
    await_draining(&server);
    assert_eq!(server.end_by("-TERM"), Some(130));
}

#[test]
fn a_request_that_comes_too_late_is_refused_by_type() {
    let server = Server::start(&["--ctx", "32768", "--drain-timeout", "3600"]);
    let running = endless(&server);
    server.signal("-TERM");
    await_draining(&server);
    let refused = post(server.address, "/v1/chat/completions", &greedy("Hello"));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("shutting_down")));
    drop(running);
    assert_eq!(server.end(), Some(0));
}
