//! The API of Anthropic: what reaches the engine, and what reaches the client.

use paceline_api::ApiConfig;
use paceline_coordinator::{Error, FinishReason, Update};
use serde_json::{Value, json};

use crate::client::Client;
use crate::harness::{END, Service, admit, answer, finished, patient, tokens_of};

const PATH: &str = "/v1/messages";

/// `<|im_start|>`.
const START: u32 = 256;

fn hello(more: &Value) -> String {
    let mut body = json!({ "max_tokens": 9, "messages": [{ "role": "user", "content": "hi" }] });
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body.to_string()
}

/// The tokens of a rendered conversation.
fn rendered(messages: &[(&str, &str)]) -> Vec<u32> {
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let one =
        |(role, text): &(&str, &str)| [vec![START], bytes(&format!("{role}\n{text}")), vec![END], bytes("\n")].concat();
    let all: Vec<u32> = messages.iter().flat_map(one).collect();
    [all, vec![START], bytes("assistant\n")].concat()
}

/// Replaces what differs in every message, after checking its form.
fn timeless(mut message: Value) -> Value {
    let id = message["id"].as_str().unwrap();
    assert!(id.starts_with("msg_") && id.len() == 36, "{id}");
    message["id"] = "msg".into();
    message
}

#[tokio::test]
async fn an_answer_in_one_piece() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "system": "be", "stop_sequences": ["x"], "top_k": 4 }))).await;
    let call = service.call().await;
    assert_eq!(call.request.prompt, rendered(&[("system", "be"), ("user", "hi")]));
    assert_eq!(
        (call.request.max_tokens, &*call.request.stop, call.request.sampling.top_k),
        (Some(9), &["x".to_owned()][..], 4)
    );
    answer(call, "Hé", FinishReason::EndToken).await;
    let response = patient(client.response()).await;
    assert_eq!(response.status, 200, "{response:?}");
    let prompt_tokens = rendered(&[("system", "be"), ("user", "hi")]).len();
    let expected = json!({
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "model": "played",
        "content": [{ "type": "text", "text": "Hé" }],
        "stop_reason": "end_turn",
        "stop_sequence": null,
        "usage": {
            "input_tokens": prompt_tokens - 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": 3,
        },
    });
    assert_eq!(timeless(response.json()), expected);
}

/// Names and contents of the events of a stream.
async fn events(client: &mut Client) -> Vec<(String, Value)> {
    let mut text = String::new();
    while let Some(chunk) = patient(client.chunk()).await {
        text += &chunk;
    }
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        (name.strip_prefix("event: ").unwrap().to_owned(), data)
    };
    text.split_terminator("\n\n").map(event).collect()
}

