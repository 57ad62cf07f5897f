//! Clients that leave, stall or stay too long. Whatever they do, their sessions end.

use std::time::Duration;

use paceline_api::ApiConfig;
use paceline_coordinator::testing::Call;
use paceline_coordinator::{FinishReason, TokenUpdate, Update};

use crate::harness::{Service, admit, finished, patient, tokens_of};

/// Requests of all kinds, streamed or not.
const REQUESTS: [(&str, &str); 4] = [
    ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "hi"}], "stream": false}"#),
    ("/v1/chat/completions", r#"{"messages": [{"role": "user", "content": "hi"}], "stream": true}"#),
    ("/v1/completions", r#"{"prompt": "hi", "stream": false}"#),
    ("/v1/completions", r#"{"prompt": "hi", "stream": true}"#),
];

/// A server that writes nothing of its own accord, so that only the end of the connection can be what is noticed.
fn silent() -> Service {
    Service::start(ApiConfig { comment_interval: Duration::from_secs(3600), ..ApiConfig::default() })
}

#[tokio::test]
async fn who_leaves_the_queue_is_forgotten() {
    let mut service = silent();
    for (path, body) in REQUESTS {
        let client = service.post(path, body).await;
        let Call { mut answer, .. } = service.call().await;
        drop(client);
        patient(answer.closed()).await;
    }
}

#[tokio::test]
async fn who_leaves_in_prefill_is_forgotten() {
    let mut service = silent();
    for (path, body) in REQUESTS {
        let mut client = service.post(path, body).await;
        let session = admit(service.call().await);
        if body.contains("\"stream\": true") {
            patient(client.head()).await;
        }
        drop(client);
        patient(session.closed()).await;
    }
}

#[tokio::test]
async fn who_leaves_in_the_middle_is_forgotten() {
    let mut service = silent();
    for (path, body) in REQUESTS {
        let mut client = service.post(path, body).await;
        let session = admit(service.call().await);
        session.send(Update::Token(tokens_of("a").remove(0))).await.unwrap();
        if body.contains("\"stream\": true") {
            patient(client.head()).await;
            while !patient(client.chunk()).await.unwrap().contains("\"a\"") {}
        }
        drop(client);
        patient(session.closed()).await;
    }
}

#[tokio::test]
async fn all_choices_leave_together() {
    let mut service = silent();
    for stream in ["true", "false"] {
        let body = format!(r#"{{"prompt": "hi", "n": 3, "stream": {stream}}}"#);
        let client = service.post("/v1/completions", &body).await;
        let running = admit(service.call().await);
        let (mut second, mut third) = (service.call().await, service.call().await);
        drop(client);
        patient(running.closed()).await;
        patient(second.answer.closed()).await;
        patient(third.answer.closed()).await;
    }
}

#[tokio::test]
async fn one_refused_choice_ends_all() {
    let mut service = silent();
    let mut client = service.post("/v1/completions", r#"{"prompt": "hi", "n": 2}"#).await;
    let running = admit(service.call().await);
    drop(service.call().await);
    let response = patient(client.response()).await;
    assert_eq!((response.status, &response.json()["error"]["code"]), (503, &"shutting_down".into()));
    patient(running.closed()).await;
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let mut service = Service::start(ApiConfig { comment_interval: Duration::from_millis(1), ..ApiConfig::default() });
    let mut client = service.post("/v1/completions", r#"{"prompt": "hi", "stream": true}"#).await;
    let session = admit(service.call().await);
    patient(client.head()).await;
    for _ in 0..3 {
        assert!(patient(client.chunk()).await.unwrap().starts_with(": "));
    }
    session.send(finished(FinishReason::EndToken, 2, 0)).await.unwrap();
    let events = patient(client.events()).await;
    assert_eq!(events.last().map(String::as_str), Some("[DONE]"));
}

#[tokio::test]
async fn who_reads_nothing_is_given_up() {
    let mut service = Service::start(ApiConfig { stall_timeout: Duration::from_millis(50), ..ApiConfig::default() });
    let _client = service.post("/v1/completions", r#"{"prompt": "hi", "stream": true}"#).await;
    let session = admit(service.call().await);
    let update = || TokenUpdate { token: 97, text: "a".repeat(1 << 16), marks: Vec::new(), logprobs: None };
    // Fills the buffers of both sockets; ends when the session is dropped.
    let feed = async { while session.send(Update::Token(update())).await.is_ok() {} };
    patient(feed).await;
}

#[tokio::test]
async fn answers_may_end_after_the_server_was_stopped() {
    let mut service = silent();
    let mut client = service.post("/v1/completions", r#"{"prompt": "hi", "stream": true}"#).await;
    let session = admit(service.call().await);
    patient(client.head()).await;
    service.stop();
    session.send(Update::Token(tokens_of("a").remove(0))).await.unwrap();
    session.send(finished(FinishReason::EndToken, 2, 1)).await.unwrap();
    let events = patient(client.events()).await;
    assert_eq!(events.len(), 3);
    service.stopped().await;
}

#[tokio::test]
async fn a_stopped_server_does_not_wait_forever() {
    let mut service = Service::start(ApiConfig { shutdown_timeout: Duration::from_secs(1), ..ApiConfig::default() });
    let mut client = service.post("/v1/completions", r#"{"prompt": "hi", "stream": true}"#).await;
    let session = admit(service.call().await);
    patient(client.head()).await;
    service.stop();
    service.stopped().await;
    patient(session.closed()).await;
    assert_eq!(patient(client.chunk()).await, None);
}
