//! Who belongs to the cluster, and how a row comes into force: waiting for nodes, loading, linking, serving.
//!
//! Read [`Membership::on`]. The coordinator alone decides, so there are no elections: a node attends under a lease that
//! anything heard from it renews, and every placement is a new epoch. A row that loses a node is over; its other nodes
//! release what they hold, and a new row is placed as soon as enough of them are free.

mod remembered;
mod row;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

use crate::planner::{DeviceSpec, Placement};
use remembered::Returning;
pub use remembered::{RETURN, Remembered, RememberedRow};
use row::{Phase, Row};

/// A node that has not been heard for so long is gone. Heartbeats come five times as often.
pub const LEASE: Duration = Duration::from_secs(5);
/// A stage that loads must show progress within this time, however slow its disk or network.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(120);
/// All links of a row are made within this time.
pub const LINK_DEADLINE: Duration = Duration::from_secs(30);
/// A node whose stage failed is not used again for so long, so that a fault that stays does not take down row after row.
pub const HOLD_OFF: Duration = Duration::from_secs(10);

/// A row that broke soon after it was placed is not placed again for so long, times the number of times in a row: what
/// cannot work must not keep everybody busy.
pub const PAUSE: Duration = Duration::from_secs(1);
/// A row that was in force for so long was a good one.
const SOON: Duration = Duration::from_secs(30);
/// The most such pauses.
const MOST_PAUSES: u32 = 30;

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
    /// The row, in force or in the making, is over.
    Over {
        /// Which placement.
        epoch: Epoch,
        /// The stage at fault, if one is.
        stage: Option<usize>,
        /// What happened.
        reason: String,
    },
    /// Tell a node to drop what it holds of an epoch.
    Release {
        /// Which.
        node: NodeId,
        /// Of which placement.
        epoch: Epoch,
    },
    /// End a node's attendance.
    Expel {
        /// Which.
        node: NodeId,
        /// Why.
        reason: String,
    },
    /// The nodes that are here cannot hold the model.
    Unplaced {
        /// What the planner says.
        reason: String,
    },
}

/// What a node is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Duty {
    /// Nothing.
    Free,
    /// A stage of an epoch.
    Stage(Epoch),
    /// Told to drop it, and not yet done.
    Releasing(Epoch),
}

#[derive(Debug)]
struct Node {
    device: DeviceSpec,
    standby: bool,
    heard: Duration,
    duty: Duty,
    /// Not used before this time.
    held_off: Duration,
}

/// A choice among nodes and what each holds, stages naming their devices by their place in the list; or why there is
/// none.
pub type Plan = Box<dyn FnMut(&[(NodeId, DeviceSpec)]) -> Result<Placement, String> + Send>;

/// Nodes, leases, and the row they form. See the module's text.
pub struct Membership {
    plan: Plan,
    /// A row is placed when so many nodes are here.
    wanted: usize,
    nodes: BTreeMap<NodeId, Node>,
    /// The newest epoch.
    epoch: Epoch,
    row: Option<Row>,
    /// The row of the coordinator's life before, while its nodes are waited for.
    returning: Option<Returning>,
    /// The nodes that could not hold the model; not tried again unchanged.
    unplaced: Option<Vec<NodeId>>,
    /// Rows that broke soon, one after the other.
    broken_soon: u32,
    /// When the newest row was placed, and when the next may be.
    placed: Duration,
    not_before: Duration,
}

/// What can be seen from outside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    /// Nodes that attend.
    pub nodes: usize,
    /// Of those, the ones that could take a stage now.
    pub free: usize,
    /// How many a row waits for.
    pub wanted: usize,
    /// The epoch in the making or in force.
    pub epoch: Option<Epoch>,
    /// Whether it is in force.
    pub serving: bool,
}

