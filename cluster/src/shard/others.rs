//! The disk tiers of other nodes, as this node's tier asks them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_control::Peer;
use paceline_shard::sharing::{Others, Request};
use paceline_transport::{Endpoint, PieceClient, PieceRequest};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::debug;

use super::fetch::reach;

/// A node that has not answered by then is not asked any more: a session waits.
const ANSWER: Duration = Duration::from_secs(4);

/// Nodes that may have kept what this one lacks.
pub(super) struct Nodes {
    peers: Vec<Peer>,
    endpoint: Endpoint,
    runtime: Handle,
    /// By node: the way to it, nothing where there is none.
    clients: Mutex<HashMap<usize, Option<Arc<PieceClient>>>>,
}

impl Nodes {
    /// To be called where a runtime is.
    pub(super) fn new(peers: Vec<Peer>, endpoint: Endpoint) -> Self {
        Self { peers, endpoint, runtime: Handle::current(), clients: Mutex::default() }
    }

    async fn client(&self, other: usize) -> Option<Arc<PieceClient>> {
        let known = || self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known().get(&other) {
            return client.clone();
        }
        let found = timeout(ANSWER, reach(&self.endpoint, &self.peers[other])).await;
        let client = found.ok().and_then(|reached| match reached {
            Ok(client) => Some(Arc::new(client)),
            Err(error) => {
                debug!("a node that may have kept something: {error:#}");
                None
            }
        });
        known().insert(other, client.clone());
        client
    }
}

impl Others for Nodes {
    fn count(&self) -> usize {
        self.peers.len()
    }

    fn ask(&self, other: usize, Request { of, number }: Request) -> Option<Vec<u8>> {
        self.runtime.block_on(async {
            let client = self.client(other).await?;
            match timeout(ANSWER, client.fetch(PieceRequest { of, piece: number })).await {
                Ok(answer) => answer.ok().map(Vec::from),
                Err(_) => {
                    self.clients.lock().unwrap_or_else(PoisonError::into_inner).insert(other, None);
                    None
                }
            }
        })
    }
}
