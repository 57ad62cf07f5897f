//! Chaos by one command: faults by seed under streaming clients, every token of which is known beforehand.
//!
//!     cargo run --release -p paceline-tests --example chaos -- --rounds 200 --seed 1
//!     cargo run --release -p paceline-tests --example chaos -- --rounds 20 --draft mtp
//!     cargo run --release -p paceline-tests --example chaos -- --restarts 20
//!     cargo run --release -p paceline-tests --example chaos -- --disk-kills 50
//!     cargo run --release -p paceline-tests --example chaos -- --soak 30
//!
//! Ends with 1 when a token was lost, changed or doubled, a process ended by itself, or anything was left over. Filling
//! disks needs root and is left out, aloud, without it.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Parser;
use paceline_tests::chaos::disks::DiskKills;
use paceline_tests::chaos::processes::Plan;
use paceline_tests::chaos::restarts::Restarts;
use paceline_tests::chaos::rounds::Rounds;
use paceline_tests::chaos::soak::Soak;

/// Hurts a cluster while clients stream from it.
#[derive(Debug, Parser)]
struct Arguments {
    /// Faults, one after another.
    #[arg(long, default_value_t = 0)]
    rounds: usize,
    /// How often the coordinator is killed and started again.
    #[arg(long, default_value_t = 0)]
    restarts: usize,
    /// How often shards or the coordinator are killed while what was read goes to disks and comes back.
    #[arg(long, default_value_t = 0)]
    disk_kills: usize,
    /// Minutes of mixed load with a fault every 20 seconds.
    #[arg(long, default_value_t = 0.0)]
    soak: f64,
    /// What everything is drawn by.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Clients that stream all the time.
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Processes of shards.
    #[arg(long, default_value_t = 5)]
    shards: usize,
    /// Stages of a row; the other shards are spare.
    #[arg(long, default_value_t = 2)]
    stages: usize,
    /// The longest that a fault lasts, in seconds.
    #[arg(long, default_value_t = 30)]
    longest: u64,
    /// Where drafts come from, as `paceline coordinator --draft` takes it.
    #[arg(long, default_value = "lookup")]
    draft: String,
    /// The `paceline` program; without it, the one of this build, which is built if need be.
    #[arg(long)]
    program: Option<PathBuf>,
    /// A model file; without it the tiny model inside the program.
    model: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let Arguments { rounds, restarts, soak, seed, clients, shards, stages, .. } = arguments;
    let longest = Duration::from_secs(arguments.longest);
    let plan = |flags: &[&str]| Plan {
        program: arguments.program.clone().unwrap_or_else(built),
        model: arguments.model.clone(),
        stages,
        shards,
        flags: flags.iter().copied().chain(["--draft", &arguments.draft]).map(str::to_owned).collect(),
        disk_mib: None,
    };
    let mut output = std::io::stdout();
    let mut wrongs = 0;
    if rounds > 0 {
        let report = Rounds { plan: plan(&Plan::FLAGS), rounds, seed, clients, longest }.run(&mut output);
        writeln!(output, "\n{report}").expect("standard output");
        wrongs += report.wrongs;
    }
    if restarts > 0 {
        let report = Restarts { plan: plan(&Plan::FLAGS), times: restarts, seed, clients }.run(&mut output);
        writeln!(output, "\n{report}").expect("standard output");
        wrongs += report.wrongs;
    }
    if arguments.disk_kills > 0 {
        let plan = Plan { disk_mib: Some(256), ..plan(&Plan::LITTLE_CACHE) };
        let report = DiskKills { plan, times: arguments.disk_kills, seed, clients }.run(&mut output);
        writeln!(output, "\n{report}").expect("standard output");
        wrongs += report.wrongs;
    }
    if soak > 0.0 {
        let time = Duration::from_secs_f64(soak * 60.0);
        let report = Soak { plan: plan(&Plan::FEW_PLACES), time, seed, clients, longest }.run(&mut output);
        writeln!(output, "\n{report}").expect("standard output");
        wrongs += report.wrongs;
    }
    if wrongs == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// The program of this build.
fn built() -> PathBuf {
    let mut command = Command::new(env!("CARGO"));
    command.args(["build", "--quiet", "--locked", "-p", "paceline"]);
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    assert!(command.status().expect("cargo starts").success(), "the program cannot be built");
    let own = std::env::current_exe().expect("this program has a path");
    own.parent().and_then(|examples| examples.parent()).expect("it lies in a folder of the build").join("paceline")
}
