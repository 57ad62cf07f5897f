//! The names in certificates: what a node is, as DNS names below `paceline`, which no resolver is ever asked for.

use paceline_proto::NodeId;
use rustls::pki_types::ServerName;

use super::TokenId;

pub(super) const COORDINATOR: &str = "coordinator.paceline";
pub(super) const NEWCOMER: &str = "newcomer.paceline";
pub(super) const AUTHORITY: &str = "paceline authority";
const NODE: &str = ".node.paceline";
const TOKEN: &str = ".token.paceline";

/// The name under which the coordinator's certificate is checked.
pub fn coordinator_name() -> ServerName<'static> {
    ServerName::try_from(COORDINATOR).expect("a DNS name")
}

pub(crate) fn of_node(node: NodeId) -> String {
    format!("{node}{NODE}")
}

pub(super) fn of_token(token: TokenId) -> String {
    format!("{token}{TOKEN}")
}

/// The node of a name, which must be written as [`of_node`] writes it.
pub(super) fn node_in(name: &str) -> Option<NodeId> {
    let node = NodeId(name.strip_suffix(NODE)?.parse().ok()?);
    (of_node(node) == name).then_some(node)
}

pub(super) fn token_in(name: &str) -> Option<TokenId> {
    name.strip_suffix(TOKEN)?.parse().ok()
}
