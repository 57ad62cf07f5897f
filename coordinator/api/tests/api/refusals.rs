//! What is refused, with which status, and how it is said.

use std::time::Duration;

use paceline_api::ApiConfig;
use paceline_coordinator::Error;
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::harness::{Service, patient};

const CHAT: &str = "/v1/chat/completions";
const TEXT: &str = "/v1/completions";

/// Checks the shape that every error has, and that the message says `says`.
fn check(response: &Response, status: u16, code: &str, param: &Value, says: &str) {
    let error = &response.json()["error"];
    let message = error["message"].as_str().unwrap();
    assert_eq!((response.status, &error["code"], &error["param"]), (status, &json!(code), param), "{message}");
    let kind = if status < 500 { "invalid_request_error" } else { "server_error" };
    assert_eq!(error["type"], kind);
    assert!(message.contains(says), "{message:?} does not say {says:?}");
    assert_eq!(error.as_object().unwrap().len(), 4);
}

/// A parameter in a request that is otherwise right: status 400, and the message must hold the number that matters.
#[tokio::test]
async fn parameters_out_of_range_are_refused_with_their_range() {
    let service = Service::start(ApiConfig { prompt_bytes: 1000, ..ApiConfig::default() });
    let long = "x".repeat(1025);
    let seventeen = vec!["s"; 17];
    let biases: serde_json::Map<_, _> = (0..1025).map(|token| (token.to_string(), json!(1))).collect();
    for (param, value, says) in [
        ("temperature", json!(-0.1), "temperature is -0.1, it must be from 0 to 10"),
        ("temperature", json!(1e300), "from 0 to 10"),
        ("temperature", json!("hot"), "temperature: invalid type: string \"hot\""),
        ("top_p", json!(1.5), "top_p is 1.5, it must be from 0 to 1"),
        ("top_k", json!(-2), "top_k is -2, it must be from 0 to 4294967295"),
        ("top_k", json!(0.5), "top_k: invalid type: floating point `0.5`"),
        ("min_p", json!(-1), "min_p is -1"),
        ("repetition_penalty", json!(0), "repetition_penalty is 0, it must be from 0.01 to 10"),
        ("frequency_penalty", json!(2.5), "frequency_penalty is 2.5, it must be from -2 to 2"),
        ("presence_penalty", json!(-3), "presence_penalty is -3"),
        ("logit_bias", json!({ "260": 1 }), "\"260\" is no token id, they are below 260"),
        ("logit_bias", json!({ "x": 1 }), "\"x\""),
        ("logit_bias.5", json!({ "5": 101 }), "logit_bias.5 is 101, it must be from -100 to 100"),
        ("logit_bias.5", json!({ "5": "1" }), "logit_bias.5 is \"1\", not a number"),
        ("logit_bias", json!(biases), "1025 tokens, the most is 1024"),
        ("logit_bias", json!([1]), "logit_bias: invalid type: sequence"),
        ("seed", json!(1.5), "seed is 1.5"),
        ("n", json!(0), "n is 0, it must be from 1 to 16"),
        ("n", json!(17), "n is 17"),
        ("max_tokens", json!(0), "max_tokens is 0, it must be from 1"),
        ("max_tokens", json!(-1), "max_tokens is -1"),
        ("max_completion_tokens", json!(4_294_967_296_u64), "max_completion_tokens is 4294967296"),
        ("stop", json!(seventeen), "17 strings, the most is 16"),
        ("stop[0]", json!([""]), "stop[0] has 0 bytes, it must have 1 to 1024"),
        ("stop[1]", json!(["a", long]), "stop[1] has 1025 bytes"),
        ("stop", json!(5), "stop: expected a string or a list of strings"),
        ("stream", json!("yes"), "stream: invalid type"),
        ("stream_options", json!(true), "stream_options: invalid type"),
        ("model", json!(5), "model: invalid type: integer `5`"),
        ("ignore_eos", json!(1), "ignore_eos: invalid type"),
    ] {
        let field = param.split(['[', '.']).next().unwrap();
        for (path, mut body) in
            [(CHAT, json!({ "messages": [{ "role": "user", "content": "a" }] })), (TEXT, json!({ "prompt": "a" }))]
        {
            body[field] = value.clone();
            let response = service.exchange(path, &body.to_string()).await;
            check(&response, 400, "invalid_value", &json!(param), says);
        }
    }
}

