//! A server under many clients that leave in the middle, by one command:
//!
//!     cargo run --release -p paceline-tests --example load -- --clients 64 --minutes 5
//!
//! Ends with 1 when a refusal did not say when to come back, more waited than may, or anything was left over: memory,
//! threads, pages, sessions.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use paceline_tests::load::Load;

/// Puts load on a server.
#[derive(Debug, Parser)]
struct Arguments {
    /// Clients at the same time.
    #[arg(long, default_value_t = 64)]
    clients: usize,
    /// How long.
    #[arg(long, default_value_t = 5.0)]
    minutes: f64,
    /// Sessions that run at once.
    #[arg(long, default_value_t = 8)]
    sessions: usize,
    /// Requests that may wait.
    #[arg(long, default_value_t = 16)]
    queue: usize,
    /// What everything is drawn by.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The `paceline` program.
    #[arg(long, default_value = "target/release/paceline")]
    program: PathBuf,
    /// A model file; without it the tiny model inside the program.
    model: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Arguments { clients, minutes, sessions, queue, seed, program, model } = Arguments::parse();
    let time = Duration::from_secs_f64(minutes * 60.0);
    let report = Load { program, model, clients, time, sessions, queue, seed }.run();
    write!(std::io::stdout(), "{report}").expect("standard output");
    if report.wrongs.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
