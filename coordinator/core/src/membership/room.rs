//! Whether nodes have memory for the stages of two rows at once.

use std::collections::BTreeMap;

use paceline_proto::NodeId;

use super::Membership;
use super::row::Row;
use crate::planner::Placement;

/// Memory that stages share: a node's own, or what its host has for all nodes there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Node(NodeId),
    Host(String),
}

/// Bytes.
#[derive(Debug, Default)]
struct Room {
    needed: u64,
    available: u64,
    /// A stage of the new row goes there.
    grows: bool,
}

impl Membership {
    /// Why the new row cannot be made beside the old one, if it cannot. Weights that a node's two stages have in common
    /// are there once.
    pub(super) fn lacks_room(&self, old: &Row, nodes: &[NodeId], placement: &Placement) -> Option<String> {
        let mut rooms: BTreeMap<Place, Room> = BTreeMap::new();
        for stage in &old.stages {
            if let Some((place, available)) = self.place_of(stage.node) {
                let room = rooms.entry(place).or_default();
                room.needed = room.needed.saturating_add(stage.plan.memory.total());
                room.available = room.available.max(available);
            }
        }
        for (node, plan) in nodes.iter().zip(&placement.stages) {
            let Some((place, available)) = self.place_of(*node) else { continue };
            let old = old.stages.iter().find(|stage| stage.node == *node);
            let shared = old.map_or(0, |old| self.planner.shared(&old.plan, plan));
            let room = rooms.entry(place).or_default();
            room.needed = room.needed.saturating_add(plan.memory.total().saturating_sub(shared));
            room.available = room.available.max(available);
            room.grows = true;
        }
        let (place, room) = rooms.into_iter().find(|(_, room)| room.grows && room.needed > room.available)?;
        let who = match place {
            Place::Node(node) => format!("node {node}"),
            Place::Host(host) => format!("host {host}"),
        };
        let Room { needed, available, .. } = room;
        Some(format!("both rows together need {needed} bytes on {who}, which has {available}"))
    }

    fn place_of(&self, node: NodeId) -> Option<(Place, u64)> {
        let device = &self.nodes.get(&node)?.device;
        let place = if device.shares_memory { Place::Host(device.host.clone()) } else { Place::Node(node) };
        Some((place, device.memory_bytes))
    }
}
