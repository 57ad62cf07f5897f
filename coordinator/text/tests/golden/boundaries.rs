//! What a turn keeps of the one before it: the boundaries of a conversation against the next one's tokens, under
//! templates of different habits.

use std::sync::Arc;

use paceline_text::{ChatTemplate, EncodedChat, RenderRequest, Tokenizer};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::vocabularies::{read, smollm2, tiny_hybrid, tiny_hybrid_with_other_brackets};

/// Headers around the role, in the manner of Llama 3; messages are trimmed.
const HEADERS: &str = "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + (m.content | trim) + '<|eot_id|>' }}\
    {% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}";

/// Questions in brackets and no opening of an answer, in the manner of Mistral; the system's text is part of the first
/// question, and roles must take turns.
const BRACKETS: &str = "{{ '<s>' }}{% set system = messages[0].content + '\n\n' if messages[0].role == 'system' else '' %}\
    {% set rest = messages[1:] if system else messages %}{% for m in rest %}\
    {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}\
    {% if m.role == 'user' %}{{ '[INST] ' + (system if loop.first else '') + m.content + '[/INST]' }}\
    {% else %}{{ ' ' + m.content + '</s>' }}{% endif %}{% endfor %}";

/// Which answers keep their thinking depends on the last question that is no tool's result, in the manner of Qwen3;
/// an answer without any gets an empty one.
const THINKING: &str = "{% set ns = namespace(last=messages | length - 1, seeking=true) %}{% for m in messages[::-1] %}\
    {% if ns.seeking and m.role == 'user' and not m.content.startswith('<tool_response>') %}{% set ns.seeking = false %}\
    {% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}\
    {{ '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}{% if m.role == 'assistant' %}\
    {% set parts = (m.content or '').split('</think>') %}\
    {% if loop.index0 > ns.last %}{{ '<think>\n' + (parts[0].split('<think>')[-1] if parts | length > 1 else '').strip('\n') + '\n</think>\n\n' }}{% endif %}\
    {{ parts[-1].lstrip('\n') }}{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}\
    {% elif m.role == 'tool' %}{{ '<tool_response>\n' + m.content + '\n</tool_response>' }}{% else %}{{ m.content }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}\
    {% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}";

struct Chat {
    template: ChatTemplate,
    tokenizer: Arc<Tokenizer>,
}

impl Chat {
    fn new(source: &str, tokenizer: Arc<Tokenizer>) -> Self {
        Self { template: ChatTemplate::new(source, &tokenizer).unwrap(), tokenizer }
    }

    fn tiny() -> Self {
        Self::new(&read("tiny-hybrid.jinja"), tiny_hybrid())
    }

    fn thinking() -> Self {
        Self::new(THINKING, tiny_hybrid())
    }

