//! `--config FILE.toml`: every key is a flag without its dashes. Flags of the file that the command line does not give
//! are put before those of the command line, so that both pass the same checks. What stands in a table named after a
//! command, such as `[shard]`, holds for that command alone, and before what stands above all tables. Tables in `[models]`
//! are models of `serve`, which reads them itself.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use toml::{Table, Value};

use crate::cli::Cli;
use crate::models;

/// The arguments of the program with those of its configuration file put in.
pub(crate) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(path) = config_path(&given) else { return Ok(given) };
    let table = table(&path)?;
    let Some(at) = command_position(&given) else { return Ok(given) };
    let command = given[at].to_string_lossy().into_owned();
    let mut flags = Vec::new();
    let mut model = None;
    for (key, value) in &settings_of(&command, table, &path)? {
        match key.as_str() {
            "model" if !has_model_flag(&command) => model = Some(scalar(&path, key, value)?),
            _ if is_given(&given, key) => {}
            _ => flags.extend(flag(&path, key, value)?),
        }
    }
    Ok(put_in(&given, at, flags, model))
}

/// All that a file says.
pub(crate) fn table(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("{} is not valid TOML", path.display()))
}

/// What a file says for a command: its keys above all tables, and over them those in the command's own.
fn settings_of(command: &str, table: Table, path: &Path) -> Result<Table> {
    let (own, mut settings) = table.into_iter().partition::<Table, _>(|(_, value)| value.is_table());
    for (name, section) in own {
        if name == models::TABLE {
            continue;
        }
        if Cli::command().find_subcommand(&name).is_none() {
            bail!("{}: [{name}] is no command", path.display());
        }
        if name == command
            && let Value::Table(section) = section
        {
            settings.extend(section);
        }
    }
    Ok(settings)
}

/// Most commands take the model as what they work on, a shard as a flag.
fn has_model_flag(command: &str) -> bool {
    let cli = Cli::command();
    let flags = cli.find_subcommand(command).into_iter().flat_map(clap::Command::get_arguments);
    flags.filter_map(clap::Arg::get_long).any(|flag| flag == "model")
}

/// Where the command's name is: the first argument that is no flag.
fn command_position(given: &[OsString]) -> Option<usize> {
    let is_command = |argument: &OsString| !argument.as_encoded_bytes().starts_with(b"-");
    given.iter().skip(1).position(is_command).map(|index| index + 1)
}

/// Is the flag on the command line as well? Then the file's is left out: a list is replaced, not continued.
fn is_given(given: &[OsString], key: &str) -> bool {
    let is_flag = |argument: &str| argument.strip_prefix("--").and_then(|rest| rest.split('=').next()) == Some(key);
    given.iter().any(|argument| argument.to_str().is_some_and(is_flag))
}

/// The value of `--config`, read before the real parser because it brings more arguments.
fn config_path(given: &[OsString]) -> Option<PathBuf> {
    let mut rest = given.iter();
    while let Some(argument) = rest.next() {
        if argument == "--config" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(path) = argument.to_str().and_then(|text| text.strip_prefix("--config=")) {
            return Some(PathBuf::from(path));
        }
    }
    None
}

pub(crate) fn flag(path: &Path, key: &str, value: &Value) -> Result<Vec<OsString>> {
    let name = OsString::from(format!("--{key}"));
    match value {
        Value::Boolean(true) => Ok(vec![name]),
        Value::Boolean(false) => Ok(vec![]),
        Value::Array(items) => {
            let mut flags = Vec::new();
            for item in items {
                flags.extend([name.clone(), scalar(path, key, item)?]);
            }
            Ok(flags)
        }
        _ => Ok(vec![name, scalar(path, key, value)?]),
    }
}

pub(crate) fn scalar(path: &Path, key: &str, value: &Value) -> Result<OsString> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Integer(number) => Ok(number.to_string().into()),
        Value::Float(number) => Ok(number.to_string().into()),
        other => bail!("{}: the value of {key} is a {}, not a text or number", path.display(), other.type_str()),
    }
}

/// Puts the file's flags right behind the command's name, and its model at the end if none is given there.
fn put_in(given: &[OsString], at: usize, flags: Vec<OsString>, model: Option<OsString>) -> Vec<OsString> {
    let has_model = names_a_model(&given[at + 1..]);
    let (before, after) = given.split_at(at + 1);
    let model = model.filter(|_| !has_model).into_iter();
    before.iter().cloned().chain(flags).chain(after.iter().cloned()).chain(model).collect()
}