#[tokio::test]
async fn what_only_chats_know_is_checked_there() {
    let service = Service::start(ApiConfig { prompt_bytes: 1000, ..ApiConfig::default() });
    let long = "x".repeat(1001);
    let message = |message: Value| json!({ "messages": [{ "role": "user", "content": "a" }, message] });
    for (path, body, param, says) in [
        (CHAT, json!({}), "messages", "messages is missing"),
        (CHAT, json!({ "messages": [] }), "messages", "messages is empty"),
        (CHAT, json!({ "messages": "hi" }), "messages", "messages: invalid type: string \"hi\""),
        (CHAT, message(json!("hi")), "messages[1].role", "messages[1].role is missing"),
        (CHAT, message(json!({ "role": "robot" })), "messages[1].role", "\"robot\", it must be one of"),
        (CHAT, message(json!({ "role": "user" })), "messages[1].content", "messages[1].content is missing"),
        (CHAT, message(json!({ "role": "user", "content": 5 })), "messages", "message 1"),
        (CHAT, message(json!({ "role": "user", "content": [{ "type": "image_url" }] })), "messages", "\"image_url\""),
        (CHAT, message(json!({ "role": "user", "content": long })), "messages", "the most is 1000"),
        (CHAT, json!({ "tools": [5] }), "tools[0]", "tools[0] is no object"),
        (CHAT, json!({ "tools": [{ "type": "web_search" }] }), "tools[0].type", "only functions are served"),
        (CHAT, json!({ "tools": [{ "function": {} }] }), "tools[0].function.name", "must have a name"),
        (
            CHAT,
            json!({ "tools": [{ "name": "f", "parameters": 5 }] }),
            "tools[0].parameters",
            "tools[0].parameters is no JSON schema",
        ),
        (CHAT, json!({ "tool_choice": "required" }), "tool_choice", "there are no tools"),
        (CHAT, json!({ "tool_choice": "perhaps" }), "tool_choice", "\"perhaps\", it must be \"auto\""),
        (CHAT, json!({ "tool_choice": { "function": 5 } }), "tool_choice", "or name a function"),
        (
            CHAT,
            json!({ "tools": [{ "name": "f" }], "tool_choice": { "type": "function", "function": { "name": "g" } } }),
            "tool_choice",
            "names \"g\", but tools has no such function",
        ),
        (CHAT, json!({ "response_format": { "type": "xml" } }), "response_format.type", "\"xml\", it must be"),
        (CHAT, json!({ "response_format": 5 }), "response_format.type", "is missing"),
        (
            CHAT,
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "a" } } }),
            "response_format.json_schema.schema",
            "is missing, send a JSON schema",
        ),
        (CHAT, json!({ "guided_json": "{" }), "guided_json", "guided_json is no JSON schema"),
        (CHAT, json!({ "guided_choice": ["a"], "regex": "b" }), "guided_choice", "two structures at once"),
        (CHAT, json!({ "structured_outputs": { "ebnf": "a" } }), "structured_outputs", "has none of"),
        (CHAT, json!({ "reasoning_effort": "much" }), "reasoning_effort", "\"much\", it must be one of"),
        (CHAT, json!({ "reasoning_effort": 5 }), "reasoning_effort", "reasoning_effort: invalid type"),
        (CHAT, json!({ "reasoning": { "effort": "x" } }), "reasoning.effort", "reasoning.effort is \"x\""),
        (CHAT, json!({ "thinking": { "type": "on" } }), "thinking.type", "\"on\", it must be \"enabled\""),
        (CHAT, json!({ "thinking_budget_tokens": -2 }), "thinking_budget_tokens", "thinking_budget_tokens is -2"),
        (CHAT, json!({ "reasoning_format": "xml" }), "reasoning_format", "reasoning_format is \"xml\""),
        (CHAT, json!({ "top_logprobs": 21 }), "top_logprobs", "top_logprobs is 21, it must be from 0 to 20"),
        (CHAT, json!({ "top_logprobs": 2 }), "top_logprobs", "top_logprobs is 2, but logprobs is not true"),
        (CHAT, json!({ "logprobs": 2 }), "logprobs", "logprobs: invalid type: integer `2`"),
        (CHAT, json!({ "chat_template_kwargs": 1 }), "chat_template_kwargs", "chat_template_kwargs: invalid type"),
    ] {
        let response = service.exchange(path, &body.to_string()).await;
        check(&response, 400, "invalid_value", &json!(param), says);
    }
}

