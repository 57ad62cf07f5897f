//! A coordinator and its shards as processes of their own, and what they do together.

use std::io::BufReader;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use paceline_tests::chaos::traffic;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http;
use crate::program::{PACELINE, Server, complaint, greedy, mini16, output, signal};

const QUESTION: &str = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";

/// A coordinator that serves, and its shards.
pub(crate) struct Cluster {
    pub(crate) coordinator: Server,
    pub(crate) shards: Vec<Shard>,
    pub(crate) folder: TempDir,
}

/// A shard's process.
pub(crate) struct Shard(pub(crate) Child);

impl Drop for Shard {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a cluster is started.
#[derive(Default)]
pub(crate) struct Options<'a> {
    /// The model; without one the embedded one.
    pub(crate) model: Option<&'a Path>,
    /// More flags of the coordinator.
    pub(crate) coordinator: &'a [&'a str],
    /// More flags of every shard.
    pub(crate) shard: &'a [&'a str],
    /// Every shard has a disk for what it remembers.
    pub(crate) disks: bool,
}

impl Cluster {
    /// Starts a coordinator and `count` shards, and waits until they serve.
    pub(crate) fn start(count: usize, options: &Options<'_>) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), count, options)
    }

    /// The same with what an earlier one left in its folder.
    pub(crate) fn start_in(folder: TempDir, count: usize, options: &Options<'_>) -> Self {
        let token = token_file(&folder);
        // The one of before leads to another port.
        let _ = std::fs::remove_file(&token);
        let mut command = coordinator(&folder, count);
        command.args(options.coordinator).args(options.model);
        let (coordinator, shards) = std::thread::scope(|scope| {
            let starting = scope.spawn(|| {
                await_file(&token);
                (0..count).map(|index| start_shard(&folder, index, options)).collect::<Vec<_>>()
            });
            let server = Server::of(command);
            (server, starting.join().expect("shards start"))
        });
        Self { coordinator, shards, folder }
    }

    pub(crate) fn status(&self) -> Value {
        http::get(self.coordinator.address, "/admin/v1/status").json()
    }

    /// Waits until requests are served, or not; a minute means never.
    pub(crate) fn await_ready(&self, ready: bool) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if self.status()["ready"] == ready {
                return;
            }
            pause();
        }
        panic!("ready is not {ready}: {}", self.status());
    }
}

/// A coordinator's command, with free ports of the loopback.
pub(crate) fn coordinator(folder: &TempDir, shards: usize) -> Command {
    let mut command = Command::new(PACELINE);
    command.args(["coordinator", "--port", "0", "--control", "127.0.0.1:0", "--shards", &shards.to_string()]);
    command.arg("--state").arg(folder.path().join("state")).arg("--token-file").arg(token_file(folder));
    command
}

/// Starts a shard as the options say.
pub(crate) fn start_shard(folder: &TempDir, index: usize, options: &Options<'_>) -> Shard {
    let disk = format!("{}:2G", folder.path().join(format!("disk{index}")).display());
    let disk = if options.disks { vec!["--cache-disk", &disk] } else { Vec::new() };
    shard(folder, index, &[options.shard, &disk].concat())
}

/// Starts a shard with a cache of its own.
pub(crate) fn shard(folder: &TempDir, index: usize, flags: &[&str]) -> Shard {
    let mut command = Command::new(PACELINE);
    command.args(["shard", "--threads", "1", "--token-file"]).arg(token_file(folder)).env("NO_COLOR", "1");
    command.arg("--cache").arg(folder.path().join(format!("cache{index}"))).args(flags);
    let log = std::fs::File::create(folder.path().join(format!("shard{index}.log"))).expect("writable");
    Shard(command.stdin(Stdio::null()).stderr(log).spawn().expect("the program starts"))
}

pub(crate) fn token_file(folder: &TempDir) -> PathBuf {
    folder.path().join("token")
}

/// Waits until a file is there.
pub(crate) fn await_file(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} does not come", path.display());
        pause();
    }
}

/// Between two looks at another process, which cannot be waited for.
#[expect(clippy::disallowed_methods, reason = "the other process has no event for us")]
pub(crate) fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}

fn tokens(answer: &Value) -> &Value {
    &answer["choices"][0]["token_ids"]
}

#[test]
fn shards_of_other_processes_answer_as_one_process_does() {
    let expected = Server::start(&["--threads", "1"]).chat(QUESTION);
    for link in ["unix", "quic"] {
        let cluster = Cluster::start(2, &Options { coordinator: &["--link", link], ..Options::default() });
        let answer = cluster.coordinator.chat(QUESTION);
        assert_eq!(tokens(&answer), tokens(&expected), "{link}");
        let status = cluster.status();
        let stages = status["stages"].as_array().expect("stages");
        assert_eq!(stages.len(), 2, "{status}");
        for stage in stages {
            assert_eq!(stage["link"]["carrier"], link);
        }
    }
}

