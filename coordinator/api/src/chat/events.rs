//! A chat answer as events.

use paceline_coordinator::{Finished, Reuse, TokenUpdate};
use paceline_text::{AnswerParser, Part};
use serde::Serialize;

use super::{Reply, finish_reason};
use crate::head::Head;
use crate::logprobs::ChatLogprobs;
use crate::sse::{EventWriter, Events};
use crate::transcript;
use crate::usage::{Tally, Timings, Usage};

/// Tells the choices of one conversation.
pub(super) struct ChatEvents {
    reply: Reply,
    /// One for each choice.
    parsers: Vec<AnswerParser>,
    /// How many calls each choice has begun.
    calls: Vec<usize>,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<[CallDelta<'r>; 1]>,
}

/// A call begins, with its id and its name, or has more arguments.
#[derive(Debug, Default, Serialize)]
struct CallDelta<'r> {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'r str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    r#type: Option<&'static str>,
    function: FunctionDelta<'r>,
}

#[derive(Debug, Default, Serialize)]
struct FunctionDelta<'r> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'r str>,
    arguments: &'r str,
}

impl ChatEvents {
    pub(super) fn new(reply: Reply) -> Self {
        let parsers = reply.parsers();
        Self { calls: vec![0; parsers.len()], parsers, reply, tally: Tally::default() }
    }

    fn chunk<'r>(&'r self, choices: Vec<Choice<'r>>) -> Chunk<'r> {
        let usage = self.reply.delivery.include_usage.then_some(None);
        Chunk { head: &self.reply.head, choices, usage, timings: None }
    }

    /// One event for each part; `own` are the logprobs and ids of the token that brought them, which go with the last
    /// one, or with an event of their own.
    fn parts(&mut self, index: usize, parts: &[Part], mut own: Choice<'_>, events: &mut Events) {
        let needs_event = own.logprobs.is_some() || own.token_ids.is_some();
        let calls = &mut self.calls[index];
        let mut deltas: Vec<Delta<'_>> = parts.iter().filter_map(|part| delta(part, calls)).collect();
        if deltas.is_empty() && needs_event {
            deltas.push(Delta { content: Some(""), ..Delta::default() });
        }
        let count = deltas.len();
        for (place, delta) in deltas.into_iter().enumerate() {
            let (logprobs, token_ids) =
                if place + 1 == count { (own.logprobs.take(), own.token_ids) } else { (None, None) };
            events.data(&self.chunk(vec![Choice { index, delta, logprobs, token_ids, ..Choice::default() }]));
        }
    }
}

/// What a client is told of a part; it sees the end of a call by itself.
fn delta<'r>(part: &'r Part, calls: &mut usize) -> Option<Delta<'r>> {
    let call = |index, id, name, arguments| {
        let function = FunctionDelta { name, arguments };
        Some([CallDelta { index, id, r#type: id.map(|_| "function"), function }])
    };
    Some(match part {
        Part::Reasoning(text) => Delta { reasoning_content: Some(text), ..Delta::default() },
        Part::Text(text) => Delta { content: Some(text), ..Delta::default() },
        Part::ToolCallBegin { id, name } => {
            *calls += 1;
            Delta { tool_calls: call(*calls - 1, Some(id.as_str()), Some(name.as_str()), ""), ..Delta::default() }
        }
        Part::ToolCallArguments(json) => {
            Delta { tool_calls: call(calls.saturating_sub(1), None, None, json.as_str()), ..Delta::default() }
        }
        Part::ToolCallEnd => return None,
    })
}

impl EventWriter for ChatEvents {
    fn start(&mut self, _reuse: Reuse, events: &mut Events) {
        for index in 0..self.reply.delivery.choices {
            let delta = Delta { role: Some("assistant"), content: Some(""), ..Delta::default() };
            let prompt_token_ids = self.reply.prompt_token_ids();
            events.data(&self.chunk(vec![Choice { index, delta, prompt_token_ids, ..Choice::default() }]));
        }
    }

    fn token(&mut self, index: usize, update: &TokenUpdate, events: &mut Events) {
        let parts = self.parsers[index].push(&update.text, &update.marks);
        let Reply { delivery, logprobs, tokenizer, .. } = &self.reply;
        let logprobs = logprobs.then(|| {
            let mut logprobs = ChatLogprobs::default();
            logprobs.push(update, tokenizer);
            logprobs
        });
        let token_ids = delivery.token_ids.then_some([update.token]);
        self.parts(index, &parts, Choice { logprobs, token_ids, ..Choice::default() }, events);
    }

    fn finished(&mut self, index: usize, finished: &Finished, events: &mut Events) {
        let parts = self.parsers[index].end(&finished.text, &finished.marks);
        self.parts(index, &parts, Choice::default(), events);
        self.tally.add(finished, index == 0);
        self.tally.add_reasoning(self.parsers[index].reasoning_tokens());
        let reason = transcript::finish_reason(&finished.reason);
        let finish_reason = Some(finish_reason(reason, self.parsers[index].has_calls()));
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
