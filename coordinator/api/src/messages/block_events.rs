//! The parts of an answer as events of content blocks: each block begins, grows and stops before the next one begins.

use paceline_text::Part;
use serde_json::{Value, json};

use super::message::SIGNATURE;
use crate::sse::Events;

/// What is being told.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum Open {
    #[default]
    Nothing,
    Thinking,
    Text,
    ToolUse,
}

/// Tells blocks one after the other.
#[derive(Debug, Default)]
pub(super) struct BlockEvents {
    open: Open,
    index: usize,
}

impl BlockEvents {
    /// Tells the next part.
    pub(super) fn part(&mut self, part: Part, events: &mut Events) {
        match part {
            Part::Reasoning(text) => {
                self.enter(Open::Thinking, &json!({ "type": "thinking", "thinking": "", "signature": "" }), events);
                self.delta(&json!({ "type": "thinking_delta", "thinking": text }), events);
            }
            Part::Text(text) => {
                self.enter(Open::Text, &json!({ "type": "text", "text": "" }), events);
                self.delta(&json!({ "type": "text_delta", "text": text }), events);
            }
            Part::ToolCallBegin { id, name } => {
                self.close(events);
                let block = json!({ "type": "tool_use", "id": id, "name": name, "input": {} });
                self.enter(Open::ToolUse, &block, events);
            }
            Part::ToolCallArguments(text) => {
                self.delta(&json!({ "type": "input_json_delta", "partial_json": text }), events);
            }
            Part::ToolCallEnd => self.close(events),
        }
    }

    /// Stops the last block.
    pub(super) fn close(&mut self, events: &mut Events) {
        match std::mem::take(&mut self.open) {
            Open::Nothing => return,
            Open::Thinking => self.delta(&json!({ "type": "signature_delta", "signature": SIGNATURE }), events),
            Open::Text | Open::ToolUse => {}
        }
        let stop = json!({ "type": "content_block_stop", "index": self.index });
        events.named("content_block_stop", &stop);
        self.index += 1;
    }

    /// Begins a block, unless one of its kind has begun.
    fn enter(&mut self, kind: Open, block: &Value, events: &mut Events) {
        if self.open == kind {
            return;
        }
        self.close(events);
        self.open = kind;
        let start = json!({ "type": "content_block_start", "index": self.index, "content_block": block });
        events.named("content_block_start", &start);
    }

    fn delta(&self, delta: &Value, events: &mut Events) {
        let delta = json!({ "type": "content_block_delta", "index": self.index, "delta": delta });
        events.named("content_block_delta", &delta);
    }
}
