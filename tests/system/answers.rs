//! What the server answers, and that it does not depend on how it is run.

use serde_json::{Value, json};

use crate::http::{self, events, post};
use crate::program::{Server, greedy, output};

const QUESTION: &str = "The code for Ruth is 4821. The code for Abel is 7719. What is the code for Ruth?";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

fn reasoning(answer: &Value) -> &str {
    answer["choices"][0]["message"]["reasoning_content"].as_str().expect("a text")
}

fn tokens(answer: &Value) -> Vec<u64> {
    let tokens = answer["choices"][0]["token_ids"].as_array().expect("token ids");
    tokens.iter().map(|token| token.as_u64().expect("a token")).collect()
}

#[test]
fn the_embedded_model_answers_its_question() {
    let server = Server::start(&[]);
    let answer = server.chat(QUESTION);
    assert!(text(&answer).contains("The code for Ruth is 4821."), "{answer}");
    assert!(reasoning(&answer).contains("Ruth"), "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    let usage = &answer["usage"];
    assert_eq!(
        usage["total_tokens"].as_u64(),
        Some(usage["prompt_tokens"].as_u64().unwrap() + usage["completion_tokens"].as_u64().unwrap())
    );
    assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 0);
}

#[test]
fn streams_shards_threads_and_the_command_line_give_the_same_tokens() {
    let one = Server::start(&["--threads", "1"]).chat(QUESTION);
    let two = Server::start(&["--shards", "2", "--threads", "2", "--prefill-chunk", "16"]);
    assert_eq!(tokens(&two.chat(QUESTION)), tokens(&one));

    let mut body = greedy(QUESTION);
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let stream = events(&post(two.address, "/v1/chat/completions", &body).body);
    let told = |field: &str| -> String {
        stream.iter().filter_map(|event| event["choices"][0]["delta"][field].as_str()).collect()
    };
    assert_eq!(told("content"), text(&one));
    assert_eq!(told("reasoning_content"), reasoning(&one));
    assert_eq!(stream.last().expect("events")["usage"]["completion_tokens"], one["usage"]["completion_tokens"]);

    let run: Value = serde_json::from_str(&output(&["run", "-p", QUESTION, "-n", "48", "--json"])).expect("JSON");
    assert_eq!(run["text"], format!("{}\n</think>\n\n{}", reasoning(&one), text(&one)), "the command line shows all");
    assert_eq!(run["prompt_tokens"], one["usage"]["prompt_tokens"]);
}

#[test]
fn the_same_seed_gives_the_same_text_whatever_else_runs() {
    let server = Server::start(&["--sessions", "4"]);
    let mut body = greedy("Tell me of the sea.");
    body["temperature"] = 1.0.into();
    body["seed"] = 7.into();
    let alone = post(server.address, "/v1/chat/completions", &body).json();
    let address = server.address;
    let others: Vec<_> = (0..3)
        .map(|seed| {
            let mut other = greedy("Recite something.");
            other["temperature"] = 1.2.into();
            other["seed"] = seed.into();
            std::thread::spawn(move || post(address, "/v1/chat/completions", &other).status)
        })
        .collect();
    let among = post(address, "/v1/chat/completions", &body).json();
    assert_eq!(tokens(&among), tokens(&alone));
    for other in others {
        assert_eq!(other.join().expect("an answer"), 200);
    }
    body["seed"] = 8.into();
    assert_ne!(tokens(&post(address, "/v1/chat/completions", &body).json()), tokens(&alone));
}

#[test]
fn choices_stops_and_logprobs_are_told() {
    let server = Server::start(&[]);
    let mut body = greedy(QUESTION);
    body["n"] = 2.into();
    body["logprobs"] = true.into();
    body["top_logprobs"] = 3.into();
    let answer = post(server.address, "/v1/chat/completions", &body).json();
    assert_eq!(answer["choices"].as_array().map(Vec::len), Some(2));
    let content = answer["choices"][0]["logprobs"]["content"].as_array().expect("logprobs");
    for token in content {
        let top = token["top_logprobs"].as_array().expect("top");
        assert_eq!(top.len(), 3);
        // Greedy: the chosen token is the most probable one.
        assert_eq!(top[0]["logprob"], token["logprob"], "{token}");
    }
    let mut body = greedy(QUESTION);
    body["stop"] = json!(["4821"]);
    let stopped = post(server.address, "/v1/chat/completions", &body).json();
    assert!(!text(&stopped).contains("4821"), "{stopped}");
    assert_eq!(stopped["choices"][0]["finish_reason"], "stop");
    let mut body = greedy(QUESTION);
    body["max_tokens"] = 2.into();
    assert_eq!(post(server.address, "/v1/chat/completions", &body).json()["choices"][0]["finish_reason"], "length");
}

#[test]
fn texts_and_tokens_are_completed_alike() {
    let server = Server::start(&[]);
    let prompt = "In the beginning";
    let ids = post(server.address, "/tokenize", &json!({"content": prompt})).json()["tokens"].clone();
    let complete = |prompt: Value| {
        let body = json!({"prompt": prompt, "max_tokens": 12, "temperature": 0});
        let response = post(server.address, "/v1/completions", &body);
        assert_eq!(response.status, 200, "{}", response.body);
        response.json()["choices"][0]["text"].clone()
    };
    assert_eq!(complete(prompt.into()), complete(ids.clone()));
    let back = post(server.address, "/detokenize", &json!({"tokens": ids})).json();
    assert_eq!(back["content"], prompt);
}

#[test]
fn what_is_served_is_told() {
    let server = Server::start(&["--alias", "tiny,small"]);
    let models = http::get(server.address, "/v1/models").json();
    assert_eq!(models["data"][0]["id"], "tiny");
    assert_eq!(http::get(server.address, "/health").json()["status"], "ok");
    server.chat("Hello");
    assert!(server.metric("paceline_decode_tokens_total") > 0.0);
    let mut body = greedy("Hello");
    body["model"] = "small".into();
    assert_eq!(post(server.address, "/v1/chat/completions", &body).status, 200);
}

#[test]
fn a_key_is_needed_where_one_is_set() {
    let server = Server::start(&["--api-key", "secret"]);
    let response = post(server.address, "/v1/chat/completions", &greedy("Hello"));
    assert_eq!(response.status, 401, "{}", response.body);
    assert_eq!(http::get(server.address, "/health").status, 200);
}

#[test]
fn signals_end_the_server_cleanly() {
    for signal in ["-INT", "-TERM"] {
        let server = Server::start(&["--shards", "2"]);
        server.chat("Hello");
        assert_eq!(server.end_by(signal), Some(0), "{signal}");
    }
}
