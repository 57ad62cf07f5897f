//! `paceline bench --url`: what users of a running service get, whatever program it is, as long as it speaks the chat
//! completions of OpenAI. Every client is a thread that asks one question after another and notes when pieces of the answer
//! come.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::cli::BenchArgs;
use crate::text::printable;

/// The most time for one answer.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most bytes of one answer.
const ANSWER_BYTES: u64 = 64 << 20;
/// Words of which questions are made; each is about a token.
const WORDS: [&str; 16] = [
    "river", "stone", "seven", "house", "green", "under", "light", "horse", "paper", "north", "winter", "table",
    "small", "bread", "night", "field",
];

/// What was measured.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    url: String,
    model: String,
    prompt_words: usize,
    answer_tokens: usize,
    loads: Vec<Load>,
}

/// With so many clients at once.
#[derive(Debug, Serialize)]
struct Load {
    clients: usize,
    requests: usize,
    /// From sending a request to the first piece of its answer.
    first_token_ms: Percentiles,
    /// From one piece of an answer to the next; a server may send several tokens in a piece.
    gap_ms: Option<Percentiles>,
    /// Pieces of all answers in a second.
    pieces_per_second: f64,
}

/// What half, all but a twentieth, and all but a hundredth of the measurements do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
struct Percentiles {
    p50: f64,
    p95: f64,
    p99: f64,
}

impl Percentiles {
    /// Of milliseconds; `None` of nothing.
    fn of(mut samples: Vec<f64>) -> Option<Self> {
        samples.sort_by(f64::total_cmp);
        // The nearest rank: a time that was measured, never one between two.
        let rank = |share: f64| samples.get((share * samples.len() as f64).ceil() as usize - 1).copied();
        if samples.is_empty() {
            return None;
        }
        Some(Self { p50: rank(0.50)?, p95: rank(0.95)?, p99: rank(0.99)? })
    }
}

/// When pieces of an answer came, from the sending of its request.
#[derive(Debug, Default)]
struct Arrivals {
    milliseconds: Vec<f64>,
}

/// Measures a service at each number of clients.
pub(super) fn measure(url: &str, arguments: &BenchArgs) -> Result<Report> {
    let service = Service::new(url, arguments)?;
    let mut loads = Vec::new();
    for clients in arguments.clients.iter().copied().filter(|clients| *clients > 0) {
        loads.push(service.under(clients, arguments.repeat).with_context(|| format!("with {clients} clients"))?);
    }
    let Service { url, model, prompt_words, answer_tokens, .. } = service;
    Ok(Report { url, model, prompt_words, answer_tokens, loads })
}

/// The service that is asked.
struct Service {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
    model: String,
    prompt_words: usize,
    answer_tokens: usize,
}

