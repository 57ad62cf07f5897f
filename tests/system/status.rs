//! What a running service says of its stages, and the commands that show it.

use std::net::TcpListener;

use serde_json::Value;

use crate::http;
use crate::program::{Server, complaint, output};

/// The report of `paceline status --json`.
fn report(server: &Server, arguments: &[&str]) -> Value {
    let url = format!("http://{}", server.address);
    let text = output(&[&["status", "--json", "--url", &url], arguments].concat());
    serde_json::from_str(&text).expect("JSON")
}

#[test]
fn the_status_follows_the_work_of_every_stage() {
    let server = Server::start(&["--shards", "2", "--sessions", "3"]);
    server.chat("Count to ten.");
    let first = report(&server, &[]);
    assert_eq!((&first["service"], &first["ready"], &first["slots"]), (&"paceline".into(), &true.into(), &3.into()));
    assert!(first["rates"]["seconds"].as_f64().is_some_and(|seconds| seconds > 0.5), "{first}");
    let stages = first["stages"].as_array().expect("a list");
    assert_eq!(stages.len(), 2);
    for (index, stage) in stages.iter().enumerate() {
        assert_eq!(stage["index"], index);
        for field in ["steps", "busy_micros"] {
            assert!(stage[field].as_u64().is_some_and(|count| count > 0), "{field} of {stage}");
        }
        // What was reserved is no more than what was planned.
        let total = |kind: &str| {
            let bytes = stage["memory"][kind].as_object().expect("an object");
            bytes.values().filter_map(Value::as_u64).sum::<u64>()
        };
        assert!(total("actual") > 0 && total("actual") <= total("planned"), "{stage}");
        assert!(stage["host"].as_str().is_some_and(|host| !host.is_empty()), "{stage}");
        assert!(stage["device"].as_str().is_some_and(|device| device.starts_with("cpu")), "{stage}");
    }
    assert_eq!(stages[0]["layers"]["end"], stages[1]["layers"]["start"]);
    assert_eq!((&stages[0]["link"]["carrier"], &stages[1]["link"]), (&"local".into(), &Value::Null));
    assert!(stages[0]["sent_bytes"].as_u64() > Some(0), "{first}");
    assert_eq!(stages[1]["sent_bytes"], 0);

    server.chat("And again.");
    let second = report(&server, &[]);
    for index in 0..2 {
        for field in ["steps", "busy_micros", "idle_micros"] {
            let of = |report: &Value| report["stages"][index][field].as_u64();
            assert!(of(&second) > of(&first), "{field} of stage {index}: {first} {second}");
        }
    }
}

#[test]
fn times_are_counted_in_buckets() {
    let server = Server::start(&[]);
    let before = server.metric("paceline_first_token_seconds_count");
    for answers in [1.0, 2.0].map(|more| before + more) {
        server.chat("The code for Ruth is 4821. What is the code for Ruth?");
        let within = |bound: &str| server.metric(&format!("paceline_first_token_seconds_bucket{{le=\"{bound}\"}}"));
        assert_eq!((within("300"), within("+Inf")), (answers, answers));
        assert_eq!(server.metric("paceline_first_token_seconds_count"), answers);
        assert!(server.metric("paceline_first_token_seconds_sum") > 0.0);
    }
}

#[test]
fn metrics_say_how_busy_each_stage_is() {
    let server = Server::start(&["--shards", "2"]);
    server.chat("Hello!");
    let text = http::get(server.address, "/metrics").body;
    for stage in 0..2 {
        for name in ["paceline_stage_busy_seconds_total", "paceline_stage_idle_seconds_total"] {
            let begin = format!("{name}{{stage=\"{stage}\",host=\"");
            let line = text.lines().find(|line| line.starts_with(&begin));
            let value = line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
            assert!(value.is_some_and(|seconds| seconds > 0.0), "{begin} in {text}");
        }
    }
    assert!(server.metric("paceline_steps_total") > 0.0);
    assert!(server.metric("paceline_credit_wait_seconds_total") >= 0.0);
}

#[test]
fn tables_for_people() {
    let server = Server::start(&["--shards", "2", "--alias", "somebody/model"]);
    let url = server.address.to_string();
    let table = output(&["status", "--url", &url]);
    for word in ["somebody/model", "serving", "sessions 0/8", "tokens/s", "stage", "device", "local", "busy", "0..4"] {
        assert!(table.contains(word), "{word} in {table}");
    }
    let screen = output(&["top", "--once", "--url", &url]);
    for word in [&url, "somebody/model", "serving", "stage", "q quits"] {
        assert!(screen.contains(word), "{word} in {screen}");
    }
    assert!(screen.lines().all(|line| line.chars().count() <= 80), "{screen}");
    assert_eq!(screen.lines().count(), 24);
    // Without --once there must be a terminal.
    assert!(complaint(&["top", "--url", &url]).contains("--once"));
}

#[test]
fn what_cannot_be_shown_is_said_clearly() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let free = listener.local_addr().expect("an address").to_string();
    drop(listener);
    let with_key = Server::start(&["--api-key", "secret"]);
    let keyed = with_key.address.to_string();
    for command in [&["status"][..], &["status", "--json"], &["top", "--once"]] {
        let said = |arguments: &[&str]| complaint(&[command, arguments].concat());
        assert!(said(&["--url", &free]).contains("cannot be reached"));
        assert!(said(&["--url", &keyed]).contains("asks for an API key"));
        assert!(said(&["--url", &keyed, "--api-key", "wrong"]).contains("does not take this API key"));
        assert!(said(&["--url", "https://127.0.0.1"]).contains("only http://"));
    }
    assert_eq!(report(&with_key, &["--api-key", "secret"])["ready"], true);
}
