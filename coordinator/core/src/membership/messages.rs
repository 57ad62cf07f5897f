//! What the membership is told, and what it wants done.

use std::collections::BTreeSet;
use std::ops::Range;
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

use super::{Change, Report, Ticket};
use crate::planner::{DeviceSpec, Placement};

/// What the membership is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    /// A node attends.
    Joined {
        /// Which.
        node: NodeId,
        /// What it has.
        device: Box<DeviceSpec>,
        /// It is used only when others are too few.
        standby: bool,
    },
    /// A node is alive.
    Heard {
        /// Which.
        node: NodeId,
    },
    /// A node has read or fetched more of its weights.
    Progressed {
        /// Which.
        node: NodeId,
        /// For which placement.
        epoch: Epoch,
    },
    /// A node's stage is in memory and expects its link.
    Loaded {
        /// Which.
        node: NodeId,
        /// For which placement.
        epoch: Epoch,
    },
    /// A node has connected to the next.
    Linked {
        /// Which.
        node: NodeId,
        /// For which placement.
        epoch: Epoch,
    },
    /// The coordinator's own two links are there.
    Ready {
        /// For which placement.
        epoch: Epoch,
    },
    /// A node's stage cannot go on; the node is still there and holds nothing of the epoch any more.
    Failed {
        /// Which.
        node: NodeId,
        /// For which placement.
        epoch: Epoch,
        /// What it says.
        reason: String,
    },
    /// A node holds nothing of the epoch any more.
    Released {
        /// Which.
        node: NodeId,
        /// Of which placement.
        epoch: Epoch,
    },
    /// A node is gone.
    Left {
        /// Which.
        node: NodeId,
        /// Why, as far as known.
        reason: String,
    },
    /// The row does not work, as seen by the coordinator.
    Broken {
        /// Which placement.
        epoch: Epoch,
        /// What is known of it.
        reason: String,
    },
    /// A step of the row does not come back, as seen by the coordinator: one of the stages hangs.
    Hangs {
        /// Which placement.
        epoch: Epoch,
        /// What is known of it.
        reason: String,
    },
    /// A node's stage has finished so many steps.
    Ran {
        /// Which.
        node: NodeId,
        /// Of which placement.
        epoch: Epoch,
        /// Since it is in force.
        steps: u64,
    },
    /// The row is to be another one.
    Scale {
        /// Of whoever asks.
        ticket: Ticket,
        /// How.
        change: Change,
    },
    /// A node wants to end. Its work goes to others first, if there are any who can do it.
    Leaving {
        /// Which.
        node: NodeId,
    },
    /// The row in force is still.
    Still {
        /// Its epoch.
        epoch: Epoch,
    },
    /// A node has all memories of its stage of a row that takes over.
    Taken {
        /// Which.
        node: NodeId,
        /// For which placement.
        epoch: Epoch,
        /// Bytes that came from other nodes.
        fetched: u64,
        /// Bytes that it had itself.
        copied: u64,
    },
    /// Steps run in the row that took over.
    Switched {
        /// Its epoch.
        epoch: Epoch,
        /// How long no step ran.
        pause: Duration,
    },
    /// A second or so has passed.
    Tick,
}

/// What the membership wants done.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Tell these nodes, one per stage, to load.
    Load {
        /// The new placement's epoch.
        epoch: Epoch,
        /// What each stage holds.
        placement: Box<Placement>,
        /// The nodes in the order of the row.
        row: Vec<NodeId>,
        /// The row in force that it is made beside, to take over from it.
        beside: Option<Epoch>,
    },
    /// Everything is loaded: connect every stage to the next.
    Connect {
        /// Which placement.
        epoch: Epoch,
    },
    /// The row works.
    Serve {
        /// Which placement.
        epoch: Epoch,
    },
    /// Let the row in force come to rest, and say when it is still.
    Hold {
        /// Its epoch.
        epoch: Epoch,
        /// The row that is to take over; broken, if the one in force cannot be held.
        next: Epoch,
    },
    /// Tell the nodes of one row to give what memories are in use, and those of another to take them.
    Move {
        /// The row that gives.
        from: Epoch,
        /// Its nodes.
        givers: Vec<NodeId>,
        /// The row that takes.
        epoch: Epoch,
        /// Its nodes, and where each finds what it needs.
        takers: Vec<Taker>,
    },
    /// All memories are there: steps go on in this row.
    Switch {
        /// Its epoch.
        epoch: Epoch,
    },
    /// The held row goes on after all.
    Resume,
    /// The row, in force or in the making, is over.
    Over {
        /// Which placement.
        epoch: Epoch,
        /// The stage at fault, if one is.
        stage: Option<usize>,
        /// What happened.
        reason: String,
    },
    /// The row in force, which works, is over: it makes room for another one.
    MakeRoom {
        /// Its epoch.
        epoch: Epoch,
    },
    /// Tell a node to drop what it holds of an epoch.
    Release {
        /// Which.
        node: NodeId,
        /// Of which placement.
        epoch: Epoch,
    },
    /// Tell a node, which is no part of the cluster any more as people or it itself wanted, to end.
    Leave {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// End a node's attendance.
    Expel {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// Other nodes than before are not to be used; to be kept for a later life.
    Drained {
        /// All of them, here or not.
        nodes: BTreeSet<NodeId>,
    },
    /// The nodes that are here cannot hold the model.
    Unplaced {
        /// What the planner says.
        reason: String,
    },
    /// What became of a change, for whoever asked; without a ticket the membership itself had reason for it.
    Report {
        /// Of whoever asked.
        ticket: Option<Ticket>,
        /// What became of it.
        report: Box<Report>,
    },
}

/// A node that takes memories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taker {
    /// Which.
    pub node: NodeId,
    /// Who has what of the layers of its stage, in the order of the layers.
    pub sources: Vec<Source>,
}

/// A node that has memories that another one needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// Which.
    pub node: NodeId,
    /// Of which layers.
    pub layers: Range<usize>,
    /// And the samplers, from tail to tail.
    pub samplers: bool,
}
