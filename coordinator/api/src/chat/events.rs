//! A chat answer as events.

use paceline_coordinator::{Finished, TokenUpdate};
use serde::Serialize;

use super::Reply;
use crate::head::Head;
use crate::logprobs::ChatLogprobs;
use crate::sse::{EventWriter, Events};
use crate::transcript::finish_reason;
use crate::usage::{Tally, Timings, Usage};

/// Tells the choices of one conversation.
pub(super) struct ChatEvents {
    reply: Reply,
    tally: Tally,
}

/// One event.
#[derive(Debug, Serialize)]
struct Chunk<'r> {
    #[serde(flatten)]
    head: &'r Head,
    choices: Vec<Choice<'r>>,
    /// With usage wanted, it is null in all chunks but the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<Usage>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timings: Option<Timings>,
}

#[derive(Debug, Default, Serialize)]
struct Choice<'r> {
    index: usize,
    delta: Delta<'r>,
    logprobs: Option<ChatLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 1]>,
}

#[derive(Debug, Default, Serialize)]
struct Delta<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'r str>,
}

impl ChatEvents {
    pub(super) fn new(reply: Reply) -> Self {
        Self { reply, tally: Tally::default() }
    }

    fn chunk<'r>(&'r self, choices: Vec<Choice<'r>>) -> Chunk<'r> {
        let usage = self.reply.delivery.include_usage.then_some(None);
        Chunk { head: &self.reply.head, choices, usage, timings: None }
    }

    fn text(&self, index: usize, content: &str, events: &mut Events) {
        let delta = Delta { role: None, content: Some(content) };
        events.data(&self.chunk(vec![Choice { index, delta, ..Choice::default() }]));
    }
}

impl EventWriter for ChatEvents {
    fn start(&mut self, events: &mut Events) {
        for index in 0..self.reply.delivery.choices {
            let delta = Delta { role: Some("assistant"), content: Some("") };
            let prompt_token_ids = self.reply.prompt_token_ids();
            events.data(&self.chunk(vec![Choice { index, delta, prompt_token_ids, ..Choice::default() }]));
        }
    }

    fn token(&mut self, index: usize, update: &TokenUpdate, events: &mut Events) {
        let Reply { delivery, logprobs, tokenizer, .. } = &self.reply;
        if !delivery.token_ids && !logprobs {
            if !update.text.is_empty() {
                self.text(index, &update.text, events);
            }
            return;
        }
        let logprobs = logprobs.then(|| {
            let mut logprobs = ChatLogprobs::default();
            logprobs.push(update, tokenizer);
            logprobs
        });
        let token_ids = delivery.token_ids.then_some([update.token]);
        let delta = Delta { role: None, content: Some(&update.text) };
        events.data(&self.chunk(vec![Choice { index, delta, logprobs, token_ids, ..Choice::default() }]));
    }

    fn finished(&mut self, index: usize, finished: &Finished, events: &mut Events) {
        self.tally.add(finished, index == 0);
        if !finished.text.is_empty() {
            self.text(index, &finished.text, events);
        }
        let finish_reason = Some(finish_reason(&finished.reason));
        let mut chunk = self.chunk(vec![Choice { index, finish_reason, ..Choice::default() }]);
        let Reply { delivery, .. } = &self.reply;
        if !delivery.include_usage && self.tally.finished() == delivery.choices {
            chunk.timings = Some(self.tally.timings());
        }
        events.data(&chunk);
    }

    fn end(&mut self, events: &mut Events) {
        self.tally.record();
        if self.reply.delivery.include_usage {
            let (usage, timings) = (Some(Some(self.tally.usage())), Some(self.tally.timings()));
            events.data(&Chunk { usage, timings, ..self.chunk(Vec::new()) });
        }
        events.done();
    }
}
