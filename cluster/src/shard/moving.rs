//! Memories that move: what a stage gives to others, and what a new one takes over.

use std::io::Write;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use paceline_control::Taken;
use paceline_proto::{Epoch, MemoryRequest};
use paceline_shard::{SharedStage, Taking, give};
use paceline_transport::{MemoryReader, MemorySource, Target, pipe};
use tokio::task::{JoinSet, spawn_blocking};

use super::order::{TakeOrder, TakeSource};
use super::workshop::Workshop;
use crate::cli::LinkChoice;
use crate::link;

/// What a stage remembers, for whoever may take it.
pub(super) struct StageMemories(pub(super) SharedStage);

impl MemorySource for StageMemories {
    fn give(&self, request: &[u8], to: &mut dyn Write) -> Result<(), String> {
        let request = MemoryRequest::decode(request).map_err(|error| error.to_string())?;
        give(&self.0, &request, to).map_err(|error| error.to_string())
    }
}

/// Brings all memories that the order names into a new stage, from one source after the other.
pub(super) async fn take(workshop: &Workshop, epoch: Epoch, stage: &SharedStage, order: TakeOrder) -> Result<Taken> {
    let begun = Instant::now();
    let mut taken = Taken { epoch: epoch.0, ..Taken::default() };
    let mut taking = Taking::new(stage.clone(), order.pages.clone(), order.slots.clone())?;
    for source in &order.sources {
        let request = taking.request(source.layers.clone(), source.samplers);
        let is_here = source.node == workshop.0.endpoint.node();
        let ways =
            if is_here { copy(workshop, &order, &request) } else { ask(workshop, &order, source, &request).await };
        let from = || format!("layers {:?} of epoch {} from node {}", source.layers, order.key.epoch, source.node);
        let (mut reader, _transfer) = ways.with_context(from)?;
        let reading = spawn_blocking(move || {
            let bytes = taking.read(&request, &mut reader);
            (taking, bytes)
        });
        let (back, bytes) = reading.await.map_err(|_| anyhow!("the thread that took memories panicked"))?;
        taking = back;
        let bytes = bytes.with_context(from)?;
        *(if is_here { &mut taken.copied } else { &mut taken.fetched }) += bytes;
    }
    taking.finish()?;
    taken.micros = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(taken)
}

/// From a stage of this process: no network, but the same way through.
fn copy(workshop: &Workshop, order: &TakeOrder, request: &MemoryRequest) -> Result<(MemoryReader, JoinSet<()>)> {
    let memories = workshop.memories(order.key.epoch)?;
    let (mut writer, reader) = pipe();
    let request = request.encode();
    let mut transfer = JoinSet::new();
    transfer.spawn_blocking(move || {
        let given = memories.give(&request, &mut writer);
        writer.end(given);
    });
    Ok((reader, transfer))
}

/// From another node, by the first way to it that works.
async fn ask(
    workshop: &Workshop,
    order: &TakeOrder,
    source: &TakeSource,
    request: &MemoryRequest,
) -> Result<(MemoryReader, JoinSet<()>)> {
    let TakeSource { node, peer, .. } = source;
    let unix = (!peer.unix.is_empty()).then_some(peer.unix.as_str());
    let mut failures = Vec::new();
    for route in link::routes(&peer.data, unix, LinkChoice::Auto)? {
        let target = Target { node: *node, route };
        match workshop.0.endpoint.take(&target, order.key, &request.encode()).await {
            Ok(asked) => return Ok(asked),
            Err(error) => failures.push(error.to_string()),
        }
    }
    bail!("it does not give them: {}", failures.join("; "))
}
