//! A stage that hangs while its process goes on sending heartbeats.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::cluster::{Cluster, Options, long_answer, shard, told};
use crate::http;
use crate::program::root;

/// A thread that stands still until this is dropped.
struct Stopped(Child);

impl Stopped {
    fn new(process: u32, thread: &str) -> Self {
        let mut command = Command::new("python3");
        command.arg(root().join("tests/faults/stop_thread.py")).args([&process.to_string(), thread]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped")).read_line(&mut line).expect("readable");
        assert_eq!(line, "stopped\n");
        Self(child)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It may have ended already.
        let _ = self.0.wait();
    }
}

#[test]
fn an_answer_goes_on_when_a_stage_hangs() {
    let flags = ["--ctx", "2048", "--step-deadline", "5"];
    let mut cluster = Cluster::start(2, &Options { coordinator: &flags, ..Options::default() });
    let address = cluster.coordinator.address;
    let expected = told(Vec::new(), long_answer(address));
    cluster.shards.push(shard(&cluster.folder, 8, &[]));
    let epoch = cluster.status()["epoch"].as_u64().expect("an epoch");
    let mut reader = long_answer(address);
    let begin = http::read_chunk(&mut reader).expect("the first token");
    let stopped = Stopped::new(cluster.shards[1].0.id(), "paceline-stage");
    assert!(told(begin, reader) == expected, "another answer");
    let status = cluster.status();
    assert!(status["epoch"].as_u64() > Some(epoch), "the row that hangs is over: {status}");
    // What it held it lets go of when it moves again.
    drop(stopped);
    assert!(cluster.shards[1].0.try_wait().expect("its state").is_none(), "the shard has ended");
}
