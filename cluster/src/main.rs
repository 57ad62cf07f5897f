//! The `paceline` program: command line and wiring.
//!
//! [`cli`] says what can be asked; each command has a file of its own. [`row`] puts a model's stages, their links
//! and actors together. Decisions are made elsewhere: this crate only connects.

mod bench;
mod cache;
mod cli;
mod config;
mod control;
mod coordinator;
#[cfg(test)]
mod deployed;
mod devices;
mod disk;
mod doctor;
mod encoding;
mod eval;
mod host;
mod http;
mod layout;
mod leftovers;
mod link;
mod log;
mod model;
mod models;
mod pieces;
mod plan;
mod row;
mod run;
mod scale;
mod selfcheck;
mod serve;
mod shard;
mod shutdown;
mod simulate;
mod state;
mod status;
mod supervisor;
mod tail;
mod text;
mod token;
mod top;

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use paceline_api::ScaleAction;
use tracing::info;

use crate::cli::{Cli, Command, DrainArgs, ScaleArgs};

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
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            error.print()?;
            return Ok(if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS });
        }
    };
    // Files are complete when it is dropped.
    let _log = log::start(&cli.log, cli.command.audit_log(), cli.verbose, cli.command.name())?;
    let ended = carry_out(cli.command, cli.config.as_deref(), &arguments);
    if let Err(error) = &ended {
        info!("the program ends: {error:#}");
    }
    ended.map(|()| ExitCode::SUCCESS)
}

/// `file` is that of `--config`, and `given` the command line with the flags of the file.
fn carry_out(command: Command, file: Option<&Path>, given: &[OsString]) -> anyhow::Result<()> {
    if command.locks_memory() {
        host::locking::lock_memory()?;
    }
    match command {
        Command::Serve(arguments) => serve::serve(&arguments, file, given),
        Command::Coordinator(arguments) => coordinator::coordinator(&arguments),
        Command::Shard(arguments) => shard::shard(&arguments),
        Command::Token(arguments) => token::token(&arguments),
        Command::Status(arguments) => status::status(&arguments),
        Command::Top(arguments) => top::top(&arguments),
        Command::Scale(ScaleArgs { action, nodes, service }) => scale::change(action.action(), nodes, &service),
        Command::Drain(DrainArgs { nodes, service }) => scale::change(ScaleAction::Drain, nodes, &service),
        Command::Rebalance(arguments) => scale::change(ScaleAction::Rebalance, Vec::new(), &arguments.service),
        Command::Cache(arguments) => cache::cache(&arguments),
        Command::Run(arguments) => run::run(arguments),
        Command::Plan(arguments) => plan::plan(&arguments),
        Command::Simulate(arguments) => simulate::simulate(&arguments),
        Command::Bench(arguments) => bench::bench(&arguments),
        Command::Eval(arguments) => eval::eval(&arguments.command),
        Command::Selfcheck(arguments) => selfcheck::selfcheck(&arguments),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
    }
}
