//! Lines that known clients change on every request and that mean nothing to a model. At the beginning of a system
//! prompt one of them makes every token behind it a new one, and nothing of it would ever be found again.
//!
//! What is taken out is defined to the letter, and only where its client puts it: one line at the beginning of a text
//! of the system. Everything else stays as it was sent.

use serde_json::Value;

/// How Claude Code's line begins.
const BILLING_HEADER: &str = "x-anthropic-billing-header:";

/// The line has about 90 bytes; more fields than today's may come.
const BILLING_LINE_BYTES: usize = 512;

/// A line that a client is known to change without meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientNoise {
    /// `x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;`, which Claude Code puts
    /// before its system prompt: fields whose names begin with `cc`, words as their values, `;` behind each.
    ClaudeCodeBilling,
}

impl ClientNoise {
    /// What programs know it by.
    pub fn name(self) -> &'static str {
        match self {
            Self::ClaudeCodeBilling => "x-anthropic-billing-header",
        }
    }

    /// Takes such lines out of `messages` and says which were there. Only the system and developers are looked at,
    /// there the first line of a message or of a text part. A message of which nothing is left is dropped, unless it
    /// is the only one.
    pub fn remove(messages: &mut Vec<Value>) -> Vec<RemovedNoise> {
        let mut removed = Vec::new();
        for (index, message) in messages.iter_mut().enumerate() {
            if !matches!(message["role"].as_str(), Some("system" | "developer")) {
                continue;
            }
            let texts: Vec<&mut Value> = match message.get_mut("content") {
                Some(Value::Array(parts)) => parts.iter_mut().filter_map(|part| part.get_mut("text")).collect(),
                content => content.into_iter().collect(),
            };
            for text in texts {
                let Value::String(text) = text else { continue };
                if let Some(length) = billing_line(text) {
                    let line = text.drain(..length).collect::<String>().trim_end().to_owned();
                    removed.push(RemovedNoise { noise: Self::ClaudeCodeBilling, message: index, line });
                }
            }
        }
        let mut touched: Vec<usize> = removed.iter().map(|removed| removed.message).collect();
        touched.dedup();
        for index in touched.into_iter().rev() {
            if messages.len() > 1 && says_nothing(&messages[index]["content"]) {
                messages.remove(index);
            }
        }
        removed
    }
}

/// A line that was taken out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemovedNoise {
    /// Which.
    pub noise: ClientNoise,
    /// The position of the message, as it was sent.
    pub message: usize,
    /// What it said.
    pub line: String,
}

/// Bytes of the billing line that `text` begins with, its line break included.
fn billing_line(text: &str) -> Option<usize> {
    let line = text.split_inclusive('\n').next()?;
    let fields = line.trim_end_matches(['\r', '\n']).strip_prefix(BILLING_HEADER)?;
    let mut fields: Vec<&str> = fields.split(';').map(|field| field.trim_matches(' ')).collect();
    if fields.last() == Some(&"") {
        fields.pop();
    }
    let is_known = !fields.is_empty() && fields.iter().all(|field| is_billing_field(field));
    (is_known && line.len() <= BILLING_LINE_BYTES).then_some(line.len())
}

/// `cc_version=2.1.37.0d9`
fn is_billing_field(field: &str) -> bool {
    let Some((name, value)) = field.split_once('=') else { return false };
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.starts_with("cc")
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
        && !value.is_empty()
        && value.bytes().all(is_word)
}

fn says_nothing(content: &Value) -> bool {
    match content {
        Value::String(text) => text.is_empty(),
        Value::Array(parts) => parts.iter().all(|part| part["text"] == ""),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const LINE: &str = "x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch=fa690;";

    fn after(mut messages: Vec<Value>) -> (Vec<Value>, Vec<String>) {
        let removed = ClientNoise::remove(&mut messages);
        (messages, removed.into_iter().map(|removed| removed.line).collect())
    }

    fn system(content: impl Into<Value>) -> Value {
        json!({"role": "system", "content": content.into()})
    }

    #[test]
    fn the_line_goes_wherever_its_client_puts_it() {
        for (sent, kept) in [
            (system(format!("{LINE}\nYou are Claude Code.")), system("You are Claude Code.")),
            (system(format!("{LINE}\r\n\r\nBe brief.")), system("\r\nBe brief.")),
            (system(LINE), system("")),
            (
                system(json!([{"type": "text", "text": LINE}, {"type": "text", "text": "Be brief."}])),
                system(json!([{"type": "text", "text": ""}, {"type": "text", "text": "Be brief."}])),
            ),
            (
                json!({"role": "developer", "content": format!("{LINE}\nx")}),
                json!({"role": "developer", "content": "x"}),
            ),
            (system("x-anthropic-billing-header: cc_version=2.1.154.cea; cc_prev_req=req_a-1; cch=0\n"), system("")),
        ] {
            let (messages, lines) = after(vec![sent.clone()]);
            assert_eq!((messages, lines.len()), (vec![kept], 1), "{sent}");
        }
    }

    #[test]
    fn two_requests_become_one() {
        let sent = |hash: &str| vec![system(LINE.replace("fa690", hash)), system("Be brief.")];
        let (one, lines) = after(sent("36ee5"));
        assert_eq!(one, after(sent("0aaa9")).0);
        assert_eq!((one, lines), (vec![system("Be brief.")], vec![LINE.replace("fa690", "36ee5")]));
    }

    #[test]
    fn whatever_is_not_that_line_stays() {
        for content in [
            "x-anthropic-billing-header:",
            "x-anthropic-billing-header: ;",
            "x-anthropic-billing-header: see the manual",
            "x-anthropic-billing-header: cc_version=2.1; and then some words",
            "x-anthropic-billing-header: version=2.1;",
            "x-anthropic-billing-header: cch=;",
            "X-Anthropic-Billing-Header: cch=1;",
            " x-anthropic-billing-header: cch=1;",
            "The line is:\nx-anthropic-billing-header: cch=1;",
            "cch=fa690;",
        ] {
            assert_eq!(after(vec![system(content)]), (vec![system(content)], vec![]));
        }
        let long = format!("x-anthropic-billing-header: cch={};", "a".repeat(BILLING_LINE_BYTES));
        assert!(after(vec![system(long)]).1.is_empty());
        for role in ["user", "assistant", "tool"] {
            let message = json!({"role": role, "content": LINE});
            assert_eq!(after(vec![message.clone()]), (vec![message], vec![]));
        }
        for odd in [json!(1), json!({"role": "system"}), json!({"role": "system", "content": [1, {"text": 2}]})] {
            assert_eq!(after(vec![odd.clone()]), (vec![odd], vec![]));
        }
    }

    proptest! {
        #[test]
        fn text_without_the_line_is_untouched(text in "\\PC{0,60}|(x-anthropic-|billing-|header:| |cch=|;|\n){0,9}") {
            let first = text.lines().next().unwrap_or_default();
            prop_assume!(!(first.starts_with(BILLING_HEADER) && first.contains('=')));
            prop_assert_eq!(after(vec![system(text.clone())]), (vec![system(text)], vec![]));
        }

        #[test]
        fn what_stands_behind_the_line_is_untouched(text in "\\PC{0,60}") {
            let (messages, _) = after(vec![system(format!("{LINE}\n{text}"))]);
            prop_assert_eq!(messages, vec![system(text)]);
        }
    }
}
