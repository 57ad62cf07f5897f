//! Clients that stream answers all the time and know every one of them beforehand, and the board on which they tell how
//! they fare.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::chance::Chance;

/// No answer takes so long, whatever happens to the row meanwhile.
const LONGEST: Duration = Duration::from_secs(300);
/// A client that was refused asks again after this time.
const AGAIN: Duration = Duration::from_millis(300);
/// Complaints that are kept; the rest are counted.
const COMPLAINTS: usize = 20;
/// An answer to its end, every token as expected.
pub const ANSWERED: &str = "answered, every token as expected";
/// An answer that ended early where that may be, or a request that found nobody. What came was right.
pub const BROKEN: &str = "ended early or found nobody";
/// How a refusal is told that does not say when to come again.
const NO_RETRY: &str = "without retry-after";
/// Tokens that prompts are made of: every model here has more.
const TOKENS: u64 = 250;

/// A request, and the answer of a server that nobody disturbed.
#[derive(Debug, Clone)]
pub struct Case {
    path: &'static str,
    body: Value,
    /// What every event of the stream must tell: tokens, log probabilities, text, counts.
    expected: Vec<Value>,
}

impl Case {
    /// Asks for it and compares every event; whoever is told of each may leave, with a word.
    pub fn stream(&self, address: SocketAddr, mut each: impl FnMut(usize) -> Result<(), String>) -> Outcome {
        let mut count = 0;
        let outcome = stream(address, self.path, &self.body, |place, event| {
            count = place + 1;
            match self.expected.get(place) {
                Some(expected) if *expected == event => each(place),
                expected => Err(format!("event {place} of {}: {event} came, expected {expected:?}", self.body)),
            }
        });
        match outcome {
            Outcome::Answered if count < self.expected.len() => {
                Outcome::Wrong(format!("{count} of {} events came of {}", self.expected.len(), self.body))
            }
            outcome => outcome,
        }
    }
}

/// How an answer ended.
#[derive(Debug)]
pub enum Outcome {
    /// As expected, to the end.
    Answered,
    /// Not begun: an HTTP status, and what it says.
    Refused(u16, String),
    /// Not ended, or not begun because nobody is there; what came was right.
    Broken(String),
    /// Something else came.
    Wrong(String),
}

/// Requests of all kinds: short and long prompts, greedy and by chance, tokens and chats.
pub fn requests(with_chats: bool) -> Vec<(&'static str, Value)> {
    let mut requests = Vec::new();
    for number in 0..16_u64 {
        let length = [8, 700, 40, 1_100][number as usize % 4];
        let prompt: Vec<u64> =
            (0..length).map(|index| (index * 7 + index * index * 13 + number) % TOKENS + 1).collect();
        let mut body = json!({
            "prompt": prompt, "max_tokens": 60 + number * 8, "ignore_eos": true, "logprobs": 2, "temperature": 0,
        });
        if number % 2 == 1 {
            body["temperature"] = json!(1);
            body["seed"] = json!(number);
            body["top_p"] = json!(0.95);
            body["presence_penalty"] = json!(0.1);
        }
        requests.push(("/v1/completions", body));
    }
    for number in 0..if with_chats { 4_u64 } else { 0 } {
        let text =
            format!("The code for Ruth is {}. The code for Abel is 7719. What is the code for Ruth?", 4821 + number);
        let body = json!({
            "messages": [{"role": "user", "content": text}], "max_tokens": 48, "temperature": number % 2, "seed": number,
        });
        requests.push(("/v1/chat/completions", body));
    }
    for (_, body) in &mut requests {
        body["stream"] = json!(true);
        body["return_token_ids"] = json!(true);
        body["stream_options"] = json!({"include_usage": true});
    }
    requests
}

/// Asks a server that nobody disturbs for the answers.
///
/// # Panics
/// When it does not answer.
pub fn cases(address: SocketAddr, requests: Vec<(&'static str, Value)>) -> Vec<Case> {
    let case = |(path, body): (&'static str, Value)| {
        let mut expected = Vec::new();
        let outcome = stream(address, path, &body, |_, event| {
            expected.push(event);
            Ok(())
        });
        assert!(matches!(outcome, Outcome::Answered), "{outcome:?}");
        Case { path, body, expected }
    };
    requests.into_iter().map(case).collect()
}

/// An agent with a connection of its own for each request.
fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder().timeout_global(Some(LONGEST)).proxy(None).max_idle_connections(0);
    config.http_status_as_error(false).build().new_agent()
}

