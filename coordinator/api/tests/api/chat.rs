//! Chat completions: what reaches the engine, and what reaches the client.

use paceline_api::{ApiConfig, Defaults};
use paceline_coordinator::{Error, FinishReason, Update};
use paceline_proto::{Logprobs, SamplingSettings, TokenLogprob};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{END, Service, admit, answer, finished, patient, timeless, tokens_of};

const PATH: &str = "/v1/chat/completions";

/// `<|im_start|>`.
const START: u32 = 256;

fn hello(more: &Value) -> String {
    let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// The prompt of `hello`.
fn prompt() -> Vec<u32> {
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    [vec![START], bytes("user\nhi"), vec![END], bytes("\n"), vec![START], bytes("assistant\n")].concat()
}

#[tokio::test]
async fn an_answer_in_one_piece() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "return_token_ids": true }))).await;
    let call = service.call().await;
    assert_eq!(call.request.prompt, prompt());
    // The end of the conversation, and of the prompt: every answer follows what opens it here, which is too long in bytes
    // to be taken for a message's head. The question's start is none, it is the very beginning.
    assert_eq!(call.request.boundaries, [prompt().len() - "(assistant\n".len(), prompt().len()]);
    answer(call, "Hé", FinishReason::EndToken).await;
    let response = patient(client.response()).await;
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    assert!(response.header("x-request-id").is_some());
    assert_eq!(response.header("x-paceline-cached-tokens"), Some("2"));
    assert_eq!(response.header("x-paceline-cache-tier"), Some("ram"));
    let missed = "new; the prompt goes on differently from everything that is cached";
    assert_eq!(response.header("x-paceline-cache-miss"), Some(missed));
    assert_eq!(response.header("x-paceline-removed"), None);
    let prompt_tokens = prompt().len();
    let expected = json!({
        "id": "chatcmpl-ID",
        "object": "chat.completion",
        "created": 0,
        "model": "played",
        "system_fingerprint": concat!("paceline-", env!("CARGO_PKG_VERSION")),
        "choices": [{
            "index": 0,
            "message": { "role": "assistant", "content": "Hé", "refusal": null },
            "logprobs": null,
            "finish_reason": "stop",
            "prompt_token_ids": prompt(),
            "token_ids": [72, 195, 169],
        }],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": 3,
            "total_tokens": prompt_tokens + 3,
            "prompt_tokens_details": { "cached_tokens": 2 },
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
                "reasoning_tokens": 0,
            },
        },
        "timings": {
            "queued_ms": 5.0,
            "cache_n": 2,
            "cache_tier": "ram",
            "cache_miss": "new",
            "prompt_n": prompt_tokens - 2,
            "prompt_ms": 10.0,
            "prompt_per_second": (prompt_tokens - 2) as f64 / 0.01,
            "predicted_n": 3,
            "predicted_ms": 20.0,
            "predicted_per_second": 100.0,
            "draft_n": 0,
            "draft_n_accepted": 0,
        },
    });
    assert_eq!(timeless(response.json()), expected);
}

fn chunk(choice: &Value) -> Value {
    json!({
        "id": "chatcmpl-ID",
        "object": "chat.completion.chunk",
        "created": 0,
        "model": "played",
        "system_fingerprint": concat!("paceline-", env!("CARGO_PKG_VERSION")),
        "choices": [choice],
        "usage": null,
    })
}

fn delta(delta: &Value) -> Value {
    chunk(&json!({ "index": 0, "delta": delta, "logprobs": null, "finish_reason": null }))
}

/// The events of a stream; all but the last are JSON.
async fn events(client: &mut Client) -> Vec<Value> {
    let mut events = patient(client.events()).await;
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert!(events.iter().all(|event| event["id"] == events[0]["id"]), "all chunks have one id");
    events.into_iter().map(timeless).collect()
}

