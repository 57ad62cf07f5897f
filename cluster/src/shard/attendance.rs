//! One stay with the coordinator: a stream in each direction, heartbeats, and what the stage has to tell.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use paceline_control::{Cancel, FromShard, Heartbeat, Leaving, ToShard, Welcome, from_shard, to_shard};
use paceline_proto::{Epoch, SessionId};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Streaming};
use tracing::{debug, info};
use uuid::Uuid;

use super::Member;
use crate::control::{OUTBOX, client};
use crate::host;

/// The coordinator welcomes a node at once.
const WELCOME: Duration = Duration::from_secs(10);
/// Orders that wait for the one before: the coordinator gives a few for each placement.
const ORDERS: usize = 64;
/// A coordinator that asks for heartbeats more often, or never, does not get its will.
const HEARTBEATS: std::ops::RangeInclusive<u64> = 100..=60_000;

/// How a stay ended.
pub(super) enum Ended {
    /// The connection is gone, or the coordinator.
    Lost(String),
    /// The coordinator does not want this node.
    Sent(String),
    /// People do not want it in the cluster any more, or it wanted to leave itself.
    Dismissed(String),
}

/// Attends until either side leaves.
pub(super) async fn attend(member: &Member) -> Result<Ended> {
    let mut reached = client::attend(&member.address, &member.identity).await?;
    let (outbox, to_coordinator) = mpsc::channel(OUTBOX);
    let hello = from_shard::Message::Hello(member.hello.clone());
    outbox.send(FromShard { message: Some(hello) }).await.context("the stream is closed")?;
    let attending = timeout(WELCOME, reached.client.attend(ReceiverStream::new(to_coordinator))).await;
    let mut messages = match attending.context("the coordinator does not answer")? {
        Ok(response) => response.into_inner(),
        // Another version, or a device that it cannot use: that stays so.
        Err(status) if status.code() == Code::FailedPrecondition => {
            return Ok(Ended::Sent(status.message().to_owned()));
        }
        Err(status) => return Err(client::refused(&member.address, status)),
    };
    let (orders, queue) = mpsc::channel(ORDERS);
    tokio::select! {
        ended = hear_and_beat(member, reached.remote, &mut messages, &orders, &outbox) => Ok(ended),
        () = obey_all(member, queue, &outbox) => Ok(Ended::Lost("the orders have ended".to_owned())),
    }
}

/// Hears what the coordinator says, and lets it hear a heartbeat now and then.
async fn hear_and_beat(
    member: &Member,
    coordinator: SocketAddr,
    messages: &mut Streaming<ToShard>,
    orders: &mpsc::Sender<to_shard::Message>,
    outbox: &mpsc::Sender<FromShard>,
) -> Ended {
    let mut heartbeat = interval(Duration::from_secs(1));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut leaving = member.leaving.subscribe();
    leaving.mark_changed();
    loop {
        tokio::select! {
            // The sender lives as long as the member.
            Ok(()) = leaving.changed() => {
                if *leaving.borrow_and_update() && outbox.try_send(leave()).is_err() {
                    return Ended::Lost("it does not hear that this node wants to leave".to_owned());
                }
            }
            message = messages.message() => match message {
                Ok(Some(ToShard { message: Some(to_shard::Message::Leave(leave)) })) => {
                    return if leave.wanted { Ended::Dismissed(leave.reason) } else { Ended::Sent(leave.reason) };
                }
                Ok(Some(ToShard { message: Some(to_shard::Message::Welcome(welcome)) })) => {
                    heartbeat = heartbeats(&welcome);
                    info!(%coordinator, "joined");
                    member.supervisor.status(&format!("with the coordinator at {coordinator}"));
                }
                Ok(Some(ToShard { message: Some(to_shard::Message::Cancel(cancel)) })) => void(member, &cancel),
                Ok(Some(ToShard { message: Some(to_shard::Message::Tier(tier)) })) => member.workshop.tier(&tier, outbox),
                Ok(Some(ToShard { message: Some(message) })) => {
                    if orders.try_send(message).is_err() {
                        return Ended::Lost("it gives more orders than can be carried out".to_owned());
                    }
                }
                Ok(Some(ToShard { message: None })) => debug!("the coordinator says something that we do not know"),
                Ok(None) => return Ended::Lost("it ended the stream".to_owned()),
                Err(status) => return Ended::Lost(status.message().to_owned()),
            },
            _ = heartbeat.tick() => {
                let (epoch, steps) = member.workshop.progress();
                let beat = Heartbeat { epoch: epoch.0, steps, resident: host::resident_memory().unwrap_or(0) };
                if outbox.try_send(FromShard { message: Some(from_shard::Message::Heartbeat(beat)) }).is_err() {
                    return Ended::Lost("it takes no heartbeats".to_owned());
                }
            }
        }
    }
}

fn leave() -> FromShard {
    FromShard { message: Some(from_shard::Message::Leaving(Leaving {})) }
}

fn heartbeats(welcome: &Welcome) -> tokio::time::Interval {
    let millis = u64::from(welcome.heartbeat_millis).clamp(*HEARTBEATS.start(), *HEARTBEATS.end());
    let mut heartbeat = interval(Duration::from_millis(millis));
    heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
    heartbeat
}

/// Carries out orders one after the other. Some take long, so heartbeats do not wait for them.
async fn obey_all(member: &Member, mut orders: mpsc::Receiver<to_shard::Message>, outbox: &mpsc::Sender<FromShard>) {
    while let Some(order) = orders.recv().await {
        obey(member, order, outbox).await;
    }
}

async fn obey(member: &Member, message: to_shard::Message, outbox: &mpsc::Sender<FromShard>) {
    match message {
        to_shard::Message::Load(load) => member.workshop.load(load, outbox.clone()).await,
        to_shard::Message::Connect(connect) => member.workshop.connect(connect),
        to_shard::Message::Release(release) => member.workshop.release(Epoch(release.epoch), outbox).await,
        to_shard::Message::Cancel(cancel) => void(member, &cancel),
        to_shard::Message::Give(give) => member.workshop.give(&give, outbox),
        to_shard::Message::Take(take) => member.workshop.take(take, outbox),
        // Heard already.
        to_shard::Message::Welcome(_) | to_shard::Message::Leave(_) | to_shard::Message::Tier(_) => {}
    }
}

fn void(member: &Member, cancel: &Cancel) {
    match Uuid::from_slice(&cancel.session) {
        Ok(session) => member.workshop.cancel(SessionId(session)),
        Err(error) => debug!(%error, "a cancel names no session"),
    }
}