impl Membership {
    /// Nobody is here. A row is placed by `plan` once `wanted` nodes are.
    pub fn new(wanted: usize, plan: Plan) -> Self {
        Self {
            plan,
            wanted,
            nodes: BTreeMap::new(),
            epoch: Epoch(0),
            row: None,
            returning: None,
            unplaced: None,
            broken_soon: 0,
            placed: Duration::ZERO,
            not_before: Duration::ZERO,
        }
    }

    /// Takes in one event at the time `now`, measured from any fixed moment, and appends what is to be done.
    pub fn on(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        match event {
            Event::Joined { node, device, standby } => self.join(node, *device, standby, now, actions),
            Event::Heard { node } => self.hear(node, now),
            Event::Progressed { node, epoch } => {
                self.hear(node, now);
                self.with_row(epoch, |row| row.progressed(node, now));
            }
            Event::Loaded { node, epoch } => {
                self.hear(node, now);
                self.with_row(epoch, |row| row.loaded(node, now));
            }
            Event::Linked { node, epoch } => {
                self.hear(node, now);
                self.with_row(epoch, |row| row.linked(node));
            }
            Event::Ready { epoch } => self.with_row(epoch, Row::ready),
            Event::Failed { node, epoch, reason } => self.stage_failed(node, epoch, &reason, now, actions),
            Event::Released { node, epoch } => self.released(node, epoch, now),
            Event::Left { node, reason } => self.remove(node, &reason, actions),
            Event::Broken { epoch, reason } => self.broken(epoch, &reason, now, actions),
            Event::Tick => {}
        }
        self.expire(now, actions);
        self.advance(now, actions);
        self.place(now, actions);
    }

    /// What can be seen from outside.
    pub fn view(&self) -> View {
        View {
            nodes: self.nodes.len(),
            free: self.nodes.values().filter(|node| node.duty == Duty::Free).count(),
            wanted: self.wanted,
            epoch: self.row.as_ref().map(|row| row.epoch),
            serving: self.row.as_ref().is_some_and(|row| row.phase == Phase::Serving),
        }
    }

    fn join(&mut self, node: NodeId, device: DeviceSpec, standby: bool, now: Duration, actions: &mut Vec<Action>) {
        // The same node again: its old connection is dead, and with it whatever it held.
        self.remove(node, "the node joined again", actions);
        self.unplaced = None;
        self.nodes.insert(node, Node { device, standby, heard: now, duty: Duty::Free, held_off: Duration::ZERO });
    }

