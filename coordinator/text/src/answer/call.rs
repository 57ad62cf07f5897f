//! One tool call, from its opening to its end.

mod fields;
mod parameters;

use super::argument_types::ToolTable;
use super::json::{Found, after_space, string_end, value_end};
use super::parser::started;
use super::{Part, push_arguments};
use fields::Fields;
use parameters::Parameters;

pub(super) const CALL: &str = "<tool_call>";
pub(super) const CALL_END: &str = "</tool_call>";
const FUNCTION: &str = "<function=";

/// Longer names are no names.
const NAME_BYTES: usize = 256;

/// What a call was noticed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Opening {
    /// `<tool_call>`.
    Tag,
    /// `<function=`, where the tag before it was forgotten.
    Function,
    /// Nothing but the brace of an object, which is not taken yet.
    Bare,
}

impl Opening {
    /// What was taken.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Tag => CALL,
            Self::Function => FUNCTION,
            Self::Bare => "",
        }
    }
}

/// What the beginning of a call turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Undecided. Nothing is taken.
    More,
    /// No call. Nothing is taken.
    Not,
    /// A call of this tool; the text up to its arguments is taken.
    Call(String),
}

/// Reads one call.
#[derive(Debug)]
pub(super) struct CallReader {
    opening: Opening,
    body: Option<Body>,
    /// Nothing but the closing tag is missing.
    closing: bool,
}

/// What follows the name.
#[derive(Debug)]
enum Body {
    Json(Fields),
    Xml(Parameters),
}

impl CallReader {
    pub(super) fn new(opening: Opening) -> Self {
        Self { opening, body: None, closing: false }
    }

    pub(super) fn opening(&self) -> Opening {
        self.opening
    }

    /// Whether it is certain that this is a call.
    pub(super) fn is_call(&self) -> bool {
        self.body.is_some()
    }

    /// Whether whatever comes next belongs to an argument.
    pub(super) fn is_within_value(&self) -> bool {
        match &self.body {
            _ if self.closing => false,
            None => false,
            Some(Body::Json(fields)) => fields.is_within_string(),
            Some(Body::Xml(parameters)) => parameters.is_within_value(),
        }
    }

    /// Finds out whether `buffer`, which follows the opening, begins a call. `known_only` if the tool must exist.
    pub(super) fn recognise(&mut self, buffer: &mut String, tools: &ToolTable, known_only: bool) -> Progress {
        let start = after_space(buffer, 0);
        let rest = &buffer[start..];
        if self.opening == Opening::Function {
            return self.recognise_function(buffer, 0, tools, true);
        }
        if rest.starts_with('{') {
            let known_only = known_only || self.opening == Opening::Bare;
            return self.recognise_object(buffer, start, tools, known_only);
        }
        match rest.strip_prefix(FUNCTION) {
            _ if self.opening == Opening::Bare => {
                if rest.is_empty() {
                    Progress::More
                } else {
                    Progress::Not
                }
            }
            Some(_) => self.recognise_function(buffer, start + FUNCTION.len(), tools, known_only),
            None if FUNCTION.starts_with(rest) => Progress::More,
            None => Progress::Not,
        }
    }

    /// The name from `from` on ends at `>`.
    fn recognise_function(
        &mut self,
        buffer: &mut String,
        from: usize,
        tools: &ToolTable,
        known_only: bool,
    ) -> Progress {
        let rest = &buffer[from..];
        let Some(length) = rest.find(['>', '<', '\n']) else {
            return if rest.len() > NAME_BYTES { Progress::Not } else { Progress::More };
        };
        let name = rest[..length].trim().trim_matches(['"', '\'']);
        if !rest[length..].starts_with('>') || !is_name(name, tools, known_only) {
            return Progress::Not;
        }
        let name = name.to_owned();
        self.body = Some(Body::Xml(Parameters::new(&name, tools)));
        buffer.drain(..from + length + 1);
        Progress::Call(name)
    }

