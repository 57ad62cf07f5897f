//! Coordinators that are ended or killed and come back, and shards that wait for them.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cluster::{Cluster, Options, Shard, await_file, coordinator, pause, token_file};
use crate::http;
use crate::program::{PACELINE, Server, output};

const QUESTION: &str = "The code for Ruth is 4821. What is the code for Ruth?";

/// An address of the loopback that nobody listens at. Another process could take it: it would be told.
fn free_address() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").to_string()
}

fn status(server: &Server) -> Value {
    http::get(server.address, "/admin/v1/status").json()
}

/// Which node holds which layers.
fn row(status: &Value) -> Vec<(Value, Value)> {
    let stages = status["stages"].as_array().expect("stages");
    stages.iter().map(|stage| (stage["node"].clone(), stage["layers"].clone())).collect()
}

#[test]
fn a_coordinator_that_comes_back_takes_up_the_same_row_with_a_greater_epoch() {
    let control = free_address();
    let flags = ["--shards", "2", "--control", &control, "--data", "127.0.0.1:0"];
    // One more than it takes: any two would do.
    let Cluster { coordinator: mut server, mut shards, folder } =
        Cluster::start(3, &Options { coordinator: &flags, ..Options::default() });
    let expected = server.chat(QUESTION)["choices"].clone();
    let before = status(&server);
    let mut newest = before["epoch"].as_u64().expect("an epoch");
    for signal in ["-KILL", "-TERM", "-KILL"] {
        server.end_by(signal);
        let mut command = coordinator(&folder, 2);
        command.args(flags);
        server = Server::of(command);
        let now = status(&server);
        assert_eq!(row(&now), row(&before), "after {signal}");
        let epoch = now["epoch"].as_u64().expect("an epoch");
        assert!(epoch > newest, "epoch {epoch} after {newest}");
        newest = epoch;
        assert_eq!(server.chat(QUESTION)["choices"], expected);
        let sockets = std::fs::read_dir(folder.path().join("state")).expect("the state folder").flatten();
        let sockets = sockets.filter(|entry| entry.file_name().to_string_lossy().ends_with(".sock")).count();
        assert_eq!(sockets, 1, "sockets of killed processes are left");
    }
    for shard in &mut shards {
        assert!(shard.0.try_wait().expect("its state").is_none(), "a shard has ended");
    }
}

#[test]
fn a_shard_waits_for_a_coordinator_that_is_not_there_yet() {
    let folder = tempfile::tempdir().expect("a folder");
    let control = free_address();
    let state = folder.path().join("state");
    let token = output(&["token", "--state", state.to_str().expect("UTF-8"), "create", "--address", &control]);
    std::fs::write(token_file(&folder), token).expect("writable");
    let log = folder.path().join("early.log");
    let mut early = Command::new(PACELINE);
    early.args(["shard", "--threads", "1", "--token-file"]).arg(token_file(&folder));
    early.arg("--cache").arg(folder.path().join("cache"));
    early.stdin(Stdio::null()).stderr(std::fs::File::create(&log).expect("writable"));
    let _early = Shard(early.spawn().expect("the program starts"));
    let begun = Instant::now();
    while !std::fs::read_to_string(&log).expect("a log").contains("trying again") {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not say that it waits");
        pause();
    }
    let said = std::fs::read_to_string(&log).expect("a log");
    assert!(said.contains(&control), "{said}");
    let mut command = coordinator(&folder, 1);
    command.args(["--control", &control, "--data", "127.0.0.1:0"]);
    assert_eq!(row(&status(&Server::of(command))).len(), 1);
}

#[test]
fn a_damaged_store_is_told_with_what_to_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    std::fs::create_dir(&state).expect("a folder");
    std::fs::write(state.join("cluster.redb"), "this is no store").expect("writable");
    let output = coordinator(&folder, 1).stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("cluster.redb") && said.contains("Move it away"), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    // As it says: without that file all is well.
    std::fs::remove_file(state.join("cluster.redb")).expect("it is there");
    let mut running = coordinator(&folder, 1);
    let _running = Shard(running.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts"));
    await_file(&token_file(&folder));
    // And only one of them has the folder.
    let output = coordinator(&folder, 1).stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("another coordinator runs"), "{said}");
}
