//! Many models on one port: found by name, loaded when asked for, let go when others need their memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::embeddings::fetched;
use crate::http;
use crate::program::{Server, output, root, run, text};

/// How often two models take turns; more by hand.
fn rounds() -> usize {
    std::env::var("PACELINE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(10)
}

fn tiny() -> PathBuf {
    root().join("cluster/models/tiny-hybrid-mtp-q8_0.gguf")
}

/// A service of the models of a configuration file.
fn serve(text: &str, flags: &[&str]) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("models.toml");
    std::fs::write(&path, text).expect("a file");
    let path = path.to_str().expect("a name in Unicode");
    (Server::start(&[&["--config", path], flags].concat()), folder)
}

fn table(name: &str, model: &Path, more: &str) -> String {
    format!("[models.{name}]\nmodel = {model:?}\nctx = 512\nsessions = 2\ncache-ram = \"8M\"\n{more}\n")
}

fn chat(server: &Server, model: &str, text: &str) -> http::Response {
    let body = json!({
        "model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24,
    });
    http::post(server.address, "/v1/chat/completions", &body)
}

/// What the service says of a model.
fn told(server: &Server, model: &str) -> Value {
    let models = http::get(server.address, "/v1/models").json();
    let found = models["data"].as_array().expect("models").iter().find(|told| told["id"] == model).cloned();
    found.unwrap_or_else(|| panic!("no {model} in {models}"))
}

fn await_state(server: &Server, model: &str, state: &str) {
    let begun = Instant::now();
    while told(server, model)["state"] != state {
        assert!(begun.elapsed() < Duration::from_secs(60), "{model} is still {}", told(server, model)["state"]);
    }
}

/// Room for one of these models and a half.
fn one_and_a_half(text: &str, model: &str) -> String {
    let (server, _folder) = serve(text, &[]);
    let memory = told(&server, model)["meta"]["memory"].as_u64().expect("bytes");
    (memory * 3 / 2).to_string()
}

#[test]
fn two_models_that_do_not_fit_together_take_turns() {
    let text = [table("one", &tiny(), ""), table("two", &tiny(), "alias = ['second']")].concat();
    let room = one_and_a_half(&text, "one");
    let (server, _folder) = serve(&text, &["--models-memory", &room]);
    let question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";
    let mut said = Vec::new();
    for round in 0..2 * rounds() {
        let model = ["one", "second"][round % 2];
        let answer = chat(&server, model, question);
        assert_eq!(answer.status, 200, "round {round}: {}", answer.body);
        said.push(answer.json()["choices"][0]["message"]["content"].clone());
        let states = ["one", "two"].map(|model| told(&server, model)["state"].clone());
        assert_eq!(states[round % 2], "loaded");
        assert_ne!(states[(round + 1) % 2], "loaded", "both at once");
    }
    assert!(said.iter().all(|answer| answer == &said[0]), "{said:?}");
    let metrics = http::get(server.address, "/metrics").body;
    let loads = format!("paceline_model_loads_total{{model=\"one\",result=\"loaded\"}} {}", rounds());
    assert!(metrics.contains(&loads), "{loads}: {metrics}");
    assert_eq!(server.end_by("-TERM"), Some(0));
}

#[test]
fn names_find_their_model_and_others_are_told_what_there_is() {
    let text = [table("one", &tiny(), "alias = ['first']"), table("two", &tiny(), "")].concat();
    let (server, _folder) = serve(&text, &[]);
    for (name, id) in [("", "one"), ("first", "one"), ("one", "one"), ("two", "two")] {
        let answer = chat(&server, name, "Hello!");
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(id)), "{name:?}: {}", answer.body);
    }
    let unknown = chat(&server, "three", "Hello!");
    assert_eq!((unknown.status, &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(unknown.body.contains("this server has one, first, two"), "{}", unknown.body);
    let status = output(&["status", "--url", &format!("http://{}", server.address)]);
    assert!(status.contains("one    texts  loaded") && status.contains("two    texts  loaded"), "{status}");
}

#[test]
fn a_model_thinks_or_not_by_the_name_it_is_asked_by() {
    let text = table("one", &tiny(), "thinking-alias = ['deep']\nplain-alias = ['fast']");
    let (server, _folder) = serve(&text, &[]);
    let question = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";
    let thinks = |name: &str| {
        let message = chat(&server, name, question).json()["choices"][0]["message"].clone();
        message["reasoning_content"].as_str().is_some_and(|thoughts| !thoughts.trim().is_empty())
    };
    assert!(thinks("deep") && !thinks("fast"));
}

#[test]
fn a_model_that_answers_is_not_let_go_and_one_that_is_idle_is() {
    let text = [table("one", &tiny(), ""), table("two", &tiny(), "idle = 1")].concat();
    let room = one_and_a_half(&text, "one");
    let (server, _folder) = serve(&text, &["--models-memory", &room]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            let body = json!({
                "model": "one", "prompt": "Once upon a time", "max_tokens": 400, "ignore_eos": true, "temperature": 0,
            });
            let answer = http::post(server.address, "/v1/completions", &body);
            done.store(true, Ordering::SeqCst);
            answer
        });
        await_state(&server, "one", "loaded");
        let short = chat(&server, "two", "Hello!");
        assert!(done.load(Ordering::SeqCst), "two was loaded while one answered");
        assert_eq!(short.status, 200, "{}", short.body);
        let long = long.join().expect("an answer");
        assert_eq!((long.status, &long.json()["usage"]["completion_tokens"]), (200, &json!(400)), "{}", long.body);
    });
    await_state(&server, "two", "unloaded");
}