/// Streams an answer and gives every event on, with its place; whoever takes it may say that it is wrong.
fn stream(
    address: SocketAddr,
    path: &str,
    body: &Value,
    mut take: impl FnMut(usize, Value) -> Result<(), String>,
) -> Outcome {
    let mut response = match agent().post(format!("http://{address}{path}")).send_json(body) {
        Ok(response) => response,
        Err(error) => return Outcome::Broken(format!("nobody answers: {error}")),
    };
    let status = response.status().as_u16();
    if status != 200 {
        let retry = response.headers().contains_key("retry-after");
        let said = response.body_mut().read_to_string().unwrap_or_default();
        return Outcome::Refused(status, if retry { said } else { format!("{NO_RETRY}: {said}") });
    }
    let mut place = 0;
    for line in BufReader::new(response.into_body().into_reader()).lines() {
        let line = match line {
            Ok(line) => line,
            Err(error) => return Outcome::Broken(format!("the connection ended: {error}")),
        };
        let Some(data) = line.strip_prefix("data: ") else { continue };
        if data == "[DONE]" {
            return Outcome::Answered;
        }
        let event: Value = match serde_json::from_str(data) {
            Ok(event) => event,
            Err(error) => return Outcome::Wrong(format!("{error} in {data}")),
        };
        if !event["error"].is_null() {
            return Outcome::Broken(format!("the answer ended with {}", event["error"]["message"]));
        }
        if let Err(wrong) = take(place, told(&event)) {
            return Outcome::Wrong(wrong);
        }
        place += 1;
    }
    Outcome::Broken("the connection ended before the answer".to_owned())
}

/// What an event tells of an answer, but for names, times, and how much of the prompt was in the cache: that depends on what
/// was asked before, and the answer does not.
pub fn told(event: &Value) -> Value {
    let counts = ["prompt_tokens", "completion_tokens", "total_tokens"].map(|count| &event["usage"][count]);
    json!([event["choices"], counts, event["error"]])
}

/// Posts any text; the status of the answer.
///
/// # Errors
/// Why there is none.
pub fn post(address: SocketAddr, path: &str, body: &str) -> Result<u16, String> {
    let request = agent().post(format!("http://{address}{path}")).content_type("application/json");
    request.send(body).map(|response| response.status().as_u16()).map_err(|error| error.to_string())
}

/// What a client is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Nothing, or it waits for a place.
    Waits,
    /// It has sent a prompt and no token has come.
    Prefill,
    /// Tokens come.
    Decode,
}

/// A client, as the board shows it.
#[derive(Debug, Clone)]
pub struct Client {
    /// What it does.
    pub phase: Phase,
    /// Answers to their end, all as expected.
    pub answered: u64,
    /// Tokens that came.
    pub tokens: u64,
    /// The longest time between two tokens of a stream, since [`Board::mark`].
    pub pause: Duration,
    last: Option<Instant>,
}

/// What all clients tell.
#[derive(Debug)]
pub struct State {
    /// One after the other.
    pub clients: Vec<Client>,
    /// What came of the requests, and how often.
    pub counts: BTreeMap<String, u64>,
    /// What must never be; the first ones.
    pub wrong: Vec<String>,
    /// Everything that must never be.
    pub wrongs: u64,
    stop: bool,
}

impl State {
    fn complain(&mut self, complaint: String) {
        self.wrongs += 1;
        if self.wrong.len() < COMPLAINTS {
            self.wrong.push(complaint);
        }
    }

    /// How often something came of requests.
    pub fn count(&self, what: &str) -> u64 {
        self.counts.get(what).copied().unwrap_or(0)
    }
}

/// Where clients tell how they fare, and are told to stop.
#[derive(Debug)]
pub struct Board {
    state: Mutex<State>,
    changed: Condvar,
    /// Answers may end early: the coordinator itself is killed.
    may_break: bool,
}