/// Is there a positional argument behind the command? Flags with separate values make this a guess that errs on
/// the side of the command line only when the value looks like a model file.
fn names_a_model(arguments: &[OsString]) -> bool {
    arguments.iter().any(|argument| Path::new(argument).extension() == Some(OsStr::new("gguf")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::Parser;
    use clap::error::ErrorKind;

    use super::*;

    fn with_file(text: &str, given: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("paceline.toml");
        std::fs::write(&path, text)?;
        let mut given: Vec<OsString> = given.iter().map(OsString::from).collect();
        given.extend([OsString::from("--config"), path.into_os_string()]);
        let mut all = arguments(given)?;
        // The model may stand behind it.
        let at = all.iter().position(|argument| argument == "--config").context("it was given")?;
        all.drain(at..at + 2);
        Ok(all.into_iter().map(|argument| argument.to_string_lossy().into_owned()).collect())
    }

    #[test]
    fn the_files_flags_are_added_where_the_command_line_has_none() {
        let text = "port = 9000\nctx = 512\nalias = ['a', 'b']\nraw = true\njson = false";
        let all = with_file(text, &["paceline", "serve", "--port", "1", "--alias=c"]).expect("a good file");
        assert_eq!(all, ["paceline", "serve", "--ctx", "512", "--raw", "--port", "1", "--alias=c"]);
        let all = with_file(text, &["paceline", "serve"]).expect("a good file");
        for (flag, count) in [("--port", 1), ("--alias", 2), ("--raw", 1), ("--json", 0)] {
            assert_eq!(all.iter().filter(|argument| *argument == flag).count(), count, "{all:?}");
        }
    }

    #[test]
    fn a_table_holds_for_its_command_and_goes_before_what_stands_above() {
        let text = "ctx = 512\nverbose = true\n[serve]\nctx = 1024\n[shard]\nmodel = 'a.gguf'\nthreads = 2\n";
        let all = with_file(text, &["paceline", "serve"]).expect("a good file");
        assert_eq!(all, ["paceline", "serve", "--ctx", "1024", "--verbose"]);
        let text = text.trim_start_matches("ctx = 512\n");
        let all = with_file(text, &["paceline", "shard"]).expect("a good file");
        assert_eq!(all, ["paceline", "shard", "--verbose", "--model", "a.gguf", "--threads", "2"]);
    }

    #[test]
    fn what_is_not_toml_or_not_a_flag_is_refused_with_the_files_name() {
        for text in ["port = ", "port = { a = 1 }", "alias = [[1]]", "[nothing]\nport = 1"] {
            let error = with_file(text, &["paceline", "serve"]).expect_err("a bad file");
            assert!(format!("{error:#}").contains("paceline.toml"), "{error:#}");
        }
    }

    /// The example with its commented keys in force, as one table for each command.
    fn example() -> Table {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config.example.toml");
        let text = std::fs::read_to_string(path).expect("config.example.toml");
        let lines = text.lines().map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest.split_once(" = ").is_some_and(|(key, _)| is_key(key)) => rest,
            _ => line,
        });
        lines.collect::<Vec<_>>().join("\n").parse().expect("TOML")
    }

    fn is_key(text: &str) -> bool {
        !text.is_empty() && text.chars().all(|letter| letter.is_ascii_lowercase() || "-0123456789".contains(letter))
    }

    /// The flags of a command, and its model where it takes one.
    fn keys_of(command: &clap::Command) -> BTreeSet<String> {
        let key = |argument: &clap::Arg| match argument.get_long() {
            Some(flag) => Some(flag.to_owned()).filter(|_| !argument.is_hide_set()),
            None => Some(argument.get_id().as_str().to_owned()).filter(|id| id == "model"),
        };
        command.get_arguments().filter_map(key).collect()
    }

    #[test]
    fn the_example_names_every_flag_of_every_command_and_nothing_else() {
        let (example, cli) = (example(), Cli::command());
        let everywhere = keys_of(&cli);
        let above: BTreeSet<String> =
            example.iter().filter(|(_, value)| !value.is_table()).map(|(key, _)| key.clone()).collect();
        // Where the flags are read from is no flag that could be read from there.
        let expected: BTreeSet<String> = everywhere.iter().filter(|flag| *flag != "config").cloned().collect();
        assert_eq!(above, expected, "above all tables");
        for command in cli.get_subcommands() {
            let name = command.get_name();
            let section = example.get(name).and_then(Value::as_table).unwrap_or_else(|| panic!("no [{name}]"));
            let keys: BTreeSet<String> = section.keys().cloned().collect();
            let expected = keys_of(command).into_iter().filter(|flag| !everywhere.contains(flag)).collect();
            assert_eq!(keys, expected, "[{name}]");
        }
    }

    #[test]
    fn every_value_of_the_example_is_one_that_the_program_takes() {
        for (name, section) in &example() {
            let (command, section) = match section {
                Value::Table(section) => (name.as_str(), section.clone()),
                value => ("serve", Table::from_iter([(name.clone(), value.clone())])),
            };
            for (key, value) in section {
                let text = toml::to_string(&Table::from_iter([(key.clone(), value)])).expect("TOML");
                let all = with_file(&text, &["paceline", command]).expect("a good file");
                let Err(error) = Cli::try_parse_from(&all) else { continue };
                // Some flags need others, or go without others.
                let alone =
                    [ErrorKind::MissingRequiredArgument, ErrorKind::ArgumentConflict, ErrorKind::MissingSubcommand];
                assert!(alone.contains(&error.kind()), "{command} {key}: {error}");
            }
        }
    }

    #[test]
    fn the_example_changes_nothing_as_it_is() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config.example.toml");
        for command in Cli::command().get_subcommands() {
            let given = ["paceline", command.get_name()].map(OsString::from);
            let path = [OsString::from("--config"), path.clone().into_os_string()];
            let given: Vec<OsString> = given.into_iter().chain(path).collect();
            assert_eq!(arguments(given.clone()).expect("a good file"), given);
        }
    }
}
