//! A text completion as events.

use paceline_coordinator::{Finished, Reuse, TokenUpdate};
use serde::Serialize;

use super::Reply;
use crate::head::Head;
use crate::logprobs::{TextLogprobs, characters};
use crate::sse::{EventWriter, Events};
use crate::transcript::finish_reason;
use crate::usage::{Tally, Timings, Usage};

/// Tells the answers to one or several prompts.
pub(super) struct TextEvents {
    reply: Reply,
    tally: Tally,
    /// Of each answer, how many characters its tokens have so far.
    offsets: Vec<usize>,
    /// Of each answer, whether its prompt's tokens were told.
    begun: Vec<bool>,
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
    text: &'r str,
    logprobs: Option<TextLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_token_ids: Option<&'r [u32]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_ids: Option<[u32; 1]>,
}

impl TextEvents {
    pub(super) fn new(reply: Reply) -> Self {
        let (offsets, begun) = (vec![0; reply.count()], vec![false; reply.count()]);
        Self { reply, tally: Tally::default(), offsets, begun }
    }

    fn chunk<'r>(&'r self, choices: Vec<Choice<'r>>) -> Chunk<'r> {
        let usage = self.reply.delivery.include_usage.then_some(None);
        Chunk { head: &self.reply.head, choices, usage, timings: None }
    }

    fn logprobs(&mut self, index: usize, update: &TokenUpdate) -> Option<TextLogprobs> {
        if !self.reply.logprobs {
            return None;
        }
        let mut logprobs = TextLogprobs::default();
        logprobs.push(update, &self.reply.tokenizer, self.offsets[index]);
        self.offsets[index] += characters(&self.reply.tokenizer, update.token);
        Some(logprobs)
    }
}

impl EventWriter for TextEvents {
    fn start(&mut self, _reuse: Reuse, events: &mut Events) {
        for index in 0..self.reply.count() {
            let text = self.reply.echo(index);
            if !text.is_empty() {
                events.data(&self.chunk(vec![Choice { index, text, ..Choice::default() }]));
            }
        }
    }

    fn token(&mut self, index: usize, update: &TokenUpdate, events: &mut Events) {
        let logprobs = self.logprobs(index, update);
        let token_ids = self.reply.delivery.token_ids.then_some([update.token]);
        if update.text.is_empty() && logprobs.is_none() && token_ids.is_none() {
            return;
        }
        let first = !std::mem::replace(&mut self.begun[index], true);
        let prompt_token_ids = if first { self.reply.prompt_token_ids(index) } else { None };
        let text = &update.text;
        let choice = Choice { index, text, logprobs, prompt_token_ids, token_ids, ..Choice::default() };
        events.data(&self.chunk(vec![choice]));
    }

    fn finished(&mut self, index: usize, finished: &Finished, events: &mut Events) {
        let Reply { delivery, .. } = self.reply;
        self.tally.add(finished, index.is_multiple_of(delivery.choices));
        let finish_reason = Some(finish_reason(&finished.reason));
        let mut chunk = self.chunk(vec![Choice { index, text: &finished.text, finish_reason, ..Choice::default() }]);
        if !delivery.include_usage && self.tally.finished() == self.reply.count() {
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