#[test]
fn layers_that_a_host_does_not_have_are_fetched_once() {
    let model = mini16();
    let prompt = |server: &Server| {
        let body =
            serde_json::json!({"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "return_token_ids": true});
        http::post(server.address, "/v1/completions", &body).json()["choices"][0]["token_ids"].clone()
    };
    let one = Server::start(&[model.to_str().expect("UTF-8"), "--threads", "1"]);
    let expected = prompt(&one);
    let options = Options { model: Some(&model), shard: &["--fetch", "-v"], ..Options::default() };
    let mut cluster = Cluster::start(3, &options);
    assert_eq!(prompt(&cluster.coordinator), expected);
    // A shard that comes again with its cache has its layers, or others that are its now, and fetches the rest only.
    drop(cluster.shards.remove(0));
    cluster.await_ready(false);
    cluster.shards.push(shard(&cluster.folder, 0, &["--fetch", "-v"]));
    cluster.await_ready(true);
    assert_eq!(prompt(&cluster.coordinator), expected);
    let log = std::fs::read_to_string(cluster.folder.path().join("shard0.log")).expect("a log");
    assert!(!log.contains("this host has the model"), "{log}");
}

#[test]
fn activations_may_travel_in_less_than_single_precision() {
    for activations in ["f16", "int8"] {
        let options = Options { coordinator: &["--activations", activations], ..Options::default() };
        let answer = Cluster::start(2, &options).coordinator.chat(QUESTION);
        let text = answer["choices"][0]["message"]["content"].as_str().expect("a text");
        assert!(text.contains("The code for Ruth is 4821."), "{activations}: {text}");
    }
}

#[test]
fn a_shard_that_was_silent_for_a_while_joins_again() {
    let cluster = Cluster::start(2, &Options::default());
    let expected = cluster.coordinator.chat(QUESTION);
    signal(&cluster.shards[1].0, "-STOP");
    cluster.await_ready(false);
    signal(&cluster.shards[1].0, "-CONT");
    cluster.await_ready(true);
    assert_eq!(tokens(&cluster.coordinator.chat(QUESTION)), tokens(&expected));
}

/// What a shard says of its stages in its log: bytes of weights, and how many of them were in memory already.
fn stages_loaded(cluster: &Cluster, shard: usize) -> Vec<(u64, u64)> {
    let log = std::fs::read_to_string(cluster.folder.path().join(format!("shard{shard}.log"))).expect("a log");
    let number = |line: &str, name: &str| line.split_once(name)?.1.split_whitespace().next()?.parse().ok();
    let loaded = log.lines().filter(|line| line.contains("stage loaded"));
    loaded.map(|line| (number(line, "weights=").expect(line), number(line, "reused=").expect(line))).collect()
}

#[test]
fn a_shard_whose_row_is_over_keeps_its_weights_for_the_next() {
    let cluster = Cluster::start(1, &Options { shard: &["-v"], ..Options::default() });
    let expected = cluster.coordinator.chat(QUESTION);
    signal(&cluster.shards[0].0, "-STOP");
    cluster.await_ready(false);
    signal(&cluster.shards[0].0, "-CONT");
    cluster.await_ready(true);
    assert_eq!(tokens(&cluster.coordinator.chat(QUESTION)), tokens(&expected));
    let [(weights, 0), (again, reused)] = stages_loaded(&cluster, 0)[..] else {
        panic!("{:?}", stages_loaded(&cluster, 0));
    };
    assert!(weights > 0 && (again, reused) == (weights, weights), "{weights} bytes, then {reused} of {again} reused");
}

#[test]
fn nodes_are_told_and_can_be_planned_with() {
    let cluster = Cluster::start(2, &Options { shard: &["--memory", "2"], ..Options::default() });
    let nodes = cluster.status()["nodes"].clone();
    assert_eq!(nodes.as_array().map(Vec::len), Some(2), "{nodes}");
    assert_eq!(nodes[0]["memory_bytes"], 2_u64 << 30, "{nodes}");
    let url = format!("http://{}", cluster.coordinator.address);
    let plan: Value =
        serde_json::from_str(&output(&["plan", "--cluster", &url, "--shards", "2", "--ctx", "4096", "--json"]))
            .expect("JSON");
    assert_eq!(plan["stages"].as_array().map(Vec::len), Some(2), "{plan}");
    assert!(plan["prediction"].is_object(), "{plan}");
    let server = Server::start(&[]);
    let said = complaint(&["plan", "--cluster", &format!("http://{}", server.address)]);
    assert!(said.contains("no shards have joined"), "{said}");
}

#[test]
fn a_lost_shard_is_replaced_and_the_service_returns() {
    let mut cluster = Cluster::start(2, &Options::default());
    let expected = cluster.coordinator.chat(QUESTION);
    drop(cluster.shards.pop());
    cluster.await_ready(false);
    let refused = http::post(cluster.coordinator.address, "/v1/chat/completions", &greedy(QUESTION));
    assert_eq!(refused.status, 503, "{}", refused.body);
    cluster.shards.push(shard(&cluster.folder, 7, &[]));
    cluster.await_ready(true);
    assert_eq!(tokens(&cluster.coordinator.chat(QUESTION)), tokens(&expected));
}

/// A long answer by chance, as a stream.
pub(crate) fn long_answer(address: SocketAddr) -> BufReader<TcpStream> {
    let body = json!({
        "prompt": [5, 6, 7, 8, 9], "max_tokens": 600, "temperature": 1, "seed": 11, "presence_penalty": 0.1,
        "ignore_eos": true, "logprobs": 2, "return_token_ids": true, "stream": true,
        "stream_options": {"include_usage": true},
    });
    let mut reader = BufReader::new(http::send(address, "POST", "/v1/completions", body.to_string().as_bytes()));
    assert_eq!(http::read_head(&mut reader).0, 200);
    reader
}

/// What a stream tells to its end, but for names and times: tokens, log probabilities, text and counts.
pub(crate) fn told(begin: Vec<u8>, mut reader: BufReader<TcpStream>) -> Vec<Value> {
    let mut body = begin;
    while let Some(chunk) = http::read_chunk(&mut reader) {
        body.extend(chunk);
    }
    let events = http::events(&String::from_utf8(body).expect("UTF-8"));
    events.iter().map(traffic::told).collect()
}

#[test]
fn an_answer_goes_on_when_a_shard_is_killed() {
    let mut cluster = Cluster::start(2, &Options { coordinator: &["--ctx", "2048"], ..Options::default() });
    let address = cluster.coordinator.address;
    let expected = told(Vec::new(), long_answer(address));
    assert!(expected.len() > 600, "{} events", expected.len());
    for (index, killed) in [1, 0, 1].into_iter().enumerate() {
        let mut reader = long_answer(address);
        let begin = http::read_chunk(&mut reader).expect("the first token");
        drop(cluster.shards.remove(killed)); // by a signal that it cannot catch
        cluster.await_ready(false);
        let status = cluster.status();
        assert_eq!((&status["interrupted"], &status["running"]), (&json!(1), &json!(0)), "{status}");
        cluster.shards.push(shard(&cluster.folder, 8 + index, &[]));
        assert!(told(begin, reader) == expected, "shard {killed} was killed: another answer");
        cluster.await_ready(true);
    }
}

#[test]
fn signals_end_every_process_cleanly() {
    let mut cluster = Cluster::start(2, &Options::default());
    cluster.coordinator.chat(QUESTION);
    for shard in &mut cluster.shards {
        // After the second it waits no longer until others have its work.
        while shard.0.try_wait().expect("its state").is_none() {
            signal(&shard.0, "-TERM");
            pause();
        }
        assert_eq!(shard.0.wait().expect("it ends").code(), Some(0));
    }
    assert_eq!(cluster.coordinator.end_by("-INT"), Some(0));
}

#[test]
fn tokens_are_listed_made_and_revoked() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let state = state.to_str().expect("UTF-8");
    assert!(output(&["token", "--state", state]).contains("no tokens"));
    let made = output(&["token", "--state", state, "create", "--address", "10.0.0.1:7070", "--label", "lab"]);
    let listed: Value = serde_json::from_str(&output(&["token", "--state", state, "list", "--json"])).expect("JSON");
    assert_eq!(listed[0]["token"], made.trim());
    let id = listed[0]["id"].as_str().expect("an id");
    assert!(output(&["token", "--state", state, "revoke", id]).contains("revoked"));
    assert!(output(&["token", "--state", state]).contains("revoked"));
}

#[test]
fn a_coordinator_says_at_once_what_can_never_be_placed() {
    let folder = tempfile::tempdir().expect("a folder");
    let state = folder.path().join("state");
    let always = ["coordinator", "--port", "0", "--control", "127.0.0.1:0", "--state", state.to_str().expect("UTF-8")];
    for (flags, expected) in [(["--prefill-chunk", "2"], "between 4 and"), (["--shards", "9"], "1 to 2 stages")] {
        let said = complaint(&[&always[..], &flags[..]].concat());
        assert!(said.contains(expected) && !said.contains("waiting for"), "{flags:?}: {said}");
    }
}

#[test]
fn a_shard_says_why_it_cannot_join() {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = folder.path().join("cache");
    let cache = cache.to_str().expect("UTF-8");
    let cases: [(&[&str], &str); 3] =
        [(&[], "--token"), (&["--token", "nonsense"], "not a token"), (&["--token-file", "/nowhere"], "/nowhere")];
    for (flags, expected) in cases {
        let said = complaint(&[&["shard", "--threads", "1", "--cache", cache], flags].concat());
        assert!(said.contains(expected), "{flags:?}: {said}");
    }
}