#[tokio::test]
async fn an_answer_as_events() {
    let mut service = Service::start(ApiConfig::default());
    let body = hello(&json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let mut client = service.post(PATH, &body).await;
    answer(service.call().await, "Hé!", FinishReason::Length).await;
    let head = patient(client.head()).await.to_lowercase();
    assert!(head.starts_with("http/1.1 200 ok\r\n"), "{head}");
    assert!(head.contains("content-type: text/event-stream\r\n"), "{head}");
    assert!(head.contains("cache-control: no-cache\r\n"), "{head}");
    assert!(head.contains("x-paceline-cached-tokens: 2\r\n"), "{head}");
    let mut events = events(&mut client).await;
    let last = events.pop().unwrap();
    let expected = [
        delta(&json!({ "role": "assistant", "content": "" })),
        delta(&json!({ "content": "H" })),
        delta(&json!({ "content": "é" })),
        delta(&json!({ "content": "!" })),
        chunk(&json!({ "index": 0, "delta": {}, "logprobs": null, "finish_reason": "length" })),
    ];
    assert_eq!(events, expected);
    assert_eq!(last["choices"], json!([]));
    assert_eq!(last["usage"]["completion_tokens"], 4);
    assert_eq!(last["usage"]["prompt_tokens"], prompt().len());
    assert_eq!(last["timings"]["predicted_n"], 4);
}

#[tokio::test]
async fn text_that_was_held_back_comes_before_the_end() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "stream": true, "stop": "User:" }))).await;
    let call = service.call().await;
    assert_eq!(call.request.stop, ["User:"]);
    let session = admit(call);
    let Update::Finished(mut end) = finished(FinishReason::StopString("User:".to_owned()), 5, 3) else { panic!() };
    end.text = "U".to_owned();
    session.send(Update::Finished(end)).await.unwrap();
    patient(client.head()).await;
    let events = events(&mut client).await;
    assert_eq!(events.len(), 3);
    assert_eq!(events[1]["choices"][0]["delta"], json!({ "content": "U" }));
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[2].get("usage"), None, "usage was not asked for");
    assert_eq!(events[2]["timings"]["predicted_n"], 3);
}

#[tokio::test]
async fn several_choices_interleave() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "stream": true, "n": 2, "seed": 7 }))).await;
    let (first, second) = (service.call().await, service.call().await);
    assert_eq!((first.request.sampling.choice, second.request.sampling.choice), (0, 1));
    assert_eq!((first.request.sampling.seed, second.request.sampling.seed), (7, 7));
    assert_eq!(first.request.prompt, second.request.prompt);
    // The second may be told of before the first.
    answer(second, "two", FinishReason::EndToken).await;
    answer(first, "one", FinishReason::Length).await;
    patient(client.head()).await;
    let events = events(&mut client).await;
    let told = |index: u64, field: &str| -> Vec<Value> {
        let choices = events.iter().map(|event| &event["choices"][0]).filter(|choice| choice["index"] == index);
        choices.map(|choice| choice.pointer(field).cloned().unwrap_or_default()).filter(|it| !it.is_null()).collect()
    };
    assert_eq!(told(0, "/delta/content"), ["", "o", "n", "e"]);
    assert_eq!(told(1, "/delta/content"), ["", "t", "w", "o"]);
    assert_eq!((told(0, "/finish_reason"), told(1, "/finish_reason")), (vec!["length".into()], vec!["stop".into()]));
}

#[tokio::test]
async fn choices_may_be_more_than_there_is_room_for() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "n": 2 }))).await;
    let (first, second) = (service.call().await, service.call().await);
    let text = "longer than the channel of a session";
    patient(answer(first, text, FinishReason::EndToken)).await;
    patient(answer(second, text, FinishReason::EndToken)).await;
    let response = patient(client.response()).await.json();
    let texts = [0, 1].map(|index| &response["choices"][index]["message"]["content"]);
    assert_eq!(texts, [text, text]);
    assert_eq!(response["usage"]["prompt_tokens"], prompt().len());
    assert_eq!(response["usage"]["completion_tokens"], 2 * text.len());
}

