//! Where in a conversation a copy of the model's state is worth keeping.
//!
//! A later request shares a beginning with this one, and a recurrent state can go on only from exactly where it was
//! kept. Where beginnings part is up to the template: Qwen's drop the thinking of answers before the newest question,
//! others move tools or count messages. So the template is asked. The conversation is rendered as the likely next
//! requests would have it, and the tokens that both have in common are a boundary:
//!
//! - without the prompt for an answer: what any answer follows, whatever becomes of the prompt's own opening;
//! - with an answer and a next question: what is left once the template has dropped the thinking of a tool loop;
//! - with another newest question: what editing or branching there keeps;
//! - with another first question: system and tool text, which other users share.
//!
//! Those are four renderings, however long the conversation is. The starts of all messages come for free: they are
//! the occurrences of the token that opens one.

use serde_json::{Value, json};

use super::{ChatTemplate, RenderRequest};
use crate::encoding::Encoding;
use crate::error::Result;
use crate::tokenizer::Tokenizer;
use crate::vocabulary::TokenKind;

/// What a changed message says instead: a character that nobody's message begins with.
const SOMETHING_ELSE: &str = "\u{e000}";

/// Tokens that the head of a message has at most: `<|im_start|>user` and a line break are three. Where two renderings
/// part right behind one, the boundary is put before it: there no token can depend on the text that follows.
const HEAD_TOKENS: usize = 8;

/// Starts of messages that are named, from the beginning and from the end. Turns before the last few were boundaries
/// of earlier requests already, so only a conversation that arrives at once, and is later changed in the middle of
/// hundreds of messages, misses the others.
const FIRST_STARTS: usize = 32;
const LAST_STARTS: usize = 96;

/// A rendered conversation as tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodedChat {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Positions in them at which later requests are likely to part from this one: so many tokens from the beginning
    /// are the same. Ascending, none at the very beginning, few (at most 132).
    pub boundaries: Vec<usize>,
}

impl ChatTemplate {
    /// The tokens of `text`, which is what [`render`](Self::render) gave for `request`, and where in them a state is
    /// worth keeping. `request.now` should be given: a template that tells the time renders differently each second.
    pub fn encode(&self, request: &RenderRequest<'_>, text: &str, tokenizer: &Tokenizer) -> EncodedChat {
        let encoding = Encoding::new(tokenizer, text);
        let shared = |rendered: Result<String>| {
            // A template may refuse what nobody asked for; that beginning is then not known.
            rendered.ok().map(|other| encoding.tokens_shared_with(tokenizer, &other))
        };
        let conversation = shared(self.render(&RenderRequest { add_generation_prompt: false, ..*request }));
        let render = |messages: Vec<Value>| self.render(&RenderRequest { messages: &messages, ..*request });
        let next_turn = shared(render(with_next_turn(request.messages)));
        let first = request.messages.iter().position(is_question);
        let last = request.messages.iter().rposition(is_question);
        let [first, last] = [first, last.filter(|_| last != first)]
            .map(|place| place.and_then(|place| shared(render(with_other_question(request.messages, place)))));
        let opener = opener(&encoding.tokens, tokenizer, conversation, last.or(first));
        let likely = [conversation, next_turn, first, last].into_iter().flatten();
        let mut boundaries: Vec<usize> = likely
            .map(|place| before_head(&encoding.tokens, opener, place))
            .chain(starts(&encoding.tokens, opener))
            .collect();
        boundaries.sort_unstable();
        boundaries.dedup();
        boundaries.retain(|&place| place > 0);
        EncodedChat { tokens: encoding.tokens, boundaries }
    }
}

fn is_question(message: &Value) -> bool {
    message["role"] == "user"
}

/// The conversation answered, and asked again.
fn with_next_turn(messages: &[Value]) -> Vec<Value> {
    let mut messages = messages.to_vec();
    if messages.last().is_none_or(|last| last["role"] != "assistant") {
        messages.push(json!({"role": "assistant", "content": SOMETHING_ELSE}));
    }
    messages.push(json!({"role": "user", "content": SOMETHING_ELSE}));
    messages
}

/// The conversation up to the question at `place`, which is another one.
fn with_other_question(messages: &[Value], place: usize) -> Vec<Value> {
    let mut messages = messages[..=place].to_vec();
    messages[place]["content"] = SOMETHING_ELSE.into();
    messages
}

/// The token that opens a message: the one that opens the answer, or else the control token before the question.
fn opener(tokens: &[u32], tokenizer: &Tokenizer, conversation: Option<usize>, question: Option<usize>) -> Option<u32> {
    let is_control = |token: &&u32| tokenizer.token_kind(**token) == TokenKind::Control;
    let opens_answer = conversation.and_then(|end| tokens.get(end)).filter(is_control);
    opens_answer.or_else(|| tokens[..question?].iter().rev().take(HEAD_TOKENS).find(is_control)).copied()
}

/// `place`, or the beginning of the head that ends there.
fn before_head(tokens: &[u32], opener: Option<u32>, place: usize) -> usize {
    if tokens.get(place).copied() == opener {
        return place;
    }
    let earliest = place.saturating_sub(HEAD_TOKENS);
    let head = tokens[earliest..place].iter().rposition(|token| Some(*token) == opener);
    head.map_or(place, |found| earliest + found)
}

/// Where messages start.
fn starts(tokens: &[u32], opener: Option<u32>) -> Vec<usize> {
    let opens = tokens.iter().enumerate().filter(|(_, token)| Some(**token) == opener);
    let mut starts: Vec<usize> = opens.map(|(place, _)| place).collect();
    if starts.len() > FIRST_STARTS + LAST_STARTS {
        starts.drain(FIRST_STARTS..starts.len() - LAST_STARTS);
    }
    starts
}
