//! The greeting at the start of a connection, from both sides, over anything that carries bytes.

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::hello::{ANSWER_BYTES, Answer, HELLO_BYTES, Hello, Refusal};
use crate::{Error, Result};

/// Says what this side wants, and hears whether it gets it.
pub(crate) async fn greet(
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
    hello: &Hello,
) -> Result<()> {
    send.write_all(&hello.encode()).await.map_err(Error::greeting)?;
    let mut bytes = [0; ANSWER_BYTES];
    receive.read_exact(&mut bytes).await.map_err(Error::greeting)?;
    let answer = Answer::decode(&bytes)?;
    let by = format!("node {}", answer.node);
    if let Some(refusal) = answer.refusal {
        return Err(Error::Refused { by, reason: refusal.to_string() });
    }
    if answer.node != hello.to {
        return Err(Error::greeting(format!("{by} is there, not node {}", hello.to)));
    }
    Ok(())
}

/// Hears what the other side wants.
pub(super) async fn hear(receive: &mut (impl AsyncRead + Unpin)) -> Result<Hello> {
    let mut bytes = [0; HELLO_BYTES];
    receive.read_exact(&mut bytes).await.map_err(Error::greeting)?;
    Hello::decode(&bytes)
}

/// Says whether the other side gets it.
pub(super) async fn answer(send: &mut (impl AsyncWrite + Unpin), answer: Answer) -> Result<()> {
    send.write_all(&answer.encode()).await.map_err(Error::greeting)
}

impl Answer {
    pub(super) fn refuse(node: paceline_proto::NodeId, refusal: Refusal) -> Self {
        Self { node, refusal: Some(refusal) }
    }

    pub(super) fn accept(node: paceline_proto::NodeId) -> Self {
        Self { node, refusal: None }
    }
}
