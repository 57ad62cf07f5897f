//! Conversations that a template refuses, made into ones that it takes.
//!
//! Many templates take a system message at the very beginning only, or want somebody to have asked something. Clients
//! send what they like. So the template is asked once what it takes, and what it does not take is said differently:
//!
//! - system messages at the beginning become one;
//! - a later one is put before the user's message that follows it, or said as the user where none follows. Nothing before
//!   it changes, so what is cached of the conversation stays good;
//! - where there is no system at all, the same becomes of the first.

use serde_json::{Value, json};

use super::{ChatTemplate, RenderRequest};

/// What nobody's template says by itself.
const PROBE: &str = "\u{e001}probe";

/// What a template takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Manners {
    /// A system message at the beginning.
    system: bool,
    /// System messages anywhere.
    late_system: bool,
    /// Conversations in which no user says anything.
    no_user: bool,
}

impl Manners {
    /// Asks `template`.
    pub(super) fn of(template: &ChatTemplate) -> Self {
        let says = |roles: &[(&str, &str)], wanted: usize| {
            let message = |(role, content): &(&str, &str)| json!({"role": role, "content": content});
            let messages: Vec<Value> = roles.iter().map(message).collect();
            let request =
                RenderRequest { messages: &messages, add_generation_prompt: true, ..RenderRequest::default() };
            template.render_as_it_is(&request).is_ok_and(|text| text.matches(PROBE).count() == wanted)
        };
        Self {
            system: says(&[("system", PROBE), ("user", "x")], 1),
            late_system: says(&[("system", PROBE), ("user", "x"), ("system", PROBE), ("user", "x")], 2),
            no_user: says(&[("system", PROBE)], 1),
        }
    }

    /// `messages` in a form that the template takes. Their contents are texts already.
    pub(super) fn apply(self, messages: Vec<Value>) -> Vec<Value> {
        let mut told: Vec<Value> = Vec::with_capacity(messages.len());
        // What the system says before the next message of somebody else.
        let mut pending: Option<String> = None;
        for mut message in messages {
            let at_start = told.iter().all(is_system);
            if is_system(&message) && !self.takes_system(at_start) {
                let text = text_of(&message);
                pending = Some(pending.map_or_else(|| text.to_owned(), |before| format!("{before}\n\n{text}")));
                continue;
            }
            if is_system(&message)
                && let Some(first) = told.last_mut()
                && at_start
            {
                first["content"] = joined(text_of(first), text_of(&message)).into();
                continue;
            }
            if let Some(text) = pending.take() {
                if message["role"] == "user" {
                    message["content"] = joined(&text, text_of(&message)).into();
                } else {
                    told.push(json!({"role": "user", "content": text}));
                }
            }
            told.push(message);
        }
        told.extend(pending.map(|text| json!({"role": "user", "content": text})));
        if !self.no_user && !told.iter().any(|message| message["role"] == "user") {
            let place = told.iter().take_while(|message| is_system(message)).count();
            told.insert(place, json!({"role": "user", "content": ""}));
        }
        told
    }

    fn takes_system(self, at_start: bool) -> bool {
        self.late_system || (at_start && self.system)
    }
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn text_of(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

fn joined(one: &str, other: &str) -> String {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other.to_owned(),
        (_, true) => one.to_owned(),
        _ => format!("{one}\n\n{other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRICT: Manners = Manners { system: true, late_system: false, no_user: false };

    fn roles(messages: &[(&str, &str)]) -> Vec<Value> {
        messages.iter().map(|(role, content)| json!({"role": role, "content": content})).collect()
    }

    fn check(manners: Manners, messages: &[(&str, &str)], wanted: &[(&str, &str)]) {
        assert_eq!(manners.apply(roles(messages)), roles(wanted), "{messages:?}");
    }

    #[test]
    fn system_messages_are_said_where_the_template_takes_them() {
        check(STRICT, &[("system", "a"), ("system", "b"), ("user", "c")], &[("system", "a\n\nb"), ("user", "c")]);
        check(
            STRICT,
            &[("system", "a"), ("user", "b"), ("system", "c"), ("user", "d")],
            &[("system", "a"), ("user", "b"), ("user", "c\n\nd")],
        );
        check(
            STRICT,
            &[("user", "b"), ("assistant", "c"), ("system", "d"), ("system", "e")],
            &[("user", "b"), ("assistant", "c"), ("user", "d\n\ne")],
        );
        check(
            STRICT,
            &[("user", "b"), ("system", "d"), ("assistant", "e")],
            &[("user", "b"), ("user", "d"), ("assistant", "e")],
        );
        check(STRICT, &[("system", "a")], &[("system", "a"), ("user", "")]);
        check(STRICT, &[("tool", "a")], &[("user", ""), ("tool", "a")]);
    }

    #[test]
    fn templates_that_take_everything_are_given_everything() {
        let all = Manners { system: true, late_system: true, no_user: true };
        let late = [("system", "a"), ("user", "b"), ("system", "c")];
        check(all, &late, &late);
        check(all, &[("system", "a")], &[("system", "a")]);
    }

    #[test]
    fn templates_without_a_system_hear_it_from_the_user() {
        let none = Manners { system: false, late_system: false, no_user: true };
        check(none, &[("system", "a"), ("user", "b")], &[("user", "a\n\nb")]);
        check(none, &[("system", "a"), ("assistant", "b")], &[("user", "a"), ("assistant", "b")]);
    }
}
