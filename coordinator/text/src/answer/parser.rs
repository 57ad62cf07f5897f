//! From pieces of text to parts of an answer.

use super::argument_types::ToolTable;
use super::call::{CallReader, Opening, Progress};
use super::format::AnswerFormat;
use super::prose::{Kind, Prose};
use super::{CallSyntax, Part};
use crate::text_stream::Mark;

/// Tells reasoning, text and tool calls of one answer apart as its tokens arrive.
///
/// - Reasoning ends at its closing tag. Where the vocabulary has tokens for the tags only those count. It begins at the
///   start of the answer or not at all; whatever looks like a tag later on is text.
/// - A call may also be made within reasoning, if it names a tool that exists. In text any name is a call.
/// - What begins like a call and is none is prose, and nothing of it is lost.
/// - White space beside tags is nobody's.
///
/// How the answer is cut into pieces changes nothing but the pieces of its parts.
#[derive(Debug)]
pub struct AnswerParser {
    format: AnswerFormat,
    tools: Option<ToolTable>,
    call_ids: String,
    state: State,
    /// Text that nothing has become of yet.
    buffer: String,
    prose: Prose,
    calls: usize,
    one_call: bool,
    reasoning_tokens: usize,
}

#[derive(Debug)]
enum State {
    /// Only white space so far: reasoning may open, or a call without any tag.
    Start,
    Prose(Kind),
    /// A call, within prose of this kind.
    Call(Kind, Box<CallReader>),
    /// Whatever follows is not told.
    Over,
}

/// A text that means something in prose.
#[derive(Debug, Clone, Copy)]
enum Trigger {
    ReasoningEnds,
    CallOpens(Opening),
}

impl AnswerParser {
    pub(super) fn new(format: AnswerFormat, reasoning_open: bool, tools: Option<ToolTable>, call_ids: String) -> Self {
        let bare_calls = tools.is_some() && format.calls == CallSyntax::Llama;
        let state = match &format.reasoning {
            Some(_) if reasoning_open => State::Prose(Kind::Reasoning),
            None if !bare_calls => State::Prose(Kind::Text),
            _ => State::Start,
        };
        let prose = Prose::new(reasoning_open, tools.is_some());
        let (buffer, calls, one_call, reasoning_tokens) = (String::new(), 0, false, 0);
        Self { format, tools, call_ids, state, buffer, prose, calls, one_call, reasoning_tokens }
    }

    /// Ends the answer behind its first call.
    #[must_use]
    pub fn with_one_call(mut self) -> Self {
        self.one_call = true;
        self
    }

    /// Takes what one token added to the text ([`Emit`](crate::Emit)): `marks` say where in `text` special tokens stand.
    pub fn push(&mut self, text: &str, marks: &[Mark]) -> Vec<Part> {
        let mut parts = Vec::new();
        self.reasoning_tokens += usize::from(self.is_reasoning());
        let mut done = 0;
        for mark in marks {
            self.take_text(&text[done..mark.start], &mut parts);
            done = mark.start + mark.length;
            self.take_token(mark.token, &text[mark.start..done], &mut parts);
        }
        self.take_text(&text[done..], &mut parts);
        parts
    }

    /// Takes the text that comes with the end of the answer, and gives all that is left.
    pub fn end(&mut self, text: &str, marks: &[Mark]) -> Vec<Part> {
        let thought = self.reasoning_tokens;
        let mut parts = self.push(text, marks);
        // No token comes with the end.
        self.reasoning_tokens = thought;
        parts.extend(self.finish());
        parts
    }

    /// What is left when the answer has ended.
    pub fn finish(&mut self) -> Vec<Part> {
        let mut parts = Vec::new();
        self.settle(&mut parts);
        if let State::Call(kind, reader) = &mut self.state {
            let kind = *kind;
            reader.finish(&mut parts);
            self.state = State::Prose(kind);
        }
        let kind = if self.is_reasoning() { Kind::Reasoning } else { Kind::Text };
        self.prose.finish(kind, &mut parts);
        parts
    }

    /// Whether any tool is called.
    pub fn has_calls(&self) -> bool {
        self.calls > 0
    }

    /// How many tokens came while the model was reasoning.
    pub fn reasoning_tokens(&self) -> usize {
        self.reasoning_tokens
    }

    fn is_reasoning(&self) -> bool {
        matches!(self.state, State::Prose(Kind::Reasoning) | State::Call(Kind::Reasoning, _))
    }

