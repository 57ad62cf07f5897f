//! A response as events, each with its number.

use paceline_coordinator::{Finished, Reuse, TokenUpdate};
use serde_json::{Value, json};

use super::response::Telling;
use crate::error::Error;
use crate::sse::{EventWriter, Events};

/// Tells one response.
pub(super) struct ResponseEvents {
    telling: Telling,
    next: u64,
}

impl ResponseEvents {
    pub(super) fn new(telling: Telling) -> Self {
        Self { telling, next: 0 }
    }

    fn send(&mut self, told: Vec<Value>, events: &mut Events) {
        for mut event in told {
            event["sequence_number"] = self.next.into();
            self.next += 1;
            let name = event["type"].as_str().unwrap_or_default().to_owned();
            events.named(&name, &event);
        }
    }

    fn tell(&mut self, kind: &str, response: &Value, events: &mut Events) {
        self.send(vec![json!({ "type": kind, "response": response })], events);
    }
}

impl EventWriter for ResponseEvents {
    fn start(&mut self, _reuse: Reuse, events: &mut Events) {
        let begun = self.telling.begun();
        self.tell("response.created", &begun, events);
        self.tell("response.in_progress", &begun, events);
    }

    fn token(&mut self, _choice: usize, update: &TokenUpdate, events: &mut Events) {
        let told = self.telling.token(update);
        self.send(told, events);
    }

    fn finished(&mut self, _choice: usize, finished: &Finished, events: &mut Events) {
        let told = self.telling.finished(finished);
        self.send(told, events);
    }

    fn end(&mut self, events: &mut Events) {
        let Some(response) = self.telling.end() else { return };
        let kind = if response["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        self.tell(kind, &response, events);
    }

    fn failed(&mut self, error: &Error, events: &mut Events) {
        let response = self.telling.failed(error);
        self.tell("response.failed", &response, events);
    }
}
