//! One text, many processes: whatever carries the activations and however the row is cut, tokens and log probabilities
//! are equal to those of one process, bit for bit (they are printed so that they are read back as the same numbers).
//!
//! `PACELINE_ALL_WAYS=1` runs every combination; without it every pair of settings occurs.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use crate::cluster::{Cluster, Options, await_file, coordinator, token_file};
use crate::http::post;
use crate::program::{PACELINE, Server, mini16, root};

/// How a row is run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Way {
    shards: usize,
    link: &'static str,
    prefill_chunk: &'static str,
    threads: &'static str,
    isa: &'static str,
}

const SHARDS: [usize; 3] = [2, 3, 4];
const LINKS: [&str; 2] = ["unix", "quic"];
const CHUNKS: [&str; 3] = ["16", "64", "512"];
const THREADS: [&str; 2] = ["1", "2"];
const ISAS: [&str; 2] = ["scalar", "avx2"];

/// Every combination, or few in which every pair of settings occurs.
fn ways() -> Vec<Way> {
    let mut all = Vec::new();
    for shards in SHARDS {
        for link in LINKS {
            for prefill_chunk in CHUNKS {
                for threads in THREADS {
                    all.extend(ISAS.map(|isa| Way { shards, link, prefill_chunk, threads, isa }));
                }
            }
        }
    }
    if std::env::var_os("PACELINE_ALL_WAYS").is_some() {
        return all;
    }
    let mut missing: BTreeSet<Pair> = all.iter().flat_map(Way::pairs).collect();
    let mut picked = Vec::new();
    while !missing.is_empty() {
        let new = |way: &Way| way.pairs().iter().filter(|pair| missing.contains(*pair)).count();
        let best = *all.iter().max_by_key(|way| new(way)).expect("there are ways");
        let covered = best.pairs();
        missing.retain(|pair| !covered.contains(pair));
        picked.push(best);
    }
    picked
}

/// Two settings that occur together.
type Pair = [String; 2];

impl Way {
    fn pairs(&self) -> Vec<Pair> {
        let Self { shards, link, prefill_chunk, threads, isa } = self;
        let settings = [
            format!("{shards} shards"),
            (*link).to_owned(),
            format!("chunks of {prefill_chunk}"),
            format!("{threads} threads"),
            (*isa).to_owned(),
        ];
        let pairs = |one: usize| (one + 1..settings.len()).map(move |other| [one, other]);
        (0..settings.len()).flat_map(pairs).map(|pair| pair.map(|index| settings[index].clone())).collect()
    }
}

/// Some tokens; the model's vocabulary has 320.
fn prompt(length: u64, seed: u64) -> Vec<u64> {
    (0..length).map(|index| (index * 7 + index * index * 13 + seed) % 320).collect()
}

fn body(prompt: &[u64]) -> Value {
    json!({
        "prompt": prompt, "max_tokens": 12, "temperature": 0, "ignore_eos": true, "logprobs": 5,
        "return_token_ids": true,
    })
}

/// What leaves the tail for a prompt: tokens and log probabilities.
fn answer(address: SocketAddr, prompt: &[u64]) -> Value {
    let response = post(address, "/v1/completions", &body(prompt));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()["choices"][0].clone()
}

const COMPANY: u64 = 7;

fn long() -> Vec<u64> {
    prompt(150, 5)
}

/// The same prompt alone, and then among others that are served at the same time.
fn alone_and_in_company(address: SocketAddr) -> (Value, Value, Vec<Value>) {
    let alone = answer(address, &long());
    let others: Vec<_> =
        (0..COMPANY).map(|seed| std::thread::spawn(move || answer(address, &prompt(10 + 20 * seed, seed)))).collect();
    let among = answer(address, &long());
    (alone, among, others.into_iter().map(|other| other.join().expect("an answer")).collect())
}

#[test]
fn rows_of_processes_give_the_bits_of_one_process() {
    let model = mini16();
    let one = Server::start(&[model.to_str().expect("UTF-8"), "--threads", "1", "--ctx", "256"]);
    let expected = alone_and_in_company(one.address);
    assert_eq!(expected.0, expected.1);
    drop(one);
    for way in ways() {
        let flags = ["--ctx", "256", "--link", way.link, "--prefill-chunk", way.prefill_chunk];
        let shard = ["--threads", way.threads, "--isa", way.isa];
        let options = Options { model: Some(&model), coordinator: &flags, shard: &shard, ..Options::default() };
        let cluster = Cluster::start(way.shards, &options);
        assert_eq!(alone_and_in_company(cluster.coordinator.address), expected, "{way:?}");
    }
}

/// Hosts of their own, and a network between them that is slow and loses packets.
struct Hosts {
    process: Child,
    prefix: String,
}