impl Service {
    fn new(url: &str, arguments: &BenchArgs) -> Result<Self> {
        let url = url.trim_end_matches('/').trim_end_matches("/v1").to_owned();
        ensure!(url.starts_with("http://"), "--url {url}: only http:// is spoken");
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None);
        let agent = config.http_status_as_error(false).build().new_agent();
        let prompt_words = arguments.prefill.first().copied().unwrap_or(1);
        let key = arguments.api_key.clone().filter(|key| !key.is_empty());
        let mut service = Self { agent, url, key, model: String::new(), prompt_words, answer_tokens: arguments.decode };
        service.model = match &arguments.model.model {
            Some(name) => name.to_string_lossy().into_owned(),
            None => service.first_model()?,
        };
        Ok(service)
    }

    /// The first model that the service lists.
    fn first_model(&self) -> Result<String> {
        let url = format!("{}/v1/models", self.url);
        let mut request = self.agent.get(&url);
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        let mut response = request.call().with_context(|| format!("nothing answers at {url}"))?;
        let text = response.body_mut().read_to_string().with_context(|| format!("{url} cannot be read"))?;
        let list: Value = serde_json::from_str(&text).with_context(|| format!("{url} does not list models"))?;
        let name = list["data"][0]["id"].as_str();
        Ok(name.with_context(|| format!("{url} lists no models: {}", printable(&text)))?.to_owned())
    }

    /// So many clients, each with so many requests.
    fn under(&self, clients: usize, requests: usize) -> Result<Load> {
        let begun = Instant::now();
        let answers: Vec<Arrivals> = std::thread::scope(|scope| {
            let client = |client| move || (0..requests).map(|request| self.ask(clients, client, request)).collect();
            let threads: Vec<_> = (0..clients).map(|number| scope.spawn(client(number))).collect();
            let answers: Result<Vec<Vec<Arrivals>>> =
                threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect();
            answers.map(|answers| answers.into_iter().flatten().collect())
        })?;
        let seconds = begun.elapsed().as_secs_f64();
        let first = answers.iter().filter_map(|answer| answer.milliseconds.first().copied()).collect();
        let gaps = |answer: &Arrivals| answer.milliseconds.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>();
        let pieces: usize = answers.iter().map(|answer| answer.milliseconds.len()).sum();
        Ok(Load {
            clients,
            requests: answers.len(),
            first_token_ms: Percentiles::of(first).context("no answer has any text")?,
            gap_ms: Percentiles::of(answers.iter().flat_map(gaps).collect()),
            pieces_per_second: pieces as f64 / seconds,
        })
    }

    /// Asks a question that was not asked before, and notes when pieces of the answer come.
    fn ask(&self, clients: usize, client: usize, request: usize) -> Result<Arrivals> {
        let body = json!({
            "model": self.model,
            "messages": [{ "role": "user", "content": self.question(&[clients, client, request]) }],
            "max_tokens": self.answer_tokens,
            "stream": true,
            "temperature": 0,
        });
        let mut post = self.agent.post(format!("{}/v1/chat/completions", self.url));
        if let Some(key) = &self.key {
            post = post.header("authorization", format!("Bearer {key}"));
        }
        let begun = Instant::now();
        let post = post.header("content-type", "application/json");
        let mut response = post.send(body.to_string()).context("the service does not answer")?;
        if !response.status().is_success() {
            let status = response.status();
            let text = response.body_mut().read_to_string().unwrap_or_default();
            bail!("the service answers with HTTP {status}: {}", printable(&text));
        }
        let reader = response.into_body().into_with_config().limit(ANSWER_BYTES).reader();
        let mut arrivals = Arrivals::default();
        for line in BufReader::new(reader).lines() {
            let line = line.context("the answer breaks off")?;
            if has_text(&line)? {
                arrivals.milliseconds.push(begun.elapsed().as_secs_f64() * 1e3);
            }
        }
        Ok(arrivals)
    }

    /// Words drawn by numbers, so that no cache knows the question.
    fn question(&self, numbers: &[usize]) -> String {
        let mut state = numbers.iter().fold(0x9E37_79B9_7F4A_7C15_u64, |state, number| {
            (state ^ *number as u64).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
        });
        let words = (0..self.prompt_words).map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            WORDS[(state >> 60) as usize]
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// Whether a line of a stream has a piece of an answer in it.
fn has_text(line: &str) -> Result<bool> {
    let Some(data) = line.strip_prefix("data:").map(str::trim) else { return Ok(false) };
    if data == "[DONE]" {
        return Ok(false);
    }
    let event: Value = serde_json::from_str(data).context("an event is not JSON")?;
    if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
        bail!("the answer breaks off: {}", printable(&error.to_string()));
    }
    let delta = &event["choices"][0]["delta"];
    let texts = ["content", "reasoning_content", "reasoning"].map(|name| delta[name].as_str().unwrap_or_default());
    Ok(texts.iter().any(|text| !text.is_empty()) || delta["tool_calls"].is_array())
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, model, prompt_words, answer_tokens, loads } = self;
        writeln!(formatter, "{model} at {url}; questions of {prompt_words} words, answers of {answer_tokens} tokens")?;
        writeln!(
            formatter,
            "{:>7} {:>8} {:>31} {:>31} {:>9}",
            "clients", "requests", "first token ms P50 / P95 / P99", "gaps ms P50 / P95 / P99", "pieces/s"
        )?;
        loads.iter().try_for_each(|load| writeln!(formatter, "{load}"))
    }
}

impl fmt::Display for Load {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { clients, requests, first_token_ms, gap_ms, pieces_per_second } = self;
        let gaps = gap_ms.map_or_else(String::new, |gaps| gaps.to_string());
        write!(
            formatter,
            "{clients:>7} {requests:>8} {:>31} {gaps:>31} {pieces_per_second:>9.1}",
            first_token_ms.to_string()
        )
    }
}

impl fmt::Display for Percentiles {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:.1} / {:.1} / {:.1}", self.p50, self.p95, self.p99)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_times_that_were_measured() {
        let samples: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(Percentiles::of(samples), Some(Percentiles { p50: 100.0, p95: 190.0, p99: 198.0 }));
        assert_eq!(Percentiles::of(vec![7.0]), Some(Percentiles { p50: 7.0, p95: 7.0, p99: 7.0 }));
        assert_eq!(Percentiles::of(Vec::new()), None);
    }

    #[test]
    fn pieces_are_told_from_everything_else_in_a_stream() {
        for (line, is_piece) in [
            ("", false),
            (": comment", false),
            ("event: x", false),
            ("data: [DONE]", false),
            (r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}]}"#, false),
            (r#"data: {"choices":[],"usage":{}}"#, false),
            (r#"data: {"choices":[{"delta":{"content":"a"}}]}"#, true),
            (r#"data:{"choices":[{"delta":{"reasoning_content":"a"}}]}"#, true),
            (r#"data: {"choices":[{"delta":{"tool_calls":[{}]}}]}"#, true),
        ] {
            assert_eq!(has_text(line).unwrap(), is_piece, "{line}");
        }
        assert!(has_text("data: {\"error\":{\"message\":\"full\"}}").is_err());
        assert!(has_text("data: {").is_err());
    }
}