    fn hear(&mut self, node: NodeId, now: Duration) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.heard = now;
        }
    }

    /// Tells the row something about an epoch, unless that is over.
    fn with_row(&mut self, epoch: Epoch, tell: impl FnOnce(&mut Row)) {
        if let Some(row) = self.row.as_mut().filter(|row| row.epoch == epoch) {
            tell(row);
        }
    }

    fn stage_failed(&mut self, node: NodeId, epoch: Epoch, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        self.released(node, epoch, now);
        if let Some(failed) = self.nodes.get_mut(&node) {
            failed.held_off = now + HOLD_OFF;
        }
        let stage = self.row.as_ref().and_then(|row| row.stage_of(node));
        self.end_row(epoch, stage, reason, actions);
    }

    fn broken(&mut self, epoch: Epoch, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        if self.row.as_ref().is_none_or(|row| row.epoch != epoch) {
            return;
        }
        let soon = now.saturating_sub(self.placed) < SOON;
        self.broken_soon = if soon { (self.broken_soon + 1).min(MOST_PAUSES) } else { 0 };
        self.not_before = now + PAUSE * self.broken_soon;
        self.end_row(epoch, None, reason, actions);
    }

    fn released(&mut self, node: NodeId, epoch: Epoch, now: Duration) {
        self.hear(node, now);
        if let Some(node) = self.nodes.get_mut(&node)
            && matches!(node.duty, Duty::Stage(held) | Duty::Releasing(held) if held == epoch)
        {
            node.duty = Duty::Free;
        }
    }

    fn remove(&mut self, node: NodeId, reason: &str, actions: &mut Vec<Action>) {
        let Some(gone) = self.nodes.remove(&node) else { return };
        self.unplaced = None;
        if let Duty::Stage(epoch) = gone.duty {
            let stage = self.row.as_ref().and_then(|row| row.stage_of(node));
            self.end_row(epoch, stage, reason, actions);
        }
    }

    /// The row of this epoch is over: whoever holds a part of it drops that.
    fn end_row(&mut self, epoch: Epoch, stage: Option<usize>, reason: &str, actions: &mut Vec<Action>) {
        let Some(row) = self.row.take_if(|row| row.epoch == epoch) else { return };
        actions.push(Action::Over { epoch, stage, reason: reason.to_owned() });
        for id in row.nodes() {
            if let Some(node) = self.nodes.get_mut(&id)
                && node.duty == Duty::Stage(epoch)
            {
                node.duty = Duty::Releasing(epoch);
                actions.push(Action::Release { node: id, epoch });
            }
        }
    }

    /// Gives up nodes that were silent too long, and rows that are stuck.
    fn expire(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let silent = |node: &Node| now.saturating_sub(node.heard) >= LEASE;
        let gone: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| silent(node)).map(|(id, _)| *id).collect();
        for node in gone {
            let reason = format!("nothing was heard of the node for {} s", LEASE.as_secs());
            self.remove(node, &reason, actions);
            actions.push(Action::Expel { node, reason });
        }
        let stuck = self.row.as_ref().and_then(|row| Some((row.epoch, row.stuck(now)?)));
        if let Some((epoch, (stage, reason))) = stuck {
            self.end_row(epoch, stage, &reason, actions);
        }
    }

    fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(row) = &mut self.row else { return };
        let epoch = row.epoch;
        if row.phase == Phase::Loading && row.all_loaded() {
            row.begin_linking(now);
            actions.push(Action::Connect { epoch });
        }
        if row.phase == Phase::Linking && row.all_linked() {
            row.phase = Phase::Serving;
            actions.push(Action::Serve { epoch });
        }
    }

    /// Places a row if there is none and enough nodes are free. Those on standby are used only to make up the number,
    /// or where the others cannot hold the model.
    fn place(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.row.is_some() || now < self.not_before || self.take_up(now, actions) {
            return;
        }
        let usable = |node: &Node| node.duty == Duty::Free && node.held_off <= now;
        let all: Vec<NodeId> = self.nodes.iter().filter(|(_, node)| usable(node)).map(|(id, _)| *id).collect();
        if all.len() < self.wanted || self.unplaced.as_ref() == Some(&all) {
            return;
        }
        let mut ids = all.clone();
        ids.sort_by_key(|id| self.nodes[id].standby);
        let regular = ids.iter().filter(|id| !self.nodes[id].standby).count().max(self.wanted);
        let placed = self
            .try_place(&ids[..regular])
            .or_else(|reason| if regular < ids.len() { self.try_place(&ids) } else { Err(reason) });
        match placed {
            Ok(placement) => self.begin(&ids, placement, now, actions),
            Err(reason) => {
                self.unplaced = Some(all);
                actions.push(Action::Unplaced { reason });
            }
        }
    }

    fn try_place(&mut self, ids: &[NodeId]) -> Result<Placement, String> {
        let devices: Vec<_> = ids.iter().map(|id| (*id, self.nodes[id].device.clone())).collect();
        (self.plan)(&devices)
    }

    fn begin(&mut self, ids: &[NodeId], placement: Placement, now: Duration, actions: &mut Vec<Action>) {
        self.epoch = Epoch(self.epoch.0 + 1);
        let epoch = self.epoch;
        let nodes: Vec<NodeId> = placement.stages.iter().map(|stage| ids[stage.device]).collect();
        for id in &nodes {
            self.nodes.get_mut(id).expect("it was just looked up").duty = Duty::Stage(epoch);
        }
        self.placed = now;
        self.row = Some(Row::new(epoch, &nodes, now));
        actions.push(Action::Load { epoch, placement: Box::new(placement), row: nodes });
    }
}
