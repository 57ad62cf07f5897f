//! The control plane's two ends: gRPC over mutually authenticated TLS.
//!
//! [`listener`] lets nobody in whom the cluster does not know, before a single message is read; [`service`] is what the
//! coordinator answers; [`client`] is how a shard calls.

pub(crate) mod client;
pub(crate) mod listener;
pub(crate) mod service;

use std::time::Duration;

use anyhow::{Context, Result, bail};
use paceline_proto::NodeId;
use sha2::{Digest, Sha256};
use uuid::Uuid;

/// What this program speaks on the control plane.
pub(crate) const PROGRAM: &str = env!("CARGO_PKG_VERSION");
/// A handshake that takes longer is not meant seriously.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// The largest message: a manifest of a model of some hundred gigabytes.
const MESSAGE_BYTES: usize = 16 << 20;
/// Messages to or from a shard that may wait. Cancels are the most: one per running session.
pub(crate) const OUTBOX: usize = 1024;
/// A connection on which nothing answers for so long is dead.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// A node's name as it travels.
pub(crate) fn node_from(bytes: &[u8]) -> Result<NodeId> {
    Ok(NodeId(Uuid::from_slice(bytes).context("a node's name is not 16 bytes")?))
}

/// The name of whoever has this key. It follows from the key, so that nobody can take another's.
pub(crate) fn node_of(public_key_der: &[u8]) -> NodeId {
    let mut name = [0; 16];
    name.copy_from_slice(&Sha256::digest(public_key_der)[..16]);
    NodeId(Uuid::from_bytes(name))
}

/// The secret of a link or a move as it travels.
pub(crate) fn secret_from(bytes: &[u8]) -> Result<[u8; 16]> {
    match bytes.try_into() {
        Ok(secret) => Ok(secret),
        Err(_) => bail!("a secret has {} bytes, not 16", bytes.len()),
    }
}