#[tokio::test]
async fn what_only_one_page_of_texts_knows_is_checked_there() {
    let service = Service::start(ApiConfig { prompt_bytes: 1000, ..ApiConfig::default() });
    let long = "x".repeat(1001);
    let many = vec!["a"; 129];
    for (path, body, param, says) in [
        (TEXT, json!({}), "prompt", "prompt is missing"),
        (TEXT, json!({ "prompt": 5 }), "prompt", "prompt: expected a string, a list of strings, a list of token ids"),
        (TEXT, json!({ "prompt": ["a", 5] }), "prompt", "prompt: expected"),
        (TEXT, json!({ "prompt": [] }), "prompt", "0 prompts with 1 choices are 0 answers"),
        (TEXT, json!({ "prompt": many }), "prompt", "129 answers, from 1 to 128"),
        (TEXT, json!({ "prompt": vec!["a"; 9], "n": 16 }), "prompt", "are 144 answers"),
        (TEXT, json!({ "prompt": long }), "prompt", "prompt has 1001 bytes of text, the most is 1000"),
        (TEXT, json!({ "prompt": [5, 260] }), "prompt[1]", "prompt[1] is 260, token ids are below 260"),
        (TEXT, json!({ "prompt": [[5], [1, -7]] }), "prompt[1][1]", "prompt[1][1] is -7"),
        (TEXT, json!({ "prompt": "a", "logprobs": 21 }), "logprobs", "logprobs is 21"),
        (TEXT, json!({ "prompt": "a", "logprobs": true }), "logprobs", "logprobs: invalid type: boolean `true`"),
        ("/tokenize", json!({}), "content", "content is missing"),
        ("/tokenize", json!({ "content": "a", "messages": [] }), "content", "both given"),
        ("/tokenize", json!({ "content": long }), "content", "the most is 1000"),
        ("/detokenize", json!({}), "tokens", "tokens is missing"),
        ("/detokenize", json!({ "tokens": "a" }), "tokens", "tokens: invalid type"),
        ("/detokenize", json!({ "tokens": [258] }), "tokens[0]", "tokens[0] is 258, token ids are below 258"),
    ] {
        let response = service.exchange(path, &body.to_string()).await;
        check(&response, 400, "invalid_value", &json!(param), says);
    }
}

#[tokio::test]
async fn what_would_change_the_answer_is_not_ignored() {
    let service = Service::start(ApiConfig::default());
    for (param, value) in [
        ("functions", json!([{ "name": "f" }])),
        ("function_call", json!({ "name": "f" })),
        ("modalities", json!(["text", "audio"])),
        ("audio", json!({ "voice": "v" })),
        ("best_of", json!(3)),
        ("suffix", json!("end")),
        ("min_tokens", json!(5)),
    ] {
        for path in [CHAT, TEXT] {
            let response = service.exchange(path, &json!({ param: value }).to_string()).await;
            check(&response, 400, "unsupported_parameter", &json!(param), &format!("{param} is not served"));
        }
    }
}

