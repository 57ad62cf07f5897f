//! What templates written for Python expect of Jinja.

use minijinja::value::{Tuple, Value, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, escape_formatter};
use minijinja_contrib::pycompat;

use super::json::{MAX_DEPTH, to_json};

/// The message of a template's own `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub(super) String);

/// Adds Hugging Face's functions and corrects tests and filters that differ from Python's.
pub(super) fn install(environment: &mut Environment<'static>) {
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message.clone()).with_source(Raised(message)))
    });
    environment.set_unknown_method_callback(method);
    environment.set_formatter(|output, state, value| {
        let (_, mut items) = state.fuel_levels().unwrap_or((0, u64::MAX));
        check_nesting(value, 0, &mut items)?;
        escape_formatter(output, state, value)
    });
    // Printing values for debugging is not bounded by the fuel.
    environment.remove_filter("pprint");
    environment.remove_global("debug");
    environment.add_filter("tojson", to_json);
    environment.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::String)
    });
}

/// Removes the tags `{% generation %}` and `{% endgeneration %}`: they only mark answers for training.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut result = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(open) = rest.find("{%") {
        let Some(length) = rest[open..].find("%}") else { break };
        let tag = &rest[open..open + length + 2];
        result += &rest[..open];
        result += &match tag.trim_matches(['{', '%', '}', '-', '+', ' ', '\n']) {
            "generation" => tag.replacen("generation", "if true", 1),
            "endgeneration" => tag.replacen("endgeneration", "endif", 1),
            _ => tag.to_owned(),
        };
        rest = &rest[open + length + 2..];
    }
    result + rest
}

/// Refuses to print what is nested too deep for the stack, or endlessly: a namespace may contain itself.
fn check_nesting(value: &Value, depth: usize, items: &mut u64) -> Result<(), Error> {
    if depth > MAX_DEPTH {
        return Err(Error::new(ErrorKind::InvalidOperation, "the value is nested too deep to be printed"));
    }
    *items = items.checked_sub(1).ok_or_else(|| Error::from(ErrorKind::OutOfFuel))?;
    if !matches!(value.kind(), ValueKind::Seq | ValueKind::Map | ValueKind::Iterable) {
        return Ok(());
    }
    for item in value.try_iter()? {
        check_nesting(&item, depth + 1, items)?;
        if value.kind() == ValueKind::Map {
            check_nesting(&value.get_item(&item)?, depth + 1, items)?;
        }
    }
    Ok(())
}

/// Methods that Python's values have and MiniJinja's have not.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, name, arguments);
    };
    match name {
        "rsplit" => {
            let (separator, limit): (&str, Option<usize>) = from_args(arguments)?;
            Ok(Value::from(split_from_right(text, separator, limit)?))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let (before, after) = text.split_once(separator).unwrap_or((text, ""));
            Ok(parts([before, &text[before.len()..text.len() - after.len()], after]))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let (before, after) = text.rsplit_once(separator).unwrap_or(("", text));
            Ok(parts([before, &text[before.len()..text.len() - after.len()], after]))
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        _ => pycompat::unknown_method_callback(state, value, name, arguments),
    }
}

/// A tuple of texts.
fn parts(texts: [&str; 3]) -> Value {
    Value::from(Tuple::from(texts.map(Value::from).to_vec()))
}

/// Splits at the last `limit` separators, or at all of them.
fn split_from_right(text: &str, separator: &str, limit: Option<usize>) -> Result<Vec<String>, Error> {
    if separator.is_empty() {
        return Err(Error::new(ErrorKind::InvalidOperation, "empty separator"));
    }
    let mut parts: Vec<String> = match limit {
        Some(limit) => text.rsplitn(limit.saturating_add(1), separator).map(str::to_owned).collect(),
        None => text.rsplit(separator).map(str::to_owned).collect(),
    };
    parts.reverse();
    Ok(parts)
}
