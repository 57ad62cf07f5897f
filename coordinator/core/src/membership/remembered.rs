//! What a coordinator knows of its life before: how far epochs had come, who was drained, and the row that was in force,
//! whose nodes may still have their layers in memory.

use std::collections::BTreeSet;
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

use super::{Action, Membership};
use crate::planner::Placement;

/// How long the nodes of the row before are waited for: twice the longest pause that a shard makes before it joins
/// again.
pub const RETURN: Duration = Duration::from_secs(10);

/// What is left of a life before.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Remembered {
    /// The newest epoch: those of this life are greater, so that nothing of the old one is taken for new.
    pub epoch: Epoch,
    /// Nodes that were not to be used.
    pub drained: BTreeSet<NodeId>,
    /// The row that was in force, if what is wished for has not changed since.
    pub row: Option<RememberedRow>,
}

/// A row of a life before.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberedRow {
    nodes: Vec<NodeId>,
    placement: Placement,
}

impl RememberedRow {
    /// The nodes in the order of the row, and what each held. `None` if they do not go together.
    pub fn new(nodes: Vec<NodeId>, mut placement: Placement) -> Option<Self> {
        let distinct = nodes.iter().collect::<BTreeSet<_>>().len() == nodes.len();
        if nodes.is_empty() || !distinct || nodes.len() != placement.stages.len() {
            return None;
        }
        // Its devices were numbered as they were found; from now on the list of nodes is the row itself.
        for (index, stage) in placement.stages.iter_mut().enumerate() {
            stage.device = index;
        }
        Some(Self { nodes, placement })
    }

    /// Its nodes in order.
    pub fn nodes(&self) -> &[NodeId] {
        &self.nodes
    }

    /// What each of them held; stages name their devices by their place in the row.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }
}

/// A remembered row that waits for its nodes.
#[derive(Debug)]
pub(super) struct Returning {
    row: RememberedRow,
    /// Known from the first event on, which brings the time.
    until: Option<Duration>,
}

impl Membership {
    /// Goes on from a life before: its row is placed again as it was, as soon as all its nodes are here. After
    /// [`RETURN`] any row will do.
    #[must_use]
    pub fn remembering(mut self, Remembered { epoch, drained, row }: Remembered) -> Self {
        (self.epoch, self.drained) = (epoch, drained);
        self.returning = row.map(|row| Returning { row, until: None });
        self
    }

    /// Takes up the row of the life before if its nodes are here; true if nothing else is to be placed now.
    pub(super) fn take_up(&mut self, now: Duration, actions: &mut Vec<Action>) -> bool {
        let Some(mut returning) = self.returning.take() else { return false };
        let expired = now >= *returning.until.get_or_insert(now + RETURN);
        if returning.row.nodes.iter().all(|id| self.is_usable(*id, now)) {
            let RememberedRow { nodes, placement } = returning.row;
            // It is as people wanted it last.
            (self.wanted, self.enough) = (nodes.len(), nodes.len());
            let row = self.make(&nodes, placement, None, now, actions);
            (self.placed, self.row) = (now, Some(row));
            return true;
        }
        if !expired {
            self.returning = Some(returning);
        }
        !expired
    }
}