#[tokio::test]
async fn structures_that_no_answer_can_have_are_refused_before_anything_is_computed() {
    let service = Service::start(ApiConfig::default());
    let strict = json!({ "name": "f", "strict": true, "parameters": { "properties": { "a": { "type": "flower" } } } });
    for (request, param, says) in [
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "schema": { "type": "flower" } } } }),
            "response_format.json_schema.schema",
            "flower",
        ),
        (
            json!({ "guided_json": { "type": "integer", "minimum": 3, "maximum": 1 } }),
            "guided_json",
            "cannot be followed",
        ),
        (json!({ "guided_regex": "[a-" }), "guided_regex", "cannot be followed"),
        (json!({ "guided_choice": [] }), "guided_choice", "nothing to choose from"),
        (json!({ "grammar": "start: other" }), "grammar", "other"),
        (
            json!({ "tools": [{ "type": "function", "function": strict }] }),
            "tools[0].function.parameters",
            "cannot be followed strictly",
        ),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        body.as_object_mut().unwrap().extend(request.as_object().unwrap().clone());
        let response = service.exchange(CHAT, &body.to_string()).await;
        check(&response, 400, "invalid_value", &json!(param), says);
    }
    let body = json!({ "messages": [{ "role": "user", "content": "a" }], "grammar": "root ::= \"a\"" });
    let response = service.exchange(CHAT, &body.to_string()).await;
    check(&response, 400, "unsupported_parameter", &json!("grammar"), "another syntax");
}

