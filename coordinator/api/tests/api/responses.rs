//! The Responses API: what reaches the engine, what reaches the client, and what is kept.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use paceline_api::{ApiConfig, ApiKey, ApiKeys, ResponseShelf};
use paceline_coordinator::{Error, FinishReason, Update};
use serde_json::{Value, json};

use crate::client::{Client, Response};
use crate::harness::{Service, admit, answer, patient};

const PATH: &str = "/v1/responses";

/// A request with a key, as bytes.
fn request(method: &str, path: &str, key: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nx-api-key: {key}\r\nContent-Type: application/json\r\n\
         Content-Length: {length}\r\n\r\n{body}"
    )
}

async fn exchange(service: &Service, request: &str) -> Response {
    patient(Client::send(service.address, request.as_bytes()).await.response()).await
}

/// The response to a request that the model answers with `said`.
async fn answered(service: &mut Service, key: &str, body: &Value, said: &str) -> Value {
    let mut client = Client::send(service.address, request("POST", PATH, key, &body.to_string()).as_bytes()).await;
    answer(service.call().await, said, FinishReason::EndToken).await;
    let response = patient(client.response()).await;
    assert_eq!(response.status, 200, "{response:?}");
    response.json()
}

/// The text of the prompt of the next request.
async fn prompt_of(service: &mut Service, body: &Value) -> String {
    let _client = service.post(PATH, &body.to_string()).await;
    let prompt = service.call().await.request.prompt;
    let byte = |token: u32| u8::try_from(token).map_or('|', char::from);
    prompt.into_iter().map(byte).collect()
}

#[tokio::test]
async fn a_response_in_one_piece() {
    let mut service = Service::start(ApiConfig::default());
    let body = json!({ "input": "hi", "instructions": "be", "max_output_tokens": 9, "metadata": { "a": "b" } });
    let response = answered(&mut service, "", &body, "ok").await;
    let id = response["id"].as_str().unwrap();
    assert!(id.starts_with("resp_"), "{id}");
    for (name, value) in [
        ("object", json!("response")),
        ("status", json!("completed")),
        ("model", json!("played")),
        ("error", Value::Null),
        ("incomplete_details", Value::Null),
        ("instructions", json!("be")),
        ("max_output_tokens", json!(9)),
        ("metadata", json!({ "a": "b" })),
        ("store", json!(true)),
        ("tools", json!([])),
        ("previous_response_id", Value::Null),
    ] {
        assert_eq!(response[name], value, "{name}");
    }
    let item = &response["output"][0];
    assert_eq!(
        (&item["type"], &item["role"], &item["status"]),
        (&json!("message"), &json!("assistant"), &json!("completed"))
    );
    let part = json!({ "type": "output_text", "text": "ok", "annotations": [], "logprobs": [] });
    assert_eq!(item["content"], json!([part]));
    let usage = &response["usage"];
    assert_eq!((&usage["output_tokens"], &usage["input_tokens_details"]["cached_tokens"]), (&json!(2), &json!(2)));
    assert_eq!(exchange(&service, &request("GET", &format!("{PATH}/{id}"), "", "")).await.json(), response);
}

#[tokio::test]
async fn a_response_as_events_is_the_same() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &json!({ "input": "hi", "stream": true }).to_string()).await;
    answer(service.call().await, "ok", FinishReason::Length).await;
    patient(client.head()).await;
    let mut text = String::new();
    while let Some(chunk) = patient(client.chunk()).await {
        text += &chunk;
    }
    let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
    let events: Vec<Value> = data.map(|data| serde_json::from_str(data).unwrap()).collect();
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let expected = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ];
    assert_eq!(types, expected);
    let names: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
    assert_eq!(names, expected);
    assert!(events.iter().enumerate().all(|(index, event)| event["sequence_number"] == index));
    let last = &events.last().unwrap()["response"];
    assert_eq!(last["incomplete_details"], json!({ "reason": "max_output_tokens" }));
    assert_eq!(last["output"][0]["content"][0]["text"], "ok");
    assert_eq!(last["id"], events[0]["response"]["id"]);
}

