//! Changes of the row: what is passed on, and how reports and refusals look.

use std::sync::{Arc, Mutex};

use paceline_api::{
    ApiConfig, ApiKey, ApiKeys, ScaleAction, ScaleError, ScaleOutcome, ScaleReport, ScaleRequest, Scaled, Scaling,
    StageShare,
};
use serde_json::json;

use crate::harness::Service;

/// Answers each request with what the test has prepared.
#[derive(Default)]
struct Played {
    requests: Mutex<Vec<ScaleRequest>>,
    answers: Mutex<Vec<Result<ScaleReport, ScaleError>>>,
}

impl Scaling for Played {
    fn scale(&self, request: ScaleRequest) -> Scaled {
        self.requests.lock().unwrap().push(request);
        let answer = self.answers.lock().unwrap().pop().expect("an answer is prepared");
        Box::pin(async { answer })
    }
}

fn service(answers: Vec<Result<ScaleReport, ScaleError>>) -> (Service, Arc<Played>) {
    let played = Arc::new(Played { answers: Mutex::new(answers), ..Played::default() });
    let scaling: Arc<dyn Scaling> = Arc::clone(&played) as _;
    (Service::start(ApiConfig { scaling: Some(scaling), ..ApiConfig::default() }), played)
}

#[tokio::test]
async fn a_change_is_passed_on_and_its_report_comes_back() {
    let report = ScaleReport {
        action: ScaleAction::Drain,
        outcome: ScaleOutcome::Moved,
        reason: None,
        epochs: Some([3, 4]),
        before: vec![StageShare { node: "a1".to_owned(), host: "attic".to_owned(), layers: 0..8 }],
        after: Vec::new(),
        bytes_fetched: 7,
        bytes_copied: 5,
        pause_millis: Some(1.5),
    };
    let (service, played) = service(vec![Ok(report)]);
    let answer = service.exchange("/admin/v1/scale", r#"{"action": "drain", "nodes": ["a1", "attic"]}"#).await;
    assert_eq!(answer.status, 200);
    let expected = json!({
        "action": "drain", "outcome": "moved", "epochs": [3, 4], "bytes_fetched": 7, "bytes_copied": 5,
        "before": [{ "node": "a1", "host": "attic", "layers": { "start": 0, "end": 8 } }], "after": [],
        "pause_millis": 1.5,
    });
    assert_eq!(answer.json(), expected);
    let nodes = vec!["a1".to_owned(), "attic".to_owned()];
    assert_eq!(*played.requests.lock().unwrap(), [ScaleRequest { action: ScaleAction::Drain, nodes }]);
}

#[tokio::test]
async fn refusals_are_typed() {
    let name = "x".to_owned();
    for (error, status, code) in [
        (ScaleError::NotNow("busy".to_owned()), 409, "not_now"),
        (ScaleError::UnknownNode { name: name.clone() }, 404, "node_not_found"),
        (ScaleError::Ambiguous { name, count: 2 }, 400, "ambiguous_node"),
        (ScaleError::Impossible("no room".to_owned()), 422, "impossible"),
        (ScaleError::ShuttingDown, 503, "shutting_down"),
    ] {
        let message = error.to_string();
        let (service, _) = service(vec![Err(error)]);
        let answer = service.exchange("/admin/v1/scale", r#"{"action": "add"}"#).await;
        assert_eq!(answer.status, status);
        let error = &answer.json()["error"];
        assert_eq!((&error["code"], &error["message"]), (&json!(code), &json!(message)));
    }
}

#[tokio::test]
async fn requests_that_say_nothing_sensible_are_not_passed_on() {
    let (service, played) = service(Vec::new());
    for body in [
        "{}",
        r#"{"action": "halve"}"#,
        r#"{"action": "add", "nodes": "a"}"#,
        r#"{"action": "rebalance", "nodes": ["a"]}"#,
        "[]",
    ] {
        assert_eq!(service.exchange("/admin/v1/scale", body).await.status, 400, "{body}");
    }
    assert_eq!(service.get("/admin/v1/scale").await.status, 405);
    assert!(played.requests.lock().unwrap().is_empty());
}

#[tokio::test]
async fn nobody_changes_the_row_without_a_key_or_where_there_is_none() {
    let service = Service::start(ApiConfig::default());
    let answer = service.exchange("/admin/v1/scale", r#"{"action": "add"}"#).await;
    assert_eq!((answer.status, &answer.json()["error"]["code"]), (422, &json!("impossible")));
    let service = Service::start(ApiConfig { api_keys: ApiKeys::new([ApiKey::new("secret")]), ..ApiConfig::default() });
    assert_eq!(service.exchange("/admin/v1/scale", r#"{"action": "add"}"#).await.status, 401);
}
