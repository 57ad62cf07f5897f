//! Answers of schemas, choices and grammars, by a real model that has never seen any.

use std::net::SocketAddr;

use paceline_tests::schemas::{problem, schema};
use serde_json::{Value, json};

use crate::http::{Response, events, post};
use crate::program::Server;

/// How many schemas: more by `PACELINE_SCHEMAS=500 cargo test --workspace --test system random_schemas`.
const SCHEMAS: u64 = 50;

/// Clients at once.
const CLIENTS: u64 = 4;

fn ask(address: SocketAddr, more: &Value) -> Response {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Who is Ruth?"}],
        "max_tokens": 1200, "temperature": 1.0, "thinking_budget_tokens": 12,
    });
    body.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    let response = post(address, "/v1/chat/completions", &body);
    assert_eq!(response.status, 200, "{}", response.body);
    response
}

fn content(response: &Response) -> String {
    let answer = response.json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "stop", "{answer}");
    choice["message"]["content"].as_str().expect("a text").to_owned()
}

/// Asks for an answer of the schema of this seed, and says what is wrong with it. Every second one thinks first.
fn wrong(address: SocketAddr, seed: u64) -> Option<String> {
    let schema = schema(seed);
    let format = json!({"type": "json_schema", "json_schema": {"name": "answer", "strict": true, "schema": schema}});
    let thinks = seed.is_multiple_of(2);
    let response = ask(address, &json!({"response_format": format, "seed": seed, "enable_thinking": thinks}));
    let text = content(&response);
    let thought = response.json()["choices"][0]["message"]["reasoning_content"].is_string();
    if thought != thinks {
        return Some(format!("seed {seed}: it thought: {thought}"));
    }
    match serde_json::from_str(&text) {
        Err(error) => Some(format!("seed {seed}: {error}: {text}")),
        Ok(value) => problem(&schema, &value).map(|problem| format!("seed {seed}: {problem}")),
    }
}

#[test]
fn answers_of_random_schemas_are_valid() {
    let count = std::env::var("PACELINE_SCHEMAS").ok().and_then(|count| count.parse().ok()).unwrap_or(SCHEMAS);
    let server = Server::start(&["--sessions", "4", "--ctx", "2048"]);
    let address = server.address;
    let client = |first: u64| {
        (first..count).step_by(CLIENTS as usize).filter_map(|seed| wrong(address, seed)).collect::<Vec<_>>()
    };
    let problems: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|first| scope.spawn(move || client(first))).collect();
        clients.into_iter().flat_map(|client| client.join().expect("a client")).collect()
    });
    assert!(problems.is_empty(), "{} of {count}: {problems:#?}", problems.len());
}

#[test]
fn shards_and_streams_do_not_change_what_is_held_to_a_schema() {
    let format = json!({"type": "json_schema", "json_schema": {"name": "a", "schema": schema(3)}});
    let wish = json!({"response_format": format, "seed": 5});
    let one = Server::start(&["--threads", "1"]);
    let whole = content(&ask(one.address, &wish));
    let mut streamed = wish.clone();
    streamed["stream"] = true.into();
    let stream = events(&ask(one.address, &streamed).body);
    let told: String = stream.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(told, whole);
    let two = Server::start(&["--shards", "2", "--threads", "2"]);
    assert_eq!(content(&ask(two.address, &wish)), whole);
}

#[test]
fn choices_expressions_and_grammars_are_kept() {
    let server = Server::start(&[]);
    let said = |wish: Value| content(&ask(server.address, &wish));
    assert!(["yes", "no"].contains(&said(json!({"guided_choice": ["yes", "no"]})).as_str()));
    let digits = said(json!({"regex": "[0-9]{3}-[a-c]"}));
    assert!(digits.len() == 5 && digits.as_bytes()[3] == b'-', "{digits}");
    assert_eq!(said(json!({"grammar": "start: \"a\" \"b\" | \"ab\""})), "ab");
    let object: Value =
        serde_json::from_str(&said(json!({"guided_json": {"type": "object", "maxProperties": 0}}))).unwrap();
    assert_eq!(object, json!({}));
}

#[test]
fn tools_that_must_be_called_are_called_and_strict_ones_strictly() {
    let server = Server::start(&[]);
    let parameters = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "digits"],
        "properties": {"name": {"enum": ["Ruth", "Abel"]}, "digits": {"type": "integer", "minimum": 1, "maximum": 9}},
    });
    let tools =
        json!([{"type": "function", "function": {"name": "look_up", "strict": true, "parameters": parameters}}]);
    for seed in 0..6 {
        let wish = json!({"tools": tools, "tool_choice": "required", "parallel_tool_calls": false, "seed": seed});
        let answer = ask(server.address, &wish).json();
        let call = &answer["choices"][0]["message"]["tool_calls"][0]["function"];
        let arguments: Value = serde_json::from_str(call["arguments"].as_str().expect("arguments")).unwrap();
        assert_eq!((&call["name"], &answer["choices"][0]["finish_reason"]), (&json!("look_up"), &json!("tool_calls")));
        assert_eq!(problem(&parameters, &arguments), None);
    }
    // Whoever need not call says something, or calls as it must.
    for seed in 0..3 {
        let answer = ask(server.address, &json!({"tools": tools, "seed": seed, "max_tokens": 60})).json();
        for call in answer["choices"][0]["message"]["tool_calls"].as_array().into_iter().flatten() {
            assert_eq!(call["function"]["name"], "look_up");
        }
    }
}
