//! The `paceline` program: command line and wiring.
//!
//! [`cli`] says what can be asked; each command has a file of its own. [`row`] puts a model's stages, their links
//! and actors together. Decisions are made elsewhere: this crate only connects.

mod bench;
mod cli;
mod config;
mod control;
mod coordinator;
mod host;
mod http;
mod layout;
mod link;
mod model;
mod pieces;
mod plan;
mod row;
mod run;
mod serve;
mod shard;
mod simulate;
mod state;
mod status;
mod text;
mod token;
mod top;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::EnvFilter;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    match start() {
        Ok(code) => code,
        Err(error) => {
            // One line, causes joined: what was wrong, where, and what to do.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> anyhow::Result<ExitCode> {
    let arguments = config::arguments(std::env::args_os().collect())?;
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            error.print()?;
            return Ok(if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS });
        }
    };
    log(cli.verbose);
    match cli.command {
        Command::Serve(arguments) => serve::serve(&arguments)?,
        Command::Coordinator(arguments) => coordinator::coordinator(&arguments)?,
        Command::Shard(arguments) => shard::shard(&arguments)?,
        Command::Token(arguments) => token::token(&arguments)?,
        Command::Status(arguments) => status::status(&arguments)?,
        Command::Top(arguments) => top::top(&arguments)?,
        Command::Run(arguments) => run::run(arguments)?,
        Command::Plan(arguments) => plan::plan(&arguments)?,
        Command::Simulate(arguments) => simulate::simulate(&arguments)?,
        Command::Bench(arguments) => bench::bench(&arguments)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Logs to standard error: warnings only, unless asked for more, by `-v` or in the environment.
fn log(verbose: u8) {
    let level = match verbose {
        0 => "warn",
        1 => "info,paceline=debug,paceline_coordinator=debug,paceline_shard=debug,paceline_api=debug",
        _ => "info,paceline=trace,paceline_coordinator=trace,paceline_shard=trace,paceline_api=trace",
    };
    let filter = EnvFilter::try_from_env("PACELINE_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