impl Hosts {
    /// `None`, said aloud, where the system does not allow it.
    fn start(count: usize, delay_ms: &str, loss: &str) -> Option<Self> {
        let prefix = format!("pl{}x", std::process::id());
        let script = root().join("tests/network/hosts.py");
        let mut command = Command::new("python3");
        command.arg(script).args(["--prefix", &prefix, "--hosts", &count.to_string()]);
        command.args(["--delay-ms", delay_ms, "--loss", loss]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.stderr(Stdio::piped()).spawn().expect("python3 starts");
        let mut line = String::new();
        let read = BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line);
        let hosts = Self { process, prefix };
        if read.is_ok() && line.trim() == "ready" {
            return Some(hosts);
        }
        let said = hosts.complaint();
        writeln!(
            std::io::stderr(),
            "SKIPPED: hosts in network namespaces need root, iproute2 and /dev/net/tun: {said}"
        )
        .expect("standard error");
        None
    }

    fn complaint(mut self) -> String {
        let mut said = String::new();
        let _ = self.process.stderr.take().expect("piped").read_to_string(&mut said);
        said
    }

    /// A command that runs on one of the hosts.
    fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}{host}", self.prefix), program]);
        command
    }

    /// Posts to a server on a host.
    fn post(&self, host: usize, address: SocketAddr, body: &Value) -> Value {
        let script = "import sys, urllib.request as r\n\
            q = r.Request(sys.argv[1], sys.stdin.read().encode(), {'content-type': 'application/json'})\n\
            print(r.urlopen(q, timeout=120).read().decode())";
        let mut command = self.command(host, "python3");
        command.args(["-c", script, &format!("http://{address}/v1/completions")]);
        let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut process = spawned.expect("python3 starts");
        process.stdin.take().expect("piped").write_all(body.to_string().as_bytes()).expect("it reads");
        let output = process.wait_with_output().expect("it ends");
        assert!(output.status.success());
        serde_json::from_slice::<Value>(&output.stdout).expect("JSON")["choices"][0].clone()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// Shards, milliseconds and losses of each direction, and how they are run.
type OnHosts = (usize, &'static str, &'static str, [&'static str; 3]);

/// Some of the networks and ways, or with `PACELINE_ALL_WAYS` all of them.
fn ways_on_hosts() -> Vec<OnHosts> {
    let (few, many) = (["16", "1", "scalar"], ["512", "2", "avx2"]);
    if std::env::var_os("PACELINE_ALL_WAYS").is_none() {
        return vec![(2, "1", "0", few), (3, "20", "0.01", many), (4, "1", "0.01", few)];
    }
    let networks = [("1", "0"), ("20", "0.01")];
    let on = |shards: usize| networks.map(|(delay, loss)| [few, many].map(|way| (shards, delay, loss, way)));
    SHARDS.into_iter().flat_map(on).flatten().collect()
}

#[test]
fn hosts_of_their_own_on_a_bad_network_give_the_same_bits() {
    let model = mini16();
    let one = Server::start(&[model.to_str().expect("UTF-8"), "--threads", "1", "--ctx", "256"]);
    let expected = alone_and_in_company(one.address);
    drop(one);
    for (shards, delay, loss, way) in ways_on_hosts() {
        let Some(hosts) = Hosts::start(shards + 1, delay, loss) else { return };
        let folder = tempfile::tempdir().expect("a folder");
        let local = coordinator(&folder, shards);
        let mut command = hosts.command(0, PACELINE);
        command.args(local.get_args()).args(["--control", "10.88.0.1:7070", "--link", "quic", "--ctx", "256"]);
        command.args(["--prefill-chunk", way[0]]).arg(&model);
        let (server, running) = std::thread::scope(|scope| {
            let joining = scope.spawn(|| {
                await_file(&token_file(&folder));
                (0..shards).map(|index| on_host(&hosts, &folder, index, way)).collect::<Vec<_>>()
            });
            let server = Server::of(command);
            (server, joining.join().expect("shards start"))
        });
        let post = |prompt: &[u64]| hosts.post(0, server.address, &body(prompt));
        let alone = post(&long());
        let (among, others) = std::thread::scope(|scope| {
            let company = (0..COMPANY).map(|seed| scope.spawn(move || post(&prompt(10 + 20 * seed, seed))));
            let company: Vec<_> = company.collect();
            let among = post(&long());
            (among, company.into_iter().map(|other| other.join().expect("an answer")).collect())
        });
        assert_eq!((alone, among, others), expected, "{shards} {delay} ms {loss} {way:?}");
        drop((server, running));
    }
}

/// A shard on the host after the coordinator's.
fn on_host(hosts: &Hosts, folder: &tempfile::TempDir, index: usize, way: [&str; 3]) -> crate::cluster::Shard {
    let log = std::fs::File::create(folder.path().join(format!("shard{index}.log"))).expect("writable");
    let mut command = hosts.command(index + 1, PACELINE);
    command.args(["shard", "--threads", way[1], "--isa", way[2], "--token-file"]).arg(token_file(folder));
    command.arg("--cache").arg(folder.path().join(format!("cache{index}")));
    crate::cluster::Shard(command.stdin(Stdio::null()).stderr(log).spawn().expect("the program starts"))
}
