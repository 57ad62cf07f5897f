//! The small pages, and who may see them.

use metrics_exporter_prometheus::PrometheusBuilder;
use paceline_api::{ApiConfig, ApiKey, ApiKeys, SERVICE, StatusReport};
use paceline_coordinator::placement::{MemoryBytes, StageMemory};
use paceline_coordinator::{CacheStatus, DraftStatus, FinishReason, LinkCard, StageCard, StageStatus, Status};
use serde_json::json;

use crate::client::Client;
use crate::harness::{Service, VOCABULARY, answer, patient};

#[tokio::test]
async fn the_model_is_listed_and_found_by_both_names() {
    let service = Service::start(ApiConfig::default());
    let list = service.get("/v1/models").await.json();
    let model = &list["data"][0];
    assert_eq!((&list["object"], &model["id"], &model["object"]), (&json!("list"), &json!("played"), &json!("model")));
    assert_eq!((&model["max_model_len"], &model["meta"]["n_vocab"]), (&json!(4096), &json!(VOCABULARY)));
    assert_eq!(&service.get("/v1/models/played").await.json(), model);
    assert_eq!(&service.get("/v1/models/other/name").await.json(), model);
}

#[tokio::test]
async fn texts_and_tokens() {
    let service = Service::start(ApiConfig::default());
    for (body, answer) in [
        (r#"{"content": "aé"}"#, json!({ "tokens": [97, 195, 169], "count": 3 })),
        (r#"{"prompt": "a<|im_end|>", "add_special": true}"#, json!({ "tokens": [97, 257], "count": 2 })),
        (r#"{"content": "<|", "parse_special": false}"#, json!({ "tokens": [60, 124], "count": 2 })),
        (
            r#"{"content": "aé", "with_pieces": true}"#,
            json!({
                "tokens": [{ "id": 97, "piece": "a" }, { "id": 195, "piece": [195] }, { "id": 169, "piece": [169] }],
                "count": 3,
            }),
        ),
        (r#"{"content": ""}"#, json!({ "tokens": [], "count": 0 })),
    ] {
        assert_eq!(service.exchange("/tokenize", body).await.json(), answer, "{body}");
    }
    let conversation = r#"{"messages": [{"role": "user", "content": "a"}]}"#;
    let answer = service.exchange("/tokenize", conversation).await.json();
    assert_eq!(answer["count"], "(user\na)\n(assistant\n".len());
    for (body, content) in [
        (r#"{"tokens": [97, 195, 169, 257]}"#, "aé<|im_end|>"),
        (r#"{"tokens": [195]}"#, "\u{fffd}"),
        (r#"{"tokens": []}"#, ""),
    ] {
        assert_eq!(service.exchange("/detokenize", body).await.json(), json!({ "content": content }), "{body}");
    }
}

#[tokio::test]
async fn health_follows_the_engine() {
    let service = Service::start(ApiConfig::default());
    let set = |status| *service.played.status.lock().unwrap() = status;
    set(Status { ready: true, running: 2, waiting: 1, ..Status::default() });
    let response = service.get("/health").await;
    assert_eq!((response.status, response.json()), (200, json!({ "status": "ok", "running": 2, "waiting": 1 })));
    set(Status::default());
    let response = service.get("/health").await;
    assert_eq!((response.status, response.json()), (503, json!({ "status": "loading", "running": 0, "waiting": 0 })));
}

/// Two stages, the first with a name that tries to break out of its quotes.
fn busy_status() -> Status {
    let weights = MemoryBytes { weights: 100, ..MemoryBytes::default() };
    let link = LinkCard { carrier: "quic".to_owned(), round_trip_micros: Some(250), bytes_per_second: None };
    let card = StageCard {
        host: "a\"\n\\b".to_owned(),
        device: "cpu".to_owned(),
        layers: 0..4,
        memory: StageMemory { planned: weights, actual: weights },
        link: Some(link),
        ..StageCard::default()
    };
    let last = StageCard { index: 1, host: "far".to_owned(), device: "cpu".to_owned(), ..StageCard::default() };
    let first = StageStatus { card, steps: 7, busy_micros: 2_500_000, idle_micros: 1, sent_bytes: 4096 };
    let stages = vec![first, StageStatus { card: last, ..StageStatus::default() }];
    Status { ready: true, epoch: 4, credit_wait_seconds: 1.5, uptime_seconds: 60.25, stages, ..Status::default() }
}

#[tokio::test]
async fn the_status_says_what_every_stage_holds_and_does() {
    let service = Service::start(ApiConfig::default());
    *service.played.status.lock().unwrap() = busy_status();
    let response = service.get("/admin/v1/status").await;
    assert_eq!(response.status, 200);
    let report: StatusReport = serde_json::from_str(&response.body).unwrap();
    assert_eq!((report.service.as_str(), report.model.as_str(), report.context), (SERVICE, "played", 4096));
    assert_eq!(report.status, busy_status());
    let stage = &response.json()["stages"][0];
    assert_eq!((&stage["layers"], &stage["busy_micros"]), (&json!({ "start": 0, "end": 4 }), &json!(2_500_000)));
    assert_eq!(stage["link"]["carrier"], "quic");
    assert_eq!(service.exchange("/admin/v1/status", "{}").await.status, 405);
}

fn remembered() -> CacheStatus {
    CacheStatus {
        hits: 4,
        reread_tokens: 7,
        snapshots: 3,
        snapshot_bytes: 900,
        evicted_pages: 2,
        ..CacheStatus::default()
    }
}

#[tokio::test]
async fn requests_and_the_engine_are_measured() {
    // The recorder is the process's, so other tests are counted too, on other pages.
    let handle = PrometheusBuilder::new().install_recorder().unwrap();
    let mut service = Service::start(ApiConfig { metrics: Some(handle), ..ApiConfig::default() });
    *service.played.status.lock().unwrap() = Status {
        running: 3,
        decode_tokens: 77,
        steps: 9,
        drafts: DraftStatus { run: 8, accepted: 5, sent_ahead: 4, void: 1, ..DraftStatus::default() },
        cache: remembered(),
        ..busy_status()
    };
    assert_eq!(service.get("/no/such/page").await.status, 404);
    let mut client = service.post("/v1/completions", r#"{"prompt": "a"}"#).await;
    answer(service.call().await, "b", FinishReason::EndToken).await;
    patient(client.response()).await;
    let metrics = service.get("/metrics").await.body;
    for line in [
        "paceline_sessions_running 3",
        "paceline_decode_tokens_total 77",
        "paceline_drafts_total 8",
        "paceline_drafts_accepted_total 5",
        "paceline_draft_chunks_sent_ahead_total 4",
        "paceline_draft_chunks_void_total 1",
        r#"paceline_http_requests_total{endpoint="none",status="404"}"#,
        r#"paceline_http_requests_total{endpoint="/v1/completions",status="200"}"#,
        r#"paceline_http_request_seconds_count{endpoint="/v1/completions"}"#,
        "paceline_http_requests_in_flight",
        "paceline_steps_total 9",
        r#"paceline_cache_hits_total{tier="device"} 4"#,
        "paceline_cache_reread_tokens_total 7",
        r#"paceline_cache_entries{tier="device",kind="snapshot"} 3"#,
        r#"paceline_cache_bytes{tier="device",kind="snapshot"} 900"#,
        r#"paceline_cache_evictions_total{tier="device",kind="page"} 2"#,
        "# TYPE paceline_credit_wait_seconds_total counter\npaceline_credit_wait_seconds_total 1.5",
        "# TYPE paceline_stage_busy_seconds_total counter",
        r#"paceline_stage_busy_seconds_total{stage="0",host="a\"\n\\b",device="cpu"} 2.5"#,
        r#"paceline_stage_busy_seconds_total{stage="1",host="far",device="cpu"} 0"#,
        r#"paceline_stage_idle_seconds_total{stage="0",host="a\"\n\\b",device="cpu"} 0.000001"#,
        r#"paceline_stage_sent_bytes_total{stage="0",host="a\"\n\\b",device="cpu"} 4096"#,
        r#"paceline_stage_steps_total{stage="0",host="a\"\n\\b",device="cpu"} 7"#,
        r#"paceline_link_round_trip_seconds{stage="0",host="a\"\n\\b",device="cpu"} 0.00025"#,
        r#"paceline_stage_memory_bytes{stage="0",host="a\"\n\\b",device="cpu",kind="weights"} 100"#,
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
}

#[tokio::test]
async fn without_a_recorder_there_is_no_metrics_page() {
    assert_eq!(Service::start(ApiConfig::default()).get("/metrics").await.status, 404);
}

#[tokio::test]
async fn the_first_page_lists_the_others() {
    let body = Service::start(ApiConfig::default()).get("/").await.body;
    for path in [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/models",
        "/tokenize",
        "/detokenize",
        "/health",
        "/metrics",
        "/admin/v1/status",
    ] {
        assert!(body.contains(path), "{path} is not in\n{body}");
    }
}

#[tokio::test]
async fn keys_open_everything_but_health_and_the_page_which_are_open() {
    let api_keys = ApiKeys::new(["secret", "other"].map(ApiKey::new));
    let service = Service::start(ApiConfig { api_keys, ..ApiConfig::default() });
    for (path, key, status) in [
        ("/v1/models", "", 401),
        ("/", "", 200),
        ("/page/main.js", "", 200),
        ("/no/such/page", "", 401),
        ("/admin/v1/status", "", 401),
        ("/metrics", "", 401),
        ("/admin/v1/status", "Authorization: Bearer secret\r\n", 200),
        ("/v1/models", "Authorization: Bearer wrong\r\n", 401),
        ("/v1/models", "Authorization: Bearer secret\r\n", 200),
        ("/v1/models", "X-Api-Key: other\r\n", 200),
        ("/health", "", 200),
    ] {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n{key}\r\n");
        let response = patient(Client::send(service.address, request.as_bytes()).await.response()).await;
        assert_eq!(response.status, status, "{path} {key}");
        if status == 401 {
            assert_eq!(response.header("www-authenticate"), Some("Bearer"));
            assert_eq!(response.json()["error"]["code"], "invalid_api_key");
        }
    }
}

#[tokio::test]
async fn every_page_is_described() {
    let service = Service::start(ApiConfig::default());
    let description = service.get("/openapi.json").await.json();
    let listed = service.get("/").await.body;
    let pages = listed.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        Some((words.next().filter(|word| ["GET", "POST"].contains(word))?.to_lowercase(), words.next()?))
    });
    let mut count = 0;
    for (method, path) in pages {
        assert!(description["paths"][path][&method].is_object(), "{method} {path} is not described");
        count += 1;
    }
    assert!(count > 15, "only {count} pages are listed");
    // Every reference leads somewhere.
    let text = description.to_string();
    for reference in text.split("\"$ref\":\"#").skip(1) {
        let pointer = reference.split('"').next().unwrap();
        assert!(description.pointer(pointer).is_some(), "{pointer} leads nowhere");
    }
}