#[tokio::test]
async fn log_probabilities() {
    let mut service = Service::start(ApiConfig::default());
    let body = hello(&json!({ "logprobs": true, "top_logprobs": 2, "max_completion_tokens": 1 }));
    let mut client = service.post(PATH, &body).await;
    let call = service.call().await;
    assert_eq!(call.request.sampling.logprobs, Some(2));
    assert_eq!(call.request.max_tokens, Some(1));
    let session = admit(call);
    let mut update = tokens_of("A").remove(0);
    let top = vec![TokenLogprob { token: 65, logprob: -0.5 }, TokenLogprob { token: 195, logprob: f32::NEG_INFINITY }];
    update.logprobs = Some(Box::new(Logprobs { chosen: -0.5, top }));
    session.send(Update::Token(update)).await.unwrap();
    session.send(finished(FinishReason::Length, 5, 1)).await.unwrap();
    let response = patient(client.response()).await.json();
    let expected = json!({
        "content": [{
            "token": "A",
            "logprob": -0.5,
            "bytes": [65],
            "top_logprobs": [
                { "token": "A", "logprob": -0.5, "bytes": [65] },
                { "token": "\u{fffd}", "logprob": -9999.0, "bytes": [195] },
            ],
        }],
        "refusal": null,
    });
    assert_eq!(response["choices"][0]["logprobs"], expected);
}

#[tokio::test]
async fn messages_come_in_many_shapes() {
    let mut service = Service::start(ApiConfig::default());
    let text = |text: &str| json!({ "type": "text", "text": text });
    let call = json!({ "id": "1", "type": "function", "function": { "name": "f", "arguments": "{}" } });
    let body = json!({
        "messages": [
            { "role": "developer", "content": "be brief" },
            { "role": "user", "content": [text("h"), text("i")], "name": "someone" },
            { "role": "assistant", "content": null, "tool_calls": [call] },
            { "role": "assistant", "tool_calls": [] },
            { "role": "tool", "content": "5", "tool_call_id": "1" },
        ],
        "tools": [{ "type": "function", "function": { "name": "f" } }],
        "chat_template_kwargs": { "enable_thinking": false },
        "reasoning_effort": "low",
    });
    let _client = service.post(PATH, &body.to_string()).await;
    let prompt = service.call().await.request.prompt;
    let letter = |token: &u32| match *token {
        START => '(',
        END => ')',
        byte => char::from_u32(byte).unwrap(),
    };
    let prompt: String = prompt.iter().map(letter).collect();
    let turns = ["(system\nbe brief)", "(user\nhi)", "(assistant\n)", "(assistant\n)", "(tool\n5)", "(assistant\n"];
    assert_eq!(prompt, turns.join("\n"));
}

#[tokio::test]
async fn what_a_client_changes_every_time_is_taken_out_and_told() {
    let line =
        |hash: &str| format!("x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={hash};");
    let body = |hash: &str, stream: bool| {
        let system = json!([{ "type": "text", "text": line(hash) }, { "type": "text", "text": "Be brief." }]);
        let messages = json!([{ "role": "system", "content": system }, { "role": "user", "content": "hi" }]);
        json!({ "messages": messages, "stream": stream }).to_string()
    };
    let mut service = Service::start(ApiConfig::default());
    let mut prompts = Vec::new();
    for (hash, stream) in [("36ee5", false), ("0aaa9", true)] {
        let mut client = service.post(PATH, &body(hash, stream)).await;
        let call = service.call().await;
        prompts.push(call.request.prompt.clone());
        answer(call, "A", FinishReason::EndToken).await;
        let head = if stream { patient(client.head()).await } else { patient(client.response()).await.head };
        assert!(head.to_lowercase().contains("x-paceline-removed: x-anthropic-billing-header\r\n"), "{head}");
    }
    assert_eq!(prompts[0], prompts[1]);
    assert_eq!(prompts[0].len(), prompt().len() + "(system\nBe brief.)\n".len());

    let mut service = Service::start(ApiConfig { keep_client_noise: true, ..ApiConfig::default() });
    let mut client = service.post(PATH, &body("36ee5", false)).await;
    let call = service.call().await;
    assert_eq!(call.request.prompt.len(), prompts[0].len() + line("36ee5").len());
    answer(call, "A", FinishReason::EndToken).await;
    assert_eq!(patient(client.response()).await.header("x-paceline-removed"), None);
}

