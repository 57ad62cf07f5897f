//! What is told of the cache, and which text a change is about.

use paceline_api::ApiConfig;
use paceline_coordinator::{CacheList, CacheStatus, CachedPath};
use serde_json::json;

use crate::harness::Service;

const PATH: &str = "/admin/v1/cache";

/// A service that remembers a conversation and a short text.
fn service() -> Service {
    let service = Service::start(ApiConfig::default());
    let tokens = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    let conversation = CachedPath {
        tokens: 900,
        begins: [vec![256], tokens("user\nh\u{e9}")].concat(),
        ends: tokens("bye"),
        snapshots: vec![64, 890],
        pages: 15,
        reuses: 2,
        pinned: true,
    };
    let text = CachedPath { tokens: 2, begins: tokens("Hi"), pages: 1, ..CachedPath::default() };
    *service.played.cache.lock().unwrap() = CacheList { paths: vec![conversation, text], left_off: 3 };
    service.played.status.lock().unwrap().cache =
        CacheStatus { lookups: 5, hits: 4, cached_tokens: 800, pages: 16, page_bytes: 1600, ..CacheStatus::default() };
    service
}

#[tokio::test]
async fn what_is_remembered_is_told_as_text() {
    let service = service();
    let report = service.get(PATH).await.json();
    assert_eq!(report["totals"]["cached_tokens"], 800);
    let expected = json!([
        {
            "tokens": 900, "begins": "<|im_start|>user\nh\u{e9}", "ends": "bye", "snapshots": [64, 890], "pages": 15,
            "reuses": 2, "pinned": true,
        },
        { "tokens": 2, "begins": "Hi", "snapshots": [], "pages": 1, "reuses": 0, "pinned": false },
    ]);
    assert_eq!((&report["paths"], &report["left_off"]), (&expected, &json!(3)));
    let report = service.get("/admin/v1/cache?limit=1").await.json();
    assert_eq!((report["paths"].as_array().unwrap().len(), &report["left_off"]), (1, &json!(4)));
    for bad in ["limit=501", "limit=-1", "limit=x"] {
        let response = service.get(&format!("{PATH}?{bad}")).await;
        assert_eq!((response.status, &response.json()["error"]["param"]), (400, &json!("limit")), "{bad}");
    }
}

#[tokio::test]
async fn a_change_is_about_a_text_tokens_or_a_conversation() {
    let service = service();
    for (body, tokens, cached) in [
        (json!({ "prompt": "Hi there" }), 8, 2),
        (json!({ "prompt": [72, 105] }), 2, 2),
        // Without what opens the answer.
        (json!({ "messages": [{ "role": "user", "content": "h\u{e9}" }] }), 11, 9),
    ] {
        for action in ["pin", "unpin", "drop"] {
            let response = service.exchange(&format!("{PATH}/{action}"), &body.to_string()).await;
            let changed = json!({ "tokens": tokens, "cached": cached, "pages": 0, "snapshots": 0, "on_disk": false });
            assert_eq!((response.status, response.json()), (200, changed), "{action} {body}");
        }
    }
}

#[tokio::test]
async fn what_cannot_be_changed_is_told_apart() {
    let service = service();
    for (body, status, code, param) in [
        (json!({ "prompt": "nothing" }), 404, "not_cached", json!(null)),
        (json!({}), 400, "invalid_value", json!("prompt")),
        (json!({ "prompt": [] }), 400, "invalid_value", json!("prompt")),
        (json!({ "prompt": "" }), 400, "invalid_value", json!("prompt")),
        (json!({ "prompt": [260] }), 400, "invalid_value", json!("prompt[0]")),
        (json!({ "prompt": "a", "messages": [] }), 400, "invalid_value", json!("prompt")),
        (json!({ "messages": [] }), 400, "invalid_value", json!("messages")),
    ] {
        let response = service.exchange(&format!("{PATH}/pin"), &body.to_string()).await;
        let error = &response.json()["error"];
        assert_eq!((response.status, &error["code"], &error["param"]), (status, &json!(code), &param), "{body}");
    }
    assert_eq!(service.get("/admin/v1/cache/pin").await.status, 405);
}
