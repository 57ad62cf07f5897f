//! Tool calls as a grammar: what a model may write where it must call somebody, or calls somebody strictly.

use paceline_grammar::quoted;
use serde_json::{Map, Value, json};

use super::call::{CALL, CALL_END};
use super::{AnswerFormat, CallSyntax};
use crate::tokenizer::Tokenizer;

/// A tool that may be called.
#[derive(Debug, Clone, Copy)]
pub struct Callable<'t> {
    /// Its name.
    pub name: &'t str,
    /// The JSON schema of its arguments; any object if there is none.
    pub parameters: Option<&'t Value>,
}

/// What a grammar of calls allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallRule {
    /// One call and nothing else.
    One,
    /// At least one call, and nothing else.
    Some,
    /// Text, and then any number of calls. Only where the model has a token that begins a call.
    TextAndCalls,
}

impl AnswerFormat {
    /// Rules in Lark's syntax for answers with calls of `tools`; `start` is the first of them. `instead` are further
    /// alternatives of what the answer may be. None if the model's calls do not begin with a token and the rule needs one.
    pub fn call_grammar(
        &self,
        tokenizer: &Tokenizer,
        tools: &[Callable<'_>],
        rule: CallRule,
        instead: Option<&str>,
    ) -> Option<String> {
        let begins_with_token = self.calls != CallSyntax::Llama && tokenizer.token_id(CALL).is_some();
        let names: Vec<String> = (0..tools.len()).map(|index| format!("call_{index}")).collect();
        let between = if self.calls == CallSyntax::Llama { "\"; \"" } else { "\"\\n\"" };
        let mut rules = match rule {
            CallRule::One => "calls: call\n".to_owned(),
            CallRule::Some => format!("calls: call ({between} call)*\n"),
            CallRule::TextAndCalls if begins_with_token => {
                format!("calls: TEXT (call ({between} call)*)?\nTEXT: /(?s:.*)/\n")
            }
            CallRule::TextAndCalls => return None,
        };
        let instead = instead.map(|text| format!(" | {text}")).unwrap_or_default();
        rules.insert_str(0, &format!("start: calls{instead}\n"));
        rules += &format!("call: {}\n", names.join(" | "));
        for (index, tool) in tools.iter().enumerate() {
            rules += &self.one_call(tokenizer, index, *tool);
        }
        Some(rules)
    }

    fn one_call(&self, tokenizer: &Tokenizer, index: usize, tool: Callable<'_>) -> String {
        let any = json!({"type": "object"});
        let schema = tool.parameters.unwrap_or(&any);
        let (open, close) = (tag(tokenizer, CALL), tag(tokenizer, CALL_END));
        let name = Value::from(tool.name);
        match self.calls {
            CallSyntax::Hermes => {
                let head = quoted(&format!("\n{{\"name\": {name}, \"arguments\": "));
                let arguments = json_rule(schema);
                format!(
                    "call_{index}: {open} {head} arguments_{index} \"}}\\n\" {close}\narguments_{index}: {arguments}\n"
                )
            }
            CallSyntax::Llama => {
                let head = quoted(&format!("{{\"name\": {name}, \"parameters\": "));
                format!("call_{index}: {head} arguments_{index} \"}}\"\narguments_{index}: {}\n", json_rule(schema))
            }
            CallSyntax::QwenXml => {
                let head = quoted(&format!("\n<function={}>\n", tool.name));
                let (uses, rules) = parameters(index, schema);
                format!("call_{index}: {open} {head} {uses}\"</function>\\n\" {close}\n{rules}")
            }
        }
    }
}

/// A tag as the model writes it: a token, or its letters.
fn tag(tokenizer: &Tokenizer, text: &str) -> String {
    if tokenizer.token_id(text).is_some() { text.to_owned() } else { quoted(text) }
}

/// JSON on one line or on few: white space may come, but not without end.
fn json_rule(schema: &Value) -> String {
    let mut schema = schema.clone();
    if let Some(fields) = schema.as_object_mut() {
        fields.entry("x-guidance").or_insert_with(|| json!({"whitespace_pattern": r"[ \n]{0,24}"}));
    }
    format!("%json {schema}")
}

/// The parameters of call `index`, as they are used and as rules: in the order of the schema, those that need not be given
/// may be left out.
fn parameters(index: usize, schema: &Value) -> (String, String) {
    let none = Map::new();
    let properties = schema["properties"].as_object().unwrap_or(&none);
    if properties.is_empty() {
        // Nothing is known of them, so there may be any.
        let rule = format!(
            "any_{index}: \"<parameter=\" NAME_{index} \">\\n\" value_{index}\nNAME_{index}: /[A-Za-z0-9_.-]+/\n"
        );
        let value = format!("value_{index}[suffix=\"\\n</parameter>\\n\"]: /(?s:.*)/\n");
        return (format!("any_{index}* "), rule + &value);
    }
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let (mut uses, mut rules) = (String::new(), String::new());
    for (place, (name, property)) in properties.iter().enumerate() {
        let rule = format!("parameter_{index}_{place}");
        let optional = if required.contains(&name.as_str()) { "" } else { "?" };
        uses += &format!("{rule}{optional} ");
        let head = quoted(&format!("<parameter={name}>\n"));
        match value(property, schema) {
            Written::Text(expressions) => {
                rules += &format!("{rule}: {head} text_{index}_{place}\n");
                rules += &format!("text_{index}_{place}[suffix=\"\\n</parameter>\\n\"]: TEXT_{index}_{place}\n");
                rules += &format!("TEXT_{index}_{place}: {}\n", expressions.join(" & "));
            }
            Written::Choice(choices) => rules += &format!("{rule}: {head} ({choices}) \"\\n</parameter>\\n\"\n"),
            Written::Json(schema) => {
                rules += &format!("{rule}: {head} json_{index}_{place} \"\\n</parameter>\\n\"\n");
                rules += &format!("json_{index}_{place}: {}\n", json_rule(&schema));
            }
        }
    }
    (uses, rules)
}

/// How a parameter is written.
enum Written {
    /// As it is; all of these expressions match it.
    Text(Vec<String>),
    /// One of these, as alternatives of a rule.
    Choice(String),
    /// As JSON of this schema.
    Json(Value),
}

/// `property` is a part of `root`, whose definitions it may refer to.
fn value(property: &Value, root: &Value) -> Written {
    if let Some(examples) = property["enum"].as_array()
        && !examples.is_empty()
        && examples.iter().all(Value::is_string)
    {
        let examples: Vec<String> = examples.iter().filter_map(Value::as_str).map(quoted).collect();
        return Written::Choice(examples.join(" | "));
    }
    let type_names = match &property["type"] {
        Value::String(name) => vec![name.as_str()],
        Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let may_be_text = type_names.is_empty() && property.get("$ref").is_none() && property.get("const").is_none();
    if let Some(text) = property["const"].as_str() {
        return Written::Choice(quoted(text));
    }
    if may_be_text || type_names.contains(&"string") {
        return Written::Text(expressions(property));
    }
    let mut schema = property.clone();
    if let Some(fields) = schema.as_object_mut() {
        for name in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(name) {
                fields.entry(name).or_insert_with(|| definitions.clone());
            }
        }
    }
    Written::Json(schema)
}

/// What a text must match: its length, in characters, and its pattern, which may be anywhere in it unless it says where.
fn expressions(property: &Value) -> Vec<String> {
    let [least, most] = ["minLength", "maxLength"].map(|name| property[name].as_u64());
    let length = match (least, most) {
        (None, None) => "/(?s:.*)/".to_owned(),
        (least, most) => {
            let most = most.map_or_else(String::new, |most| most.to_string());
            format!("/(?s:.{{{},{most}}})/", least.unwrap_or(0))
        }
    };
    let pattern = property["pattern"].as_str().map(|pattern| {
        let (front, pattern) = pattern.strip_prefix('^').map_or(("(?s:.*)", pattern), |rest| ("", rest));
        let ends = |text: &str| text.len() - text.trim_end_matches('\\').len();
        let (pattern, back) = match pattern.strip_suffix('$') {
            Some(rest) if ends(rest) % 2 == 0 => (rest, ""),
            _ => (pattern, "(?s:.*)"),
        };
        format!("/{front}({}){back}/", pattern.replace('/', "\\/").replace("\\\\/", "\\/"))
    });
    std::iter::once(length).chain(pattern).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use paceline_grammar::{Follower, Grammar};

    use super::*;
    use crate::testing::byte_vocabulary;
    use crate::vocabulary::TokenKind;
    use crate::{Answer, Special, ToolTable};

    const QWEN: &str = "{{ tools }}<tool_call><function=f>";
    const HERMES: &str = "{{ tools }}<tool_call>";
    const LLAMA: &str = "{{ tools }}\"parameters\"";

    fn tokenizer() -> Arc<Tokenizer> {
        let tags = [(CALL, TokenKind::UserDefined), (CALL_END, TokenKind::UserDefined), ("<end>", TokenKind::Control)];
        let mut vocabulary = byte_vocabulary(&tags);
        vocabulary.eos = Some(258);
        Arc::new(Tokenizer::new(vocabulary).unwrap())
    }

    fn schema() -> Value {
        json!({
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"$ref": "#/$defs/count"},
                "unit": {"enum": ["C", "F"]},
            },
            "required": ["city"],
            "$defs": {"count": {"type": "integer"}},
        })
    }

    fn follower(template: &str, rule: CallRule, instead: Option<&str>) -> (Arc<Tokenizer>, Follower) {
        let tokenizer = tokenizer();
        let schema = schema();
        let tools =
            [Callable { name: "weather", parameters: Some(&schema) }, Callable { name: "time", parameters: None }];
        let grammar =
            AnswerFormat::detect(template, &tokenizer).call_grammar(&tokenizer, &tools, rule, instead).unwrap();
        let follower = tokenizer.speller().unwrap().follow(&Grammar::lark(&grammar).unwrap()).expect(&grammar);
        (tokenizer, follower)
    }

    /// Whether the answer is possible to its end, and complete there.
    fn allows(template: &str, rule: CallRule, text: &str) -> bool {
        is_possible(follower(template, rule, None), text)
    }

    fn is_possible((tokenizer, mut follower): (Arc<Tokenizer>, Follower), text: &str) -> bool {
        for token in tokenizer.encode(text, Special::Parse, false) {
            if !follower.allowed().unwrap().has(token) {
                return false;
            }
            follower.take(token).unwrap();
        }
        follower.allowed().unwrap().has(258)
    }

    const XML: &str = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    const OBJECT: &str = "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    const BARE: &str = "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}";

    #[test]
    fn calls_that_fit_are_possible_and_others_are_not() {
        for (template, call, wrong) in [
            (QWEN, XML, XML.replace("\n3\n", "\nthree\n")),
            (QWEN, XML, XML.replace("weather", "other")),
            (QWEN, XML, XML.replace("<parameter=city>\nParis\n</parameter>\n", "")),
            (HERMES, OBJECT, OBJECT.replace("city", "town")),
            (LLAMA, BARE, BARE.replace("\"Paris\"", "5")),
        ] {
            assert!(allows(template, CallRule::One, call), "{call}");
            assert!(!allows(template, CallRule::One, &wrong), "{wrong}");
            let separator = if template == LLAMA { "; " } else { "\n" };
            let two = [call, call].join(separator);
            assert!(allows(template, CallRule::Some, &two), "{two}");
            assert!(!allows(template, CallRule::One, &two), "{two}");
            assert!(!allows(template, CallRule::Some, "Hello"));
        }
        assert!(allows(
            QWEN,
            CallRule::One,
            &XML.replace("\n3\n</parameter>\n", "\n3\n</parameter>\n<parameter=unit>\nC\n</parameter>\n")
        ));
        assert!(!allows(
            QWEN,
            CallRule::One,
            &XML.replace("\n3\n</parameter>\n", "\n3\n</parameter>\n<parameter=unit>\nK\n</parameter>\n")
        ));
        let time = "<tool_call>\n<function=time>\n<parameter=zone>\nCET\n</parameter>\n</function>\n</tool_call>";
        assert!(allows(QWEN, CallRule::One, time));
    }

    #[test]
    fn texts_have_the_length_and_the_pattern_of_their_schema() {
        let cases: [(Value, &str, &[&str]); 6] = [
            (json!({"type": "string", "maxLength": 3}), "a\u{fc}c", &["abcd"]),
            (json!({"type": "string", "minLength": 2}), "ab\ncd", &["a"]),
            (json!({"type": "string", "pattern": "^[0-9]+/[0-9]+$", "maxLength": 5}), "1/234", &["1/2345", "x", "12"]),
            (json!({"type": "string", "pattern": "b"}), "abc", &["ac"]),
            (json!({"type": "string", "pattern": "^5\\$"}), "5$ a day", &["5"]),
            (json!({"const": "x"}), "x", &["y"]),
        ];
        for (property, right, wrong) in cases {
            let schema = json!({"type": "object", "properties": {"v": property}, "required": ["v"]});
            let tools = [Callable { name: "f", parameters: Some(&schema) }];
            let possible = |text: &str| {
                let tokenizer = tokenizer();
                let format = AnswerFormat::detect(QWEN, &tokenizer);
                let grammar = format.call_grammar(&tokenizer, &tools, CallRule::One, None).unwrap();
                let follower = tokenizer.speller().unwrap().follow(&Grammar::lark(&grammar).unwrap());
                let call = format!(
                    "<tool_call>\n<function=f>\n<parameter=v>\n{text}\n</parameter>\n</function>\n</tool_call>"
                );
                is_possible((tokenizer, follower.expect(&grammar)), &call)
            };
            assert!(possible(right), "{property}: {right}");
            wrong.iter().for_each(|wrong| assert!(!possible(wrong), "{property}: {wrong}"));
        }
    }

    #[test]
    fn text_may_come_before_calls_that_are_strict() {
        for (template, call) in [(QWEN, XML), (HERMES, OBJECT)] {
            for text in ["Hello", "", &format!("I look.\n{call}"), &format!("{call}\n{call}")] {
                assert!(allows(template, CallRule::TextAndCalls, text), "{text}");
            }
            assert!(!allows(template, CallRule::TextAndCalls, &call.replace("city", "town")));
        }
        let tokenizer = tokenizer();
        let llama = AnswerFormat::detect(LLAMA, &tokenizer);
        assert_eq!(llama.call_grammar(&tokenizer, &[], CallRule::TextAndCalls, None), None);
    }

    #[test]
    fn an_answer_may_be_something_else_instead() {
        let instead = "%json {\"type\": \"integer\"}";
        for (text, wanted) in [("15", true), ("x", false)] {
            let (tokenizer, mut follower) = follower(QWEN, CallRule::Some, Some(instead));
            let mut tokens = tokenizer.encode(text, Special::Parse, false).into_iter();
            let possible = tokens.all(|token| follower.allowed().unwrap().has(token) && follower.take(token).is_ok());
            assert_eq!(possible, wanted, "{text}");
        }
    }

    #[test]
    fn what_is_possible_is_read_as_a_call() {
        for (template, call) in [(QWEN, XML), (HERMES, OBJECT), (LLAMA, BARE)] {
            let tokenizer = tokenizer();
            let schema = schema();
            let tools = ToolTable::new(&[json!({"name": "weather", "parameters": schema})]);
            let mut parser = AnswerFormat::detect(template, &tokenizer).parser(false, Some(tools), "call_".to_owned());
            let mut answer = Answer::default();
            answer.extend(parser.push(call, &[]));
            answer.extend(parser.finish());
            assert_eq!(answer.text, "");
            let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
            assert_eq!(arguments["city"], "Paris");
        }
    }
}
