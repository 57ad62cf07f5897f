//! Reasoning and text on their way out, without the white space that only separates them.

use super::Part;

/// What prose is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reasoning,
    Text,
}

/// Holds back white space that may turn out to stand before a tag.
#[derive(Debug)]
pub(super) struct Prose {
    /// White space that is said once something follows.
    held: String,
    /// White space that comes next is not said.
    at_start: bool,
    /// Whether the white space at the end of text waits as well: only where a call could follow it.
    trims_text: bool,
}

impl Prose {
    pub(super) fn new(at_start: bool, trims_text: bool) -> Self {
        Self { held: String::new(), at_start, trims_text }
    }

    /// Says `text`, except for its white space at the end.
    pub(super) fn push(&mut self, kind: Kind, text: &str, parts: &mut Vec<Part>) {
        let text = if self.at_start { text.trim_start() } else { text };
        if text.is_empty() {
            return;
        }
        self.at_start = false;
        let trims = kind == Kind::Reasoning || self.trims_text;
        let said = if trims { text.trim_end() } else { text };
        if !said.is_empty() {
            let before = std::mem::take(&mut self.held);
            say(kind, &before, parts);
            say(kind, said, parts);
        }
        self.held.push_str(&text[said.len()..]);
    }

    /// A tag: white space on both of its sides is not said.
    pub(super) fn tag(&mut self) {
        self.held.clear();
        self.at_start = true;
    }

    /// Nothing comes any more. Text keeps its last white space.
    pub(super) fn finish(&mut self, kind: Kind, parts: &mut Vec<Part>) {
        let rest = std::mem::take(&mut self.held);
        if kind == Kind::Text {
            say(kind, &rest, parts);
        }
    }
}

fn say(kind: Kind, text: &str, parts: &mut Vec<Part>) {
    if text.is_empty() {
        return;
    }
    match (kind, parts.last_mut()) {
        (Kind::Reasoning, Some(Part::Reasoning(before))) | (Kind::Text, Some(Part::Text(before))) => {
            before.push_str(text);
        }
        (Kind::Reasoning, _) => parts.push(Part::Reasoning(text.to_owned())),
        (Kind::Text, _) => parts.push(Part::Text(text.to_owned())),
    }
}