    /// The object that begins at `from` must have a name; what comes before that is kept.
    fn recognise_object(&mut self, buffer: &mut String, from: usize, tools: &ToolTable, known_only: bool) -> Progress {
        let mut arguments = None;
        let mut place = after_space(buffer, from + 1);
        loop {
            let (key, value) = match field(buffer, place) {
                Ok(field) => field,
                Err(progress) => return progress,
            };
            let end = value_end(buffer, value);
            if key == "name" {
                let end = match string_end(buffer, value) {
                    Found::End(end) => end,
                    Found::More => return Progress::More,
                    Found::Not => return Progress::Not,
                };
                let Ok(name) = serde_json::from_str::<String>(&buffer[value..end]) else { return Progress::Not };
                if !is_name(&name, tools, known_only) {
                    return Progress::Not;
                }
                let known = arguments.map(|(start, end): (usize, usize)| buffer[start..end].to_owned());
                self.body = Some(Body::Json(Fields::new(known)));
                buffer.drain(..end);
                return Progress::Call(name);
            }
            // A bare object of anything else is an answer in JSON.
            if self.opening == Opening::Bare && !matches!(&*key, "type" | "parameters" | "arguments") {
                return Progress::Not;
            }
            let end = match end {
                Found::End(end) => end,
                Found::More => return Progress::More,
                Found::Not => return Progress::Not,
            };
            if fields::is_arguments(&key) {
                arguments = Some((value, end));
            }
            place = after_space(buffer, end);
            match buffer.as_bytes().get(place) {
                Some(b',') => place = after_space(buffer, place + 1),
                Some(_) => return Progress::Not,
                None => return Progress::More,
            }
        }
    }

    /// Takes what `buffer` has of the call; true once the call is over. `last` if no more text comes.
    pub(super) fn read(&mut self, buffer: &mut String, last: bool, parts: &mut Vec<Part>) -> bool {
        let over = self.closing
            || match &mut self.body {
                None => false,
                Some(Body::Json(fields)) => fields.read(buffer, last, parts),
                Some(Body::Xml(parameters)) => parameters.read(buffer, last, parts),
            };
        if !over {
            return false;
        }
        if !self.closing {
            self.closing = true;
            parts.push(Part::ToolCallEnd);
        }
        self.close(buffer, last)
    }

    /// Takes the closing tag, or what separates calls without tags.
    fn close(&self, buffer: &mut String, last: bool) -> bool {
        let rest = buffer.trim_start();
        let tag = if self.opening == Opening::Bare { ";" } else { CALL_END };
        if let Some(rest) = rest.strip_prefix(tag) {
            buffer.drain(..buffer.len() - rest.len());
            return true;
        }
        last || !tag.starts_with(rest)
    }

    /// The answer has ended, or a token ends the call.
    pub(super) fn finish(&mut self, parts: &mut Vec<Part>) {
        if self.closing {
            return;
        }
        self.closing = true;
        if let Some(Body::Xml(parameters)) = &self.body {
            parameters.finish(parts);
        }
        parts.push(Part::ToolCallEnd);
    }
}

fn is_name(name: &str, tools: &ToolTable, known_only: bool) -> bool {
    tools.has(name) || (!known_only && !name.is_empty() && name.len() <= NAME_BYTES)
}

/// The key that begins at `place`, and where its value begins.
fn field(text: &str, place: usize) -> Result<(String, usize), Progress> {
    let end = match string_end(text, place) {
        Found::End(end) => end,
        Found::More => return Err(Progress::More),
        Found::Not => return Err(Progress::Not),
    };
    let key = serde_json::from_str(&text[place..end]).map_err(|_| Progress::Not)?;
    let colon = after_space(text, end);
    match text.as_bytes().get(colon) {
        None => return Err(Progress::More),
        Some(b':') => {}
        Some(_) => return Err(Progress::Not),
    }
    let value = after_space(text, colon + 1);
    if value == text.len() { Err(Progress::More) } else { Ok((key, value)) }
}
