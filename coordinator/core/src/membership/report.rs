//! What people may ask to be changed about the row, and what they are told of it.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

/// A wish that the row be another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// These nodes take part; without names all that are free, as far as the model can be cut for them.
    Add {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// These nodes hold nothing from now on, and nothing is planned with them until they are added again.
    Drain {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// As drained, and then they must leave.
    Remove {
        /// Which.
        nodes: Vec<NodeId>,
    },
    /// The model is placed anew, with what is known of nodes and links by now.
    Rebalance,
}

impl Change {
    /// The nodes that it names.
    pub(super) fn nodes(&self) -> &[NodeId] {
        match self {
            Self::Add { nodes } | Self::Drain { nodes } | Self::Remove { nodes } => nodes,
            Self::Rebalance => &[],
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Add { .. } => "add",
            Self::Drain { .. } => "drain",
            Self::Remove { .. } => "remove",
            Self::Rebalance => "rebalance",
        })
    }
}

/// Tells requests apart; made by whoever asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(pub u64);

/// What a node holds of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Which.
    pub node: NodeId,
    /// The layers of its stage.
    pub layers: Range<usize>,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What it was.
    pub change: Change,
    /// How it ended.
    pub outcome: Outcome,
    /// The row before; empty where none was in force.
    pub before: Vec<Share>,
    /// The row after.
    pub after: Vec<Share>,
    /// The epochs of both rows, where another one was made.
    pub epochs: Option<(Epoch, Epoch)>,
    /// Bytes of keys, values and states that went from node to node.
    pub fetched: u64,
    /// Bytes of them that were copied within a node.
    pub copied: u64,
    /// From the last step of the old row to the first of the new one; nothing where no row was switched.
    pub pause: Option<Duration>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The memories of all sessions went to the new row, and they ran on.
    Moved,
    /// The new row was made in the old one's place, and sessions read all their tokens again.
    Replayed {
        /// Why they could not be moved.
        reason: String,
    },
    /// The row is as it was, because it is as wanted already.
    Unchanged,
    /// The row is as it was, because the new one could not be made.
    RolledBack {
        /// What happened.
        reason: String,
    },
    /// The row broke meanwhile; another one is placed as soon as that can be.
    Lost {
        /// What happened.
        reason: String,
    },
    /// Nothing was begun.
    Refused(Refusal),
}

/// Why nothing was begun.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// One at a time.
    #[error("another change of the row is under way ({change}): try again when it is over")]
    Busy {
        /// What it is.
        change: String,
    },
    /// Not a node of the cluster.
    #[error("node {node} does not attend")]
    UnknownNode {
        /// Which.
        node: NodeId,
    },
    /// There is nothing that could be moved.
    #[error("no row is in force: {reason}")]
    NotServing {
        /// What is the case instead.
        reason: &'static str,
    },
    /// Nodes must be named for it.
    #[error("say which nodes")]
    NoNames,
    /// Nobody could be added.
    #[error("no node is free: start another shard, or name one that is on standby or drained")]
    NobodyFree,
    /// A named node cannot take part now.
    #[error("node {node} cannot be added now: it still holds a part of an older row, or has just failed")]
    NotFree {
        /// Which.
        node: NodeId,
    },
    /// A row needs a node.
    #[error("no node would be left to serve from")]
    NobodyLeft,
    /// The planner finds no row.
    #[error("the model cannot be placed on the {nodes} nodes that would take part: {reason}")]
    DoesNotFit {
        /// How many.
        nodes: usize,
        /// What the planner says.
        reason: String,
    },
}
