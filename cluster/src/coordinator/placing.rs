//! How the model is placed on the nodes that are here: what the planner is told of them, and of the links between them
//! as far as they were measured in rows before.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use paceline_core::membership::Planner;
use paceline_core::planner::{self, Cache, CacheRam, Cluster, DeviceSpec, LinkSpeed, Placement, StagePlan, Wishes};
use paceline_gguf::ModelShape;
use paceline_proto::NodeId;

use crate::state::store::MeasuredLinks;

/// A round trip that took longer was no round trip: making a link has a shorter deadline.
const LONGEST: Duration = Duration::from_secs(60);

/// Links that carried frames, by the node that sends and the one that receives.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links(Arc<Mutex<HashMap<(NodeId, NodeId), LinkSpeed>>>);

impl Links {
    /// Nodes come and go; of so many links the oldest placements are of no use.
    const MOST: usize = 4096;

    /// Those that were measured before.
    pub(super) fn new(measured: MeasuredLinks) -> Self {
        let links = Self::default();
        for ((from, to), speed) in measured {
            links.measured(from, to, speed);
        }
        links
    }

    /// All of them.
    pub(super) fn all(&self) -> MeasuredLinks {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|(ends, speed)| (*ends, *speed)).collect()
    }

    pub(super) fn measured(&self, from: NodeId, to: NodeId, speed: LinkSpeed) {
        let mut links = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if links.len() >= Self::MOST {
            links.clear();
        }
        // Figures that no link has must not make every plan fail.
        if speed.bytes_per_second.is_finite() && speed.bytes_per_second >= 1.0 && speed.round_trip <= LONGEST {
            links.insert((from, to), speed);
        }
    }

    fn between(&self, from: NodeId, to: NodeId) -> Option<LinkSpeed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&(from, to)).copied()
    }
}

/// Places the model as wished.
pub(super) struct Placing {
    pub(super) shape: ModelShape,
    /// But for the number of stages, which may change while the service runs.
    pub(super) wishes: Wishes,
    /// Memory of the cache.
    pub(super) cache_ram: CacheRam,
    /// What the last placement had for it. The next has the same if that fits, so that sessions can move there.
    pub(super) cache: Option<Cache>,
    pub(super) links: Links,
}

impl Planner for Placing {
    fn place(&mut self, nodes: &[(NodeId, DeviceSpec)], stages: usize) -> Result<Placement, String> {
        let wishes = Wishes { shards: Some(stages), ..self.wishes.clone() };
        let cluster = cluster(nodes, &self.links);
        let place = |wishes: &Wishes| planner::place(&self.shape, wishes, &cluster);
        let same = self.cache.map(|cache| place(&Wishes { cache, ..wishes.clone() }));
        let placed = match same {
            Some(Ok(placement)) => Ok(placement),
            _ => planner::with_cache(&self.shape, &wishes, self.cache_ram, place),
        };
        let placement = placed.map_err(|error| error.to_string())?;
        self.cache = Some(placement.cache);
        Ok(placement)
    }

    fn shared(&self, one: &StagePlan, other: &StagePlan) -> u64 {
        planner::shared_weights(&self.shape, one, other)
    }
}

fn cluster(nodes: &[(NodeId, DeviceSpec)], links: &Links) -> Cluster {
    let mut cluster = Cluster::new(nodes.iter().map(|(_, device)| device.clone()).collect());
    for (from, (sender, _)) in nodes.iter().enumerate() {
        for (to, (receiver, _)) in nodes.iter().enumerate() {
            if let Some(speed) = links.between(*sender, *receiver) {
                cluster.measured.insert((from, to), speed);
            }
        }
    }
    cluster
}

#[cfg(test)]
mod tests {
    use paceline_core::planner::Speed;
    use uuid::Uuid;

    use super::*;

    fn node(number: u128, host: &str) -> (NodeId, DeviceSpec) {
        let device = DeviceSpec {
            name: "cpu".into(),
            host: host.into(),
            memory_bytes: 12 << 30,
            shares_memory: true,
            threads: 2,
            speed: None,
        };
        (NodeId(Uuid::from_u128(number)), device)
    }

    #[test]
    fn processes_of_one_host_share_its_memory_and_measured_links_are_known() {
        let nodes = [node(1, "a"), node(2, "a"), node(3, "b")];
        let links = Links::default();
        let speed = LinkSpeed { round_trip: Duration::from_micros(70), bytes_per_second: 3e8 };
        links.measured(nodes[0].0, nodes[2].0, speed);
        for bytes_per_second in [f64::NAN, f64::INFINITY, -1.0, 1e-300] {
            links.measured(nodes[2].0, nodes[0].0, LinkSpeed { bytes_per_second, ..speed });
        }
        links.measured(nodes[2].0, nodes[1].0, LinkSpeed { round_trip: Duration::from_micros(u64::MAX), ..speed });
        let placed = cluster(&nodes, &links);
        // The first measured while others were at work.
        let slow = Speed::new(5e9, 1e11);
        let mut measured = nodes.clone();
        (measured[0].1.speed, measured[1].1.speed) = (Some(slow), Some(Speed::new(2e10, 4e11)));
        let speeds = cluster(&measured, &links).devices;
        assert_eq!(speeds[0].speed, speeds[1].speed);
        assert_eq!((speeds[0].speed.map(|speed| speed.read), speeds[2].speed), (Some(2e10), None));
        let memory: Vec<u64> = placed.devices.iter().map(|device| device.memory_bytes >> 30).collect();
        assert_eq!(memory, [6, 6, 12]);
        assert_eq!(placed.measured.get(&(0, 2)), Some(&speed));
        assert_eq!(placed.measured.len(), 1);
    }
}