impl Board {
    /// A board of so many clients, whose answers may end early or must not.
    pub fn new(clients: usize, may_break: bool) -> Self {
        let client = Client { phase: Phase::Waits, answered: 0, tokens: 0, pause: Duration::ZERO, last: None };
        let clients = vec![client; clients];
        let state = State { clients, counts: BTreeMap::new(), wrong: Vec::new(), wrongs: 0, stop: false };
        Self { state: Mutex::new(state), changed: Condvar::new(), may_break }
    }

    /// What is on it now.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes something that must never be.
    pub fn complain(&self, complaint: String) {
        self.state().complain(complaint);
    }

    /// Waits until something holds; false when the time is over before.
    pub fn wait(&self, time: Duration, holds: impl Fn(&State) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), time, |state| !holds(state) && !state.stop);
        holds(&waited.unwrap_or_else(PoisonError::into_inner).0)
    }

    /// Begins to look for the longest pause.
    pub fn mark(&self) {
        for client in &mut self.state().clients {
            client.pause = Duration::ZERO;
        }
    }

    /// Tells the clients to stop; those that stream do it after their answer.
    pub fn stop(&self) {
        self.state().stop = true;
        self.changed.notify_all();
    }

    /// Whether to stop.
    pub fn stopped(&self) -> bool {
        self.state().stop
    }

    fn set(&self, client: usize, phase: Phase) {
        let mut state = self.state();
        state.clients[client].phase = phase;
        state.clients[client].last = None;
        drop(state);
        self.changed.notify_all();
    }

    fn token(&self, client: usize) {
        let mut state = self.state();
        let client = &mut state.clients[client];
        let now = Instant::now();
        if let Some(last) = client.last.replace(now) {
            client.pause = client.pause.max(now - last);
        }
        (client.phase, client.tokens) = (Phase::Decode, client.tokens + 1);
        drop(state);
        self.changed.notify_all();
    }

    /// Takes in how an answer of a client ended; whether it has to ask again.
    pub fn ended(&self, client: usize, outcome: Outcome) -> bool {
        self.set(client, Phase::Waits);
        let (answered, again) =
            (matches!(outcome, Outcome::Answered), matches!(outcome, Outcome::Refused(..) | Outcome::Broken(_)));
        self.note(outcome);
        if answered {
            self.state().clients[client].answered += 1;
            self.changed.notify_all();
        }
        again
    }

    /// Takes in how an answer ended.
    pub fn note(&self, outcome: Outcome) {
        match outcome {
            Outcome::Answered => self.count(ANSWERED),
            Outcome::Refused(status @ (429 | 503), said) if !said.starts_with(NO_RETRY) => {
                self.count(&format!("refused by type, {status}"));
            }
            Outcome::Refused(status, said) => self.complain(format!("refused with {status} {said}")),
            Outcome::Broken(_) if self.may_break => self.count(BROKEN),
            Outcome::Broken(why) => self.complain(format!("an answer was lost: {why}")),
            Outcome::Wrong(what) => self.complain(what),
        }
    }

    /// Counts something.
    pub fn count(&self, what: &str) {
        *self.state().counts.entry(what.to_owned()).or_default() += 1;
    }
}

/// Starts clients that ask for the cases in an order by chance, until the board says stop.
pub fn start(
    board: &Arc<Board>,
    address: SocketAddr,
    cases: &Arc<Vec<Case>>,
    count: usize,
    seed: u64,
) -> Vec<JoinHandle<()>> {
    let client = |number: usize| {
        let (board, cases) = (Arc::clone(board), Arc::clone(cases));
        let mut chance = Chance::new(seed ^ (number as u64) << 32);
        std::thread::spawn(move || {
            while !board.stopped() {
                let case = chance.of(&cases);
                while board.ended(number, ask(&board, number, address, case, || {})) && !board.stopped() {
                    board.wait(AGAIN, |_| false);
                }
            }
        })
    };
    (0..count).map(client).collect()
}

/// Asks for one answer, and tells the board of every token.
pub fn ask(board: &Board, client: usize, address: SocketAddr, case: &Case, mut each: impl FnMut()) -> Outcome {
    board.set(client, Phase::Prefill);
    case.stream(address, |_| {
        board.token(client);
        each();
        Ok(())
    })
}

#[cfg(test)]
mod tests;
