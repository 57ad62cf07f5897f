//! A model of vectors as a process: the official client, many clients at once, and what is said of it.

use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::http;
use crate::program::{Server, output, root, run, text};

/// A file that `tests/fetch-models` makes; says aloud that a test is skipped where it is not there, but never in CI.
pub(crate) fn fetched(file: &str) -> Option<PathBuf> {
    let path = root().join("target/models").join(file);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{} must be there in CI: run tests/fetch-models", path.display());
    eprintln!("skipped: {} is not there, run tests/fetch-models", path.display());
    None
}

fn start(file: &str, flags: &[&str]) -> Option<Server> {
    let path = fetched(file)?;
    let path = path.to_str().expect("a name in Unicode");
    Some(Server::start(&[&[path], flags].concat()))
}

#[test]
fn openai_python_embeddings() {
    if !crate::clients::has_package("openai") {
        return;
    }
    let Some(server) = start("all-MiniLM-L6-v2.F32.gguf", &["--alias", "minilm,text-embedding-3-small"]) else {
        return;
    };
    let output = Command::new("python3")
        .arg(root().join("tests/clients/openai_embeddings.py"))
        .arg(format!("http://{}", server.address))
        .arg(root().join("tests/data/golden/all-minilm-l6-v2/texts.json"))
        .output()
        .expect("python3 runs");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success() && out.contains("all is well"), "{out}{err}");
}

#[test]
fn many_clients_have_the_vectors_that_they_would_have_alone() {
    let Some(server) = start("all-MiniLM-L6-v2.F32.gguf", &[]) else { return };
    let ask = |text: &String| -> Value {
        let response = http::post(server.address, "/v1/embeddings", &json!({ "input": text }));
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["data"][0]["embedding"].clone()
    };
    let texts: Vec<String> =
        (0..24).map(|number| format!("text number {number}, {}", "and more ".repeat(number))).collect();
    let alone: Vec<Value> = texts.iter().map(ask).collect();
    let together: Vec<Value> = std::thread::scope(|scope| {
        let ask = &ask;
        let clients: Vec<_> = texts.iter().map(|text| scope.spawn(move || ask(text))).collect();
        clients.into_iter().map(|client| client.join().expect("an answer")).collect()
    });
    assert_eq!(alone, together);
    let metrics = http::get(server.address, "/metrics").body;
    for line in ["paceline_embedded_texts_total{model=\"all-MiniLM-L6-v2.F32\"} 48", "paceline_model_loaded{model="] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    let status = http::get(server.address, "/admin/v1/status").json();
    assert_eq!(status["models"][0]["kind"], "vectors");
    assert_eq!(status["models"][0]["state"], "loaded");
    assert!(status["models"][0]["memory_bytes"].as_u64().expect("bytes") > 80 << 20);
    assert!(output(&["status", "--url", &format!("http://{}", server.address)]).contains("all-MiniLM-L6-v2.F32"));
    assert_eq!(server.end_by("-TERM"), Some(0));
}

#[test]
fn a_model_that_writes_texts_is_read_where_that_is_asked_for() {
    let server = Server::start(&["--pooling", "last", "--ctx", "64"]);
    let ask = |body: &Value| http::post(server.address, "/v1/embeddings", body);
    let answer = ask(&json!({ "input": "Hello!" }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let too_long = ask(&json!({ "input": "word ".repeat(200) }));
    assert_eq!((too_long.status, &too_long.json()["error"]["code"]), (400, &json!("context_length_exceeded")));
}

#[test]
fn a_model_that_writes_texts_makes_no_vectors_by_itself() {
    let server = Server::start(&[]);
    let refused = http::post(server.address, "/v1/embeddings", &json!({ "input": "Hello!" }));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (400, &json!("wrong_model")));
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("no model that makes vectors of texts, only tiny-hybrid"), "{message}");
    let named = http::post(server.address, "/v1/embeddings", &json!({ "model": "tiny-hybrid", "input": "Hello!" }));
    assert!(named.body.contains("it writes texts; ask it at /v1/chat/completions"), "{}", named.body);
}

