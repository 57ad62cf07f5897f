//! A small HTTP client that shows everything.

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A connection with one request on it.
pub(crate) struct Client {
    stream: TcpStream,
    received: Vec<u8>,
}

/// A response with its body.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The value of a header.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.into_iter().find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

impl Client {
    /// Sends bytes as they are.
    pub(crate) async fn send(address: std::net::SocketAddr, request: &[u8]) -> Self {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(request).await.unwrap();
        Self { stream, received: Vec::new() }
    }

    /// Sends a request with a JSON body.
    pub(crate) async fn post(address: std::net::SocketAddr, path: &str, body: &str) -> Self {
        let length = body.len();
        let head = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n");
        Self::send(address, format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes()).await
    }

    /// Takes the status line and the headers.
    pub(crate) async fn head(&mut self) -> String {
        let end = self.receive_until(b"\r\n\r\n").await.expect("the server closes without an answer");
        self.take(end)
    }

    /// Takes the whole response.
    pub(crate) async fn response(&mut self) -> Response {
        let head = self.head().await;
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        let body = if header(&head, "transfer-encoding").is_some() {
            let mut body = String::new();
            while let Some(chunk) = self.chunk().await {
                body += &chunk;
            }
            body
        } else {
            let length = header(&head, "content-length").map_or(0, |length| length.parse().unwrap());
            while self.received.len() < length {
                assert!(self.receive().await > 0, "the server closes in the middle of a body");
            }
            self.take(length)
        };
        Response { status, head, body }
    }

    /// Takes the next chunk of a body of unknown length; `None` at its end, or when the server closes.
    pub(crate) async fn chunk(&mut self) -> Option<String> {
        let end = self.receive_until(b"\r\n").await?;
        let length = usize::from_str_radix(self.take(end).trim(), 16).unwrap();
        while self.received.len() < length + 2 {
            if self.receive().await == 0 {
                return None;
            }
        }
        let chunk = self.take(length);
        self.take(2);
        (length > 0).then_some(chunk)
    }

    /// Takes the events of a stream to its end; the text after `data: ` of each.
    pub(crate) async fn events(&mut self) -> Vec<String> {
        let mut text = String::new();
        while let Some(chunk) = self.chunk().await {
            text += &chunk;
        }
        text.split_terminator("\n\n").map(|event| event.strip_prefix("data: ").unwrap_or(event).to_owned()).collect()
    }

    async fn receive_until(&mut self, mark: &[u8]) -> Option<usize> {
        loop {
            let found = self.received.windows(mark.len()).position(|window| window == mark);
            if let Some(start) = found {
                return Some(start + mark.len());
            }
            if self.receive().await == 0 {
                return None;
            }
        }
    }

    async fn receive(&mut self) -> usize {
        // A reset connection is as closed as any.
        self.stream.read_buf(&mut self.received).await.unwrap_or(0)
    }

    fn take(&mut self, length: usize) -> String {
        String::from_utf8(self.received.drain(..length).collect()).unwrap()
    }
}
