//! A client of a few lines, so that tests see the very bytes that a server sends.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer of a tiny model takes; only a hang reaches it.
const HANG: Duration = Duration::from_secs(120);

/// An answer.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The status line and the headers.
    pub(crate) head: Vec<String>,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let fields = self.head.iter().filter_map(|line| line.split_once(": "));
        fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Sends a request and leaves the connection open.
pub(crate) fn send(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("the server listens");
    stream.set_read_timeout(Some(HANG)).expect("a timeout");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("the server reads");
    stream.write_all(body).expect("the server reads");
    stream
}

/// Sends a request and reads the whole answer.
pub(crate) fn request(address: SocketAddr, method: &str, path: &str, body: &[u8]) -> Response {
    read(&mut BufReader::new(send(address, method, path, body)))
}

/// Posts JSON and reads the whole answer.
pub(crate) fn post(address: SocketAddr, path: &str, body: &Value) -> Response {
    request(address, "POST", path, body.to_string().as_bytes())
}

pub(crate) fn get(address: SocketAddr, path: &str) -> Response {
    request(address, "GET", path, b"")
}

/// Reads the head of an answer; the body follows.
pub(crate) fn read_head(reader: &mut impl BufRead) -> (u16, Vec<String>) {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        let count = reader.read_line(&mut line).expect("an answer");
        let line = line.trim_end().to_owned();
        if line.is_empty() || count == 0 {
            break;
        }
        lines.push(line);
    }
    let status = lines.first().and_then(|line| line.split(' ').nth(1)).expect("a status line");
    (status.parse().expect("a number"), lines)
}

fn read(reader: &mut impl BufRead) -> Response {
    let (status, head) = read_head(reader);
    let is_chunked = |line: &String| line.to_lowercase().starts_with("transfer-encoding: chunked");
    let mut body = Vec::new();
    if head.iter().any(is_chunked) {
        while let Some(chunk) = read_chunk(reader) {
            body.extend(chunk);
        }
    } else {
        reader.read_to_end(&mut body).expect("a body");
    }
    Response { status, head, body: String::from_utf8(body).expect("UTF-8") }
}

/// Reads the next chunk of a chunked body; `None` at its end.
pub(crate) fn read_chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).expect("a chunk's size");
    let size = usize::from_str_radix(line.trim(), 16).ok()?;
    let mut chunk = vec![0; size + 2];
    reader.read_exact(&mut chunk).expect("a chunk");
    chunk.truncate(size);
    (size > 0).then_some(chunk)
}

/// The JSON of every event of a stream, without the end mark, which must be there.
pub(crate) fn events(body: &str) -> Vec<Value> {
    let mut data: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.pop(), Some("[DONE]"), "{body}");
    data.into_iter().map(|text| serde_json::from_str(text).expect("JSON in an event")).collect()
}
