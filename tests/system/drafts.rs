//! Drafts change how fast an answer comes, and nothing of it.

use std::path::Path;

use paceline_gguf::testing::GgufWriter;
use serde_json::{Value, json};

use crate::cluster::{Cluster, Options};
use crate::http::{events, get, post};
use crate::program::{Server, complaint, root};

/// A text that the tiny model goes on with by repeating itself, sooner or later.
fn request(number: u64, temperature: f64) -> Value {
    let line = format!("line {number}: the ships came home with silver, salt and seven bells; ");
    json!({
        "prompt": line.repeat(4), "max_tokens": 160, "ignore_eos": true, "return_token_ids": true,
        "temperature": temperature, "seed": number,
    })
}

/// The file of the model in the program, which can draft for itself.
fn itself() -> String {
    root().join("cluster/models").join(FILE).to_str().expect("UTF-8").to_owned()
}

/// A file that drafts blocks for the model in the program.
fn dflash() -> String {
    root().join("tests/data/models/tiny-dflash-q8_0.gguf").to_str().expect("UTF-8").to_owned()
}

const FILE: &str = "tiny-hybrid-mtp-q8_0.gguf";

fn tokens(answer: &Value) -> Vec<u64> {
    let tokens = answer["choices"][0]["token_ids"].as_array().expect("token ids");
    tokens.iter().map(|token| token.as_u64().expect("a token")).collect()
}

fn all(server: &Server) -> Vec<Value> {
    let address = server.address;
    let one = move |number: u64| {
        let body = request(number, if number.is_multiple_of(2) { 0.0 } else { 0.7 });
        std::thread::spawn(move || post(address, "/v1/completions", &body).json())
    };
    let threads: Vec<_> = (0..8).map(one).collect();
    threads.into_iter().map(|thread| thread.join().expect("an answer")).collect()
}

#[test]
fn answers_with_drafts_are_those_without() {
    let plain = Server::start(&["--draft", "none"]);
    let expected: Vec<Value> = (0..8)
        .map(|number| request(number, if number % 2 == 0 { 0.0 } else { 0.7 }))
        .map(|body| post(plain.address, "/v1/completions", &body).json())
        .collect();
    assert!(expected.iter().all(|answer| answer["timings"]["draft_n"] == 0));
    assert_eq!(plain.metric("paceline_drafts_total"), 0.0);
    let (itself, dflash) = (itself(), dflash());
    for (source, shards) in
        ["lookup", "mtp", &itself, &dflash].into_iter().flat_map(|source| [(source, "1"), (source, "2")])
    {
        let server = Server::start(&["--shards", shards, "--draft", source]);
        let models = get(server.address, "/v1/models").json();
        let drafts = &models["data"][0]["meta"]["drafts"];
        assert_eq!(drafts["mtp"], source == "mtp");
        let file = Path::new(source).extension().and(Path::new(source).file_name());
        assert_eq!(drafts["model"].as_str(), file.and_then(|file| file.to_str()));
        // One after the other, where each has the row for itself, and then all at once, from the cache.
        let alone: Vec<Value> = (0..8)
            .map(|number| request(number, if number % 2 == 0 { 0.0 } else { 0.7 }))
            .map(|body| post(server.address, "/v1/completions", &body).json())
            .collect();
        for (answer, expected) in alone.iter().chain(&all(&server)).zip(expected.iter().chain(&expected)) {
            assert_eq!(tokens(answer), tokens(expected), "{shards} shards, {source}");
            let (usage, timings) = (&answer["usage"], &answer["timings"]);
            let details = &usage["completion_tokens_details"];
            let (accepted, rejected) = (&details["accepted_prediction_tokens"], &details["rejected_prediction_tokens"]);
            assert_eq!(timings["draft_n_accepted"], *accepted);
            assert_eq!(timings["draft_n"].as_u64(), Some(accepted.as_u64().unwrap() + rejected.as_u64().unwrap()));
        }
        assert!(server.metric("paceline_drafts_total") > 0.0, "{shards} shards, {source}: no draft was run");
        assert!(server.metric("paceline_drafts_accepted_total") > 0.0, "{shards} shards, {source}: no draft was right");
        let mut body = request(2, 0.0);
        body["stream"] = true.into();
        let stream = events(&post(server.address, "/v1/completions", &body).body);
        let text: String = stream.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
        assert_eq!(text, expected[2]["choices"][0]["text"].as_str().expect("a text"));
    }
}

#[test]
fn a_tail_on_another_host_fetches_what_it_makes_drafts_with() {
    let plain = Server::start(&["--draft", "none"]);
    for source in ["mtp", &itself(), &dflash()] {
        let options = Options { coordinator: &["--draft", source], shard: &["--fetch"], ..Options::default() };
        let cluster = Cluster::start(2, &options);
        for number in 0..4 {
            let body = request(number, 0.0);
            let [one, other] =
                [&plain, &cluster.coordinator].map(|server| post(server.address, "/v1/completions", &body).json());
            assert_eq!(tokens(&one), tokens(&other), "{source}");
        }
        assert!(cluster.coordinator.metric("paceline_drafts_accepted_total") > 0.0, "{source}");
    }
}