#[test]
fn commands_that_need_texts_say_what_the_model_is() {
    let Some(path) = fetched("all-MiniLM-L6-v2.F32.gguf") else { return };
    let path = path.to_str().expect("a name in Unicode");
    for arguments in [&["run", path, "-p", "Hello"][..], &["plan", path]] {
        let refused = run(arguments);
        assert!(!refused.status.success());
        let error = text(&refused.stderr);
        assert!(error.contains("makes vectors of texts and writes none"), "{error}");
    }
    let refused = run(&["serve", path, "--port", "0", "--shards", "2"]);
    assert!(text(&refused.stderr).contains("runs in one stage"), "{}", text(&refused.stderr));
}

#[test]
fn a_cross_encoder_puts_documents_in_order() {
    let Some(server) = start("all-MiniLM-L6-v2-rank.F32.gguf", &["--alias", "ranker"]) else { return };
    let ask = |body: &Value| http::post(server.address, "/v1/rerank", body);
    let pairs = std::fs::read(root().join("tests/data/golden/all-minilm-l6-v2/pairs.json")).expect("golden data");
    let pairs: Vec<Value> = serde_json::from_slice(&pairs).expect("JSON");
    let (query, documents) =
        (&pairs[0]["query"], [&pairs[0]["document"], &pairs[1]["document"], &pairs[2]["document"]]);
    let answer = ask(&json!({ "model": "ranker", "query": query, "documents": documents, "return_documents": true }));
    assert_eq!(answer.status, 200, "{}", answer.body);
    let (answer, tokens) =
        (answer.json(), pairs[..3].iter().map(|pair| pair["tokens"].as_array().expect("tokens").len()));
    assert_eq!(answer["usage"]["prompt_tokens"], tokens.sum::<usize>());
    let results = answer["results"].as_array().expect("results");
    let scores: Vec<f64> = results.iter().map(|told| told["relevance_score"].as_f64().expect("a score")).collect();
    assert!(scores.is_sorted_by(|one, other| one >= other) && scores.iter().all(|score| (0.0..=1.0).contains(score)));
    for told in results {
        let index = told["index"].as_u64().expect("an index") as usize;
        assert_eq!(&told["document"]["text"], documents[index]);
    }
    let first = ask(
        &json!({ "query": query, "documents": [{ "text": documents[0] }, documents[1]], "top_n": 1, "raw_scores": true }),
    );
    assert_eq!(first.json()["results"].as_array().expect("results").len(), 1);
    assert!(first.json()["results"][0].get("document").is_none());

    for (body, code, problem) in [
        (json!({ "documents": ["a"] }), "invalid_value", "query is missing or empty"),
        (json!({ "query": "a" }), "invalid_value", "documents is missing"),
        (json!({ "query": "a", "documents": [] }), "invalid_value", "from 1 to 2048"),
        (json!({ "query": "a", "documents": [5] }), "invalid_value", "documents"),
        (json!({ "query": "a", "documents": ["b"], "top_n": 0 }), "invalid_value", "top_n"),
        (json!({ "query": "a", "documents": ["b", "word ".repeat(600)] }), "context_length_exceeded", "documents[1]"),
        (
            json!({ "query": "word ".repeat(600), "documents": ["b"], "truncate": true }),
            "context_length_exceeded",
            "512",
        ),
    ] {
        let refused = ask(&body);
        let error = &refused.json()["error"];
        assert_eq!((refused.status, &error["code"]), (400, &json!(code)), "{body}: {}", refused.body);
        assert!(error["message"].to_string().contains(problem), "{}", refused.body);
    }
    let cut = ask(&json!({ "query": "a", "documents": ["word ".repeat(600)], "truncate": true }));
    assert_eq!(cut.status, 200, "{}", cut.body);
    let vectors = http::post(server.address, "/v1/embeddings", &json!({ "input": "a" }));
    assert_eq!((vectors.status, &vectors.json()["error"]["code"]), (400, &json!("wrong_model")));
}

#[test]
fn vectors_are_not_passed_off_as_ranks() {
    let Some(server) = start("all-MiniLM-L6-v2.F32.gguf", &["--alias", "minilm"]) else { return };
    for path in ["/v1/rerank", "/v2/rerank", "/rerank"] {
        for model in ["minilm", ""] {
            let body = json!({ "model": model, "query": "a", "documents": ["b"] });
            let refused = http::post(server.address, path, &body);
            let error = &refused.json()["error"];
            assert_eq!((refused.status, &error["code"]), (400, &json!("wrong_model")), "{}", refused.body);
            assert!(error["message"].to_string().contains("a cross-encoder with a classifier"), "{}", refused.body);
        }
    }
}
