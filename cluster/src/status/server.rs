//! Asks a running service how it is doing, or for something to be done.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use paceline_api::{CacheReport, SERVICE, ScaleReport, ScaleRequest, StatusReport};
use paceline_coordinator::CacheChanged;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::RequestBuilder;
use ureq::http::{Response, StatusCode};

use crate::cli::ServerArgs;
use crate::text::printable;

/// The page that is asked.
const PAGE: &str = "/admin/v1/status";
/// The one that says whether the service answers.
const LIVE: &str = "/live";
/// The most time for an answer; a service answers within milliseconds even when it is full.
const PATIENCE: Duration = Duration::from_secs(5);
/// The page that changes the row.
const SCALE: &str = "/admin/v1/scale";
/// The most time for that: layers are fetched and loaded first.
const SCALE_PATIENCE: Duration = Duration::from_secs(1800);
/// What is remembered; pages below it change that.
const CACHE: &str = "/admin/v1/cache";
/// The most bytes of an answer: some thousand stages.
const ANSWER_BYTES: u64 = 4 << 20;

/// A service somewhere.
pub(crate) struct Server {
    agent: ureq::Agent,
    url: String,
    key: Option<String>,
}

impl Server {
    /// Says where it is; nothing is sent yet.
    pub(crate) fn new(arguments: &ServerArgs) -> Result<Self> {
        let url = arguments.url.trim().trim_end_matches('/');
        ensure!(!url.is_empty(), "--url is empty; give an address such as http://127.0.0.1:8080");
        let url = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        ensure!(url.starts_with("http://"), "--url {url}: only http:// is spoken");
        // A proxy would be asked for addresses that only this host knows.
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).proxy(None);
        let agent = config.http_status_as_error(false).build().new_agent();
        Ok(Self { agent, url, key: arguments.api_key.clone().filter(|key| !key.is_empty()) })
    }

    /// Where it is.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What it says of itself now.
    pub(crate) fn status(&self) -> Result<StatusReport> {
        let request = self.agent.get(format!("{}{PAGE}", self.url));
        let answer = self.with_key(request).call();
        let (status, body) = self.read(answer, PATIENCE)?;
        self.understand(status, &body)
    }

    /// Asks for a change of the row, and waits for its end.
    pub(crate) fn scale(&self, request: &ScaleRequest) -> Result<ScaleReport> {
        self.ask(SCALE, request, SCALE_PATIENCE)
    }

    /// What it remembers, at most so many texts.
    pub(crate) fn cache(&self, limit: usize) -> Result<CacheReport> {
        let request = self.agent.get(format!("{}{CACHE}?limit={limit}", self.url));
        let answer = self.with_key(request).call();
        let (status, body) = self.read(answer, PATIENCE)?;
        self.report(CACHE, status, &body)
    }

    /// Pins, unpins or drops what it remembers of a text.
    pub(crate) fn change_cache(&self, action: &str, which: &Value) -> Result<CacheChanged> {
        self.ask(&format!("{CACHE}/{action}"), which, PATIENCE)
    }

    fn ask<T: DeserializeOwned>(&self, page: &str, request: &impl Serialize, patience: Duration) -> Result<T> {
        let post = self.agent.post(format!("{}{page}", self.url)).header("content-type", "application/json");
        let post = self.with_key(post).config().timeout_global(Some(patience)).build();
        let (status, body) = self.read(post.send(serde_json::to_string(request)?), patience)?;
        self.report(page, status, &body)
    }

    fn report<T: DeserializeOwned>(&self, page: &str, status: StatusCode, body: &str) -> Result<T> {
        self.check_key(status)?;
        let url = &self.url;
        if !status.is_success() {
            let answer: Value = serde_json::from_str(body).unwrap_or_default();
            match answer.pointer("/error/message").and_then(Value::as_str) {
                Some(message) => bail!("{url} says: {}", printable(message)),
                None => bail!("what answers at {url} does not do that ({page} gave HTTP {status})"),
            }
        }
        serde_json::from_str(body).with_context(|| format!("{url} answers with a report that cannot be read"))
    }

    fn with_key<Body>(&self, request: RequestBuilder<Body>) -> RequestBuilder<Body> {
        match &self.key {
            Some(key) => request.header("authorization", format!("Bearer {key}")),
            None => request,
        }
    }

    fn read(
        &self,
        answer: std::result::Result<Response<ureq::Body>, ureq::Error>,
        patience: Duration,
    ) -> Result<(StatusCode, String)> {
        let mut response = answer.map_err(|error| self.no_answer(error, patience))?;
        let body = response.body_mut().with_config().limit(ANSWER_BYTES).read_to_string();
        Ok((response.status(), body.with_context(|| format!("{} does not answer as a server should", self.url))?))
    }

    fn check_key(&self, status: StatusCode) -> Result<()> {
        let url = &self.url;
        match (status, &self.key) {
            (StatusCode::UNAUTHORIZED, Some(_)) => bail!("{url} does not take this API key"),
            (StatusCode::UNAUTHORIZED, None) => {
                bail!("{url} asks for an API key: give it with --api-key or PACELINE_API_KEY")
            }
            _ => Ok(()),
        }
    }

    /// Fails unless it answers.
    pub(crate) fn live(&self) -> Result<()> {
        let response = self.agent.get(format!("{}{LIVE}", self.url)).call();
        let response = response.map_err(|error| self.no_answer(error, PATIENCE))?;
        let status = response.status();
        ensure!(status.is_success(), "{} does not work any more ({LIVE} gave HTTP {status})", self.url);
        Ok(())
    }

    fn understand(&self, status: StatusCode, body: &str) -> Result<StatusReport> {
        let url = &self.url;
        let answer: Option<Value> = serde_json::from_str(body).ok();
        let field = |path: &str| answer.as_ref().and_then(|answer| answer.pointer(path)?.as_str());
        self.check_key(status)?;
        if status.is_server_error()
            && let Some(message) = field("/error/message")
        {
            bail!("{url} says: {message}");
        }
        if !status.is_success() || field("/service") != Some(SERVICE) {
            bail!("what answers at {url} is not a Paceline server, or an older one ({PAGE} gave HTTP {status})");
        }
        let version = field("/version").unwrap_or("unknown");
        serde_json::from_str(body).with_context(|| {
            format!("{url} runs Paceline {version}, whose status version {} cannot read", env!("CARGO_PKG_VERSION"))
        })
    }

    fn no_answer(&self, error: ureq::Error, patience: Duration) -> anyhow::Error {
        let url = &self.url;
        match error {
            ureq::Error::Timeout(_) => anyhow!("{url} did not answer within {} s", patience.as_secs()),
            ureq::Error::BadUri(reason) => anyhow!("--url {url} is not an address: {reason}"),
            error @ (ureq::Error::Io(_) | ureq::Error::HostNotFound | ureq::Error::ConnectionFailed) => {
                anyhow!(error).context(format!("{url} cannot be reached; --url says where a server runs"))
            }
            error => anyhow!(error).context(format!("{url} does not answer as a server should")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;

    fn server(url: &str, key: Option<&str>) -> Result<Server> {
        Server::new(&ServerArgs { url: url.to_owned(), api_key: key.map(str::to_owned) })
    }

    /// What is said about a server that answers with these bytes.
    fn complaint(answer: &str, key: Option<&str>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = listener.local_addr().expect("an address").to_string();
        let answer = answer.to_owned();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            assert!(stream.read(&mut [0; 4096]).expect("a request") > 0);
            stream.write_all(answer.as_bytes()).expect("the client reads");
        });
        let error = server(&url, key).expect("an address").status().expect_err("no Paceline");
        thread.join().expect("no panic");
        let text = format!("{error:#}");
        assert!(text.contains(&url), "{text}");
        text
    }

    fn http(status: u16, body: &str) -> String {
        format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\n\r\n{body}", body.len())
    }

    #[test]
    fn addresses_are_taken_as_people_write_them() {
        for (given, url) in [
            ("http://host:1/", "http://host:1"),
            ("host:1", "http://host:1"),
            (" 127.0.0.1:8080 ", "http://127.0.0.1:8080"),
            ("http://[::1]:8080", "http://[::1]:8080"),
        ] {
            assert_eq!(server(given, None).expect("an address").url(), url);
        }
        for given in ["", "/", "https://host", "unix:///x"] {
            assert!(server(given, None).is_err(), "{given:?}");
        }
        for given in ["http://", "http:// x", "http://host:99999"] {
            assert!(server(given, None).and_then(|server| server.status()).is_err(), "{given:?}");
        }
    }

    #[test]
    fn nobody_there_is_said_with_the_address() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        drop(listener);
        let error = server(&url, None).expect("an address").status().expect_err("nobody listens");
        let text = format!("{error:#}");
        assert!(text.contains(&url) && text.contains("cannot be reached"), "{text}");
    }

    #[test]
    fn answers_that_are_no_status_are_told_apart() {
        assert!(complaint(&http(401, "{}"), None).contains("--api-key"));
        assert!(complaint(&http(401, "{}"), Some("wrong")).contains("does not take this API key"));
        for (status, body) in [(200, "hello"), (200, "{}"), (404, ""), (200, r#"{"service": "another"}"#), (500, "[]")]
        {
            assert!(complaint(&http(status, body), None).contains("not a Paceline server"), "{body}");
        }
        let broken = http(503, r#"{"error": {"message": "shutting down"}}"#);
        assert!(complaint(&broken, None).contains("says: shutting down"));
        let newer = http(200, r#"{"service": "paceline", "version": "99.0"}"#);
        assert!(complaint(&newer, None).contains("Paceline 99.0"));
    }

    #[test]
    fn what_is_not_http_is_an_error_with_the_address() {
        for answer in ["nonsense\r\n\r\n", "", "HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\ncut", "HTTP/1.1 200"] {
            complaint(answer, None);
        }
        let endless = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(1 << 20));
        complaint(&endless, None);
    }
}
