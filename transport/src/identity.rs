//! Who is who in a cluster: its authority, the nodes that have a certificate of it, and the tokens that let
//! newcomers in.
//!
//! A token's secret is the seed of an Ed25519 key. A newcomer presents a self-signed certificate of that key when it
//! connects, so the secret never travels and nothing that an eavesdropper recorded is of use to it; the coordinator
//! recognises it by the hash of the public key ([`TokenKey`]). The newcomer knows the coordinator by the authority's
//! [`Fingerprint`], which is part of the token. From then on both sides present certificates of the authority.
//! No stranger completes a handshake, so nothing is ever answered to one.

mod authority;
mod hex;
mod key;
mod names;
mod node;
mod tls;
mod token;
mod verify;

pub use authority::{Authority, Fingerprint, Role};
pub use key::NodeKey;
pub use names::coordinator_name;
pub(crate) use names::of_node as node_name;
pub use node::Identity;
pub use tls::{control_server, newcomer_client, node_client};
pub(crate) use tls::{data_client, data_server};
pub use token::{JoinToken, TokenId, TokenKey};
pub(crate) use verify::named_node;
pub use verify::{Peer, Trust, peer_of};

#[cfg(test)]
mod tests;
