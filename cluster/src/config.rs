//! `--config FILE.toml`: every key is a flag without its dashes. Flags of the file that the command line does not give
//! are put before those of the command line, so that both pass the same checks.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use toml::{Table, Value};

/// The arguments of the program with those of its configuration file put in.
pub(crate) fn arguments(given: Vec<OsString>) -> Result<Vec<OsString>> {
    let Some(path) = config_path(&given) else { return Ok(given) };
    let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let table: Table = text.parse().with_context(|| format!("{} is not valid TOML", path.display()))?;
    let mut flags = Vec::new();
    let mut model = None;
    for (key, value) in &table {
        match key.as_str() {
            "model" => model = Some(scalar(&path, key, value)?),
            _ if is_given(&given, key) => {}
            _ => flags.extend(flag(&path, key, value)?),
        }
    }
    Ok(put_in(given, flags, model))
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

fn flag(path: &Path, key: &str, value: &Value) -> Result<Vec<OsString>> {
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

fn scalar(path: &Path, key: &str, value: &Value) -> Result<OsString> {
    match value {
        Value::String(text) => Ok(text.into()),
        Value::Integer(number) => Ok(number.to_string().into()),
        Value::Float(number) => Ok(number.to_string().into()),
        other => bail!("{}: the value of {key} is a {}, not a text or number", path.display(), other.type_str()),
    }
}

/// Puts the file's flags right behind the command's name, and its model at the end if none is given there.
fn put_in(given: Vec<OsString>, flags: Vec<OsString>, model: Option<OsString>) -> Vec<OsString> {
    let is_command = |argument: &OsString| !argument.as_encoded_bytes().starts_with(b"-");
    let Some(at) = given.iter().skip(1).position(is_command).map(|index| index + 1) else { return given };
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
    use super::*;

    fn with_file(text: &str, given: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("paceline.toml");
        std::fs::write(&path, text)?;
        let mut given: Vec<OsString> = given.iter().map(OsString::from).collect();
        given.extend([OsString::from("--config"), path.into_os_string()]);
        let mut all = arguments(given)?;
        all.truncate(all.len().saturating_sub(2));
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
    fn what_is_not_toml_or_not_a_flag_is_refused_with_the_files_name() {
        for text in ["port = ", "port = { a = 1 }", "alias = [[1]]"] {
            let error = with_file(text, &["paceline", "serve"]).expect_err("a bad file");
            assert!(format!("{error:#}").contains("paceline.toml"), "{error:#}");
        }
    }
}