#[tokio::test]
async fn every_setting_reaches_the_engine() {
    let mut service = Service::start(ApiConfig::default());
    let body = hello(&json!({
        "model": "other/name", "temperature": 0.5, "top_p": 0.75, "top_k": 40, "min_p": 0.25, "repeat_penalty": 1.5,
        "frequency_penalty": -2, "presence_penalty": 2, "logit_bias": { "65": -100, "66": 0.5 }, "seed": -2,
        "stop": ["a", "b"], "max_tokens": 9, "ignore_eos": true, "user": "u", "metadata": { "k": "v" },
        "response_format": { "type": "text" }, "tool_choice": "auto", "unheard_of": [1, 2],
    }));
    let _client = service.post(PATH, &body).await;
    let request = service.call().await.request;
    let expected = SamplingSettings {
        temperature: 0.5,
        top_p: 0.75,
        top_k: 40,
        min_p: 0.25,
        repetition_penalty: 1.5,
        frequency_penalty: -2.0,
        presence_penalty: 2.0,
        logit_bias: vec![(65, -100.0), (66, 0.5)],
        seed: (-2_i64).cast_unsigned(),
        ..SamplingSettings::default()
    };
    assert_eq!(request.sampling, expected);
    assert_eq!((request.stop, request.max_tokens), (vec!["a".to_owned(), "b".to_owned()], Some(9)));
    assert!(request.ignore_end && !request.show_special);
}

#[tokio::test]
async fn what_is_not_said_is_the_default() {
    let defaults = Defaults { top_k: 20, max_tokens: Some(100), ..Defaults::default() };
    let mut service = Service::with_defaults(ApiConfig::default(), defaults, &[], None);
    let mut seeds = Vec::new();
    for body in [json!({}), json!({ "temperature": null, "seed": -1, "max_tokens": null, "n": null, "stop": null })] {
        let _client = service.post(PATH, &hello(&body)).await;
        let request = service.call().await.request;
        seeds.push(request.sampling.seed);
        let expected =
            SamplingSettings { temperature: 1.0, top_k: 20, seed: seeds[seeds.len() - 1], ..Default::default() };
        assert_eq!(request.sampling, expected);
        assert_eq!((request.max_tokens, request.stop.len(), request.ignore_end), (Some(100), 0, false));
    }
    assert_ne!(seeds[0], seeds[1], "each request has its own seed");
}

#[tokio::test]
async fn an_answer_that_breaks_off_says_so() {
    let mut service = Service::start(ApiConfig::default());
    let lost = || Error::Lost { reason: "stage 2 is gone".to_owned() };
    let mut client = service.post(PATH, &hello(&json!({ "stream": true }))).await;
    let session = admit(service.call().await);
    session.send(Update::Token(tokens_of("a").remove(0))).await.unwrap();
    session.send(Update::Failed(lost())).await.unwrap();
    patient(client.head()).await;
    let events = patient(client.events()).await;
    let error: Value = serde_json::from_str(events.last().unwrap()).unwrap();
    let expected = json!({
        "error": {
            "message": "the answer could not be completed: stage 2 is gone",
            "type": "server_error",
            "param": null,
            "code": "answer_lost",
        },
    });
    assert_eq!(error, expected);

    let mut client = service.post(PATH, &hello(&json!({}))).await;
    let session = admit(service.call().await);
    session.send(Update::Failed(lost())).await.unwrap();
    let response = patient(client.response()).await;
    assert_eq!((response.status, response.json()), (500, expected));
}

#[tokio::test]
async fn a_session_that_ends_without_a_word_is_an_error() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({}))).await;
    drop(admit(service.call().await));
    let response = patient(client.response()).await;
    assert_eq!((response.status, &response.json()["error"]["code"]), (500, &json!("answer_lost")));
}
