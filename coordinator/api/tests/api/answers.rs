//! Reasoning and tool calls: streamed and whole answers say the same, however the model's tokens cut them.

use std::sync::Arc;

use paceline_api::{ApiConfig, Defaults};
use paceline_coordinator::{FinishReason, TokenUpdate, Update};
use paceline_text::{Special, TextStream, Tokenizer};
use serde_json::{Value, json};

use crate::harness::{Service, admit, finished, patient, tokenizer};

const PATH: &str = "/v1/chat/completions";

/// Tokens from 258 on.
const TAGS: [&str; 4] = ["<think>", "</think>", "<tool_call>", "</tool_call>"];

/// Thinks, unless it is told not to, and writes calls as Qwen does.
const TEMPLATE: &str = "{%- for tool in tools or [] %}{{ tool | tojson }}<function=NAME>{% endfor -%}\
    {%- for message in messages -%}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{%- endfor -%}\
    {%- if add_generation_prompt -%}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% else %}<think>\n{% endif %}{%- endif -%}";

fn service() -> Service {
    Service::with_template(ApiConfig::default(), &TAGS, Some(TEMPLATE))
}

fn tools() -> Value {
    let schema =
        json!({ "type": "object", "properties": { "city": { "type": "string" }, "days": { "type": "integer" } } });
    json!([{ "type": "function", "function": { "name": "weather", "description": "w", "parameters": schema } }])
}

fn body(more: &Value) -> String {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }], "tools": tools() });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// What a session says of an answer with these tokens.
fn updates(tokenizer: &Arc<Tokenizer>, tokens: &[u32], reason: FinishReason) -> Vec<Update> {
    updates_with_stops(tokenizer, tokens, reason, &[])
}

/// The same where a stop string may hold text back.
fn updates_with_stops(tokenizer: &Arc<Tokenizer>, tokens: &[u32], reason: FinishReason, stops: &[&str]) -> Vec<Update> {
    let mut stream = TextStream::new(Arc::clone(tokenizer), stops).unwrap();
    let mut updates = Vec::new();
    for &token in tokens {
        let piece = stream.push(token);
        updates.push(Update::Token(TokenUpdate { token, text: piece.text, marks: piece.marks, logprobs: None }));
    }
    let Update::Finished(mut end) = finished(reason, 5, tokens.len()) else { panic!() };
    let rest = stream.finish();
    (end.text, end.marks) = (rest.text, rest.marks);
    updates.push(Update::Finished(end));
    updates
}

/// Asks, and lets the model answer with these tokens.
async fn ask(service: &mut Service, request: &Value, updates: Vec<Update>) -> String {
    let mut client = service.post(PATH, &body(request)).await;
    let session = admit(service.call().await);
    let response = tokio::spawn(async move { patient(client.response()).await });
    for update in updates {
        session.send(update).await.unwrap();
    }
    drop(session);
    let response = response.await.unwrap();
    assert_eq!(response.status, 200);
    response.body
}

/// The message that a stream adds up to, without ids, and why it ended.
fn sum(stream: &str) -> (Value, Value) {
    let (mut content, mut reasoning) = (String::new(), String::new());
    let mut calls: Vec<(String, String)> = Vec::new();
    let mut reason = Value::Null;
    for event in
        stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).filter(|event| *event != "[DONE]")
    {
        let event: Value = serde_json::from_str(event).unwrap();
        let choice = &event["choices"][0];
        let delta = &choice["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        reasoning += delta["reasoning_content"].as_str().unwrap_or_default();
        for call in delta["tool_calls"].as_array().into_iter().flatten() {
            let function = &call["function"];
            if let Some(name) = function["name"].as_str() {
                assert_eq!(call["index"], calls.len());
                assert_eq!(call["type"], "function");
                assert!(call["id"].as_str().unwrap().starts_with("call_"));
                calls.push((name.to_owned(), String::new()));
            }
            assert_eq!(call["index"], calls.len() - 1);
            calls.last_mut().unwrap().1 += function["arguments"].as_str().unwrap();
        }
        if !choice["finish_reason"].is_null() {
            reason = choice["finish_reason"].clone();
        }
    }
    (message(&content, &reasoning, &calls), reason)
}

fn message(content: &str, reasoning: &str, calls: &[(String, String)]) -> Value {
    json!({ "content": content, "reasoning": reasoning, "calls": calls })
}

/// The message of a whole answer, without ids, and why it ended.
fn whole(response: &str) -> (Value, Value) {
    let response: Value = serde_json::from_str(response).unwrap();
    let choice = &response["choices"][0];
    let told = &choice["message"];
    let function = |call: &Value| {
        let text = |name: &str| call["function"][name].as_str().unwrap().to_owned();
        (text("name"), text("arguments"))
    };
    let calls: Vec<_> = told["tool_calls"].as_array().into_iter().flatten().map(function).collect();
    let text = |name: &str| told[name].as_str().unwrap_or_default().to_owned();
    (message(&text("content"), &text("reasoning_content"), &calls), choice["finish_reason"].clone())
}

