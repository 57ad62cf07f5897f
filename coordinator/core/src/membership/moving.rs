//! A row that takes over from the one in force.
//!
//! It is *made* beside the other, which serves on meanwhile, and some nodes have a stage of both. Then the old row is
//! *held* until it is still, the nodes of the new one *take* the memories that are in use, and steps go on there: the
//! row is *switched*. Until then any fault of the new row alone is *undone*, and nobody has lost anything; a fault of
//! the old row ends both. At last the old row is *cleared* away. Where memory does not suffice for two stages on a node,
//! the old row *makes room* before the new one is loaded, and sessions are replayed in it.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

use super::row::{Phase, Row, Stage};
use super::scaling::Planned;
use super::{Action, Change, Membership, Outcome, Report, Share, Source, Taker, Ticket};
use crate::planner::Placement;

/// The steps under way of a row that is held have come back within this time: a step of prompts on a slow device takes
/// seconds.
pub const HOLD_DEADLINE: Duration = Duration::from_secs(60);
/// Everybody waits while memories move: what takes longer is given up.
pub const TAKE_DEADLINE: Duration = Duration::from_secs(60);
/// The coordinator takes a new row at once.
pub const SWITCH_DEADLINE: Duration = Duration::from_secs(10);

/// A change of the row that is under way.
pub(super) struct Move {
    ticket: Option<Ticket>,
    change: Change,
    before: Vec<Share>,
    after: Vec<Share>,
    from: Epoch,
    /// Of the new row, as soon as it is made.
    to: Epoch,
    state: State,
    fetched: u64,
    copied: u64,
    pause: Option<Duration>,
}

/// How far it is.
enum State {
    /// The old row is in force, the new one beside it.
    Beside { row: Row, step: Step },
    /// The new row is in force, if the coordinator takes it.
    Switching { since: Duration },
    /// It is; nodes drop the old one.
    Clearing,
    /// The old row is in force; nodes drop the new one.
    Undoing { reason: String },
    /// No row is in force; nodes drop the old one.
    MakingRoom { nodes: Vec<NodeId>, placement: Box<Placement>, reason: String },
    /// The new row is loaded in its place.
    Replacing { reason: String },
}

/// What a new row beside the one in force waits for.
enum Step {
    Making,
    Holding { since: Duration },
    Taking { since: Duration, taken: BTreeSet<NodeId> },
}

impl Move {
    /// The new row, while the old one is in force.
    pub(super) fn new_row(&mut self) -> Option<&mut Row> {
        match &mut self.state {
            State::Beside { row, .. } => Some(row),
            _ => None,
        }
    }

    /// Nothing else is placed while nodes make room.
    pub(super) fn makes_room(&self) -> bool {
        matches!(self.state, State::MakingRoom { .. })
    }

    /// What waits too long: the epoch that ends of it, the stage at fault, and for what.
    pub(super) fn stuck(&self, now: Duration) -> Option<(Epoch, (Option<usize>, String))> {
        let late = |since: &Duration, deadline| now.saturating_sub(*since) >= deadline;
        let (stage, reason, deadline) = match &self.state {
            State::Beside { row, step: Step::Making } => return Some((row.epoch, row.stuck(now)?)),
            State::Beside { step: Step::Holding { since }, .. } if late(since, HOLD_DEADLINE) => {
                (None, "the row in force did not come to rest".to_owned(), HOLD_DEADLINE)
            }
            State::Beside { row, step: Step::Taking { since, taken } } if late(since, TAKE_DEADLINE) => {
                let stage = row.nodes().position(|node| !taken.contains(&node));
                let who = stage.map_or("nobody".to_owned(), |stage| format!("stage {stage}"));
                (stage, format!("{who} did not take its memories"), TAKE_DEADLINE)
            }
            State::Switching { since } if late(since, SWITCH_DEADLINE) => {
                (None, "the coordinator did not take the row".to_owned(), SWITCH_DEADLINE)
            }
            _ => return None,
        };
        Some((self.to, (stage, format!("{reason} within {} s", deadline.as_secs()))))
    }

    fn report(self, outcome: Outcome) -> Action {
        let Self { ticket, change, before, after, from, to, fetched, copied, pause, .. } = self;
        let report = Report { change, outcome, before, after, epochs: Some((from, to)), fetched, copied, pause };
        Action::Report { ticket, report: Box::new(report) }
    }
}