#[test]
fn vectors_never_cost_a_conversation_its_cache() {
    let Some(minilm) = fetched("all-MiniLM-L6-v2.F32.gguf") else { return };
    let text = [
        table("chat", &tiny(), "load = 'at-start'"),
        format!("[models.minilm]\nmodel = {minilm:?}\ndevice = 'none'\n"),
        format!("[models.other]\nmodel = {minilm:?}\npooling = 'cls'\n"),
    ];
    // Room for the chat model and one of the others.
    let (server, _folder) = serve(&text.concat(), &[]);
    let memory = |model| told(&server, model)["meta"]["memory"].as_u64().expect("bytes");
    let room = (memory("chat") + memory("minilm") * 5 / 4).to_string();
    drop(server);
    let (server, _folder) = serve(&text.concat(), &["--models-memory", &room]);
    let long = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";
    assert_eq!(chat(&server, "chat", long).status, 200);
    for round in 0..6 {
        let model = ["minilm", "other"][round % 2];
        let answer = http::post(server.address, "/v1/embeddings", &json!({ "model": model, "input": ["a", "b"] }));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(told(&server, "chat")["state"], "loaded");
    }
    let again = chat(&server, "chat", long).json();
    let (cached, prompt) =
        (&again["usage"]["prompt_tokens_details"]["cached_tokens"], &again["usage"]["prompt_tokens"]);
    let [cached, prompt] = [cached, prompt].map(|count| count.as_u64().expect("a count"));
    assert!(cached + 8 >= prompt, "{cached} of {prompt}");
    let unnamed = http::post(server.address, "/v1/embeddings", &json!({ "input": "a" })).json();
    assert_eq!(unnamed["model"], "minilm");
}

#[test]
fn files_on_the_command_line_are_models_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let copies = ["left", "right"].map(|name| folder.path().join(format!("{name}.gguf")));
    for copy in &copies {
        std::os::unix::fs::symlink(tiny(), copy).expect("a link");
    }
    let [left, right] = copies.each_ref().map(|copy| copy.to_str().expect("a name in Unicode"));
    let server = Server::start(&[left, right, "--ctx", "256", "--sessions", "2"]);
    for name in ["left", "right"] {
        assert_eq!(told(&server, name)["state"], "unloaded");
        let answer = chat(&server, name, "Hello!");
        assert_eq!((answer.status, &answer.json()["model"]), (200, &json!(name)), "{}", answer.body);
    }
    assert_eq!(told(&server, "left")["max_model_len"], 256);
}

#[test]
fn what_cannot_be_is_said_before_anything_is_loaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("models.toml");
    for (content, problem) in [
        (table("one", &tiny(), "port = 5"), "[models.one]: unexpected argument '--port'"),
        (table("one", Path::new("/nowhere.gguf"), ""), "/nowhere.gguf"),
        (table("one", &tiny(), "") + &table("two", &tiny(), "alias = ['one']"), "every name means one model"),
        (format!("[serve]\nmodels-memory = '1M'\n{}", table("one", &tiny(), "")), "one"),
    ] {
        std::fs::write(&path, &content).expect("a file");
        let refused = run(&["serve", "--port", "0", "--config", path.to_str().expect("a name in Unicode")]);
        let error = text(&refused.stderr);
        assert!(!refused.status.success() && error.contains(problem), "{problem}: {error}");
    }
}

#[test]
fn a_model_that_cannot_be_loaded_is_told_and_others_go_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let broken = folder.path().join("broken.gguf");
    std::fs::copy(tiny(), &broken).expect("a copy");
    let text = [table("good", &tiny(), ""), table("broken", &broken, "")].concat();
    let (server, _folder) = serve(&text, &[]);
    std::fs::remove_file(&broken).expect("it was there");
    let refused = chat(&server, "broken", "Hello!");
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(refused.body.contains("broken could not be loaded"), "{}", refused.body);
    assert_eq!(chat(&server, "good", "Hello!").status, 200);
    assert_eq!(told(&server, "broken")["state"], "unloaded");
}
