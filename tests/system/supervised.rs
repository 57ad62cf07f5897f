//! A service whose start was asked for by a supervisor that wants to be told how it is (`sd_notify(3)`).

use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::cluster::{Cluster, Options, await_file, coordinator, shard, token_file};
use crate::http;
use crate::program::{PACELINE, Server, signal};

/// The supervisor's end.
struct Notes(UnixDatagram);

impl Notes {
    fn listen(folder: &TempDir) -> Self {
        let socket = UnixDatagram::bind(folder.path().join("notify")).expect("a socket");
        socket.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
        Self(socket)
    }

    /// Tells a command about it.
    fn told_to(folder: &TempDir, command: &mut Command) {
        command.env("NOTIFY_SOCKET", folder.path().join("notify")).env("WATCHDOG_USEC", "600000");
    }

    /// The next message.
    fn next(&self) -> String {
        let mut bytes = [0; 4096];
        let length = self.0.recv(&mut bytes).expect("it is told within a minute");
        String::from_utf8(bytes[..length].to_vec()).expect("UTF-8")
    }

    /// Reads up to the message that has this line, and gives all of that message.
    fn until(&self, line: &str) -> String {
        loop {
            let message = self.next();
            if message.lines().any(|one| one == line) {
                return message;
            }
        }
    }
}

#[test]
fn a_service_says_when_it_is_ready_that_it_lives_and_that_it_stops() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = Notes::listen(&folder);
    let mut command = Command::new(PACELINE);
    command.args(["serve", "--port", "0"]);
    Notes::told_to(&folder, &mut command);
    let server = Server::of(command);
    let ready = notes.until("READY=1");
    let address = ready.split("http://").nth(1).expect("where it listens").trim();
    assert_eq!(address, server.address.to_string());
    assert_eq!(http::get(server.address, "/health").status, 200);
    notes.until("STATUS=serving (epoch 0)");
    for _ in 0..3 {
        notes.until("WATCHDOG=1");
    }
    server.signal("-TERM");
    notes.until("STOPPING=1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_coordinator_is_ready_before_it_serves_and_says_why_it_does_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let notes = Notes::listen(&folder);
    let mut command = coordinator(&folder, 1);
    Notes::told_to(&folder, &mut command);
    let starting = std::thread::spawn(|| Server::of(command));
    notes.until("READY=1");
    let waiting = notes.next();
    assert!(waiting.starts_with("STATUS=not serving: ") || waiting == "WATCHDOG=1", "{waiting}");
    notes.until("WATCHDOG=1");
    await_file(&token_file(&folder));
    let _shard = shard(&folder, 0, &[]);
    notes.until("STATUS=serving (epoch 1)");
    notes.until("WATCHDOG=1");
    let server = starting.join().expect("it serves");
    server.signal("-TERM");
    notes.until("STOPPING=1");
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_shard_is_ready_while_it_waits_and_says_with_whom_it_is() {
    let cluster = Cluster::start(1, &Options::default());
    let folder = tempfile::tempdir().expect("a folder");
    let notes = Notes::listen(&folder);
    let mut command = Command::new(PACELINE);
    command.args(["shard", "--threads", "1", "--standby", "--token-file"]).arg(token_file(&cluster.folder));
    command.arg("--cache").arg(folder.path().join("cache"));
    Notes::told_to(&folder, &mut command);
    let mut shard = crate::cluster::Shard(command.spawn().expect("the program starts"));
    let ready = notes.until("READY=1");
    assert!(ready.contains("STATUS=waiting for the coordinator at 127.0.0.1:"), "{ready}");
    while !notes.next().starts_with("STATUS=with the coordinator at 127.0.0.1:") {}
    notes.until("WATCHDOG=1");
    signal(&shard.0, "-TERM");
    notes.until("STOPPING=1");
    assert_eq!(shard.0.wait().expect("it ends").code(), Some(0));
}

#[test]
fn a_supervisor_that_cannot_be_told_is_told_of() {
    let mut command = Command::new(PACELINE);
    command.args(["serve", "--port", "0"]).env("NOTIFY_SOCKET", "nonsense");
    let output = command.output().expect("the program starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("NOTIFY_SOCKET=nonsense"), "{said}");
    assert_eq!(output.status.code(), Some(1));
}
