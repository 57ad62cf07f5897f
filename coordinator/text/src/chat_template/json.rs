//! The `tojson` filter: JSON as Python's `json.dumps` prints it, which is what models were trained on.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

/// Values nested deeper than this are not printed.
pub(super) const MAX_DEPTH: usize = 128;

/// Bytes that one unit of a template's fuel pays for.
const BYTES_PER_FUEL: u64 = 64;

/// `tojson` as Hugging Face defines it: Python's `json.dumps` without escaping HTML or, by default, non-ASCII.
#[expect(clippy::needless_pass_by_value, reason = "filters take their options by value")]
pub(super) fn to_json(state: &State, value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let separators: Option<(String, String)> = match options.get::<Option<Value>>("separators")? {
        Some(pair) => Some((separator(&pair, 0)?, separator(&pair, 1)?)),
        None => None,
    };
    let item = if indent.is_some() { "," } else { ", " };
    let (item, key) = separators.unwrap_or_else(|| (item.to_owned(), ": ".to_owned()));
    let mut json = JsonWriter {
        text: String::new(),
        remaining: state.fuel_levels().map_or(u64::MAX, |(_, remaining)| remaining.saturating_mul(BYTES_PER_FUEL)),
        indent,
        item,
        key,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    json.value(value, 0)?;
    Ok(Value::from(json.text))
}

fn separator(pair: &Value, index: usize) -> Result<String, Error> {
    let text = pair.get_item_by_index(index)?;
    text.as_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "separators must be two texts"))
}

/// Prints JSON like Python's `json.dumps`.
struct JsonWriter {
    text: String,
    /// Bytes that may still be written.
    remaining: u64,
    indent: Option<usize>,
    item: String,
    key: String,
    ascii: bool,
    sort_keys: bool,
}

impl JsonWriter {
    fn write(&mut self, text: &str) -> Result<(), Error> {
        self.spend(text.len() as u64)?;
        self.text.push_str(text);
        Ok(())
    }

    /// A value costs a unit of fuel and its text by length: one list may stand in another very many times.
    fn spend(&mut self, bytes: u64) -> Result<(), Error> {
        let left = self.remaining.checked_sub(bytes);
        self.remaining = left.ok_or_else(|| Error::from(ErrorKind::OutOfFuel))?;
        Ok(())
    }

    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        if depth > MAX_DEPTH {
            return Err(Error::new(ErrorKind::BadSerialization, "the value is nested too deep for JSON"));
        }
        self.spend(BYTES_PER_FUEL)?;
        match value.kind() {
            ValueKind::None => self.write("null"),
            ValueKind::Bool => self.write(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.write(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Map => self.map(value, depth),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth),
            kind => Err(Error::new(ErrorKind::BadSerialization, format!("a value of kind {kind} is not JSON"))),
        }
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.write("[")?;
        let mut first = true;
        for item in value.try_iter()? {
            self.begin_item(first, depth)?;
            self.value(&item, depth + 1)?;
            first = false;
        }
        self.end(first, depth, "]")
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.write("{")?;
        let mut pairs = Vec::new();
        for key in value.try_iter()? {
            pairs.push((key_text(&key)?, value.get_item(&key)?));
        }
        if self.sort_keys {
            pairs = pairs.into_iter().collect::<BTreeMap<_, _>>().into_iter().collect();
        }
        let empty = pairs.is_empty();
        for (index, (key, item)) in pairs.iter().enumerate() {
            self.begin_item(index == 0, depth)?;
            self.string(key)?;
            let colon = self.key.clone();
            self.write(&colon)?;
            self.value(item, depth + 1)?;
        }
        self.end(empty, depth, "}")
    }

    fn begin_item(&mut self, first: bool, depth: usize) -> Result<(), Error> {
        if !first {
            let comma = self.item.clone();
            self.write(&comma)?;
        }
        self.new_line(depth + 1)
    }

    fn end(&mut self, empty: bool, depth: usize, bracket: &str) -> Result<(), Error> {
        if !empty {
            self.new_line(depth)?;
        }
        self.write(bracket)
    }

    fn new_line(&mut self, depth: usize) -> Result<(), Error> {
        let Some(indent) = self.indent else { return Ok(()) };
        let width = indent.saturating_mul(depth);
        if width as u64 > self.remaining {
            return Err(Error::from(ErrorKind::OutOfFuel));
        }
        self.write(&format!("\n{:width$}", ""))
    }

    fn string(&mut self, text: &str) -> Result<(), Error> {
        let mut quoted = String::with_capacity(text.len() + 2);
        quoted.push('"');
        for character in text.chars() {
            match character {
                '"' => quoted += "\\\"",
                '\\' => quoted += "\\\\",
                '\n' => quoted += "\\n",
                '\r' => quoted += "\\r",
                '\t' => quoted += "\\t",
                '\u{8}' => quoted += "\\b",
                '\u{c}' => quoted += "\\f",
                '\0'..='\u{1f}' => escape(character, &mut quoted),
                _ if self.ascii && !(' '..='~').contains(&character) => escape(character, &mut quoted),
                _ => quoted.push(character),
            }
        }
        quoted.push('"');
        self.write(&quoted)
    }
}

/// Writes `\uXXXX`, twice for characters beyond the basic plane.
fn escape(character: char, text: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        write!(text, "\\u{unit:04x}").expect("writing to a string cannot fail");
    }
}

/// The text of a mapping's key: Python turns numbers and constants into text.
fn key_text(key: &Value) -> Result<String, Error> {
    match key.kind() {
        ValueKind::String => Ok(key.as_str().unwrap_or_default().to_owned()),
        ValueKind::Number => number(key),
        ValueKind::Bool => Ok(if key.is_true() { "true" } else { "false" }.to_owned()),
        ValueKind::None => Ok("null".to_owned()),
        kind => Err(Error::new(ErrorKind::BadSerialization, format!("a key of kind {kind} is not JSON"))),
    }
}

/// A number as Python prints it.
fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let float = f64::try_from(value.clone())?;
    if float.is_nan() {
        return Ok("NaN".to_owned());
    }
    if float.is_infinite() {
        return Ok(if float > 0.0 { "Infinity" } else { "-Infinity" }.to_owned());
    }
    let scientific = format!("{float:e}");
    let (digits, exponent) = scientific.split_once('e').expect("the format writes an exponent");
    let exponent: i32 = exponent.parse().expect("the format writes a number");
    if float == 0.0 || (-4..16).contains(&exponent) {
        return Ok(format!("{float:?}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    Ok(format!("{digits}e{sign}{:02}", exponent.abs()))
}
