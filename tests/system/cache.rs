//! What agents and people do with a conversation, over and over: each answer is a fresh server's, token for token, and
//! nearly nothing is read twice.
//!
//! What could be reused of a prompt is the longest beginning that any prompt or answer before it had as well. Of that,
//! at most 64 tokens are run again where messages meet and at branches seen before, and at most the distance of periodic
//! snapshots at a first branch anywhere else.

use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::http::{Response, events, get, post};
use crate::program::{Server, complaint, output};

/// Tokens that may be run again where messages meet.
const AT_BORDERS: usize = 64;
/// Tokens that may be run again at a branch in the middle of a text that nobody took before.
const STRIDE: usize = 512;

/// One session for the answer and more for choices; a context for 8k tokens of prompt.
const FLAGS: [&str; 4] = ["--sessions", "4", "--ctx", "10000"];

/// Facts enough for about so many tokens.
pub(crate) fn document(tokens: usize) -> String {
    const NAMES: [&str; 6] = ["Ruth", "Abel", "Naomi", "Caleb", "Esther", "Joel"];
    // A fact is 16 tokens, some more where its numbers are long.
    let fact = |text: &mut String, index: usize| {
        let name = NAMES[index % NAMES.len()];
        let _ = write!(text, "The code for {name} {index} is {}. ", 1000 + index * 7919 % 9000);
    };
    let mut text = String::new();
    (0..tokens / 16).for_each(|index| fact(&mut text, index));
    text
}

pub(crate) fn says(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

/// A greedy request with all that can be compared.
pub(crate) fn chat(messages: &[Value]) -> Value {
    json!({
        "messages": messages, "temperature": 0, "max_tokens": 16, "return_token_ids": true,
        "logprobs": true, "top_logprobs": 3,
    })
}

fn completion(prompt: &[u64]) -> Value {
    json!({"prompt": prompt, "temperature": 0, "max_tokens": 8, "return_token_ids": true, "logprobs": 3})
}

fn ids(value: &Value) -> Vec<u64> {
    value.as_array().expect("tokens").iter().map(|token| token.as_u64().expect("a token")).collect()
}

fn answer_text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().expect("a text")
}

pub(crate) fn cached(answer: &Value) -> usize {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count") as usize
}

pub(crate) fn prompt_tokens(answer: &Value) -> usize {
    answer["usage"]["prompt_tokens"].as_u64().expect("a count") as usize
}

pub(crate) fn ask(server: &Server, body: &Value) -> Response {
    let path = if body.get("messages").is_some() { "/v1/chat/completions" } else { "/v1/completions" };
    let response = post(server.address, path, body);
    assert_eq!(response.status, 200, "{}", response.body);
    response
}

/// A server with a memory, and what it was told so far.
struct Warm {
    server: Server,
    /// One without, where starting a fresh one for each answer would take too long.
    forgetful: Option<Server>,
    known: Vec<Vec<u64>>,
}

impl Warm {
    fn start() -> Self {
        Self { server: Server::start(&FLAGS), forgetful: None, known: Vec::new() }
    }

    fn beside_a_forgetful_one() -> Self {
        let forgetful = Server::start(&[&FLAGS[..], &["--cache-ram", "0"]].concat());
        Self { forgetful: Some(forgetful), ..Self::start() }
    }

    /// Asks; the answer must be a fresh server's, and at most `most` tokens read again.
    fn ask(&mut self, what: &str, body: &Value, most: usize) -> Value {
        let response = ask(&self.server, body);
        let answer = response.json();
        let fresh = match &self.forgetful {
            Some(server) => ask(server, body).json(),
            None => ask(&Server::start(&FLAGS), body).json(),
        };
        assert_eq!(answer["choices"], fresh["choices"], "{what}: not as a fresh server answers");
        assert_eq!(cached(&fresh), 0);
        let prompt = ids(&answer["choices"][0]["prompt_token_ids"]);
        let shared = self.known.iter().map(|known| shared(known, &prompt)).max().unwrap_or(0);
        let could_be = shared.min(prompt.len() - 1);
        let (tokens, cached) = (prompt.len(), cached(&answer));
        assert!(cached <= could_be, "{what}: {cached} of {tokens} cached, but only {shared} were ever read");
        assert!(could_be - cached <= most, "{what}: {cached} of {tokens} cached, {could_be} could be");
        assert_eq!(response.header("x-paceline-cached-tokens"), Some(&*cached.to_string()), "{what}");
        assert_eq!(answer["timings"]["prompt_n"], tokens - cached, "{what}");
        self.known.push([prompt, ids(&answer["choices"][0]["token_ids"])].concat());
        answer
    }
}

