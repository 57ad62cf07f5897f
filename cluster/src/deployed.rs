//! The deployment files beside this crate, held against the program: every flag in them is one that it takes, and who
//! ends it gives it the time that it needs.

use std::path::Path;
use std::time::Duration;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::shutdown::{FLUSH, STOP};

fn file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The arguments of a unit's command; what systemd puts in is some path.
fn unit_arguments(text: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("a command");
    line.split(' ').map(|word| word.replace("${", "/").replace('}', "")).collect()
}

/// The arguments of a manifest's container.
fn manifest_arguments(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).skip_while(|line| *line != "args:").skip(1);
    let lines = lines.take_while(|line| line.starts_with("- ") || line.starts_with('#'));
    let words = lines.filter_map(|line| line.strip_prefix("- ")).map(str::to_owned);
    std::iter::once("paceline".to_owned()).chain(words).collect()
}

/// The lists of words that a Dockerfile runs: its health check, its program, and what that does if nothing else is said.
fn dockerfile_arguments(text: &str) -> Vec<Vec<String>> {
    let lines = text.lines().map(str::trim);
    let lists = lines.filter_map(|line| line.strip_prefix("CMD ").or_else(|| line.strip_prefix("ENTRYPOINT ")));
    lists.map(|list| serde_json::from_str(list).expect("a list")).collect()
}

fn parse(arguments: &[String]) -> Cli {
    Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}"))
}

/// Seconds that a line of the form `NAME=60` or `name: 60` gives.
fn seconds(text: &str, name: &str) -> Duration {
    let value = text.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(['=', ':']));
    Duration::from_secs(value.expect(name).trim().parse().expect("seconds"))
}

/// The most time that a service takes to end.
fn time_to_end(command: &Command) -> Duration {
    match command {
        Command::Coordinator(arguments) => Duration::from_secs(arguments.api.drain_timeout) + STOP + FLUSH,
        Command::Shard(arguments) => Duration::from_secs(arguments.drain_timeout) + STOP,
        other => panic!("no unit of ours runs {}", other.name()),
    }
}

#[test]
fn units_are_started_with_flags_that_exist_and_ended_with_patience() {
    for name in ["coordinator", "shard"] {
        let text = file(&format!("systemd/paceline-{name}.service"));
        let cli = parse(&unit_arguments(&text));
        assert_eq!(cli.command.name(), name);
        assert!(seconds(&text, "TimeoutStopSec") > time_to_end(&cli.command), "{name}");
    }
}

#[test]
fn pods_are_started_with_flags_that_exist_and_ended_with_patience() {
    for (name, manifest) in [("coordinator", "coordinator"), ("shard", "shards")] {
        let text = file(&format!("kubernetes/{manifest}.yaml"));
        let cli = parse(&manifest_arguments(&text));
        assert_eq!(cli.command.name(), name);
        // A container is told to end after it has slept.
        let asleep = Duration::from_secs(if text.contains("preStop") { 5 } else { 0 });
        assert!(seconds(&text, "terminationGracePeriodSeconds") > asleep + time_to_end(&cli.command), "{name}");
    }
}

#[test]
fn containers_are_started_and_checked_with_flags_that_exist() {
    let lists = dockerfile_arguments(&file("Dockerfile"));
    let [check, entry, usual] = &lists[..] else { panic!("{lists:?}") };
    assert_eq!(parse(check).command.name(), "status");
    assert_eq!(parse(&[&entry[..], &usual[..]].concat()).command.name(), "serve");
}
