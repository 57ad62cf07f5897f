//! The page for browsers in a real one: `tests/clients/page.py` drives it.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use crate::clients::has_package;
use crate::cluster::{Cluster, Options, shard};
use crate::program::{Server, root};

/// Whether there is a browser to drive; skips aloud where there is none, but never in CI.
fn has_browser() -> bool {
    let runs =
        |program: &str| Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    for program in ["chromium", "chromedriver"] {
        if !runs(program) {
            let packages = "apt-get install --no-install-recommends chromium chromium-driver";
            assert!(std::env::var_os("CI").is_none(), "{program} must be there in CI: {packages}");
            eprintln!("skipped: {program} is not installed: {packages}");
            return false;
        }
    }
    has_package("selenium")
}

fn script(part: &str, address: SocketAddr) -> Command {
    let mut command = Command::new("python3");
    command.arg(root().join("tests/clients/page.py")).arg(part).arg(format!("http://{address}"));
    command
}

/// Uses the page of a server in one way.
fn browse(part: &str, flags: &[&str]) {
    if !has_browser() {
        return;
    }
    let server = Server::start(flags);
    let output = script(part, server.address).output().expect("python3 runs");
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{part}: {out}{err}");
    assert!(out.contains("all is well"), "{part} ended early: {out}");
}

#[test]
fn people_chat() {
    // Without drafts a long answer is long in time, too.
    browse("chat", &["--sessions", "4", "--ctx", "32768", "--shards", "2", "--draft", "none"]);
}

#[test]
fn the_page_asks_for_a_key_and_says_when_to_come_again() {
    browse("protection", &["--api-key", "secret", "--key-requests", "2"]);
}

/// The script says when a shard is to die, and when another is to come.
#[test]
fn a_shard_is_seen_to_die_and_to_return() {
    if !has_browser() {
        return;
    }
    let mut cluster = Cluster::start(2, &Options::default());
    let mut script = Script(
        script("row", cluster.coordinator.address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 runs"),
    );
    let mut said = BufReader::new(script.0.stdout.take().expect("piped")).lines().map(|line| line.expect("UTF-8"));
    let mut done = script.0.stdin.take().expect("piped");
    assert_eq!(said.next().as_deref(), Some("take a shard away"));
    drop(cluster.shards.pop()); // by a signal that it cannot catch
    writeln!(done, "it is gone").expect("the script reads");
    assert_eq!(said.next().as_deref(), Some("bring a shard"));
    cluster.shards.push(shard(&cluster.folder, 7, &[]));
    writeln!(done, "it comes").expect("the script reads");
    assert_eq!(said.next().as_deref(), Some("all is well"));
    assert!(script.0.wait().expect("it ends").success());
}

/// The script's process, which does not outlive a test that fails.
struct Script(Child);

impl Drop for Script {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
