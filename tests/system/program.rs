//! Starts the program and ends it with the test.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http;

/// The program that was built for these tests.
pub(crate) const PACELINE: &str = env!("CARGO_BIN_EXE_paceline");

/// A running `paceline serve` on a free port of the loopback.
pub(crate) struct Server {
    process: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts it and waits until it is ready. Without a model among the arguments it serves the embedded one.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(PACELINE);
        command.args(["serve", "--port", "0"]).args(arguments);
        Self::of(command)
    }

    /// Starts a command that serves, and waits until it says so.
    pub(crate) fn of(mut command: Command) -> Self {
        let spawned = command.stderr(Stdio::piped()).stdin(Stdio::null()).spawn();
        let mut process = spawned.expect("the program starts");
        let mut errors = BufReader::new(process.stderr.take().expect("piped"));
        let mut seen = String::new();
        let address = loop {
            let mut line = String::new();
            if errors.read_line(&mut line).expect("readable") == 0 {
                panic!("the server ended before it was ready: {seen}");
            }
            seen.push_str(&line);
            if let Some(rest) = line.split("listening on http://").nth(1) {
                break rest.split_whitespace().next().expect("an address").parse().expect("an address");
            }
        };
        // Whatever it says later must not fill the pipe.
        std::thread::spawn(move || std::io::copy(&mut errors, &mut std::io::sink()));
        Self { process, address }
    }

    /// A greedy chat answer of the model.
    pub(crate) fn chat(&self, text: &str) -> Value {
        let response = http::post(self.address, "/v1/chat/completions", &greedy(text));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()
    }

    /// Waits until the metric has the value; a minute means that it never will.
    pub(crate) fn await_metric(&self, name: &str, value: f64) {
        self.await_that(name, |now| now == value);
    }

    /// Waits until the metric is above the value.
    pub(crate) fn await_metric_above(&self, name: &str, value: f64) {
        self.await_that(name, |now| now > value);
    }

    fn await_that(&self, name: &str, holds: impl Fn(f64) -> bool) {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if holds(self.metric(name)) {
                return;
            }
        }
        panic!("{name} is still {}", self.metric(name));
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let text = http::get(self.address, "/metrics").body;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).unwrap_or_else(|| {
            panic!("no metric {name} in {text}");
        });
        line.trim().parse().expect("a number")
    }

    /// Sends a signal and waits for the end.
    pub(crate) fn end_by(self, signal: &str) -> Option<i32> {
        self.signal(signal);
        self.end()
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, name: &str) {
        signal(&self.process, name);
    }

    /// A file of the process's folder in `/proc`.
    pub(crate) fn proc(&self, file: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{file}", self.process.id())).expect("it runs")
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Option<i32> {
        self.process.wait().expect("it ends").code()
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.process.try_wait().expect("its state").is_none()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a signal to a process.
pub(crate) fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    assert!(Command::new("kill").args([name, &id]).status().expect("kill").success());
}

/// The body of a greedy chat request.
pub(crate) fn greedy(text: &str) -> Value {
    serde_json::json!({
        "messages": [{"role": "user", "content": text}],
        "temperature": 0, "max_tokens": 48, "return_token_ids": true,
    })
}

/// Runs the program to its end.
pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(PACELINE).args(arguments).stdin(Stdio::null()).output().expect("the program starts")
}

/// What a program wrote.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// What the program printed, if it succeeded.
pub(crate) fn output(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What the program complained about; it must fail without a panic.
pub(crate) fn complaint(arguments: &[&str]) -> String {
    let output = run(arguments);
    let text = text(&output.stderr);
    let code = output.status.code();
    assert!(code.is_some_and(|code| code == 1 || code == 2), "{arguments:?} ended with {code:?}: {text}");
    assert!(!text.contains("panicked"), "{arguments:?}: {text}");
    text
}

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the program lies in the workspace").to_owned()
}

/// A hybrid of 16 layers in 4 blocks: enough for 4 shards.
pub(crate) fn mini16() -> PathBuf {
    root().join("tests/data/models/mini16-Q4_K_M.gguf")
}
