//! Nodes added, drained, removed and lost while clients stream: every answer is bit for bit the one of an undisturbed
//! service.

use std::io::BufReader;
use std::net::SocketAddr;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use paceline_tests::chaos::traffic;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Options, pause, shard};
use crate::http;
use crate::program::{Server, complaint, mini16, output, signal};

const CLIENTS: u64 = 8;
/// Room for each of them.
const PLACES: [&str; 4] = ["--sessions", "8", "--ctx", "1024"];

/// A request for a long answer: half of them by chance, with penalties that look back at all of it.
fn body(client: u64) -> String {
    let prompt: Vec<u64> = (0..40 + 20 * client).map(|index| (index * 7 + index * index * 13 + client) % 320).collect();
    let chance = client % 2;
    json!({
        "prompt": prompt, "max_tokens": 250, "temperature": chance, "seed": client, "ignore_eos": true,
        "presence_penalty": 0.3 * chance as f64, "logprobs": 1, "return_token_ids": true, "stream": true,
        "stream_options": {"include_usage": true},
    })
    .to_string()
}

/// All that a client is told, but for names and times. While there is no row it asks again, as it is told to.
fn answer(address: SocketAddr, client: u64) -> Vec<Value> {
    let mut reader = loop {
        let mut reader = BufReader::new(http::send(address, "POST", "/v1/completions", body(client).as_bytes()));
        match http::read_head(&mut reader).0 {
            200 => break reader,
            503 => pause(),
            status => panic!("client {client} is answered with {status}"),
        }
    };
    let mut body = Vec::new();
    while let Some(chunk) = http::read_chunk(&mut reader) {
        body.extend(chunk);
    }
    let events = http::events(&String::from_utf8(body).expect("UTF-8"));
    events.iter().map(traffic::told).collect()
}

/// Clients that ask for the same again and again, and look whether they are told the same.
struct Clients {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    /// Learns from one undisturbed process what is to be told, and begins.
    fn start(address: SocketAddr, model: &str) -> Self {
        let undisturbed = Server::start(&["--threads", "1", "--sessions", "8", "--ctx", "1024", model]);
        let alone = undisturbed.address;
        let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let client = |number: u64| {
            let expected = answer(alone, number);
            assert!(expected.len() > 250, "{} events", expected.len());
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(answer(address, number) == expected, "client {number} is told something else");
                    answers.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        let threads = (0..CLIENTS).map(client).collect();
        Self { stop, answers, threads }
    }

    /// Waits until so many answers more have ended that every client has got some of its tokens; two minutes mean never.
    fn progress(&self) {
        let (begun, before) = (Instant::now(), self.answers.load(Ordering::Relaxed));
        while self.answers.load(Ordering::Relaxed) < before + 2 * CLIENTS as usize {
            assert!(begun.elapsed() < Duration::from_secs(120), "answers do not end");
            pause();
        }
    }

    /// Lets running answers end.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("every answer is as it should be");
        }
        self.answers.load(Ordering::Relaxed)
    }
}

/// Waits until something is so of the service's status; a minute means never.
fn await_status(cluster: &Cluster, what: &str, holds: impl Fn(&Value) -> bool) {
    let begun = Instant::now();
    while !holds(&cluster.status()) {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what} does not come: {}", cluster.status());
        pause();
    }
}

fn await_nodes(cluster: &Cluster, count: usize) {
    await_status(cluster, "the last node", |status| {
        status["nodes"].as_array().is_some_and(|nodes| nodes.len() == count)
    });
}

/// How the first shard that ended did so; a minute means never.
fn first_ended(cluster: &mut Cluster) -> ExitStatus {
    let begun = Instant::now();
    loop {
        if let Some(status) = cluster.shards.iter_mut().find_map(|shard| shard.0.try_wait().expect("its state")) {
            return status;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "no shard ends");
        pause();
    }
}

/// A row of two and some who wait.
fn cluster(waiting: usize) -> (Cluster, String) {
    cluster_of(waiting, &[])
}

/// The same, of shards with these flags.
fn cluster_of(waiting: usize, flags: &[&str]) -> (Cluster, String) {
    let options = Options { model: Some(&mini16()), coordinator: &PLACES, shard: flags, ..Options::default() };
    let mut cluster = Cluster::start(2, &options);
    for index in 0..waiting {
        cluster.shards.push(shard(&cluster.folder, 2 + index, flags));
    }
    await_nodes(&cluster, 2 + waiting);
    (cluster, mini16().to_str().expect("UTF-8").to_owned())
}

/// The nodes of the row, in order.
fn row(cluster: &Cluster) -> Vec<String> {
    let status = cluster.status();
    let stages = status["stages"].as_array().expect("stages");
    stages.iter().map(|stage| stage["node"].as_str().expect("a name").to_owned()).collect()
}

