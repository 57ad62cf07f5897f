//! Changes of the row: what people ask for, and what the membership does by itself when a node wants to leave or a row
//! can grow back to what was wanted. One at a time.

use std::time::Duration;

use paceline_proto::NodeId;

use super::node::{Node, Stay};
use super::row::{Phase, Row};
use super::{Action, Change, Membership, Outcome, Refusal, Report, Ticket, stage_nodes};
use crate::planner::Placement;

/// A drained node that never comes again is forgotten when there are more of them.
const MOST_DRAINED: usize = 1024;

/// A row that is to take over.
pub(super) struct Planned {
    /// One per stage.
    pub(super) nodes: Vec<NodeId>,
    pub(super) placement: Placement,
    /// Why it cannot be made beside the row in force, if it cannot.
    pub(super) lacks_room: Option<String>,
}

impl Membership {
    /// Begins a change, or says at once what becomes of it.
    pub(super) fn scale(&mut self, ticket: Ticket, change: Change, now: Duration, actions: &mut Vec<Action>) {
        let planned = match &self.moving {
            Some(moving) => Err(Refusal::Busy { change: moving.to_string() }),
            None => self.plan_change(&change, now),
        };
        let outcome = match planned {
            Ok(Some(planned)) => return self.begin_move(Some(ticket), change, planned, now, actions),
            Ok(None) => {
                self.mark(&change);
                Outcome::Unchanged
            }
            Err(refusal) => Outcome::Refused(refusal),
        };
        let shares = self.row.as_ref().map(Row::shares).unwrap_or_default();
        let (before, after, epochs, fetched, copied, pause) = (shares.clone(), shares, None, 0, 0, None);
        let report = Report { change, outcome, before, after, epochs, fetched, copied, pause };
        actions.push(Action::Report { ticket: Some(ticket), report: Box::new(report) });
    }

    pub(super) fn wants_to_leave(&mut self, node: NodeId, now: Duration) {
        self.hear(node, now);
        if let Some(node) = self.nodes.get_mut(&node)
            && node.stay == Stay::Stays
        {
            node.stay = Stay::WantsToLeave;
        }
    }

    /// While nothing else is under way: lets nodes go that want to, after their work was given to others where that can
    /// be, and lets a row grow that has become too short by that.
    pub(super) fn change_by_itself(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while self.moving.is_none() {
            let leaving = self.nodes.iter().find(|(_, node)| node.stay != Stay::Stays);
            let Some((&node, stay)) = leaving.map(|(id, node)| (id, node.stay)) else { return self.grow(now, actions) };
            let change = Change::Remove { nodes: vec![node] };
            // Tried once: if it is not possible, waiting would not make it so.
            let planned = if stay == Stay::WantsToLeave { self.plan_change(&change, now) } else { Ok(None) };
            self.mark(&change);
            match planned {
                Ok(Some(planned)) => self.begin_move(None, change, planned, now, actions),
                _ => self.let_go(node, now, actions),
            }
        }
    }

    fn let_go(&mut self, node: NodeId, now: Duration, actions: &mut Vec<Action>) {
        let reason = "it was let go";
        actions.push(Action::Leave { node, reason: reason.to_owned() });
        self.remove(node, reason, now, actions);
    }

    /// Makes a row as long as it is wanted, if nodes are free that were not tried before.
    fn grow(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(row) = self.row.as_ref().filter(|row| row.phase == Phase::Serving) else { return };
        if row.stages.len() >= self.wanted {
            return;
        }
        let row: Vec<NodeId> = row.nodes().collect();
        let free: Vec<NodeId> = self.spare(now).filter(|node| !self.tried.contains(node)).collect();
        if free.is_empty() {
            return;
        }
        self.tried.extend(&free);
        let nodes = [&row[..], &free[..]].concat();
        let stages = nodes.len().min(self.wanted);
        if let Ok(Some(planned)) = self.plan_row(&nodes, stages) {
            self.begin_move(None, Change::Add { nodes: free }, planned, now, actions);
        }
    }

    /// What people, or nodes, want is so from now on.
    pub(super) fn settle(&mut self, change: &Change, by_people: bool, stages: usize, now: Duration) {
        self.mark(change);
        self.enough = stages;
        if !by_people {
            return;
        }
        // Nodes that are held off would have taken the places of those that are taken out: the row grows when they may.
        let held_off = |(id, node): &(&NodeId, &Node)| {
            node.held_off > now && node.stay == Stay::Stays && !self.drained.contains(id)
        };
        match change {
            Change::Add { .. } => self.wanted = stages,
            Change::Drain { .. } | Change::Remove { .. } => {
                self.wanted = self.wanted.min(stages + self.nodes.iter().filter(held_off).count());
            }
            Change::Rebalance => {}
        }
    }

