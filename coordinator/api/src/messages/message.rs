//! An answer in one piece, as the Anthropic API tells it.

use paceline_coordinator::{FinishReason, Finished};
use paceline_text::Part;
use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;
use uuid::Uuid;

/// What stands for a signature of thinking: nothing here checks them, and clients send them back as they are.
pub(super) const SIGNATURE: &str = "unsigned";

/// The response, and what a stream of events begins with.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Message {
    id: String,
    #[serde(rename = "type")]
    kind: &'static str,
    role: &'static str,
    model: String,
    content: Vec<Block>,
    stop_reason: Option<&'static str>,
    stop_sequence: Option<String>,
    usage: MessageUsage,
}

/// A block of content.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Block {
    /// What the model thought.
    Thinking {
        /// The text.
        thinking: String,
        /// [`SIGNATURE`].
        signature: String,
    },
    /// What it said.
    Text {
        /// The text.
        text: String,
    },
    /// What it wants to be called.
    ToolUse {
        /// To be named in the result.
        id: String,
        /// Which tool.
        name: String,
        /// Its arguments.
        input: Map<String, Value>,
    },
}

/// Tokens. What was found in the cache is not part of the input.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, ToSchema)]
pub(super) struct MessageUsage {
    input_tokens: usize,
    cache_creation_input_tokens: usize,
    cache_read_input_tokens: usize,
    output_tokens: usize,
}

impl MessageUsage {
    pub(super) fn new(prompt_tokens: usize, cached_tokens: usize, output_tokens: usize) -> Self {
        Self {
            input_tokens: prompt_tokens.saturating_sub(cached_tokens),
            cache_creation_input_tokens: 0,
            cache_read_input_tokens: cached_tokens,
            output_tokens,
        }
    }

    pub(super) fn of(finished: &Finished) -> Self {
        let usage = &finished.usage;
        Self::new(usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens)
    }
}

/// Why an answer ended, as the Anthropic API says it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stop {
    pub(super) reason: &'static str,
    pub(super) sequence: Option<String>,
}

impl Stop {
    /// `context` is the most tokens of a session.
    pub(super) fn new(finished: &Finished, has_calls: bool, context: usize) -> Self {
        let tokens = finished.usage.prompt_tokens + finished.usage.completion_tokens;
        let (reason, sequence) = match &finished.reason {
            FinishReason::StopString(text) => ("stop_sequence", Some(text.clone())),
            FinishReason::Length if tokens >= context => ("model_context_window_exceeded", None),
            FinishReason::Length => ("max_tokens", None),
            FinishReason::EndToken if has_calls => ("tool_use", None),
            FinishReason::EndToken => ("end_turn", None),
        };
        Self { reason, sequence }
    }
}

impl Message {
    /// An answer of which nothing is there yet.
    pub(super) fn begin(model: String, usage: MessageUsage) -> Self {
        Self {
            id: format!("msg_{}", Uuid::new_v4().simple()),
            kind: "message",
            role: "assistant",
            model,
            content: Vec::new(),
            stop_reason: None,
            stop_sequence: None,
            usage,
        }
    }

    /// A complete one.
    pub(super) fn complete(model: String, content: Vec<Block>, stop: Stop, usage: MessageUsage) -> Self {
        let Stop { reason, sequence } = stop;
        Self { content, stop_reason: Some(reason), stop_sequence: sequence, ..Self::begin(model, usage) }
    }
}

/// Puts the parts of an answer together.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    blocks: Vec<Block>,
    arguments: String,
}

impl Blocks {
    pub(super) fn push(&mut self, part: Part) {
        match (part, self.blocks.last_mut()) {
            (Part::Reasoning(text), Some(Block::Thinking { thinking, .. })) => *thinking += &text,
            (Part::Reasoning(thinking), _) => {
                self.blocks.push(Block::Thinking { thinking, signature: SIGNATURE.to_owned() });
            }
            (Part::Text(text), Some(Block::Text { text: before })) => *before += &text,
            (Part::Text(text), _) => self.blocks.push(Block::Text { text }),
            (Part::ToolCallBegin { id, name }, _) => {
                self.arguments.clear();
                self.blocks.push(Block::ToolUse { id, name, input: Map::new() });
            }
            (Part::ToolCallArguments(json), _) => self.arguments += &json,
            (Part::ToolCallEnd, Some(Block::ToolUse { input, .. })) => {
                // What ended within its arguments has none.
                *input = serde_json::from_str(&self.arguments).unwrap_or_default();
            }
            (Part::ToolCallEnd, _) => {}
        }
    }

    pub(super) fn finish(self) -> Vec<Block> {
        self.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_of_one_kind_are_one_block() {
        let mut blocks = Blocks::default();
        for part in [
            Part::Reasoning("a".to_owned()),
            Part::Reasoning("b".to_owned()),
            Part::Text("c".to_owned()),
            Part::ToolCallBegin { id: "1".to_owned(), name: "f".to_owned() },
            Part::ToolCallArguments("{\"x\":".to_owned()),
            Part::ToolCallArguments("1}".to_owned()),
            Part::ToolCallEnd,
            Part::ToolCallBegin { id: "2".to_owned(), name: "g".to_owned() },
            Part::ToolCallArguments("{\"x".to_owned()),
            Part::ToolCallEnd,
            Part::Text("d".to_owned()),
            Part::Text("e".to_owned()),
        ] {
            blocks.push(part);
        }
        let call = |id: &str, name: &str, input: Value| {
            let Value::Object(input) = input else { panic!("no object") };
            Block::ToolUse { id: id.to_owned(), name: name.to_owned(), input }
        };
        let expected = [
            Block::Thinking { thinking: "ab".to_owned(), signature: SIGNATURE.to_owned() },
            Block::Text { text: "c".to_owned() },
            call("1", "f", serde_json::json!({ "x": 1 })),
            call("2", "g", serde_json::json!({})),
            Block::Text { text: "de".to_owned() },
        ];
        assert_eq!(blocks.finish(), expected);
    }
}