#[tokio::test]
async fn an_answer_as_events_in_their_order() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "stream": true }))).await;
    let call = service.call().await;
    let prompt_tokens = call.request.prompt.len();
    answer(call, "Hé", FinishReason::Length).await;
    let head = patient(client.head()).await.to_lowercase();
    assert!(head.starts_with("http/1.1 200 ok\r\n") && head.contains("content-type: text/event-stream\r\n"), "{head}");
    let mut events = events(&mut client).await;
    assert!(events.iter().all(|(name, event)| event["type"] == **name), "{events:?}");
    events[0].1["message"] = timeless(events[0].1["message"].take());
    let usage = |output: usize| {
        json!({
            "input_tokens": prompt_tokens - 2,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 2,
            "output_tokens": output,
        })
    };
    let message = json!({
        "id": "msg", "type": "message", "role": "assistant", "model": "played", "content": [],
        "stop_reason": null, "stop_sequence": null, "usage": usage(0),
    });
    let text = |text: &str| json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } });
    let expected = [
        json!({ "type": "message_start", "message": message }),
        json!({ "type": "ping" }),
        json!({ "type": "content_block_start", "index": 0, "content_block": { "type": "text", "text": "" } }),
        text("H"),
        text("é"),
        json!({ "type": "content_block_stop", "index": 0 }),
        json!({
            "type": "message_delta",
            "delta": { "stop_reason": "max_tokens", "stop_sequence": null },
            "usage": usage(3),
        }),
        json!({ "type": "message_stop" }),
    ];
    let told: Vec<Value> = events.into_iter().map(|(_, event)| event).collect();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_tool_is_called_in_both_ways_of_sending() {
    let tools =
        json!([{ "name": "f", "input_schema": { "type": "object", "properties": { "x": { "type": "integer" } } } }]);
    let said = "So: <tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "tools": tools }))).await;
    answer(service.call().await, said, FinishReason::EndToken).await;
    let message = patient(client.response()).await.json();
    assert_eq!(message["stop_reason"], "tool_use", "{message}");
    let blocks = message["content"].as_array().unwrap();
    assert_eq!(blocks.len(), 2);
    assert_eq!(
        (&blocks[1]["type"], &blocks[1]["name"], &blocks[1]["input"]),
        (&json!("tool_use"), &json!("f"), &json!({ "x": 1 }))
    );
    assert!(blocks[1]["id"].as_str().unwrap().starts_with("toolu_"));

    let mut client = service.post(PATH, &hello(&json!({ "tools": tools, "stream": true }))).await;
    answer(service.call().await, said, FinishReason::EndToken).await;
    patient(client.head()).await;
    let events = events(&mut client).await;
    let order: Vec<&str> =
        events.iter().map(|(name, _)| name.as_str()).filter(|name| *name != "content_block_delta").collect();
    let expected = [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_stop",
        "content_block_start",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(order, expected);
    let deltas = |kind: &str, field: &str| {
        let deltas = events.iter().filter(|(_, event)| event["delta"]["type"] == kind);
        deltas.map(|(_, event)| event["delta"][field].as_str().unwrap()).collect::<String>()
    };
    assert_eq!(deltas("text_delta", "text"), blocks[0]["text"].as_str().unwrap());
    let input: Value = serde_json::from_str(&deltas("input_json_delta", "partial_json")).unwrap();
    assert_eq!(input, blocks[1]["input"]);
}

#[tokio::test]
async fn stop_reasons_say_what_ended_the_answer() {
    let mut service = Service::start(ApiConfig::default());
    for (reason, word, sequence) in [
        (FinishReason::EndToken, "end_turn", Value::Null),
        (FinishReason::Length, "max_tokens", Value::Null),
        (FinishReason::StopString("x".to_owned()), "stop_sequence", json!("x")),
    ] {
        let mut client = service.post(PATH, &hello(&json!({}))).await;
        answer(service.call().await, "a", reason).await;
        let message = patient(client.response()).await.json();
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(word), &sequence));
    }
    let mut client = service.post(PATH, &hello(&json!({}))).await;
    let updates = admit(service.call().await);
    updates.send(finished(FinishReason::Length, 4000, 96)).await.unwrap();
    assert_eq!(patient(client.response()).await.json()["stop_reason"], "model_context_window_exceeded");
}

#[tokio::test]
async fn what_breaks_off_says_so_in_its_own_shape() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &hello(&json!({ "stream": true }))).await;
    let updates = admit(service.call().await);
    for update in tokens_of("ab") {
        updates.send(Update::Token(update)).await.unwrap();
    }
    updates.send(Update::Failed(Error::ShuttingDown)).await.unwrap();
    patient(client.head()).await;
    let events = events(&mut client).await;
    let (name, event) = events.last().unwrap();
    assert_eq!((name.as_str(), &event["error"]["type"]), ("error", &json!("overloaded_error")), "{event}");
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let service = Service::start(ApiConfig::default());
    let body = json!({ "model": "claude-opus-4-1", "messages": [{ "role": "user", "content": "hi" }] }).to_string();
    let response = service.exchange("/v1/messages/count_tokens", &body).await;
    assert_eq!(response.json(), json!({ "input_tokens": rendered(&[("user", "hi")]).len() }));
}

#[tokio::test]
async fn blocks_become_the_messages_that_templates_know() {
    let mut service = Service::start(ApiConfig::default());
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "assistant", "content": [{ "type": "text", "text": "c" }] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "1", "content": "d", "is_error": true },
            { "type": "document", "title": "t", "source": { "type": "text", "data": "e" } },
        ] },
    ]);
    let system = json!([{ "type": "text", "text": "x" }, { "type": "text", "text": "y" }]);
    let _client = service.post(PATH, &hello(&json!({ "messages": messages, "system": system }))).await;
    let prompt = service.call().await.request.prompt;
    let expected = [("system", "x\ny"), ("user", "a\nb"), ("assistant", "c"), ("tool", "Error: d"), ("user", "t\ne")];
    assert_eq!(prompt, rendered(&expected));
}