impl fmt::Display for Move {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match &self.state {
            State::Beside { step: Step::Making, .. } => "loading beside the row in force",
            State::Beside { step: Step::Holding { .. }, .. } => "waiting for steps under way",
            State::Beside { step: Step::Taking { .. }, .. } => "moving memories",
            State::Switching { .. } => "switching",
            State::Clearing => "clearing the old row away",
            State::Undoing { .. } => "giving the new row up",
            State::MakingRoom { .. } => "making room",
            State::Replacing { .. } => "loading in the old row's place",
        };
        write!(formatter, "{}: {state}", self.change)
    }
}

impl Membership {
    /// Begins to put another row in the place of the one in force.
    pub(super) fn begin_move(
        &mut self,
        ticket: Option<Ticket>,
        change: Change,
        planned: Planned,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let Some(old) = &self.row else { return };
        let (from, before) = (old.epoch, old.shares());
        let Planned { nodes, placement, lacks_room } = planned;
        let layers = placement.stages.iter().map(|stage| stage.layers.clone());
        let after = nodes.iter().zip(layers).map(|(&node, layers)| Share { node, layers }).collect();
        let to = Epoch(self.epoch.0 + 1);
        let state = match lacks_room {
            None => {
                let row = self.make(&nodes, placement, Some(from), now, actions);
                State::Beside { row, step: Step::Making }
            }
            Some(reason) => {
                self.settle(&change, ticket.is_some(), nodes.len(), now);
                self.row = None;
                actions.push(Action::MakeRoom { epoch: from });
                self.release(from, now, actions);
                State::MakingRoom { nodes, placement: Box::new(placement), reason }
            }
        };
        let (fetched, copied, pause) = (0, 0, None);
        self.moving = Some(Move { ticket, change, before, after, from, to, state, fetched, copied, pause });
    }

    /// The row in force is still: memories can move.
    pub(super) fn still(&mut self, epoch: Epoch, now: Duration, actions: &mut Vec<Action>) {
        let (Some(old), Some(moving)) = (&self.row, &mut self.moving) else { return };
        let State::Beside { row, step: step @ Step::Holding { .. } } = &mut moving.state else { return };
        if old.epoch != epoch {
            return;
        }
        *step = Step::Taking { since: now, taken: BTreeSet::new() };
        let (from, givers) = (old.epoch, old.nodes().collect());
        actions.push(Action::Move { from, givers, epoch: row.epoch, takers: takers(old, row) });
    }