#[tokio::test]
async fn bodies_that_cannot_be_read() {
    let service = Service::start(ApiConfig { body_bytes: 1000, ..ApiConfig::default() });
    let long = format!(r#"{{"prompt": "{}"}}"#, "x".repeat(1000));
    let deep = format!(r#"{{"messages": {}{}}}"#, "[".repeat(400), "]".repeat(400));
    for (path, body, status, code, says) in [
        (CHAT, "", 400, "empty_body", "no body"),
        (CHAT, "{\"messages\": [\n}", 400, "invalid_json", "line 2 column 1"),
        (TEXT, "{\"prompt\": \"a", 400, "invalid_json", "line 1 column 13"),
        (TEXT, "[]", 400, "invalid_json", "expected an object"),
        (TEXT, "\"prompt\"", 400, "invalid_json", "expected an object"),
        (TEXT, "{\"prompt\": \"a\", \"prompt\": \"b\"}", 400, "invalid_json", "duplicate field `prompt`"),
        (CHAT, &deep, 400, "invalid_json", "recursion limit"),
        (TEXT, &long, 413, "body_too_large", "1000 bytes"),
        ("/tokenize", "{", 400, "invalid_json", "line 1 column 1"),
        ("/detokenize", &long, 413, "body_too_large", "1000 bytes"),
    ] {
        check(&service.exchange(path, body).await, status, code, &Value::Null, says);
    }
}

async fn raw(service: &Service, request: &str) -> Response {
    patient(Client::send(service.address, request.as_bytes()).await.response()).await
}

#[tokio::test]
async fn pages_methods_and_types() {
    let service = Service::start(ApiConfig { body_timeout: Duration::from_millis(20), ..ApiConfig::default() });
    let request = |line: &str, head: &str| format!("{line} HTTP/1.1\r\nHost: x\r\n{head}\r\n");
    for (line, head, status, code, says) in [
        ("GET /v1/nothing", "", 404, "unknown_url", "GET /v1/nothing"),
        ("POST /", "", 405, "method_not_allowed", "only GET"),
        ("GET /v1/chat/completions", "", 405, "method_not_allowed", "only POST"),
        ("DELETE /v1/models/played", "", 405, "method_not_allowed", "DELETE"),
        ("POST /v1/completions", "Content-Type: text/plain\r\n", 415, "wrong_content_type", "\"text/plain\""),
        ("POST /tokenize", "Content-Length: 5\r\n", 408, "body_timeout", "did not arrive"),
    ] {
        check(&raw(&service, &request(line, head)).await, status, code, &Value::Null, says);
    }
    let response = raw(&service, &request("GET /tokenize", "")).await;
    assert_eq!(response.header("allow"), Some("POST"));
}

#[tokio::test]
async fn another_model_is_not_found() {
    let service = Service::start(ApiConfig::default());
    for path in [CHAT, TEXT] {
        let response = service.exchange(path, r#"{"model": "gpt-4"}"#).await;
        check(
            &response,
            404,
            "model_not_found",
            &json!("model"),
            "\"gpt-4\" does not exist, this server has played, other/name",
        );
    }
    check(&service.get("/v1/models/gpt-4").await, 404, "model_not_found", &json!("model"), "gpt-4");
}

#[tokio::test]
async fn what_the_engine_refuses() {
    let mut service = Service::start(ApiConfig::default());
    for (error, status, code, param, says) in [
        (Error::ContextLength { tokens: 5000, context: 4096 }, 400, "context_length_exceeded", Value::Null, "5000"),
        (Error::NeverFits { needed: 70, pages: 64 }, 400, "context_length_exceeded", Value::Null, "70 pages"),
        (Error::TokenOutOfRange { token: 300, vocabulary: 260 }, 400, "token_out_of_range", json!("prompt"), "300"),
        (Error::Request { reason: "top_p is 2".to_owned() }, 400, "invalid_value", Value::Null, "top_p is 2"),
        (Error::QueueDeadline { seconds: 30 }, 503, "queue_deadline", Value::Null, "30 s"),
        (Error::ShuttingDown, 503, "shutting_down", Value::Null, "shutting down"),
        (Error::Restoring { reason: "stage 4".to_owned() }, 503, "restoring", Value::Null, "stage 4"),
        (Error::Lost { reason: "stage 3".to_owned() }, 500, "answer_lost", Value::Null, "stage 3"),
    ] {
        for body in [r#"{"prompt": "a"}"#, r#"{"prompt": "a", "stream": true}"#] {
            let mut client = service.post(TEXT, body).await;
            service.call().await.answer.send(Err(error.clone())).unwrap();
            check(&patient(client.response()).await, status, code, &param, says);
        }
    }
    let response = service.exchange(TEXT, r#"{"prompt": ""}"#).await;
    check(&response, 400, "empty_prompt", &json!("prompt"), "no tokens");
}

#[tokio::test]
async fn a_full_queue_or_a_broken_row_says_when_to_come_back() {
    let mut service = Service::start(ApiConfig::default());
    for (error, status) in [
        (Error::QueueFull { waiting: 64, limit: 64 }, 429),
        (Error::QueueDeadline { seconds: 9 }, 503),
        (Error::Restoring { reason: "stage 4".to_owned() }, 503),
    ] {
        let mut client = service.post(TEXT, r#"{"prompt": "a", "stream": true}"#).await;
        service.call().await.answer.send(Err(error)).unwrap();
        let response = patient(client.response()).await;
        assert_eq!((response.status, response.header("retry-after")), (status, Some("2")));
        assert!(response.json()["error"]["message"].as_str().unwrap().contains("try again later"));
    }
}

/// A body cut off or with a byte exchanged, anywhere: always an answer, and an error in the usual shape unless the
/// body still makes sense, which the engine then refuses.
#[tokio::test]
async fn broken_bodies_get_proper_answers() {
    let mut service = Service::start(ApiConfig::default());
    let (address, mut calls) = (service.address, std::mem::replace(&mut service.played.calls, closed()));
    tokio::spawn(async move { while calls.recv().await.is_some() {} });
    let body = json!({
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a\u{e9}" }] }],
        "n": 2, "logit_bias": { "5": 1.5 }, "stop": ["s"], "seed": -7, "stream_options": { "include_usage": true },
    });
    let body = body.to_string();
    let cuts = body.char_indices().map(|(end, _)| body[..end].to_owned());
    let exchanges = body.char_indices().filter(|(_, character)| character.is_ascii()).flat_map(|(place, _)| {
        let exchange = |with: &str| format!("{}{with}{}", &body[..place], &body[place + 1..]);
        ["\0", "\"", "9", "}", "[", "\\"].map(exchange)
    });
    for broken in cuts.chain(exchanges) {
        let response = patient(Client::post(address, CHAT, &broken).await.response()).await;
        assert!([400, 404, 503].contains(&response.status), "{broken}: {response:?}");
        let message = &response.json()["error"]["message"];
        assert!(message.as_str().is_some_and(|message| !message.is_empty()), "{broken}: {response:?}");
    }
}

fn closed<T>() -> tokio::sync::mpsc::Receiver<T> {
    tokio::sync::mpsc::channel(1).1
}