/// Numbers without a clock: the same in every run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }

    fn one<'t>(&mut self, texts: &[&'t str]) -> &'t str {
        texts[self.below(texts.len())]
    }
}

/// An answer as a model may write it: most of it in order, some of it not.
fn scripted(chance: &mut Chance) -> String {
    let mut text = chance.one(&["", "I think.\n", "é<thin", "a <tool_call> b", "\n\nk>"]).to_owned();
    text += chance.one(&["</think>\n\n", "</think>", "", "\n</think>\n\n\n"]);
    for _ in 0..chance.below(4) {
        text += chance.one(&["", "Well.\n", "x < y", "<tool_call>\n", "{\"a\": 1}"]);
        let open = chance.one(&[
            "<tool_call>\n<function=weather>\n",
            "<function=weather>",
            "<tool_call>{\"name\": \"weather\", \"arguments\": ",
        ]);
        text += open;
        if open.ends_with(' ') {
            text += chance.one(&["{\"city\": \"a\\\"}\", \"days\": 3}}", "{}}", "{\"city\": \"a\nb\"}}", "{\"city"]);
        } else {
            let parameter = chance.one(&[
                "<parameter=city>\nParis\n</parameter>\n",
                "<parameter=days>\n3\n</parameter>",
                "<parameter=city></think>\n",
                "",
            ]);
            text += parameter;
            text += chance.one(&["</function>", "<parameter=other>1</parameter></function>\n", ""]);
        }
        text += chance.one(&["\n</tool_call>", "</tool_call>\n", ""]);
    }
    text + chance.one(&["", "\n", " done"])
}

#[tokio::test]
async fn streamed_and_whole_answers_say_the_same() {
    let tokenizer = tokenizer(&TAGS);
    let mut service = service();
    let mut calls = 0;
    for seed in 0..200 {
        let text = scripted(&mut Chance(seed));
        let tokens = tokenizer.encode(&text, Special::Parse, false);
        // Cut short at any token.
        let cut = if seed % 4 == 3 { Chance(seed).below(tokens.len() + 1) } else { tokens.len() };
        let reason = if cut < tokens.len() { FinishReason::Length } else { FinishReason::EndToken };
        let updates = updates_with_stops(&tokenizer, &tokens[..cut], reason, &["k>\n\n!"]);
        let streamed = sum(&ask(&mut service, &json!({ "stream": true }), updates.clone()).await);
        let whole = whole(&ask(&mut service, &json!({}), updates).await);
        assert_eq!(streamed, whole, "{text:?}");
        calls += whole.0["calls"].as_array().unwrap().len();
    }
    assert!(calls > 100, "only {calls} calls were made, the script is dull");
}

