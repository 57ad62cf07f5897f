//! Who belongs to the cluster, and how a row comes into force: waiting for nodes, loading, linking, serving.
//!
//! Read [`Membership::on`]. The coordinator alone decides, so there are no elections: a node attends under a lease that
//! anything heard from it renews, and every placement is a new epoch. A row that loses a node is over; its other nodes
//! release what they hold, and a new row is placed as soon as enough of them are free. While a row is in force another
//! one can be made beside it and take over (`membership/moving.rs`), when people ask for one (`membership/scaling.rs`)
//! or a node wants to leave.

mod messages;
mod moving;
mod node;
mod remembered;
mod report;
mod room;
mod row;
mod scaling;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

pub use messages::{Action, Event, Source, Taker};
pub use report::{Change, Outcome, Refusal, Report, Share, Ticket};

use crate::planner::{DeviceSpec, Placement, StagePlan};
use moving::Move;
pub use moving::{HOLD_DEADLINE, SWITCH_DEADLINE, TAKE_DEADLINE};
use node::{Duty, Node, Stay};
use remembered::Returning;
pub use remembered::{RETURN, Remembered, RememberedRow};
use row::{Phase, Row};

/// A node that has not been heard for so long is gone. Heartbeats come five times as often.
pub const LEASE: Duration = Duration::from_secs(5);
/// A stage that loads must show progress within this time, however slow its disk or network.
pub const LOAD_DEADLINE: Duration = Duration::from_secs(120);
/// All links of a row are made within this time.
pub const LINK_DEADLINE: Duration = Duration::from_secs(30);
/// A node that was told to drop a stage has done so within this time after its last sign of being at it, or it is no
/// longer part of the cluster: nothing could ever be placed on it again.
pub const RELEASE_DEADLINE: Duration = Duration::from_secs(60);
/// A node whose stage failed is not used again for so long, so that a fault that stays does not take down row after row.
pub const HOLD_OFF: Duration = Duration::from_secs(10);

/// A row that broke soon after it was placed is not placed again for so long, times the number of times in a row: what
/// cannot work must not keep everybody busy.
pub const PAUSE: Duration = Duration::from_secs(1);
/// A row that was in force for so long was a good one.
const SOON: Duration = Duration::from_secs(30);
/// The most such pauses.
const MOST_PAUSES: u32 = 30;

/// Where the model goes.
pub trait Planner: Send {
    /// A row of so many stages on some of these nodes, stages naming their devices by their place in the list; or why
    /// there is none.
    ///
    /// # Errors
    /// For people: what would be needed, and what there is.
    fn place(&mut self, nodes: &[(NodeId, DeviceSpec)], stages: usize) -> Result<Placement, String>;

    /// Bytes of weights that both stages hold, which a device has once.
    fn shared(&self, one: &StagePlan, other: &StagePlan) -> u64;
}

/// Nodes, leases, and the row they form. See the module's text.
pub struct Membership {
    planner: Box<dyn Planner>,
    /// The stages that people want.
    wanted: usize,
    /// A row is placed when so many nodes are here: those wanted, less those that left on their own.
    enough: usize,
    nodes: BTreeMap<NodeId, Node>,
    /// The newest epoch.
    epoch: Epoch,
    row: Option<Row>,
    /// The row of the coordinator's life before, while its nodes are waited for.
    returning: Option<Returning>,
    /// Another row that takes over, or is to.
    moving: Option<Move>,
    /// Nodes that people do not want to be used, here or not.
    drained: BTreeSet<NodeId>,
    /// Others were drained before this event.
    drained_others: bool,
    /// Nodes with which a row that is too short was to grow, once each.
    tried: BTreeSet<NodeId>,
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
    /// The change of the row that is under way, and how far it is.
    pub moving: Option<String>,
}

impl Membership {
    /// Nobody is here. A row is placed by `planner` once `wanted` nodes are.
    pub fn new(wanted: usize, planner: Box<dyn Planner>) -> Self {
        Self {
            planner,
            wanted,
            enough: wanted,
            nodes: BTreeMap::new(),
            epoch: Epoch(0),
            row: None,
            returning: None,
            moving: None,
            drained: BTreeSet::new(),
            drained_others: false,
            tried: BTreeSet::new(),
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
            Event::Progressed { node, epoch } => self.progressed(node, epoch, now),
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
            Event::Left { node, reason } => self.remove(node, &reason, now, actions),
            Event::Broken { epoch, reason } => self.broken(epoch, None, &reason, now, actions),
            Event::Hangs { epoch, reason } => self.hangs(epoch, &reason, now, actions),
            Event::Ran { node, epoch, steps } => {
                self.hear(node, now);
                self.with_row(epoch, |row| row.ran(node, steps));
            }
            Event::Scale { ticket, change } => self.scale(ticket, change, now, actions),
            Event::Leaving { node } => self.wants_to_leave(node, now),
            Event::Still { epoch } => self.still(epoch, now, actions),
            Event::Taken { node, epoch, fetched, copied } => self.taken(node, epoch, (fetched, copied), now),
            Event::Switched { epoch, pause } => self.switched(epoch, pause, now, actions),
            Event::Tick => {}
        }
        self.expire(now, actions);
        self.advance(now, actions);
        self.advance_move(now, actions);
        self.change_by_itself(now, actions);
        self.place(now, actions);
        if std::mem::take(&mut self.drained_others) {
            actions.push(Action::Drained { nodes: self.drained.clone() });
        }
    }