/// Changes the row by the command line; returns its report.
fn scale(cluster: &Cluster, arguments: &[&str]) -> Value {
    let url = cluster.coordinator.address.to_string();
    serde_json::from_str(&output(&[arguments, &["--json", "--url", &url]].concat())).expect("JSON")
}

/// Sessions that were interrupted: nobody notices a move.
fn interrupted(cluster: &Cluster) -> u64 {
    let text = http::get(cluster.coordinator.address, "/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix("paceline_sessions_interrupted_total "));
    line.map_or(0, |count| count.parse().expect("a number"))
}

#[test]
fn answers_run_on_while_nodes_are_added_drained_and_removed() {
    let (mut cluster, model) = cluster(1);
    let url = cluster.coordinator.address.to_string();
    let clients = Clients::start(cluster.coordinator.address, &model);
    await_status(&cluster, "every client", |status| status["running"] == CLIENTS);
    let moved = |report: &Value, stages: usize| {
        assert_eq!(report["outcome"], "moved", "{report}");
        assert_eq!(report["after"].as_array().map(Vec::len), Some(stages), "{report}");
        assert!(report["bytes_fetched"].as_u64() > Some(0) && report["pause_millis"].as_f64() > Some(0.0), "{report}");
        eprintln!("{} to {stages} stages: {} ms", report["action"], report["pause_millis"]);
        assert_eq!(row(&cluster).len(), stages);
    };
    let mut add = vec!["scale".to_owned(), "add".to_owned()];
    for _ in 0..3 {
        moved(&scale(&cluster, &add.iter().map(String::as_str).collect::<Vec<_>>()), 3);
        let tail = row(&cluster).pop().expect("a tail");
        moved(&scale(&cluster, &["drain", &tail[..8]]), 2);
        let nodes = cluster.status()["nodes"].as_array().cloned().expect("nodes");
        let drained: Vec<&Value> = nodes.iter().filter(|node| node["drained"] == true).collect();
        assert!(drained.len() == 1 && drained[0]["node"] == tail, "{nodes:?}");
        moved(&scale(&cluster, &["scale", "add", &tail]), 3);
        let again = scale(&cluster, &["rebalance"]);
        assert!(again["outcome"] == "moved" || again["outcome"] == "unchanged", "{again}");
        let head = row(&cluster).remove(0);
        moved(&scale(&cluster, &["scale", "drain", &head]), 2);
        moved(&scale(&cluster, &["scale", "add", &head]), 3);
        let middle = row(&cluster).remove(1);
        moved(&scale(&cluster, &["scale", "drain", &middle]), 2);
        // Who was drained comes back by name only.
        assert!(complaint(&["scale", "add", "--url", &url]).contains("no node is free"));
        add.truncate(2);
        add.push(middle);
    }
    // The one that was drained last goes for good.
    let drained = cluster.status()["nodes"].as_array().cloned().expect("nodes");
    let drained = drained.iter().find(|node| node["drained"] == true).expect("the last one");
    let removed = scale(&cluster, &["scale", "remove", drained["node"].as_str().expect("a name")]);
    assert_eq!(removed["outcome"], "unchanged", "{removed}");
    await_nodes(&cluster, 2);
    // It was asked to go, so nothing is wrong with it.
    assert_eq!(first_ended(&mut cluster).code(), Some(0));
    assert_eq!(interrupted(&cluster), 0);
    assert!(clients.end() > 0);
    cluster.coordinator.await_metric("paceline_pages_used", 0.0);
}

#[test]
fn what_cannot_be_changed_is_said_and_changes_nothing() {
    let (cluster, _) = cluster(0);
    let url = cluster.coordinator.address.to_string();
    let row_before = row(&cluster);
    let says = |arguments: &[&str]| complaint(&[arguments, &["--url", &url]].concat());
    assert!(says(&["drain", &row_before[0], &row_before[1]]).contains("no node would be left"));
    assert!(says(&["drain", "nobody"]).contains("there is no node \"nobody\""));
    assert!(says(&["scale", "add"]).contains("no node is free"));
    assert!(says(&["scale", "drain"]).contains("NODE"));
    let post = |body: &Value| http::post(cluster.coordinator.address, "/admin/v1/scale", body);
    for (body, status) in [
        (json!({"action": "add"}), 422),
        (json!({"action": "drain"}), 422),
        (json!({"action": "remove", "nodes": ["nobody"]}), 404),
        (json!({"action": "halve"}), 400),
        (json!({"nodes": []}), 400),
        (json!({"action": "rebalance", "nodes": ["x"]}), 400),
    ] {
        let response = post(&body);
        assert_eq!(response.status, status, "{body}: {}", response.body);
        assert!(response.json()["error"]["message"].is_string());
    }
    assert_eq!(row(&cluster), row_before);
    // Where everything is one process there is nothing to scale.
    let single = Server::start(&[]);
    assert!(complaint(&["rebalance", "--url", &single.address.to_string()]).contains("one process"));
}

#[test]
fn a_shard_that_is_told_to_end_gives_its_work_away_first() {
    let (mut cluster, model) = cluster(1);
    let clients = Clients::start(cluster.coordinator.address, &model);
    await_status(&cluster, "every client", |status| status["running"] == CLIENTS);
    // One of the row: the shard that waits takes its place.
    let mut first = cluster.shards.remove(0);
    signal(&first.0, "-TERM");
    assert_eq!(first.0.wait().expect("it ends").code(), Some(0));
    await_nodes(&cluster, 2);
    assert_eq!(row(&cluster).len(), 2);
    // Another: one is left with all the work, until somebody comes again, which needs no request.
    let mut second = cluster.shards.remove(0);
    signal(&second.0, "-TERM");
    assert_eq!(second.0.wait().expect("it ends").code(), Some(0));
    assert_eq!(row(&cluster).len(), 1);
    cluster.shards.push(shard(&cluster.folder, 5, &[]));
    await_status(&cluster, "the second stage", |status| status["stages"].as_array().is_some_and(|row| row.len() == 2));
    assert_eq!(interrupted(&cluster), 0);
    assert!(clients.end() > 0);
}

#[test]
fn a_row_for_which_there_is_no_room_beside_the_old_one_takes_its_place_and_answers_are_replayed() {
    // Enough for a stage of either row, and not for one of each.
    let model = mini16();
    let plan = [&["plan", model.to_str().expect("UTF-8"), "--shards", "2", "--json"], &PLACES[..]].concat();
    let plan: Value = serde_json::from_str(&output(&plan)).expect("JSON");
    let parts = ["weights", "key_value", "states", "buffers", "reserve"];
    let bytes = |stage: &Value| parts.iter().map(|part| stage[part].as_f64().expect("bytes")).sum::<f64>();
    let largest = plan["stages"].as_array().expect("stages").iter().map(bytes).fold(0.0, f64::max);
    let memory = (largest * 1.1 / f64::from(1 << 30)).to_string();
    let (cluster, model) = cluster_of(1, &["--memory", &memory]);
    let clients = Clients::start(cluster.coordinator.address, &model);
    await_status(&cluster, "every client", |status| status["running"] == CLIENTS);
    let interrupted_before = interrupted(&cluster);
    let replayed = |arguments: &[&str], stages: usize| {
        let report = scale(&cluster, arguments);
        assert_eq!(report["outcome"], "replayed", "{report}");
        assert!(report["reason"].as_str().is_some_and(|reason| reason.contains("both rows together")), "{report}");
        assert_eq!(row(&cluster).len(), stages);
        clients.progress();
    };
    replayed(&["scale", "add"], 3);
    let tail = row(&cluster).pop().expect("a tail");
    replayed(&["drain", &tail], 2);
    assert!(interrupted(&cluster) > interrupted_before, "both times answers were interrupted");
    assert!(clients.end() > 0);
}

#[test]
fn shards_that_are_killed_while_a_row_takes_over_lose_no_token() {
    let (mut cluster, model) = cluster(1);
    let address = cluster.coordinator.address;
    let clients = Clients::start(address, &model);
    await_status(&cluster, "every client", |status| status["running"] == CLIENTS);
    for (round, delay) in [0, 40, 100, 200, 400, 800].into_iter().enumerate() {
        clients.progress();
        await_status(&cluster, "a row, and nothing else under way", |status| {
            status["ready"] == true
                && status["nodes"].as_array().is_some_and(|nodes| nodes.len() == 3)
                && status["moving"].is_null()
        });
        if row(&cluster).len() == 3 {
            let tail = row(&cluster).pop().expect("a tail");
            scale(&cluster, &["drain", &tail]);
        }
        let (row, nodes) = (row(&cluster), cluster.status()["nodes"].as_array().cloned().expect("nodes"));
        let mut names = nodes.iter().map(|node| node["node"].as_str().expect("a name").to_owned());
        let waits = names.find(|name| !row.contains(name)).expect("one without a stage");
        let add = json!({"action": "add", "nodes": [waits]});
        let adding = std::thread::spawn(move || http::post(address, "/admin/v1/scale", &add).json());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(delay) {
            pause();
        }
        // The newcomer, or one that serves.
        drop(cluster.shards.remove(round % 3));
        let report = adding.join().expect("an answer");
        eprintln!("a shard is killed after {delay} ms: {} {}", report["outcome"], report["reason"]);
        cluster.shards.push(shard(&cluster.folder, 10 + round, &[]));
    }
    await_status(&cluster, "a row", |status| status["ready"] == true);
    assert!(clients.end() > 0);
}