    fn take_text(&mut self, text: &str, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.buffer.push_str(text);
            self.advance(false, parts);
        }
    }

    /// A token that is one of the tags ends what text before it may have begun. Any other is its spelling.
    fn take_token(&mut self, token: u32, spelling: &str, parts: &mut Vec<Part>) {
        let tags = self.format.reasoning.as_ref();
        let opens = tags.is_some_and(|tags| tags.open.token == Some(token)) && self.is_start();
        let closes = tags.is_some_and(|tags| tags.close.token == Some(token)) && self.is_reasoning();
        let calls =
            self.format.call_token == Some(token) && self.tools.is_some() && self.format.calls == CallSyntax::Llama;
        let within_argument = matches!(&self.state, State::Call(_, reader) if reader.is_within_value());
        if within_argument || !(opens || closes || calls) {
            return self.take_text(spelling, parts);
        }
        self.settle(parts);
        if let State::Call(_, reader) = &mut self.state {
            reader.finish(parts);
        }
        self.prose.tag();
        self.state = match (opens, calls) {
            (true, _) => State::Prose(Kind::Reasoning),
            (_, true) => State::Call(Kind::Text, Box::new(CallReader::new(Opening::Bare))),
            _ => State::Prose(Kind::Text),
        };
    }

    fn is_start(&self) -> bool {
        matches!(self.state, State::Start) && self.buffer.trim_start().is_empty()
    }

    /// Makes of the text in the buffer what it is if nothing follows.
    fn settle(&mut self, parts: &mut Vec<Part>) {
        self.advance(true, parts);
        while let State::Call(kind, reader) = &self.state
            && !reader.is_call()
        {
            self.give_up_call(*kind, reader.opening(), parts);
            self.advance(true, parts);
        }
    }

    /// Goes on while the buffer decides something; `last` if no more text comes.
    fn advance(&mut self, last: bool, parts: &mut Vec<Part>) {
        while match &self.state {
            State::Start => self.start(last),
            State::Prose(kind) => self.prose(*kind, last, parts),
            State::Call(..) => self.call(last, parts),
            State::Over => {
                self.buffer.clear();
                false
            }
        } {}
    }

    fn start(&mut self, last: bool) -> bool {
        let text = self.buffer.trim_start();
        let spelled = self.format.reasoning.as_ref().map(|tags| &tags.open).filter(|tag| tag.token.is_none());
        if let Some(tag) = spelled {
            if let Some(rest) = text.strip_prefix(tag.text) {
                self.buffer.drain(..self.buffer.len() - rest.len());
                self.prose.tag();
                self.state = State::Prose(Kind::Reasoning);
                return true;
            }
            if tag.text.starts_with(text) && !last {
                return false;
            }
        }
        if text.is_empty() && !last {
            return false;
        }
        let bare_call = self.tools.is_some() && self.format.calls == CallSyntax::Llama && text.starts_with('{');
        self.state = match bare_call {
            true => State::Call(Kind::Text, Box::new(CallReader::new(Opening::Bare))),
            false => State::Prose(Kind::Text),
        };
        true
    }

    fn prose(&mut self, kind: Kind, last: bool, parts: &mut Vec<Part>) -> bool {
        let triggers = self.triggers(kind);
        let found = triggers.iter().filter_map(|&(text, trigger)| Some((self.buffer.find(text)?, text.len(), trigger)));
        let Some((place, length, trigger)) = found.min_by_key(|found| found.0) else {
            let texts = triggers.iter().map(|trigger| trigger.0);
            let held = if last { 0 } else { texts.map(|text| started(&self.buffer, text)).max().unwrap_or(0) };
            let said = self.buffer.len() - held;
            self.prose.push(kind, &self.buffer[..said], parts);
            self.buffer.drain(..said);
            return false;
        };
        self.prose.push(kind, &self.buffer[..place], parts);
        self.buffer.drain(..place + length);
        self.state = match trigger {
            Trigger::ReasoningEnds => {
                self.prose.tag();
                State::Prose(Kind::Text)
            }
            Trigger::CallOpens(opening) => State::Call(kind, Box::new(CallReader::new(opening))),
        };
        true
    }

    /// The texts that mean something in prose of this kind.
    fn triggers(&self, kind: Kind) -> Vec<(&'static str, Trigger)> {
        let mut triggers = Vec::new();
        if let Some(tags) = &self.format.reasoning
            && kind == Kind::Reasoning
            && tags.close.token.is_none()
        {
            triggers.push((tags.close.text, Trigger::ReasoningEnds));
        }
        if self.tools.is_some() && self.format.calls != CallSyntax::Llama {
            let openings = [Opening::Tag, Opening::Function];
            triggers.extend(openings.map(|opening| (opening.text(), Trigger::CallOpens(opening))));
        }
        triggers
    }

    fn call(&mut self, last: bool, parts: &mut Vec<Part>) -> bool {
        let State::Call(kind, reader) = &mut self.state else { return false };
        let Some(tools) = &self.tools else { return false };
        let kind = *kind;
        if !reader.is_call() {
            match reader.recognise(&mut self.buffer, tools, kind == Kind::Reasoning) {
                Progress::More => return false,
                Progress::Not => {
                    let opening = reader.opening();
                    self.give_up_call(kind, opening, parts);
                    return true;
                }
                Progress::Call(name) => {
                    self.prose.tag();
                    let id = format!("{}{}", self.call_ids, self.calls);
                    self.calls += 1;
                    parts.push(Part::ToolCallBegin { id, name });
                }
            }
        }
        let over = reader.read(&mut self.buffer, last, parts);
        if over {
            self.state = self.after_call(kind);
        }
        over
    }

    /// Where calls have no tags, another one may follow at once.
    fn after_call(&self, kind: Kind) -> State {
        match self.format.calls {
            _ if self.one_call => State::Over,
            CallSyntax::Llama => State::Start,
            CallSyntax::Hermes | CallSyntax::QwenXml => State::Prose(kind),
        }
    }

    /// What opened like a call is prose.
    fn give_up_call(&mut self, kind: Kind, opening: Opening, parts: &mut Vec<Part>) {
        self.prose.push(kind, opening.text(), parts);
        self.state = State::Prose(kind);
    }
}

/// How many bytes at the end of `text` are the beginning of `tag`, but not all of it.
pub(super) fn started(text: &str, tag: &str) -> usize {
    let longest = (tag.len() - 1).min(text.len());
    let starts = |length: &usize| text.as_bytes()[text.len() - length..] == tag.as_bytes()[..*length];
    (1..=longest).rev().find(starts).unwrap_or(0)
}
