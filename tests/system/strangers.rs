//! Whoever does not belong to the cluster gets nothing from it, and cannot disturb it.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::cluster::{Cluster, Options, token_file};
use crate::program::{PACELINE, output};

const QUESTION: &str = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";

/// Where the coordinator's control plane listens, as its token says.
fn control(cluster: &Cluster) -> SocketAddr {
    let state = cluster.folder.path().join("state");
    let listed = output(&["token", "--state", state.to_str().expect("UTF-8"), "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    listed[0]["address"].as_str().expect("an address").parse().expect("an address")
}

/// Sends bytes and reads what comes back until the other end closes; nothing is ever said but TLS alerts.
fn answer_to(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    // The other end may close before it has read everything.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let _ = stream.take(1 << 20).read_to_end(&mut answer);
    answer
}

/// Bytes that look like nothing, the same in every run.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A shard with this token; what it says when it is refused.
fn refused(cluster: &Cluster, flags: &[&str]) -> String {
    let mut command = Command::new(PACELINE);
    command.args(["shard", "--threads", "1", "--cache"]).arg(cluster.folder.path().join("stranger")).args(flags);
    let output = command.stdin(Stdio::null()).output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn strangers_get_nothing_and_the_cluster_serves_on() {
    let cluster = Cluster::start(2, &Options { coordinator: &["--link", "quic"], ..Options::default() });
    let expected = cluster.coordinator.chat(QUESTION)["choices"][0]["token_ids"].clone();
    let address = control(&cluster);
    // Noise, plain HTTP, plain HTTP/2, and a hello of TLS that promises more than it sends.
    assert!(answer_to(address, &noise(1 << 20)).len() < 64);
    assert!(answer_to(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").len() < 64);
    assert!(answer_to(address, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").len() < 64);
    assert!(answer_to(address, &[0x16, 0x03, 0x01, 0xff, 0xff, 0x01]).len() < 64);
    // Datagrams at every data endpoint that could be guessed.
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let noise = noise(1200);
    for stage in cluster.status()["stages"].as_array().expect("stages") {
        assert!(stage["index"].is_u64(), "{stage}");
    }
    for port in [address.port(), address.port() + 1] {
        let _ = socket.send_to(&noise, ("127.0.0.1", port));
    }
    // Tokens: of another cluster, and one that was revoked.
    let other = tempfile::tempdir().expect("a folder");
    let other = other.path().to_str().expect("UTF-8").to_owned();
    let foreign = output(&["token", "--state", &other, "create", "--address", &address.to_string()]);
    refused(&cluster, &["--token", foreign.trim()]);
    let state = cluster.folder.path().join("state");
    let state = state.to_str().expect("UTF-8");
    let revoked = output(&["token", "--state", state, "create", "--address", &address.to_string()]);
    let listed = output(&["token", "--state", state, "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    let id = listed[1]["id"].as_str().expect("an id");
    output(&["token", "--state", state, "revoke", id]);
    refused(&cluster, &["--token", revoked.trim()]);
    // The bytes of a real newcomer, played again.
    let token = std::fs::read_to_string(token_file(&cluster.folder)).expect("a token");
    let recorded = record(address, token.trim(), &cluster);
    assert!(recorded.len() > 500, "only {} bytes were recorded", recorded.len());
    let replayed = answer_to(address, &recorded);
    // The server's first flight is all that a replay gets: without the newcomer's key it can read nothing of it.
    assert!(replayed.len() < 8192, "{} bytes", replayed.len());
    let again = cluster.coordinator.chat(QUESTION)["choices"][0]["token_ids"].clone();
    assert_eq!(again, expected);
    assert_eq!(cluster.status()["stages"].as_array().map(Vec::len), Some(2));
}

/// What a newcomer with a good token sends, up to its certificate, taken down on the way.
fn record(address: SocketAddr, token: &str, cluster: &Cluster) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let between = listener.local_addr().expect("an address").to_string();
    let mut command = Command::new(PACELINE);
    command.args(["shard", "--threads", "1", "--standby", "--token", token, "--join", &between]);
    command.arg("--cache").arg(cluster.folder.path().join("recorded"));
    let mut newcomer = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().expect("the program starts");
    let (mut client, _) = listener.accept().expect("a newcomer");
    let mut server = TcpStream::connect(address).expect("it listens");
    let (mut back, mut forth) = (server.try_clone().expect("a copy"), client.try_clone().expect("a copy"));
    std::thread::spawn(move || std::io::copy(&mut back, &mut forth));
    client.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
    let (mut recorded, mut buffer) = (Vec::new(), [0; 4096]);
    while let Ok(count @ 1..) = client.read(&mut buffer) {
        recorded.extend_from_slice(&buffer[..count]);
        server.write_all(&buffer[..count]).expect("it reads");
    }
    let _ = newcomer.kill();
    let _ = newcomer.wait();
    recorded
}

#[test]
fn who_joined_with_a_token_that_is_revoked_must_leave() {
    let cluster = Cluster::start(1, &Options::default());
    let state = cluster.folder.path().join("state");
    let state = state.to_str().expect("UTF-8");
    let listed = output(&["token", "--state", state, "list", "--json"]);
    let listed: serde_json::Value = serde_json::from_str(&listed).expect("JSON");
    output(&["token", "--state", state, "revoke", listed[0]["id"].as_str().expect("an id")]);
    cluster.await_ready(false);
}
