//! Fields that would change the answer and are not served: refused by name, never ignored.

use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};

/// The fields, in whichever request they come.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct UnservedFields {
    audio: Option<Value>,
    best_of: Option<Value>,
    dry_multiplier: Option<Value>,
    echo: Option<Value>,
    function_call: Option<Value>,
    functions: Option<Value>,
    grammar: Option<Value>,
    guided_choice: Option<Value>,
    guided_grammar: Option<Value>,
    guided_json: Option<Value>,
    guided_regex: Option<Value>,
    json_schema: Option<Value>,
    min_tokens: Option<Value>,
    mirostat: Option<Value>,
    modalities: Option<Value>,
    prompt_logprobs: Option<Value>,
    response_format: Option<Value>,
    stop_token_ids: Option<Value>,
    structured_outputs: Option<Value>,
    suffix: Option<Value>,
    thinking_budget_tokens: Option<Value>,
    tool_choice: Option<Value>,
    typical_p: Option<Value>,
    web_search_options: Option<Value>,
    xtc_probability: Option<Value>,
}

impl UnservedFields {
    /// Refuses a field that asks for something, unless it is one of those that are `served`. Values that ask for what
    /// happens anyway are fine; clients send them.
    pub(crate) fn check(&self, served: &[&str]) -> Result<()> {
        for (name, value, harmless) in self.table() {
            let Some(value) = value.as_ref().filter(|_| !served.contains(&name)) else { continue };
            if !harmless.iter().any(|allowed| serde_json::from_str::<Value>(allowed).is_ok_and(|it| it == *value)) {
                return Err(refusal(name, harmless));
            }
        }
        Ok(())
    }

    /// Every field with the values, as JSON, that change nothing.
    fn table(&self) -> [(&'static str, &Option<Value>, &'static [&'static str]); 25] {
        [
            ("audio", &self.audio, &[]),
            ("best_of", &self.best_of, &["1"]),
            ("dry_multiplier", &self.dry_multiplier, &["0", "0.0"]),
            ("echo", &self.echo, &["false"]),
            ("function_call", &self.function_call, &["\"auto\"", "\"none\""]),
            ("functions", &self.functions, &["[]"]),
            ("grammar", &self.grammar, &["\"\""]),
            ("guided_choice", &self.guided_choice, &[]),
            ("guided_grammar", &self.guided_grammar, &[]),
            ("guided_json", &self.guided_json, &[]),
            ("guided_regex", &self.guided_regex, &[]),
            ("json_schema", &self.json_schema, &[]),
            ("min_tokens", &self.min_tokens, &["0"]),
            ("mirostat", &self.mirostat, &["0"]),
            ("modalities", &self.modalities, &["[\"text\"]"]),
            ("prompt_logprobs", &self.prompt_logprobs, &["false"]),
            ("response_format", &self.response_format, &["{\"type\":\"text\"}"]),
            ("stop_token_ids", &self.stop_token_ids, &["[]"]),
            ("structured_outputs", &self.structured_outputs, &[]),
            ("suffix", &self.suffix, &["\"\""]),
            ("thinking_budget_tokens", &self.thinking_budget_tokens, &["-1"]),
            ("tool_choice", &self.tool_choice, &["\"auto\"", "\"none\""]),
            ("typical_p", &self.typical_p, &["1", "1.0"]),
            ("web_search_options", &self.web_search_options, &[]),
            ("xtc_probability", &self.xtc_probability, &["0", "0.0"]),
        ]
    }
}

fn refusal(name: &str, harmless: &[&str]) -> Error {
    let served = match harmless {
        [] => "leave it out".to_owned(),
        values => format!("leave it out or send {}", values.join(" or ")),
    };
    Error::unsupported(name, format!("{name} is not served with this value; {served}"))
}