    fn all() -> [(&'static str, Self); 5] {
        [
            ("tiny hybrid", Self::tiny()),
            ("thinking", Self::thinking()),
            ("chatml", Self::new(&read("smollm2.jinja"), smollm2("smollm"))),
            ("headers", Self::new(HEADERS, tiny_hybrid_with_other_brackets())),
            ("brackets", Self::new(BRACKETS, tiny_hybrid_with_other_brackets())),
        ]
    }

    fn encode(&self, messages: &[Value]) -> EncodedChat {
        let request = RenderRequest { messages, add_generation_prompt: true, ..RenderRequest::default() };
        let text = self.template.render(&request).unwrap();
        self.template.encode(&request, &text, &self.tokenizer)
    }

    /// How many tokens `next` has to run again of those that both begin with, from the deepest boundary of `now`.
    fn lost(&self, now: &[Value], next: &[Value]) -> usize {
        let (now, next) = (self.encode(now), self.encode(next));
        let shared = shared(&now.tokens, &next.tokens);
        let kept = now.boundaries.iter().rfind(|place| **place <= shared).copied().unwrap_or(0);
        shared - kept
    }
}

fn shared(one: &[u32], other: &[u32]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

fn says(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn story() -> Vec<Value> {
    vec![says("system", "Answer briefly."), says("user", "Who keeps the hill?")]
}

fn with(messages: &[Value], more: &[Value]) -> Vec<Value> {
    [messages, more].concat()
}

/// A header, an opened thought and, at worst, the first tokens of answers that begin alike.
const LITTLE: usize = 8;

#[test]
fn a_turn_that_is_appended_keeps_the_conversation() {
    for (name, chat) in Chat::all() {
        let answer = says("assistant", "<think>\nA long thought about hills.\n</think>\n\nThe miller does.");
        let next = with(&story(), &[answer, says("user", "And the valley?")]);
        assert!(chat.lost(&story(), &next) <= LITTLE, "{name}: {}", chat.lost(&story(), &next));
        let (tokens, whole) =
            (chat.encode(&story()).tokens.len(), shared(&chat.encode(&story()).tokens, &chat.encode(&next).tokens));
        assert!(whole + LITTLE >= tokens, "{name} shares {whole} of {tokens}");
    }
}

#[test]
fn a_last_question_that_is_edited_keeps_what_stands_before_it() {
    for (name, chat) in Chat::all() {
        let start = with(&story(), &[says("assistant", "The miller.")]);
        let (now, next) = (says("user", "\n\nAnd the valley?"), says("user", "Or the river?"));
        let lost = chat.lost(&with(&start, &[now]), &with(&start, &[next]));
        assert!(lost <= LITTLE, "{name}: {lost}");
    }
}

#[test]
fn another_user_keeps_the_systems_text() {
    for (name, chat) in Chat::all() {
        let now = with(&story(), &[says("assistant", "The miller."), says("user", "Why?")]);
        let lost = chat.lost(&now, &[says("system", "Answer briefly."), says("user", "How deep is the river?")]);
        assert!(lost <= LITTLE, "{name}: {lost}");
    }
}

#[test]
fn a_tool_round_trip_keeps_the_question_and_then_the_loop() {
    let call = json!({"role": "assistant", "content": "<think>\nI must look.\n</think>\n\n",
        "tool_calls": [{"function": {"name": "look", "arguments": {"at": "hill"}}}]});
    for chat in [Chat::tiny(), Chat::thinking()] {
        let looked = with(&story(), &[call.clone(), says("tool", "a mill")]);
        assert!(chat.lost(&story(), &looked) <= LITTLE);
        let again = with(&looked, &[call.clone(), says("tool", "a miller")]);
        assert!(chat.lost(&looked, &again) <= LITTLE);
        // The next question takes the thinking out of the loop: it parts in the loop's first answer.
        let asked = with(&again, &[says("assistant", "The miller."), says("user", "Since when?")]);
        assert!(chat.lost(&again, &asked) <= LITTLE);
        let (story, asked) = (chat.encode(&story()), chat.encode(&asked));
        assert!(shared(&story.tokens, &asked.tokens) + LITTLE >= story.tokens.len());
    }
}

#[test]
fn boundaries_are_few_and_ascending_however_long_the_conversation() {
    for (name, chat) in Chat::all() {
        let mut messages = story();
        for turn in 0..250 {
            messages.extend([says("assistant", &format!("answer {turn}")), says("user", &format!("question {turn}"))]);
        }
        let chat = chat.encode(&messages);
        assert!(chat.boundaries.is_sorted_by(|one, next| one < next), "{name}");
        assert!(chat.boundaries[0] > 0 && *chat.boundaries.last().unwrap() <= chat.tokens.len(), "{name}");
        assert!((100..=132).contains(&chat.boundaries.len()), "{name}: {}", chat.boundaries.len());
    }
}

/// What a message may say: special tokens that people write, and line breaks where tokens would join over the border.
fn content() -> impl Strategy<Value = String> {
    "(\n|\n\n| |a|Hill|the hill|é|<think>|</think>|<\\|im_end\\|>|<tool_response>|[0-9]){0,6}"
}

proptest! {
    #[test]
    fn whatever_is_said_the_next_turn_keeps_all_but_little(
        said in prop::collection::vec(content(), 2..8),
        answer in content(),
        next in content(),
    ) {
        let turn = |(place, text): (usize, &String)| says(if place.is_multiple_of(2) { "user" } else { "assistant" }, text);
        let mut now: Vec<Value> = said.iter().enumerate().map(turn).collect();
        if now.len().is_multiple_of(2) {
            now.pop();
        }
        for (name, chat) in Chat::all() {
            let then = with(&now, &[says("assistant", &answer), says("user", &next)]);
            let lost = chat.lost(&now, &then);
            prop_assert!(lost <= LITTLE, "{name}: {lost}");
        }
    }
}