#[tokio::test]
async fn going_on_is_the_same_as_sending_everything_again() {
    let mut service = Service::start(ApiConfig::default());
    let first = answered(&mut service, "", &json!({ "input": "one", "instructions": "only once" }), "two").await;
    let going_on = json!({ "input": "three", "previous_response_id": first["id"] });
    let everything = json!({ "input": [
        { "role": "user", "content": "one" },
        { "role": "assistant", "content": [{ "type": "output_text", "text": "two" }] },
        { "role": "user", "content": "three" },
    ] });
    let prompt = prompt_of(&mut service, &going_on).await;
    assert_eq!(prompt, prompt_of(&mut service, &everything).await);
    assert!(prompt.contains("two") && !prompt.contains("only once"), "{prompt}");
}

#[tokio::test]
async fn a_key_finds_its_own_responses_only() {
    let keys = ["one", "two"].map(ApiKey::new);
    let mut service = Service::start(ApiConfig { api_keys: ApiKeys::new(keys), ..ApiConfig::default() });
    let response = answered(&mut service, "one", &json!({ "input": "hi" }), "ok").await;
    let path = format!("{PATH}/{}", response["id"].as_str().unwrap());
    assert_eq!(exchange(&service, &request("GET", &path, "two", "")).await.status, 404);
    assert_eq!(exchange(&service, &request("DELETE", &path, "two", "")).await.status, 404);
    let items = exchange(&service, &request("GET", &format!("{path}/input_items"), "one", "")).await.json();
    assert_eq!((&items["data"][0]["content"], &items["has_more"]), (&json!("hi"), &json!(false)));
    assert_eq!(exchange(&service, &request("DELETE", &path, "one", "")).await.json()["deleted"], true);
    let gone = exchange(&service, &request("GET", &path, "one", "")).await;
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("response_not_found")));
}

/// A shelf in memory.
#[derive(Debug, Default)]
struct Board(Mutex<BTreeMap<String, Vec<u8>>>);

impl ResponseShelf for Board {
    fn load(&self) -> io::Result<Vec<(String, Vec<u8>)>> {
        Ok(self.0.lock().unwrap().clone().into_iter().collect())
    }

    fn put(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap().insert(name.to_owned(), bytes.to_vec());
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.0.lock().unwrap().remove(name);
        Ok(())
    }
}

#[tokio::test]
async fn what_is_on_a_shelf_outlives_the_server() {
    let shelf: Arc<Board> = Arc::default();
    let config =
        || ApiConfig { response_shelf: Some(Arc::clone(&shelf) as Arc<dyn ResponseShelf>), ..ApiConfig::default() };
    let mut service = Service::start(config());
    let response = answered(&mut service, "", &json!({ "input": "hi" }), "ok").await;
    answered(&mut service, "", &json!({ "input": "hi", "store": false }), "ok").await;
    service.stop();
    service.stopped().await;
    shelf.put("broken", b"{").unwrap();
    let service = Service::start(config());
    let id = response["id"].as_str().unwrap();
    let found = exchange(&service, &request("GET", &format!("{PATH}/{id}"), "", "")).await;
    assert_eq!(found.json(), response);
    assert_eq!(shelf.0.lock().unwrap().keys().collect::<Vec<_>>(), [id], "what cannot be read is cleared away");
}

#[tokio::test]
async fn what_breaks_off_is_failed_and_not_kept() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, &json!({ "input": "hi", "stream": true }).to_string()).await;
    let updates = admit(service.call().await);
    updates.send(Update::Failed(Error::ShuttingDown)).await.unwrap();
    patient(client.head()).await;
    let events = patient(client.events()).await;
    let last: Value = serde_json::from_str(events.last().unwrap().split_once("data: ").unwrap().1).unwrap();
    assert_eq!((&last["type"], &last["response"]["status"]), (&json!("response.failed"), &json!("failed")));
    assert!(last["response"]["error"]["message"].as_str().unwrap().contains("shutting down"));
    let id = last["response"]["id"].as_str().unwrap();
    assert_eq!(exchange(&service, &request("GET", &format!("{PATH}/{id}"), "", "")).await.status, 404);
}
