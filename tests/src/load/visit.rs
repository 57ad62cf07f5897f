//! One visit of a client: what it asks for, and when it leaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;

use crate::chaos::chance::Chance;

/// Longer than any answer takes; who waits longer than this hangs.
const HANG: Duration = Duration::from_secs(180);

const WORDS: [&str; 8] = ["river", "stone", "seven", "house", "green", "under", "light", "horse"];

/// What a client asks for, and when it leaves.
#[derive(Debug)]
pub(super) struct Visit {
    path: &'static str,
    body: String,
    leaving: Leaving,
}

#[derive(Debug, Clone, Copy)]
enum Leaving {
    /// With half of its request sent.
    HalfSent,
    /// Without reading anything.
    AtOnce,
    /// After so many lines of the answer.
    After(usize),
    Never,
}

/// How a visit ended.
#[derive(Debug)]
pub(super) enum Outcome {
    Complete,
    Left,
    Refused,
    Overdue,
    Wrong(String),
}

impl Visit {
    /// What the seed says.
    pub(super) fn draw(chance: &mut Chance) -> Self {
        let words: Vec<&str> = (0..4 + chance.below(60)).map(|_| *chance.of(&WORDS)).collect();
        let (text, tokens) = (words.join(" "), 4 + chance.below(60));
        let stream = chance.below(4) > 0;
        let messages = json!([{ "role": "user", "content": text }]);
        let (path, body) = match chance.below(4) {
            0 => ("/v1/messages", json!({ "messages": messages, "max_tokens": tokens, "stream": stream })),
            1 => ("/v1/responses", json!({ "input": text, "max_output_tokens": tokens, "stream": stream })),
            2 => ("/v1/completions", json!({ "prompt": text, "max_tokens": tokens, "stream": stream })),
            _ => ("/v1/chat/completions", json!({ "messages": messages, "max_tokens": tokens, "stream": stream })),
        };
        let leaving = match chance.below(10) {
            0 => Leaving::HalfSent,
            1 => Leaving::AtOnce,
            2..6 => Leaving::After(1 + chance.below(30)),
            _ => Leaving::Never,
        };
        Self { path, body: body.to_string(), leaving }
    }

    /// Makes it.
    pub(super) fn make(&self, address: SocketAddr) -> Outcome {
        self.talk(address).unwrap_or_else(|error| Outcome::Wrong(format!("{} {error}", self.path)))
    }

    fn talk(&self, address: SocketAddr) -> std::io::Result<Outcome> {
        let Self { path, body, leaving } = self;
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(HANG))?;
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: load\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes())?;
        let sent = if matches!(leaving, Leaving::HalfSent) { length / 2 } else { length };
        stream.write_all(&body.as_bytes()[..sent])?;
        if matches!(leaving, Leaving::HalfSent | Leaving::AtOnce) {
            stream.shutdown(Shutdown::Both)?;
            return Ok(Outcome::Left);
        }
        self.read(&mut BufReader::new(stream))
    }

    fn read(&self, answer: &mut BufReader<TcpStream>) -> std::io::Result<Outcome> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if answer.read_line(&mut head)? == 0 {
                return Ok(Outcome::Wrong(format!("{} was not answered", self.path)));
            }
        }
        let status = head.split(' ').nth(1).unwrap_or_default();
        match status {
            "200" => self.read_body(answer),
            "429" | "503" if seconds_to_wait(&head).is_none_or(|seconds| seconds == 0) => {
                Ok(Outcome::Wrong(format!("{} {status} without Retry-After", self.path)))
            }
            "429" => Ok(Outcome::Refused),
            "503" => Ok(Outcome::Overdue),
            _ => {
                let mut body = String::new();
                answer.read_to_string(&mut body)?;
                Ok(Outcome::Wrong(format!("{} {status}: {body}", self.path)))
            }
        }
    }

    fn read_body(&self, answer: &mut BufReader<TcpStream>) -> std::io::Result<Outcome> {
        let (mut line, mut lines) = (Vec::new(), 0);
        loop {
            if let Leaving::After(most) = self.leaving
                && lines >= most
            {
                answer.get_ref().shutdown(Shutdown::Both)?;
                return Ok(Outcome::Left);
            }
            line.clear();
            if answer.read_until(b'\n', &mut line)? == 0 {
                return Ok(Outcome::Complete);
            }
            lines += 1;
            if line.starts_with(b"data: {\"error\"") || line.starts_with(b"event: error") {
                return Ok(Outcome::Wrong(format!("{} broke off: {}", self.path, String::from_utf8_lossy(&line))));
            }
        }
    }
}

fn seconds_to_wait(head: &str) -> Option<u64> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    let value = fields.into_iter().find(|(name, _)| name.eq_ignore_ascii_case("retry-after"))?.1;
    value.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_to_wait_is_a_header() {
        assert_eq!(seconds_to_wait("HTTP/1.1 429 x\r\nRetry-After: 7\r\n\r\n"), Some(7));
        assert_eq!(seconds_to_wait("HTTP/1.1 429 x\r\nx: 7\r\n\r\n"), None);
    }
}