    /// What can be seen from outside.
    pub fn view(&self) -> View {
        View {
            nodes: self.nodes.len(),
            free: self.nodes.values().filter(|node| node.is_free()).count(),
            wanted: self.enough,
            epoch: self.row.as_ref().map(|row| row.epoch),
            serving: self.row.as_ref().is_some_and(|row| row.phase == Phase::Serving),
            moving: self.moving.as_ref().map(ToString::to_string),
        }
    }

    /// Whether nothing is placed on the node until it is added again.
    pub fn is_drained(&self, node: NodeId) -> bool {
        self.drained.contains(&node)
    }

    fn join(&mut self, node: NodeId, device: DeviceSpec, standby: bool, now: Duration, actions: &mut Vec<Action>) {
        // The same node again: its old connection is dead, and with it whatever it held.
        self.remove(node, "the node joined again", now, actions);
        self.unplaced = None;
        self.nodes.insert(node, Node::new(device, standby, now));
    }

    fn hear(&mut self, node: NodeId, now: Duration) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.heard = now;
        }
    }

    fn progressed(&mut self, node: NodeId, epoch: Epoch, now: Duration) {
        self.hear(node, now);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.progressed(epoch, now);
        }
        self.with_row(epoch, |row| row.progressed(node, now));
    }

    /// The row of an epoch, unless that is over.
    fn row_of(&mut self, epoch: Epoch) -> Option<&mut Row> {
        let new = self.moving.as_mut().and_then(Move::new_row);
        self.row.iter_mut().chain(new).find(|row| row.epoch == epoch)
    }

    fn with_row(&mut self, epoch: Epoch, tell: impl FnOnce(&mut Row)) {
        if let Some(row) = self.row_of(epoch) {
            tell(row);
        }
    }

    fn stage_failed(&mut self, node: NodeId, epoch: Epoch, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        self.released(node, epoch, now);
        if let Some(failed) = self.nodes.get_mut(&node) {
            failed.held_off = now + HOLD_OFF;
        }
        let stage = self.row_of(epoch).and_then(|row| row.stage_of(node));
        self.end(epoch, stage, reason, now, actions);
    }

    /// A stage hangs. Its node does not let go, so it is not used again before it answers, and at last expelled.
    fn hangs(&mut self, epoch: Epoch, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        let stage = self.row_of(epoch).map(|row| row.hanging());
        let reason =
            stage.map_or(reason.to_owned(), |stage| format!("{reason}; stage {stage} is the first that stands still"));
        let node = self.row_of(epoch).zip(stage).and_then(|(row, stage)| row.nodes().nth(stage));
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(&node)) {
            node.held_off = now + HOLD_OFF;
        }
        self.broken(epoch, stage, &reason, now, actions);
    }

    fn broken(&mut self, epoch: Epoch, stage: Option<usize>, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        if self.row.as_ref().is_some_and(|row| row.epoch == epoch) {
            let soon = now.saturating_sub(self.placed) < SOON;
            self.broken_soon = if soon { (self.broken_soon + 1).min(MOST_PAUSES) } else { 0 };
            self.not_before = now + PAUSE * self.broken_soon;
        }
        self.end(epoch, stage, reason, now, actions);
    }

    fn released(&mut self, node: NodeId, epoch: Epoch, now: Duration) {
        self.hear(node, now);
        if let Some(node) = self.nodes.get_mut(&node) {
            node.duties.remove(&epoch);
        }
    }

    fn remove(&mut self, node: NodeId, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        let Some(gone) = self.nodes.remove(&node) else { return };
        self.unplaced = None;
        self.tried.remove(&node);
        for (epoch, _) in gone.duties.into_iter().filter(|(_, duty)| *duty == Duty::Stage) {
            let stage = self.row_of(epoch).and_then(|row| row.stage_of(node));
            self.end(epoch, stage, reason, now, actions);
        }
    }

    /// A row cannot go on. The one in force takes along what was to take over from it; one that was to take over is
    /// given up alone.
    fn end(&mut self, epoch: Epoch, stage: Option<usize>, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        if let Some(row) = self.row.take_if(|row| row.epoch == epoch) {
            self.drop_row(row.epoch, stage, reason, now, actions);
            self.lose_move(reason, now, actions);
        } else if self.moving.as_mut().and_then(Move::new_row).is_some_and(|row| row.epoch == epoch) {
            self.roll_back(stage, reason, now, actions);
        }
    }

    /// Whoever holds a part of the row drops that.
    fn drop_row(&mut self, epoch: Epoch, stage: Option<usize>, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        actions.push(Action::Over { epoch, stage, reason: reason.to_owned() });
        self.release(epoch, now, actions);
    }

    fn release(&mut self, epoch: Epoch, now: Duration, actions: &mut Vec<Action>) {
        let holders = self.nodes.iter_mut().filter_map(|(id, node)| node.release(epoch, now).then_some(*id));
        actions.extend(holders.map(|node| Action::Release { node, epoch }));
    }

    /// Gives up nodes that were silent too long or do not let go, and rows that are stuck.
    fn expire(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let gone: Vec<_> = self.nodes.iter().filter_map(|(id, node)| Some((*id, overdue(node, now)?))).collect();
        for (node, reason) in gone {
            self.remove(node, &reason, now, actions);
            actions.push(Action::Expel { node, reason });
        }
        let stuck = self.row.as_ref().and_then(|row| Some((row.epoch, row.stuck(now)?)));
        let stuck = stuck.or_else(|| self.moving.as_ref().and_then(|moving| moving.stuck(now)));
        if let Some((epoch, (stage, reason))) = stuck {
            self.end(epoch, stage, &reason, now, actions);
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
        let reserved = self.moving.as_ref().is_some_and(Move::makes_room);
        if self.row.is_some() || reserved || now < self.not_before || self.take_up(now, actions) {
            return;
        }
        let all: Vec<NodeId> = self.usable(now).collect();
        if all.len() < self.enough || self.unplaced.as_ref() == Some(&all) {
            return;
        }
        let mut ids = all.clone();
        ids.sort_by_key(|id| self.nodes[id].standby);
        let regular = ids.iter().filter(|id| !self.nodes[id].standby).count().max(self.enough);
        let placed = self
            .try_place(&ids[..regular])
            .or_else(|reason| if regular < ids.len() { self.try_place(&ids) } else { Err(reason) });
        match placed {
            Ok(placement) => {
                let nodes = stage_nodes(&placement, &ids);
                let row = self.make(&nodes, placement, None, now, actions);
                (self.placed, self.row) = (now, Some(row));
            }
            Err(reason) => {
                self.unplaced = Some(all);
                actions.push(Action::Unplaced { reason });
            }
        }
    }

    /// The nodes on which a stage could be placed now.
    fn usable(&self, now: Duration) -> impl Iterator<Item = NodeId> {
        self.nodes.keys().copied().filter(move |id| self.is_usable(*id, now))
    }

    fn is_usable(&self, id: NodeId, now: Duration) -> bool {
        let usable = |node: &Node| node.is_free() && node.held_off <= now && node.stay == Stay::Stays;
        self.nodes.get(&id).is_some_and(usable) && !self.drained.contains(&id)
    }

    fn try_place(&mut self, ids: &[NodeId]) -> Result<Placement, String> {
        let stages = ids.len().min(self.wanted);
        self.plan(ids, stages)
    }

    fn plan(&mut self, ids: &[NodeId], stages: usize) -> Result<Placement, String> {
        let devices: Vec<_> = ids.iter().map(|id| (*id, self.nodes[id].device.clone())).collect();
        self.planner.place(&devices, stages)
    }

    /// Begins a row on these nodes, one per stage.
    fn make(
        &mut self,
        nodes: &[NodeId],
        placement: Placement,
        beside: Option<Epoch>,
        now: Duration,
        actions: &mut Vec<Action>,
    ) -> Row {
        self.epoch = Epoch(self.epoch.0 + 1);
        let epoch = self.epoch;
        for id in nodes {
            self.nodes.get_mut(id).expect("it was just planned with").duties.insert(epoch, Duty::Stage);
        }
        let row = Row::new(epoch, nodes, &placement, now);
        actions.push(Action::Load { epoch, placement: Box::new(placement), row: nodes.to_vec(), beside });
        row
    }
}

/// The node of each stage, of those that were planned with.
fn stage_nodes(placement: &Placement, ids: &[NodeId]) -> Vec<NodeId> {
    placement.stages.iter().map(|stage| ids[stage.device]).collect()
}

/// Why a node is given up.
fn overdue(node: &Node, now: Duration) -> Option<String> {
    if now.saturating_sub(node.heard) >= LEASE {
        return Some(format!("nothing was heard of the node for {} s", LEASE.as_secs()));
    }
    let epoch = node.overdue(now, RELEASE_DEADLINE)?;
    Some(format!("the node did not drop its stage of epoch {epoch} within {} s", RELEASE_DEADLINE.as_secs()))
}
