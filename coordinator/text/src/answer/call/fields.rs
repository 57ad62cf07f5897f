//! The object of a call, behind its name.

use super::super::json::{Found, ValueEnd, after_space, escaped, value_end};
use super::{Part, Progress, field, push_arguments};

/// Whether the value of `key` is the arguments.
pub(super) fn is_arguments(key: &str) -> bool {
    matches!(key, "arguments" | "parameters")
}

/// Reads the fields that follow the name.
#[derive(Debug)]
pub(super) struct Fields {
    /// Arguments that came before the name.
    known: Option<String>,
    /// The arguments have been told, or are being told.
    given: bool,
    state: State,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Before a comma, or the brace that closes the object.
    Between,
    /// Within the object of the arguments.
    Arguments(ValueEnd),
}

impl Fields {
    pub(super) fn new(known: Option<String>) -> Self {
        Self { known, given: false, state: State::Between }
    }

    pub(super) fn is_within_string(&self) -> bool {
        matches!(self.state, State::Arguments(value) if value.in_string)
    }

    /// Takes what `buffer` has; true once the object is over, be it because it is none.
    pub(super) fn read(&mut self, buffer: &mut String, last: bool, parts: &mut Vec<Part>) -> bool {
        if let Some(known) = self.known.take() {
            self.give(&known, parts);
        }
        loop {
            match self.state {
                State::Arguments(value) => match take_arguments(value, buffer, parts) {
                    Some(value) => {
                        self.state = State::Arguments(value);
                        return false;
                    }
                    None => self.state = State::Between,
                },
                State::Between => {
                    let place = after_space(buffer, 0);
                    match buffer.as_bytes().get(place) {
                        Some(b',') => {}
                        Some(b'}') => {
                            buffer.drain(..=place);
                            self.complete(parts);
                            return true;
                        }
                        None if !last => return false,
                        _ => {
                            self.complete(parts);
                            return true;
                        }
                    }
                    if let Some(over) = self.next_field(buffer, after_space(buffer, place + 1), parts) {
                        if over {
                            self.complete(parts);
                        }
                        return over;
                    }
                }
            }
        }
    }

    /// Takes the field whose key begins at `place`; says whether the object is over if it cannot.
    fn next_field(&mut self, buffer: &mut String, place: usize, parts: &mut Vec<Part>) -> Option<bool> {
        let (key, value) = match field(buffer, place) {
            Ok(field) => field,
            Err(progress) => return Some(progress != Progress::More),
        };
        if is_arguments(&key) && !self.given && buffer[value..].starts_with('{') {
            buffer.drain(..value);
            self.given = true;
            self.state = State::Arguments(ValueEnd::default());
            return None;
        }
        match value_end(buffer, value) {
            Found::End(end) => {
                if is_arguments(&key) && !self.given {
                    self.give(&buffer[value..end], parts);
                }
                buffer.drain(..end);
                None
            }
            Found::More => Some(false),
            Found::Not => Some(true),
        }
    }

    fn give(&mut self, arguments: &str, parts: &mut Vec<Part>) {
        self.given = true;
        push_arguments(parts, &as_object(arguments));
    }

    /// A call without arguments has an empty object of them.
    fn complete(&mut self, parts: &mut Vec<Part>) {
        if !self.given {
            self.give("{}", parts);
        }
    }
}

/// Takes what `buffer` has of the arguments; none once they are complete.
fn take_arguments(mut value: ValueEnd, buffer: &mut String, parts: &mut Vec<Part>) -> Option<ValueEnd> {
    let mut json = String::with_capacity(buffer.len());
    for (place, character) in buffer.char_indices() {
        // Line breaks within strings must be escaped; models forget that.
        match character {
            '\0'..='\x1f' if value.in_string => json += &escaped(character.encode_utf8(&mut [0; 4])),
            _ => json.push(character),
        }
        let over = character.is_ascii() && value.take(character as u8);
        if over {
            push_arguments(parts, &json);
            buffer.drain(..=place);
            return None;
        }
    }
    push_arguments(parts, &json);
    buffer.clear();
    Some(value)
}

/// Arguments that are no object: their JSON in a string, or nothing at all.
fn as_object(json: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(json) {
        Ok(serde_json::Value::String(text)) if text.trim_start().starts_with('{') => text,
        Ok(serde_json::Value::Null) => "{}".to_owned(),
        Ok(serde_json::Value::String(text)) if text.trim().is_empty() => "{}".to_owned(),
        _ => json.to_owned(),
    }
}