fn shared(one: &[u64], other: &[u64]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

/// A system prompt and the same document in every conversation, 8k tokens together.
fn conversation() -> Vec<Value> {
    vec![
        says("system", &format!("Answer from this list of codes. {}", document(3000))),
        says("user", &format!("{}What is the code for Ruth 12?", document(4700))),
    ]
}

#[test]
fn turns_are_appended_repeated_and_edited() {
    let mut warm = Warm::start();
    let mut messages = conversation();
    let first = warm.ask("the first turn", &chat(&messages), 0);
    assert!((7500..9000).contains(&prompt_tokens(&first)), "{} tokens are not 8k", prompt_tokens(&first));
    assert_eq!(cached(&first), 0);

    let again = warm.ask("regenerated", &chat(&messages), AT_BORDERS);
    assert!(cached(&again) > 7000);

    // The template takes the thinking out of answers before the last question.
    let thought = format!("<think>\nI look for Ruth.\n</think>\n\n{}", answer_text(&first));
    messages.extend([says("assistant", &thought), says("user", "And the code for Abel 1?")]);
    let second = warm.ask("a turn appended", &chat(&messages), AT_BORDERS);
    assert!(cached(&second) > 7000);

    messages[3] = says("user", "Or rather the code for Caleb 3, please?");
    let edited = warm.ask("the last message edited", &chat(&messages), AT_BORDERS);
    assert!(cached(&edited) > 7000);

    messages.truncate(1);
    messages.push(says("user", "What is the code for Joel 5?"));
    let other = warm.ask("another user with the same system prompt", &chat(&messages), AT_BORDERS);
    assert!(cached(&other) > 2500);
}

#[test]
fn a_tool_is_called_and_answers() {
    let call = |name: &str| {
        let function = json!({"name": "look_up", "arguments": json!({"name": name}).to_string()});
        let calls = json!([{"id": "1", "type": "function", "function": function}]);
        json!({"role": "assistant", "content": "<think>\nI must look.\n</think>\n\n", "tool_calls": calls})
    };
    let tool = json!({"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}});
    let ask = |messages: &[Value]| {
        let mut body = chat(messages);
        body["tools"] = json!([tool]);
        body
    };
    let mut warm = Warm::start();
    let mut messages = conversation();
    warm.ask("the question", &ask(&messages), 0);
    for (turn, name) in ["Ruth 12", "Abel 1"].into_iter().enumerate() {
        messages.extend([call(name), json!({"role": "tool", "content": "4821", "tool_call_id": "1"})]);
        let answer = warm.ask(&format!("tool answer {turn}"), &ask(&messages), AT_BORDERS);
        assert!(cached(&answer) > 7000);
    }
    // The next question takes the thinking out of the whole loop.
    messages.extend([says("assistant", "It is 4821."), says("user", "And the code for Abel 1?")]);
    let answer = warm.ask("a question after the loop", &ask(&messages), AT_BORDERS);
    assert!(cached(&answer) > 7000);
}

#[test]
fn branches_are_far_only_once() {
    let mut warm = Warm::beside_a_forgetful_one();
    let first = warm.ask("the trunk", &chat(&conversation()), 0);
    let trunk = ids(&first["choices"][0]["prompt_token_ids"]);
    for at in [1000, 4321, trunk.len() - 300] {
        let branch = |suffix: &[u64]| [&trunk[..at], suffix].concat();
        let ends: Vec<Vec<u64>> = (0..3).map(|end| trunk[end * 40..end * 40 + 90].to_vec()).collect();
        warm.ask(&format!("first branch at {at}"), &completion(&branch(&ends[0])), STRIDE);
        warm.ask(&format!("second branch at {at}"), &completion(&branch(&ends[1])), AT_BORDERS);
        warm.ask(&format!("third branch at {at}"), &completion(&branch(&ends[2])), AT_BORDERS);
    }
}

#[test]
fn short_prompts_and_prompts_that_end_where_pages_do() {
    let mut warm = Warm::beside_a_forgetful_one();
    let text = json!({"content": document(2000)});
    let tokens = ids(&post(warm.server.address, "/tokenize", &text).json()["tokens"]);
    for length in [63, 64, 65, 150, 191, 192, 193, 511, 512, 513] {
        // Each begins otherwise, so that it finds only itself.
        let own = [&tokens[length % 97..], &tokens].concat();
        warm.ask(&format!("{length} tokens"), &completion(&own[..length]), AT_BORDERS);
        warm.ask(&format!("{length} tokens again"), &completion(&own[..length]), AT_BORDERS);
        warm.ask(&format!("{length} tokens and more"), &completion(&own[..length + 30]), AT_BORDERS);
    }
}

#[test]
fn what_the_cache_did_is_told() {
    let server = Server::start(&FLAGS);
    let mut body = chat(&conversation());
    body["n"] = 2.into();
    let first = ask(&server, &body);
    assert_eq!(first.header("x-paceline-cached-tokens"), Some("0"));
    assert_eq!(first.header("x-paceline-cache-tier"), None);
    assert!(
        first.header("x-paceline-cache-miss").is_some_and(|miss| miss.starts_with("unknown; ")),
        "{:?}",
        first.head
    );
    let prompt = prompt_tokens(&first.json());

    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let second = ask(&server, &body);
    let last = events(&second.body).pop().expect("events");
    let cached = last["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a count") as usize;
    assert!(cached > prompt - AT_BORDERS, "{cached} of {prompt}");
    assert_eq!(second.header("x-paceline-cached-tokens"), Some(&*cached.to_string()));
    assert_eq!(second.header("x-paceline-cache-tier"), Some("device"));
    assert_eq!((&last["timings"]["cache_n"], &last["timings"]["cache_tier"]), (&cached.into(), &"device".into()));
    assert_eq!(get(server.address, "/health").status, 200);
}

#[test]
fn texts_are_listed_pinned_and_dropped_by_command() {
    let server = Server::start(&FLAGS);
    let url = format!("http://{}", server.address);
    let cache = |arguments: &[&str]| output(&[&["cache"][..], arguments, &["--url", &url]].concat());
    let messages =
        [says("system", "Answer briefly."), says("user", "The code for Ruth is 4821. And the code for Ruth?")];
    let asked = || cached(&ask(&server, &chat(&messages)).json());
    assert_eq!(asked(), 0);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("request.json");
    std::fs::write(&file, chat(&messages).to_string()).expect("it can be written");
    let file = file.to_str().expect("a plain path");

    let list: Value = serde_json::from_str(&cache(&["list", "--json"])).expect("JSON");
    assert!(list["totals"]["snapshots"].as_u64() > Some(0), "{list}");
    assert!(list["paths"].as_array().expect("paths").iter().any(|path| path["snapshots"] != json!([])), "{list}");
    assert!(cache(&["pin", "--messages", file]).starts_with("pinned: "));
    let list = cache(&["list"]);
    assert!(list.contains("pinned: <|im_start|>system?Answer briefly."), "{list}");
    assert!(server.metric("paceline_cache_lookups_total") > 0.0);
    assert!(asked() > 0);
    assert_eq!(cache(&["unpin", "--messages", file]), "unpinned\n");
    assert!(!cache(&["list"]).contains("pinned: "));
    let told = cache(&["drop", "--messages", file]);
    assert!(told.starts_with("forgotten: ") && !told.contains(" 0 snapshots"), "{told}");
    assert!(asked() < 8, "only the opening of what was dropped may be known otherwise");

    for (arguments, word) in [
        (&["drop", "--prompt", "Nobody asked this"][..], "not cached"),
        (&["pin"][..], "--prompt"),
        (&["pin", "--messages", "/no/such/file"][..], "cannot read"),
    ] {
        let told = complaint(&[&["cache"][..], arguments, &["--url", &url]].concat());
        assert!(told.contains(word), "{told}");
    }
}
