//! Arguments as tags, one for each parameter: `<parameter=city>Paris</parameter></function>`.
//!
//! The text of a parameter may contain anything, also what looks like its end. So an end counts only if what follows is
//! another parameter or the end of the call.

use super::super::json::escaped;
use super::{CALL_END, Part, ToolTable, push_arguments, started};
use crate::answer::argument_types::ArgumentTypes;

const PARAMETER: &str = "<parameter=";
const PARAMETER_END: &str = "</parameter>";
const FUNCTION_END: &str = "</function>";

/// What may follow a parameter.
const AFTER_PARAMETER: [&str; 3] = [PARAMETER, FUNCTION_END, CALL_END];

/// Reads the parameters of a call and tells them as one JSON object.
#[derive(Debug)]
pub(super) struct Parameters {
    tool: String,
    tools: ToolTable,
    /// Parameters told so far.
    told: Vec<String>,
    state: State,
}

#[derive(Debug)]
enum State {
    /// Before a parameter, or the end of the function.
    Between,
    /// In a parameter.
    Value(Value),
}

#[derive(Debug)]
struct Value {
    types: ArgumentTypes,
    /// Nothing of it has been read.
    fresh: bool,
    /// What cannot be told before it is complete.
    text: String,
    /// The parameter was told before, which cannot be taken back.
    again: bool,
}

impl Parameters {
    pub(super) fn new(tool: &str, tools: &ToolTable) -> Self {
        Self { tool: tool.to_owned(), tools: tools.clone(), told: Vec::new(), state: State::Between }
    }

    pub(super) fn is_within_value(&self) -> bool {
        matches!(self.state, State::Value(_))
    }

    /// Takes what `buffer` has; true once the function is over.
    pub(super) fn read(&mut self, buffer: &mut String, last: bool, parts: &mut Vec<Part>) -> bool {
        loop {
            match &mut self.state {
                State::Between => {
                    if let Some(over) = self.between(buffer, parts) {
                        return over;
                    }
                }
                State::Value(value) => {
                    if !value.read(buffer, last, parts) {
                        return false;
                    }
                    self.state = State::Between;
                }
            }
        }
    }

    /// Finds the next parameter or the end; says nothing if it has found a parameter.
    fn between(&mut self, buffer: &mut String, parts: &mut Vec<Part>) -> Option<bool> {
        let found = AFTER_PARAMETER.iter().filter_map(|tag| Some((buffer.find(tag)?, *tag)));
        let Some((place, tag)) = found.min_by_key(|found| found.0) else {
            // Nothing that stands between parameters is part of one.
            let held = AFTER_PARAMETER.iter().map(|tag| started(buffer, tag)).max().unwrap_or(0);
            buffer.drain(..buffer.len() - held);
            return Some(false);
        };
        if tag != PARAMETER {
            // The tag of the call is left for whoever closes it.
            buffer.drain(..place + if tag == FUNCTION_END { tag.len() } else { 0 });
            push_arguments(parts, if self.told.is_empty() { "{}" } else { "}" });
            return Some(true);
        }
        let name_start = place + tag.len();
        let Some(length) = buffer[name_start..].find('>') else {
            buffer.drain(..place);
            return Some(false);
        };
        let name = buffer[name_start..name_start + length].trim().trim_matches(['"', '\'']).to_owned();
        buffer.drain(..=name_start + length);
        self.state = State::Value(self.begin(name, parts));
        None
    }

    fn begin(&mut self, name: String, parts: &mut Vec<Part>) -> Value {
        let types = self.tools.argument(&self.tool, &name);
        let again = self.told.contains(&name);
        if !again {
            let opening = if self.told.is_empty() { '{' } else { ',' };
            push_arguments(parts, &format!("{opening}\"{}\":", escaped(&name)));
            self.told.push(name);
        }
        Value { types, fresh: true, text: String::new(), again }
    }

    /// The answer ends here. What is within a parameter stays incomplete, so that nobody acts on half of it.
    pub(super) fn finish(&self, parts: &mut Vec<Part>) {
        if matches!(self.state, State::Between) {
            push_arguments(parts, if self.told.is_empty() { "{}" } else { "}" });
        }
    }
}

/// How far the text of a parameter goes.
enum Extent {
    /// So far, and what is read next begins there.
    To(usize, usize),
    /// At least so far.
    AtLeast(usize),
}

impl Value {
    /// Takes what `buffer` has of it; true if that is all.
    fn read(&mut self, buffer: &mut String, last: bool, parts: &mut Vec<Part>) -> bool {
        let (end, next) = match extent(buffer, last) {
            Extent::To(end, next) => (end, Some(next)),
            Extent::AtLeast(end) => (end, None),
        };
        let mut text = &buffer[..end];
        if self.fresh && !(text.is_empty() && next.is_none()) {
            self.fresh = false;
            text = text.strip_prefix('\n').unwrap_or(text);
            self.tell_start(parts);
        }
        self.take(text, parts);
        if next.is_some() {
            self.tell_end(parts);
        }
        buffer.drain(..next.unwrap_or(end));
        next.is_some()
    }

    fn tell_start(&self, parts: &mut Vec<Part>) {
        if self.types.is_text() && !self.again {
            push_arguments(parts, "\"");
        }
    }

    fn take(&mut self, text: &str, parts: &mut Vec<Part>) {
        match self.types.is_text() {
            _ if self.again => {}
            true => push_arguments(parts, &escaped(text)),
            false => self.text.push_str(text),
        }
    }

    fn tell_end(&self, parts: &mut Vec<Part>) {
        match self.types.is_text() {
            _ if self.again => {}
            true => push_arguments(parts, "\""),
            false => push_arguments(parts, &self.types.json(&self.text)),
        }
    }
}

/// Finds the end of a parameter's text.
fn extent(text: &str, last: bool) -> Extent {
    let mut from = 0;
    loop {
        let ends = [PARAMETER_END, FUNCTION_END].into_iter();
        let found = ends.filter_map(|tag| Some((from + text[from..].find(tag)?, tag))).min_by_key(|found| found.0);
        let Some((place, tag)) = found else {
            let held = [PARAMETER_END, FUNCTION_END].iter().map(|tag| started(&text[from..], tag)).max().unwrap_or(0);
            return Extent::AtLeast(before_line_break(text, text.len() - held));
        };
        let after = place + tag.len();
        let follows = text[after..].trim_start();
        let may_follow: &[&str] = if tag == PARAMETER_END { &AFTER_PARAMETER } else { &[CALL_END] };
        if (last && follows.is_empty()) || may_follow.iter().any(|tag| follows.starts_with(tag)) {
            let next = if tag == PARAMETER_END { after } else { place };
            return Extent::To(before_line_break(text, place), next);
        }
        if !last && may_follow.iter().any(|tag| tag.starts_with(follows)) {
            return Extent::AtLeast(before_line_break(text, place));
        }
        from = after;
    }
}

/// `end`, or the place of the line break before it, which belongs to the tag that follows.
fn before_line_break(text: &str, end: usize) -> usize {
    end - usize::from(text[..end].ends_with('\n'))
}
