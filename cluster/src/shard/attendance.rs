//! One stay with the coordinator: a stream in each direction, heartbeats, and what the stage has to tell.

use std::time::Duration;

use anyhow::{Context, Result};
use paceline_control::{FromShard, Heartbeat, ToShard, Welcome, from_shard, to_shard};
use paceline_proto::{Epoch, SessionId};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tracing::{debug, info};
use uuid::Uuid;

use super::Member;
use crate::control::{OUTBOX, client};
use crate::host;

/// The coordinator welcomes a node at once.
const WELCOME: Duration = Duration::from_secs(10);
/// A coordinator that asks for heartbeats more often, or never, does not get its will.
const HEARTBEATS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// How a stay ended.
pub(super) enum Ended {
    /// The connection is gone, or the coordinator.
    Lost(String),
    /// The coordinator does not want this node.
    Sent(String),
}

/// Attends until either side leaves.
pub(super) async fn attend(member: &Member) -> Result<Ended> {
    let mut reached = client::attend(&member.address, &member.identity).await?;
    let (outbox, to_coordinator) = mpsc::channel(OUTBOX);
    let hello = from_shard::Message::Hello(member.hello.clone());
    outbox.send(FromShard { message: Some(hello) }).await.context("the stream is closed")?;
    let attending = timeout(WELCOME, reached.client.attend(ReceiverStream::new(to_coordinator))).await;
    let response = attending.context("the coordinator does not answer")?;
    let mut messages = response.map_err(|status| client::refused(&member.address, &status))?.into_inner();
    let mut heartbeat = interval(Duration::from_secs(1));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            message = messages.message() => match message {
                Ok(Some(ToShard { message: Some(to_shard::Message::Leave(leave)) })) => {
                    return Ok(Ended::Sent(leave.reason));
                }
                Ok(Some(ToShard { message: Some(to_shard::Message::Welcome(welcome)) })) => {
                    heartbeat = heartbeats(&welcome);
                    info!(coordinator = %reached.remote, "joined");
                }
                Ok(Some(ToShard { message: Some(message) })) => obey(member, message, &outbox).await,
                Ok(Some(ToShard { message: None })) => debug!("the coordinator says something that we do not know"),
                Ok(None) => return Ok(Ended::Lost("it ended the stream".to_owned())),
                Err(status) => return Ok(Ended::Lost(status.message().to_owned())),
            },
            _ = heartbeat.tick() => {
                let (epoch, steps) = member.workshop.progress();
                let beat = Heartbeat { epoch: epoch.0, steps, resident: host::resident_memory().unwrap_or(0) };
                if outbox.try_send(FromShard { message: Some(from_shard::Message::Heartbeat(beat)) }).is_err() {
                    return Ok(Ended::Lost("it takes no heartbeats".to_owned()));
                }
            }
        }
    }
}

fn heartbeats(welcome: &Welcome) -> tokio::time::Interval {
    let millis = u64::from(welcome.heartbeat_millis).clamp(*HEARTBEATS.start(), *HEARTBEATS.end());
    let mut heartbeat = interval(Duration::from_millis(millis));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat
}

/// Carries out what the coordinator says; what takes time goes on beside.
async fn obey(member: &Member, message: to_shard::Message, outbox: &mpsc::Sender<FromShard>) {
    match message {
        to_shard::Message::Load(load) => member.workshop.load(load, outbox.clone()).await,
        to_shard::Message::Connect(connect) => member.workshop.connect(connect, outbox.clone()),
        to_shard::Message::Release(release) => member.workshop.release(Epoch(release.epoch), outbox.clone()).await,
        to_shard::Message::Cancel(cancel) => match Uuid::from_slice(&cancel.session) {
            Ok(session) => member.workshop.cancel(SessionId(session)),
            Err(error) => debug!(%error, "a cancel names no session"),
        },
        to_shard::Message::Welcome(_) | to_shard::Message::Leave(_) => {}
    }
}
