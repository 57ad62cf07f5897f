//! Measuring a link before its first frame: a few messages there and back, then bursts that double until they take
//! long enough to say something.

use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use crate::{Carrier, Error, LinkReport, Result};

const START: u8 = 0;
const BURST: u8 = 1;
const SEEN: u8 = 1;
const HEAD_BYTES: usize = 5;

const ROUNDS: usize = 8;
const ROUNDS_TIME: Duration = Duration::from_millis(100);
const FIRST_BURST: u32 = 64 << 10;
const LAST_BURST: u32 = 2 << 20;
const BURSTS_TIME: Duration = Duration::from_millis(200);
/// A burst that takes longer than this is the last one.
const ENOUGH: Duration = Duration::from_millis(40);
/// More than all bursts together.
const MOST_BYTES: u64 = 8 << 20;
const MOST_PROBES: usize = 64;

/// Measures the link and starts it.
pub(super) async fn measure(
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
    carrier: Carrier,
) -> Result<LinkReport> {
    let began = Instant::now();
    let mut rounds = Vec::with_capacity(ROUNDS);
    while rounds.len() < ROUNDS && (rounds.is_empty() || began.elapsed() < ROUNDS_TIME) {
        rounds.push(burst(receive, send, 0).await?);
    }
    rounds.sort_unstable();
    let round_trip = rounds[rounds.len() / 2];
    let (mut size, mut bytes_per_second) = (FIRST_BURST, 0.0);
    let began = Instant::now();
    while size <= LAST_BURST && began.elapsed() < BURSTS_TIME {
        let took = burst(receive, send, size).await?;
        let moving = took.saturating_sub(round_trip).max(Duration::from_micros(1));
        bytes_per_second = f64::from(size) / moving.as_secs_f64();
        if took > ENOUGH {
            break;
        }
        size *= 2;
    }
    send.write_all(&head(START, 0)).await.map_err(|_| Error::Closed)?;
    Ok(LinkReport { round_trip, bytes_per_second, carrier })
}

async fn burst(
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
    size: u32,
) -> Result<Duration> {
    let mut message = vec![0; HEAD_BYTES + size as usize];
    message[..HEAD_BYTES].copy_from_slice(&head(BURST, size));
    let began = Instant::now();
    send.write_all(&message).await.map_err(|_| Error::Closed)?;
    let seen = receive.read_u8().await.map_err(|_| Error::Closed)?;
    if seen == SEEN { Ok(began.elapsed()) } else { Err(Error::greeting("a measurement was not answered")) }
}

fn head(tag: u8, size: u32) -> [u8; HEAD_BYTES] {
    let [a, b, c, d] = size.to_le_bytes();
    [tag, a, b, c, d]
}

/// Lets the other side measure, until it starts the link.
pub(super) async fn be_measured(
    receive: &mut (impl AsyncRead + Unpin),
    send: &mut (impl AsyncWrite + Unpin),
) -> Result<()> {
    let mut sum = 0;
    for _ in 0..MOST_PROBES {
        let mut bytes = [0; HEAD_BYTES];
        receive.read_exact(&mut bytes).await.map_err(|_| Error::Closed)?;
        let [tag, a, b, c, d] = bytes;
        let size = u32::from_le_bytes([a, b, c, d]);
        sum += u64::from(size);
        match (tag, size) {
            (START, 0) => return Ok(()),
            (BURST, _) if sum <= MOST_BYTES => discard(receive, size as usize).await?,
            _ => return Err(Error::greeting(format!("a measurement of kind {tag} with {size} bytes"))),
        }
        send.write_all(&[SEEN]).await.map_err(|_| Error::Closed)?;
    }
    Err(Error::greeting(format!("more than {MOST_PROBES} measurements")))
}

async fn discard(receive: &mut (impl AsyncRead + Unpin), size: usize) -> Result<()> {
    let mut buffer = vec![0; size.min(64 << 10)];
    let mut left = size;
    while left > 0 {
        let next = left.min(buffer.len());
        left -= receive.read_exact(&mut buffer[..next]).await.map_err(|_| Error::Closed)?;
    }
    Ok(())
}