/// Only the coordinator has the files.
#[test]
fn a_model_that_drafts_comes_from_the_coordinator_that_has_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let [model, draft] = ["model.gguf", "draft.gguf"].map(|name| folder.path().join(name));
    std::fs::copy(root().join("tests/data/models/mini16-Q4_K_M.gguf"), &model).expect("copied");
    std::fs::copy(root().join("tests/data/models/mini-llama-Q4_K_M.gguf"), &draft).expect("copied");
    let flags = ["--draft", draft.to_str().expect("UTF-8"), "--draft-kv-type", "q8_0", "--ctx", "1024"];
    let options = Options { model: Some(&model), coordinator: &flags, shard: &["--fetch"], ..Options::default() };
    let cluster = Cluster::start(2, &options);
    let plain = Server::start(&["--draft", "none", "--ctx", "1024", model.to_str().expect("UTF-8")]);
    for number in 0..4 {
        let mut body = request(number, if number % 2 == 0 { 0.0 } else { 0.7 });
        body["max_tokens"] = 40.into();
        let [one, other] =
            [&plain, &cluster.coordinator].map(|server| post(server.address, "/v1/completions", &body).json());
        assert_eq!(tokens(&one), tokens(&other));
    }
    let models = get(cluster.coordinator.address, "/v1/models").json();
    assert_eq!(models["data"][0]["meta"]["drafts"]["model"], "draft.gguf");
    for shard in ["shard0.log", "shard1.log"] {
        let log = std::fs::read_to_string(cluster.folder.path().join(shard)).expect("a log");
        assert!(!log.contains("the draft model"), "{log}");
    }
}

#[test]
fn a_stop_string_inside_a_run_of_drafts_ends_the_answer_there() {
    let (plain, server) = (Server::start(&["--draft", "none"]), Server::start(&[]));
    let whole = post(plain.address, "/v1/completions", &request(4, 0.0)).json();
    let text = whole["choices"][0]["text"].as_str().expect("a text");
    let letters: Vec<char> = text.chars().collect();
    for place in [letters.len() / 3, letters.len() / 2, letters.len() - 8] {
        let mut body = request(4, 0.0);
        body["stop"] = letters[place..place + 5].iter().collect::<String>().into();
        let [one, other] = [&plain, &server].map(|server| post(server.address, "/v1/completions", &body).json());
        assert_eq!(one["choices"], other["choices"]);
        assert_eq!(one["usage"]["completion_tokens"], other["usage"]["completion_tokens"]);
    }
}

#[test]
fn flags_for_drafts_that_make_no_sense_are_refused() {
    assert!(complaint(&["run", "-p", "x", "--draft-max", "33"]).contains("--draft-max is 33, it must be at most 32"));
    assert!(complaint(&["run", "-p", "x", "--draft-p-min", "1.5"]).contains("--draft-p-min is 1.5"));
    let said = complaint(&["run", "-p", "x", "--draft", "oracle"]);
    assert!(said.contains("possible values: none, lookup, mtp, or the path of a GGUF file"), "{said}");
    let llama = root().join("tests/data/models/mini-llama-Q4_K_M.gguf");
    let said = complaint(&["run", llama.to_str().expect("UTF-8"), "-p", "x", "--draft", "mtp"]);
    assert!(said.contains("the model has 0 blocks for multi-token prediction"), "{said}");
}

#[test]
fn files_that_cannot_draft_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |draft: &Path| complaint(&["run", "-p", "x", "--draft", draft.to_str().expect("UTF-8")]);
    let missing = said(&folder.path().join("missing.gguf"));
    assert!(missing.contains("cannot open the draft model") && missing.contains("missing.gguf"), "{missing}");
    let text = said(&root().join("README.md"));
    assert!(text.contains("README.md: not a GGUF file"), "{text}");
    let other = said(&root().join("tests/data/models/mini-llama-Q4_K_M.gguf"));
    assert!(
        other.contains("cannot draft for tiny-hybrid") && other.contains("drafts need the same vocabulary"),
        "{other}"
    );
    let blocks = said(&root().join("tests/data/models/mini-dflash-f32.gguf"));
    assert!(blocks.contains("cannot draft for tiny-hybrid"), "{blocks}");
    let unknown = folder.path().join("unknown.gguf");
    GgufWriter::new().metadata("general.architecture", "oracle").write(&unknown).expect("writable");
    let unknown = said(&unknown);
    assert!(unknown.contains("architecture \"oracle\" is not known"), "{unknown}");
}
