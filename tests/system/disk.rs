//! What was read before everything was stopped or killed is not read again: it comes from the disk, and the answer is a
//! cold one's.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cache::{ask, cached, chat, document, prompt_tokens, says};
use crate::cluster::{Cluster, Options, pause};
use crate::http::post;
use crate::program::{Server, complaint, mini16};

const FLAGS: [&str; 4] = ["--sessions", "4", "--ctx", "10000"];
const KEPT: &str = "paceline_cache_kept_total{tier=\"disk\"}";

fn question(name: &str) -> Value {
    chat(&[
        says("system", "Answer from this list of codes."),
        says("user", &format!("{}What is the code for {name}?", document(8000))),
    ])
}

fn cold(body: &Value) -> Value {
    ask(&Server::start(&FLAGS), body).json()["choices"].clone()
}

fn on_disk(folder: &Path) -> String {
    format!("{}:2G", folder.to_str().expect("UTF-8"))
}

/// Nearly all of the prompt must come from the disk, and the answer must be the cold one.
fn comes_from_disk(server: &Server, body: &Value, cold: &Value, what: &str) {
    let response = ask(server, body);
    let answer = response.json();
    let (cached, prompt) = (cached(&answer), prompt_tokens(&answer));
    assert!(cached * 100 >= prompt * 98, "{what}: {cached} of {prompt} tokens cached");
    assert_eq!(response.header("x-paceline-cache-tier"), Some("disk"), "{what}");
    assert_eq!(answer["timings"]["cache_tier"], "disk", "{what}");
    assert_eq!(answer["choices"], *cold, "{what}: not as a cold server answers");
}

/// Waits until nothing more goes to the disk; a minute means that it never ends.
fn await_kept(server: &Server) {
    let begun = Instant::now();
    let (mut last, mut since) = (server.metric(KEPT), Instant::now());
    while last == 0.0 || since.elapsed() < Duration::from_secs(2) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{last} entries kept");
        pause();
        let now = server.metric(KEPT);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
}

#[test]
fn a_server_that_is_stopped_or_killed_goes_on_from_its_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = on_disk(folder.path());
    let start = || Server::start(&[&FLAGS[..], &["--cache-disk", &disk]].concat());
    let server = start();
    let first = ask(&server, &question("Ruth 12"));
    assert_eq!((cached(&first.json()), first.header("x-paceline-cache-tier")), (0, None));
    // What is on its way to the disk gets there.
    assert_eq!(server.end_by("-TERM"), Some(0));
    let (second, third) = (question("Abel 1"), question("Joel 5"));
    let server = start();
    comes_from_disk(&server, &second, &cold(&second), "stopped");
    let again = ask(&server, &second);
    assert_eq!(again.header("x-paceline-cache-tier"), Some("device"), "it is in memory now");
    await_kept(&server);
    drop(server);
    let server = start();
    comes_from_disk(&server, &third, &cold(&third), "killed");
    let status = crate::http::get(server.address, "/admin/v1/cache").json();
    assert!(status["totals"]["disk"]["bytes"].as_u64() > Some(0) && status["totals"]["disk"]["hits"] == 1, "{status}");
    let said = complaint(&["serve", "--port", "0", "--cache-disk", &disk]);
    assert!(said.contains("in use by another process"), "{said}");
    let said = complaint(&["serve", "--port", "0", "--cache-disk", "/dev/null/here:1G"]);
    assert!(said.contains("--cache-disk: cannot use /dev/null/here"), "{said}");
    // Other settings are another memory.
    drop(server);
    let other = Server::start(&[&FLAGS[..], &["--cache-disk", &disk, "--kv-type", "q8_0"]].concat());
    assert_eq!(cached(&ask(&other, &third).json()), 0);
}

#[test]
fn a_text_without_states_is_kept_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let disk = on_disk(folder.path());
    let model = crate::program::root().join("tests/data/models/mini-llama-Q4_K_M.gguf");
    let start = || Server::start(&[model.to_str().expect("UTF-8"), "--ctx", "4000", "--cache-disk", &disk]);
    let prompt: Vec<u32> = (0..1500).map(|index| 5 + index * 7 % 300).collect();
    let body = |prompt: &[u32]| json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": true});
    let server = start();
    let expected = ask(&server, &body(&prompt)).json();
    assert_eq!(server.end_by("-TERM"), Some(0));
    let answer = ask(&start(), &body(&prompt));
    assert_eq!(answer.header("x-paceline-cache-tier"), Some("disk"));
    assert_eq!(answer.json()["choices"], expected["choices"]);
    assert!(cached(&answer.json()) >= 1024, "{}", answer.body);
}

/// Ends all processes of a cluster; what is on its way to the disks gets there.
fn end(cluster: Cluster) -> TempDir {
    let Cluster { coordinator, shards, folder } = cluster;
    assert_eq!(coordinator.end_by("-TERM"), Some(0));
    drop(shards);
    folder
}

#[test]
fn a_row_that_is_stopped_goes_on_from_its_disks_and_so_does_another_cut() {
    let model = mini16();
    let flags = ["--sessions", "4", "--ctx", "8000"];
    let options = Options { model: Some(&model), coordinator: &flags, disks: true, ..Options::default() };
    // One beginning of eight periods, and an ending of each its own.
    let question = |ending: u32| {
        let prompt: Vec<u32> = (0..4096).map(|index| 5 + index * 7 % 300).chain((0..16).map(|_| 5 + ending)).collect();
        json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "return_token_ids": true})
    };
    let questions: [Value; 5] = std::array::from_fn(|ending| question(ending as u32));
    let server = Server::start(&[&[model.to_str().expect("UTF-8")], &flags[..]].concat());
    let cold = questions.each_ref().map(|body| ask(&server, body).json()["choices"].clone());
    drop(server);
    let cluster = Cluster::start(2, &options);
    assert_eq!(cached(&ask(&cluster.coordinator, &questions[0]).json()), 0);
    let cluster = Cluster::start_in(end(cluster), 2, &options);
    comes_from_disk(&cluster.coordinator, &questions[1], &cold[1], "the same row");
    // One stage more: what it lacks on its disk it takes from those who had its layers, and keeps.
    let cluster = Cluster::start_in(end(cluster), 3, &options);
    assert_eq!(cluster.status()["stages"].as_array().map(Vec::len), Some(3));
    comes_from_disk(&cluster.coordinator, &questions[2], &cold[2], "another cut");
    let cluster = Cluster::start_in(end(cluster), 3, &options);
    comes_from_disk(&cluster.coordinator, &questions[3], &cold[3], "the other cut");
    // And the first cut has lost nothing.
    let cluster = Cluster::start_in(end(cluster), 2, &options);
    comes_from_disk(&cluster.coordinator, &questions[4], &cold[4], "the first cut again");
    // What is dropped is forgotten on the disks too.
    let begin = json!({"prompt": questions[0]["prompt"].as_array().expect("tokens")[..1000]});
    let dropped = post(cluster.coordinator.address, "/admin/v1/cache/drop", &begin).json();
    assert_eq!(dropped["on_disk"], true, "{dropped}");
    let cluster = Cluster::start_in(end(cluster), 2, &options);
    assert_eq!(cached(&ask(&cluster.coordinator, &questions[4]).json()), 0);
}
