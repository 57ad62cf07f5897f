//! What an answer consists of: reasoning, text and tool calls, told apart while the answer is made.
//!
//! Read [`AnswerParser`] first. It takes the pieces of text that a session emits and gives [`Part`]s, each as soon as
//! it is certain. Answers that are sent in one piece are the sum of the same parts ([`Answer`]), so both ways of
//! sending say the same. How a model writes reasoning and calls ([`AnswerFormat`]) is read off its chat template.

mod argument_types;
mod call;
mod call_grammar;
mod format;
mod json;
mod parser;
mod prose;
#[cfg(test)]
mod tests;

pub use argument_types::ToolTable;
pub use call_grammar::{CallRule, Callable};
pub use format::{AnswerFormat, CallSyntax, ReasoningTags, Tag};
pub use parser::AnswerParser;

/// A piece of an answer. Neighbours of one kind belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// More of what the model thinks before it answers.
    Reasoning(String),
    /// More of the answer's text.
    Text(String),
    /// A tool call begins. Until its end come its arguments alone.
    ToolCallBegin {
        /// Names this call, in no other answer.
        id: String,
        /// Which tool.
        name: String,
    },
    /// More of the JSON of the call's arguments.
    ToolCallArguments(String),
    /// The call is complete, or the answer has ended within it: then its arguments are no complete JSON.
    ToolCallEnd,
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// What the model thought.
    pub reasoning: String,
    /// What it said.
    pub text: String,
    /// What it wants to be called, in order.
    pub calls: Vec<ToolCall>,
}

/// A tool call of a whole answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// As in [`Part::ToolCallBegin`].
    pub id: String,
    /// Which tool.
    pub name: String,
    /// JSON, complete unless the answer ended within it.
    pub arguments: String,
}

impl Answer {
    /// Adds the next part.
    pub fn push(&mut self, part: Part) {
        match part {
            Part::Reasoning(text) => self.reasoning += &text,
            Part::Text(text) => self.text += &text,
            Part::ToolCallBegin { id, name } => self.calls.push(ToolCall { id, name, arguments: String::new() }),
            Part::ToolCallArguments(json) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &json;
                }
            }
            Part::ToolCallEnd => {}
        }
    }
}

impl Extend<Part> for Answer {
    fn extend<T: IntoIterator<Item = Part>>(&mut self, parts: T) {
        parts.into_iter().for_each(|part| self.push(part));
    }
}

/// Appends arguments to those before them.
fn push_arguments(parts: &mut Vec<Part>, json: &str) {
    match parts.last_mut() {
        _ if json.is_empty() => {}
        Some(Part::ToolCallArguments(before)) => before.push_str(json),
        _ => parts.push(Part::ToolCallArguments(json.to_owned())),
    }
}