    pub(super) fn taken(&mut self, node: NodeId, epoch: Epoch, (fetched, copied): (u64, u64), now: Duration) {
        self.hear(node, now);
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.to == epoch) else { return };
        if let State::Beside { row, step: Step::Taking { taken, .. } } = &mut moving.state
            && row.has(node)
            && taken.insert(node)
        {
            // Figures come from other hosts.
            moving.fetched = moving.fetched.saturating_add(fetched);
            moving.copied = moving.copied.saturating_add(copied);
        }
    }

    pub(super) fn switched(&mut self, epoch: Epoch, pause: Duration, now: Duration, actions: &mut Vec<Action>) {
        let Some(moving) = self.moving.as_mut().filter(|moving| moving.to == epoch) else { return };
        if let State::Switching { .. } = moving.state {
            (moving.pause, moving.state) = (Some(pause), State::Clearing);
            let from = moving.from;
            self.release(from, now, actions);
        }
    }

    /// Lets the change that is under way come forward, if what it waits for is there.
    pub(super) fn advance_move(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(moving) = &mut self.moving else { return };
        match &mut moving.state {
            State::Beside { row, step: step @ Step::Making } => {
                if row.phase == Phase::Loading && row.all_loaded() {
                    row.begin_linking(now);
                    actions.push(Action::Connect { epoch: row.epoch });
                }
                if row.phase == Phase::Linking && row.all_linked() {
                    *step = Step::Holding { since: now };
                    actions.push(Action::Hold { epoch: moving.from, next: moving.to });
                }
            }
            State::Beside { row, step: Step::Taking { taken, .. } }
                if row.nodes().all(|node| taken.contains(&node)) =>
            {
                self.switch(now, actions);
            }
            State::Clearing if self.nodes.values().all(|node| !node.duties.contains_key(&moving.from)) => {
                self.finish_move(Outcome::Moved, actions);
            }
            State::Undoing { reason } if self.nodes.values().all(|node| !node.duties.contains_key(&moving.to)) => {
                let reason = reason.clone();
                self.finish_move(Outcome::RolledBack { reason }, actions);
            }
            State::MakingRoom { .. } => self.replace_when_free(now, actions),
            State::Replacing { reason } if self.row.as_ref().is_some_and(|row| row.phase == Phase::Serving) => {
                let reason = reason.clone();
                self.finish_move(Outcome::Replayed { reason }, actions);
            }
            _ => {}
        }
    }

    /// All memories are in the new row.
    fn switch(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(mut moving) = self.moving.take() else { return };
        if let State::Beside { mut row, .. } = std::mem::replace(&mut moving.state, State::Switching { since: now }) {
            row.phase = Phase::Serving;
            actions.push(Action::Switch { epoch: row.epoch });
            (self.placed, self.row) = (now, Some(row));
            self.settle(&moving.change, moving.ticket.is_some(), moving.after.len(), now);
        }
        self.moving = Some(moving);
    }

    /// Loads the new row as soon as its nodes have nothing of the old one.
    fn replace_when_free(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Some(mut moving) = self.moving.take() else { return };
        if let State::MakingRoom { nodes, placement, reason } = moving.state {
            if let Some(gone) = nodes.iter().find(|node| !self.nodes.contains_key(node)) {
                let reason = format!("node {gone} left while the row was to be replaced");
                return actions.push(Move { state: State::Clearing, ..moving }.report(Outcome::Lost { reason }));
            }
            moving.state = if nodes.iter().all(|node| self.nodes[node].is_free()) {
                let row = self.make(&nodes, *placement, None, now, actions);
                (moving.to, self.placed, self.row) = (row.epoch, now, Some(row));
                State::Replacing { reason }
            } else {
                State::MakingRoom { nodes, placement, reason }
            };
        }
        self.moving = Some(moving);
    }

    /// The new row is given up, and the old one goes on.
    pub(super) fn roll_back(&mut self, stage: Option<usize>, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        let Some(moving) = &mut self.moving else { return };
        let (to, undoing) = (moving.to, State::Undoing { reason: reason.to_owned() });
        let given_up = std::mem::replace(&mut moving.state, undoing);
        if let State::Beside { step: Step::Holding { .. } | Step::Taking { .. }, .. } = given_up {
            actions.push(Action::Resume);
        }
        self.drop_row(to, stage, reason, now, actions);
    }

    /// The row in force is over, and with it what was to take over from it.
    pub(super) fn lose_move(&mut self, reason: &str, now: Duration, actions: &mut Vec<Action>) {
        let Some(moving) = self.moving.take_if(|moving| !matches!(moving.state, State::Clearing)) else { return };
        match &moving.state {
            State::Beside { .. } => self.drop_row(moving.to, None, "the row in force is over", now, actions),
            // What the old row's nodes still hold is of no use any more.
            _ => self.release(moving.from, now, actions),
        }
        let outcome = match &moving.state {
            State::Undoing { reason } => Outcome::RolledBack { reason: reason.clone() },
            _ => Outcome::Lost { reason: reason.to_owned() },
        };
        actions.push(moving.report(outcome));
    }

    fn finish_move(&mut self, outcome: Outcome, actions: &mut Vec<Action>) {
        actions.extend(self.moving.take().map(|moving| moving.report(outcome)));
    }
}

/// For each stage of the new row: who in the old one has its layers.
fn takers(old: &Row, new: &Row) -> Vec<Taker> {
    let last = new.stages.len() - 1;
    let sources = |index: usize, stage: &Stage| -> Vec<Source> {
        let part = |(position, source): (usize, &Stage)| {
            let (from, to) = (&source.plan.layers, &stage.plan.layers);
            let layers = from.start.max(to.start)..from.end.min(to.end);
            let samplers = index == last && position == old.stages.len() - 1;
            (!layers.is_empty()).then_some(Source { node: source.node, layers, samplers })
        };
        old.stages.iter().enumerate().filter_map(part).collect()
    };
    let takers = new.stages.iter().enumerate();
    takers.map(|(index, stage)| Taker { node: stage.node, sources: sources(index, stage) }).collect()
}
