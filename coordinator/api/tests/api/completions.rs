//! Text completions.

use paceline_api::ApiConfig;
use paceline_coordinator::{FinishReason, Update};
use paceline_proto::{Logprobs, TokenLogprob};
use serde_json::{Value, json};

use crate::harness::{Service, admit, answer, finished, patient, timeless, tokens_of};

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn a_continuation_in_one_piece() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, r#"{"prompt": "ab", "max_tokens": 2}"#).await;
    let call = service.call().await;
    assert_eq!((call.request.prompt.as_slice(), call.request.max_tokens), ([97, 98].as_slice(), Some(2)));
    answer(call, "cd", FinishReason::Length).await;
    let mut response = timeless(patient(client.response()).await.json());
    assert!(response["timings"].take().is_object());
    let expected = json!({
        "id": "cmpl-ID",
        "object": "text_completion",
        "created": 0,
        "model": "played",
        "system_fingerprint": concat!("paceline-", env!("CARGO_PKG_VERSION")),
        "choices": [{ "index": 0, "text": "cd", "logprobs": null, "finish_reason": "length" }],
        "usage": {
            "prompt_tokens": 2,
            "completion_tokens": 2,
            "total_tokens": 4,
            "prompt_tokens_details": { "cached_tokens": 2 },
            "completion_tokens_details": {
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
                "reasoning_tokens": 0,
            },
        },
        "timings": null,
    });
    assert_eq!(response, expected);
}

#[tokio::test]
async fn prompts_come_in_four_forms() {
    let mut service = Service::start(ApiConfig::default());
    for (prompt, expected) in [
        (json!("ab"), vec![vec![97, 98]]),
        (json!(["ab", "c<|im_end|>"]), vec![vec![97, 98], vec![99, 257]]),
        (json!([0, 259]), vec![vec![0, 259]]),
        (json!([[97], [98, 99]]), vec![vec![97], vec![98, 99]]),
    ] {
        let mut client = service.post(PATH, &json!({ "prompt": prompt, "return_token_ids": true }).to_string()).await;
        for (index, tokens) in expected.iter().enumerate() {
            let call = service.call().await;
            assert_eq!(&call.request.prompt, tokens);
            answer(call, &index.to_string(), FinishReason::EndToken).await;
        }
        let response = patient(client.response()).await.json();
        for (index, tokens) in expected.iter().enumerate() {
            let choice = &response["choices"][index];
            assert_eq!((&choice["text"], &choice["prompt_token_ids"]), (&json!(index.to_string()), &json!(tokens)));
        }
    }
}

#[tokio::test]
async fn every_prompt_has_all_its_choices() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, r#"{"prompt": ["a", "b"], "n": 2}"#).await;
    for (prompt, choice) in [(97, 0), (97, 1), (98, 0), (98, 1)] {
        let call = service.call().await;
        assert_eq!((call.request.prompt[0], call.request.sampling.choice), (prompt, choice));
        answer(call, &format!("{prompt}{choice}"), FinishReason::EndToken).await;
    }
    let response = patient(client.response()).await.json();
    let texts = [0, 1, 2, 3].map(|index| response["choices"][index]["text"].as_str().unwrap().to_owned());
    assert_eq!(texts, ["970", "971", "980", "981"]);
    assert_eq!(response["usage"]["prompt_tokens"], 2, "each prompt counts once");
}

/// `a`, half a character, its other half, `b`; each with itself and `a` as alternatives.
async fn play_log_probabilities(service: &mut Service) {
    let call = service.call().await;
    assert_eq!(call.request.sampling.logprobs, Some(2));
    let session = admit(call);
    for mut update in tokens_of("aéb") {
        let itself = TokenLogprob { token: update.token, logprob: -1.0 };
        let top = vec![itself, TokenLogprob { token: 97, logprob: -2.0 }];
        update.logprobs = Some(Box::new(Logprobs { chosen: -1.0, top }));
        session.send(Update::Token(update)).await.unwrap();
    }
    session.send(finished(FinishReason::EndToken, 1, 4)).await.unwrap();
}

#[tokio::test]
async fn log_probabilities_whole_and_as_events() {
    let mut service = Service::start(ApiConfig::default());
    let mut client = service.post(PATH, r#"{"prompt": "x", "logprobs": 2}"#).await;
    play_log_probabilities(&mut service).await;
    let response = patient(client.response()).await.json();
    let expected = json!({
        "tokens": ["a", "bytes:\\xc3", "bytes:\\xa9", "b"],
        "token_logprobs": [-1.0, -1.0, -1.0, -1.0],
        "top_logprobs": [
            { "a": -2.0 },
            { "bytes:\\xc3": -1.0, "a": -2.0 },
            { "bytes:\\xa9": -1.0, "a": -2.0 },
            { "b": -1.0, "a": -2.0 },
        ],
        "text_offset": [0, 1, 2, 2],
    });
    assert_eq!(response["choices"][0]["logprobs"], expected);

    let mut client = service.post(PATH, r#"{"prompt": "x", "logprobs": 2, "stream": true}"#).await;
    play_log_probabilities(&mut service).await;
    patient(client.head()).await;
    let events = patient(client.events()).await;
    let events: Vec<Value> = events[..4].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    for field in ["tokens", "token_logprobs", "top_logprobs", "text_offset"] {
        let told: Vec<_> = events.iter().map(|event| event["choices"][0]["logprobs"][field][0].clone()).collect();
        assert_eq!(Value::from(told), expected[field], "{field}");
    }
}

#[tokio::test]
async fn a_continuation_as_events() {
    let mut service = Service::start(ApiConfig::default());
    let body =
        r#"{"prompt": "x", "stream": true, "stream_options": {"include_usage": true}, "return_token_ids": true}"#;
    let mut client = service.post(PATH, body).await;
    answer(service.call().await, "yz", FinishReason::EndToken).await;
    patient(client.head()).await;
    let mut events = patient(client.events()).await;
    assert_eq!(events.pop().as_deref(), Some("[DONE]"));
    let mut events: Vec<Value> = events.iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    assert_eq!(events.pop().unwrap()["usage"]["total_tokens"], 3);
    let choices: Vec<Value> = events.iter_mut().map(|event| event["choices"][0].take()).collect();
    let first = json!({
        "index": 0, "text": "y", "logprobs": null, "finish_reason": null, "prompt_token_ids": [120], "token_ids": [121],
    });
    let second = json!({ "index": 0, "text": "z", "logprobs": null, "finish_reason": null, "token_ids": [122] });
    let last = json!({ "index": 0, "text": "", "logprobs": null, "finish_reason": "stop" });
    assert_eq!(choices, [first, second, last]);
}