#[tokio::test]
async fn reasoning_and_calls_are_told_apart() {
    let tokenizer = tokenizer(&TAGS);
    let mut service = service();
    let call = "<tool_call>\n<function=weather>\n<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>";
    let tokens = tokenizer.encode(&format!("Hm.\n</think>\n\nI look.\n{call}"), Special::Parse, false);
    let said = updates(&tokenizer, &tokens, FinishReason::EndToken);
    let response = ask(&mut service, &json!({}), said.clone()).await;
    let told: Value = serde_json::from_str(&response).unwrap();
    let said_message = &told["choices"][0]["message"];
    assert_eq!((&said_message["content"], &said_message["reasoning_content"]), (&json!("I look."), &json!("Hm.")));
    assert_eq!(
        said_message["tool_calls"][0]["function"],
        json!({ "name": "weather", "arguments": r#"{"city":"Paris","days":3}"# })
    );
    assert_eq!(told["choices"][0]["finish_reason"], "tool_calls");
    // "Hm.", the line break and the tag.
    assert_eq!(told["usage"]["completion_tokens_details"]["reasoning_tokens"], 5);
    let raw = whole(&ask(&mut service, &json!({ "reasoning_format": "none", "tool_choice": "none" }), said).await);
    let everything = format!("Hm.\n</think>\n\nI look.\n{call}");
    assert_eq!(raw, (message(&everything, "", &[]), json!("stop")));
}

#[tokio::test]
async fn one_call_is_enough_where_no_more_are_wanted() {
    let tokenizer = tokenizer(&TAGS);
    let mut service = service();
    let call = "<tool_call><function=weather></function></tool_call>";
    let tokens = tokenizer.encode(&format!("</think>{call}{call}"), Special::Parse, false);
    let said = updates(&tokenizer, &tokens, FinishReason::EndToken);
    let (told, _) = whole(&ask(&mut service, &json!({ "parallel_tool_calls": false }), said).await);
    assert_eq!(told["calls"], json!([["weather", "{}"]]));
}

/// What the engine is asked for.
async fn asked(defaults: Defaults, request: &Value) -> (String, Option<paceline_proto::ThinkingSettings>) {
    let tokenizer = tokenizer(&TAGS);
    let mut service = Service::with_defaults(ApiConfig::default(), defaults, &TAGS, Some(TEMPLATE));
    let _client = service.post(PATH, &body(request)).await;
    let request = service.call().await.request;
    let prompt = tokenizer.decode_with_special(&request.prompt).unwrap();
    let opening = prompt[prompt.rfind("assistant\n").unwrap() + "assistant\n".len()..].to_owned();
    (opening, request.sampling.thinking.map(|thinking| *thinking))
}

#[tokio::test]
async fn thinking_is_limited_as_the_request_or_the_server_says() {
    const OPEN: &str = "<think>\n";
    const SKIPPED: &str = "<think>\n\n</think>\n\n";
    let limited = Defaults { thinking_budget: Some(77), ..Defaults::default() };
    let off = Defaults { thinking: Some(false), ..Defaults::default() };
    let mut by_variable = Defaults::default();
    by_variable.template_variables.insert("enable_thinking".to_owned(), false.into());
    let plain = Defaults::default;
    for (defaults, request, opening, budget) in [
        (plain(), json!({}), OPEN, None),
        (plain(), json!({ "thinking_budget_tokens": 100 }), OPEN, Some(100)),
        (plain(), json!({ "thinking_budget_tokens": -1 }), OPEN, None),
        (plain(), json!({ "thinking_budget_tokens": 0 }), SKIPPED, Some(0)),
        (plain(), json!({ "thinking_budget": 9 }), OPEN, Some(9)),
        (plain(), json!({ "reasoning_effort": "none" }), SKIPPED, Some(0)),
        (plain(), json!({ "reasoning_effort": "low" }), OPEN, Some(2048)),
        (plain(), json!({ "reasoning": { "max_tokens": 5 } }), OPEN, Some(5)),
        (plain(), json!({ "thinking": { "type": "enabled", "budget_tokens": 6 } }), OPEN, Some(6)),
        (plain(), json!({ "thinking": { "type": "disabled" } }), SKIPPED, Some(0)),
        (plain(), json!({ "enable_thinking": false }), SKIPPED, Some(0)),
        (plain(), json!({ "chat_template_kwargs": { "enable_thinking": false } }), SKIPPED, Some(0)),
        (limited.clone(), json!({}), OPEN, Some(77)),
        (limited, json!({ "thinking_budget_tokens": 5 }), OPEN, Some(5)),
        (off.clone(), json!({}), SKIPPED, Some(0)),
        (off, json!({ "enable_thinking": true }), OPEN, None),
        (by_variable, json!({}), SKIPPED, Some(0)),
    ] {
        let (prompt, thinking) = asked(defaults, &request).await;
        let thinking = thinking.unwrap();
        assert_eq!((prompt.as_str(), thinking.budget), (opening, budget), "{request}");
        assert_eq!(thinking.is_open, opening == OPEN, "{request}");
        assert_eq!((thinking.opens, thinking.closes), (Some(258), 259));
        assert_eq!(thinking.closing, [10, 259, 10, 10]);
    }
}

/// The constraint that the engine is asked to hold an answer to.
async fn constraint(request: &Value) -> Option<paceline_proto::ConstraintSettings> {
    let mut service = service();
    let _client = service.post(PATH, &body(request)).await;
    let request = service.call().await.request;
    request.sampling.constraint.map(|constraint| *constraint)
}

#[tokio::test]
async fn answers_are_held_to_what_is_asked_for() {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    let named = json!({ "type": "function", "function": { "name": "weather" } });
    let mut strict = tools();
    strict[0]["function"]["strict"] = true.into();
    for (request, holds) in [
        (json!({}), &[][..]),
        (json!({ "tool_choice": "none" }), &[]),
        (json!({ "tool_choice": "required" }), &["calls: call (", "weather", "city"]),
        (json!({ "tool_choice": "required", "parallel_tool_calls": false }), &["calls: call\\n", "weather"]),
        (json!({ "tool_choice": named }), &["calls: call\\n", "weather"]),
        (json!({ "tools": strict }), &["TEXT", "weather", "city"]),
        (json!({ "tools": [], "response_format": { "type": "json_object" } }), &["json_schema"]),
        (json!({ "tools": [], "guided_json": schema }), &["city"]),
        (json!({ "tools": [], "guided_choice": ["yes", "no"] }), &["yes"]),
        (json!({ "tools": [], "regex": "[0-9]+" }), &["[0-9]+"]),
        (json!({ "tools": [], "structured_outputs": { "grammar": "start: \"x\"" } }), &["start: "]),
        (json!({ "guided_json": schema }), &["start: calls | %json", "city", "weather"]),
    ] {
        let constraint = constraint(&request).await;
        assert_eq!(constraint.is_some(), !holds.is_empty(), "{request}");
        for part in holds {
            let constraint = constraint.as_ref().unwrap();
            assert!(constraint.grammar.contains(part), "{request}: {part:?} is not in {}", constraint.grammar);
            assert_eq!(constraint.ends, [257], "<|im_end|>");
        }
    }
}