    /// Notes of the nodes that the change names whether they may be used.
    fn mark(&mut self, change: &Change) {
        self.unplaced = None;
        for node in change.nodes() {
            match change {
                Change::Add { .. } => {
                    self.drained_others |= self.drained.remove(node);
                }
                Change::Drain { .. } => {
                    self.drained_others |= self.drained.insert(*node);
                }
                Change::Remove { .. } | Change::Rebalance => {
                    self.nodes.entry(*node).and_modify(|node| node.stay = Stay::MayLeave);
                }
            }
        }
        if self.drained.len() > MOST_DRAINED {
            self.drained.retain(|node| self.nodes.contains_key(node));
        }
    }

    /// The row that a change leads to; nothing where that is the row in force.
    fn plan_change(&mut self, change: &Change, now: Duration) -> Result<Option<Planned>, Refusal> {
        if let Some(&node) = change.nodes().iter().find(|node| !self.nodes.contains_key(node)) {
            return Err(Refusal::UnknownNode { node });
        }
        if matches!(change, Change::Drain { nodes } | Change::Remove { nodes } if nodes.is_empty()) {
            return Err(Refusal::NoNames);
        }
        let serving = self.row.as_ref().filter(|row| row.phase == Phase::Serving);
        let Some(row) = serving.map(|row| row.nodes().collect::<Vec<_>>()) else {
            return self.without_row(change).map(|()| None);
        };
        match change {
            Change::Add { nodes } if nodes.is_empty() => self.plan_all(&row, now),
            Change::Add { nodes } => self.plan_with(&row, nodes, now),
            Change::Drain { nodes } | Change::Remove { nodes } => self.plan_without(&row, nodes, now),
            Change::Rebalance => {
                let nodes: Vec<NodeId> = row.iter().copied().chain(self.spare(now)).collect();
                self.plan_row(&nodes, row.len())
            }
        }
    }

    /// Where no row is in force, nodes can be marked as long as they hold nothing.
    fn without_row(&self, change: &Change) -> Result<(), Refusal> {
        let reason = if self.row.is_some() { "one is being made" } else { "too few nodes are here" };
        let free = change.nodes().iter().all(|node| self.nodes[node].is_free());
        let marks = free && !change.nodes().is_empty();
        if marks { Ok(()) } else { Err(Refusal::NotServing { reason }) }
    }

    /// With all that are free, or with as many of them as the model can be cut for.
    fn plan_all(&mut self, row: &[NodeId], now: Duration) -> Result<Option<Planned>, Refusal> {
        let nodes: Vec<NodeId> = row.iter().copied().chain(self.spare(now)).collect();
        let mut planned = Err(Refusal::NobodyFree);
        for stages in (row.len() + 1..=nodes.len()).rev() {
            planned = self.plan_row(&nodes, stages);
            if planned.is_ok() {
                break;
            }
        }
        planned
    }

    /// With these too.
    fn plan_with(&mut self, row: &[NodeId], added: &[NodeId], now: Duration) -> Result<Option<Planned>, Refusal> {
        let mut nodes = row.to_vec();
        for &id in added {
            let node = &self.nodes[&id];
            if nodes.contains(&id) {
                continue;
            }
            if !node.is_free() || node.held_off > now || node.stay != Stay::Stays {
                return Err(Refusal::NotFree { node: id });
            }
            nodes.push(id);
        }
        if nodes.len() == row.len() { Ok(None) } else { self.plan_row(&nodes, nodes.len()) }
    }

    /// Without these, and with others in their places as far as there are any.
    fn plan_without(&mut self, row: &[NodeId], out: &[NodeId], now: Duration) -> Result<Option<Planned>, Refusal> {
        if !row.iter().any(|node| out.contains(node)) {
            return Ok(None);
        }
        let stays = |node: &NodeId| !out.contains(node) && self.nodes[node].stay == Stay::Stays;
        let mut nodes: Vec<NodeId> = row.iter().copied().chain(self.spare(now)).filter(stays).collect();
        let standby = self.usable(now).filter(|node| self.nodes[node].standby && stays(node));
        let missing = row.len().saturating_sub(nodes.len());
        nodes.extend(standby.take(missing).collect::<Vec<_>>());
        if nodes.is_empty() {
            return Err(Refusal::NobodyLeft);
        }
        self.plan_row(&nodes, nodes.len().min(row.len()))
    }

    /// Nodes that are free, but for those on standby.
    fn spare(&self, now: Duration) -> impl Iterator<Item = NodeId> {
        self.usable(now).filter(|node| !self.nodes[node].standby)
    }

    fn plan_row(&mut self, nodes: &[NodeId], stages: usize) -> Result<Option<Planned>, Refusal> {
        let placed = self.plan(nodes, stages);
        let placement = placed.map_err(|reason| Refusal::DoesNotFit { nodes: nodes.len(), reason })?;
        let nodes = stage_nodes(&placement, nodes);
        let Some(old) = &self.row else { return Ok(None) };
        let is_same = old.nodes().eq(nodes.iter().copied())
            && old.stages.iter().map(|stage| &stage.plan.layers).eq(placement.stages.iter().map(|stage| &stage.layers));
        if is_same {
            return Ok(None);
        }
        let lacks_room = self.lacks_room(old, &nodes, &placement);
        Ok(Some(Planned { nodes, placement, lacks_room }))
    }
}
