//! An answer as the events of the Anthropic API.

use paceline_coordinator::{Finished, Reuse, TokenUpdate};
use serde_json::json;

use super::block_events::BlockEvents;
use super::message::{Message, MessageUsage, Stop};
use crate::error::Error;
use crate::sse::{EventWriter, Events};
use crate::turn::Spoken;
use crate::usage::Tally;

/// Tells one answer.
pub(super) struct MessageEvents {
    spoken: Spoken,
    blocks: BlockEvents,
    tally: Tally,
}

impl MessageEvents {
    pub(super) fn new(spoken: Spoken) -> Self {
        Self { spoken, blocks: BlockEvents::default(), tally: Tally::default() }
    }
}

impl EventWriter for MessageEvents {
    fn start(&mut self, reuse: Reuse, events: &mut Events) {
        let usage = MessageUsage::new(self.spoken.prompt_tokens, reuse.cached, 0);
        let message = Message::begin(self.spoken.model.clone(), usage);
        events.named("message_start", &json!({ "type": "message_start", "message": message }));
        events.named("ping", &json!({ "type": "ping" }));
    }

    fn token(&mut self, _choice: usize, update: &TokenUpdate, events: &mut Events) {
        for part in self.spoken.token(update) {
            self.blocks.part(part, events);
        }
    }

    fn finished(&mut self, _choice: usize, finished: &Finished, events: &mut Events) {
        self.tally.add(finished, true);
        for part in self.spoken.finished(finished) {
            self.blocks.part(part, events);
        }
        self.blocks.close(events);
        let Stop { reason, sequence } = Stop::new(finished, self.spoken.has_calls(), self.spoken.context);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        let event = json!({ "type": "message_delta", "delta": delta, "usage": MessageUsage::of(finished) });
        events.named("message_delta", &event);
    }

    fn end(&mut self, events: &mut Events) {
        self.tally.record();
        events.named("message_stop", &json!({ "type": "message_stop" }));
    }

    fn failed(&mut self, error: &Error, events: &mut Events) {
        events.named("error", &error.anthropic_body(None));
    }
}
