//! A row on its way into force: which of its stages are loaded and linked, and since when it waits for the others.

use std::time::Duration;

use paceline_proto::{Epoch, NodeId};

use super::{LINK_DEADLINE, LOAD_DEADLINE, Share};
use crate::planner::{Placement, StagePlan};

/// How far a row is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Loading,
    Linking,
    Serving,
}

#[derive(Debug)]
pub(super) struct Stage {
    pub(super) node: NodeId,
    pub(super) plan: StagePlan,
    loaded: bool,
    linked: bool,
    /// When it last came forward.
    since: Duration,
}

/// The nodes of a placement in the order of its stages.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) epoch: Epoch,
    pub(super) phase: Phase,
    pub(super) stages: Vec<Stage>,
    /// The coordinator's own links are there.
    ready: bool,
    linking_since: Duration,
}

impl Row {
    pub(super) fn new(epoch: Epoch, nodes: &[NodeId], placement: &Placement, now: Duration) -> Self {
        let stage = |(&node, plan): (&NodeId, &StagePlan)| Stage {
            node,
            plan: plan.clone(),
            loaded: false,
            linked: false,
            since: now,
        };
        let stages = nodes.iter().zip(&placement.stages).map(stage).collect();
        Self { epoch, phase: Phase::Loading, stages, ready: false, linking_since: now }
    }

    pub(super) fn nodes(&self) -> impl Iterator<Item = NodeId> {
        self.stages.iter().map(|stage| stage.node)
    }

    pub(super) fn has(&self, node: NodeId) -> bool {
        self.stage_of(node).is_some()
    }

    pub(super) fn stage_of(&self, node: NodeId) -> Option<usize> {
        self.stages.iter().position(|stage| stage.node == node)
    }

    /// Who holds what.
    pub(super) fn shares(&self) -> Vec<Share> {
        self.stages.iter().map(|stage| Share { node: stage.node, layers: stage.plan.layers.clone() }).collect()
    }

    pub(super) fn progressed(&mut self, node: NodeId, now: Duration) {
        if let Some(stage) = self.find(node) {
            stage.since = now;
        }
    }

    pub(super) fn loaded(&mut self, node: NodeId, now: Duration) {
        if let Some(stage) = self.find(node) {
            (stage.loaded, stage.since) = (true, now);
        }
    }

    pub(super) fn linked(&mut self, node: NodeId) {
        if let Some(stage) = self.find(node) {
            stage.linked = true;
        }
    }

    pub(super) fn ready(&mut self) {
        self.ready = true;
    }

    pub(super) fn all_loaded(&self) -> bool {
        self.stages.iter().all(|stage| stage.loaded)
    }

    pub(super) fn all_linked(&self) -> bool {
        self.ready && self.stages.iter().all(|stage| stage.linked)
    }

    pub(super) fn begin_linking(&mut self, now: Duration) {
        self.phase = Phase::Linking;
        self.linking_since = now;
    }

    /// Whether the row waits too long for something: the stage at fault, and for what.
    pub(super) fn stuck(&self, now: Duration) -> Option<(Option<usize>, String)> {
        let waits = |since: Duration, deadline: Duration| now.saturating_sub(since) >= deadline;
        match self.phase {
            Phase::Loading => {
                let stage = self.stages.iter().position(|stage| !stage.loaded && waits(stage.since, LOAD_DEADLINE))?;
                let seconds = LOAD_DEADLINE.as_secs();
                Some((Some(stage), format!("stage {stage} made no progress in loading for {seconds} s")))
            }
            Phase::Linking if !self.all_linked() && waits(self.linking_since, LINK_DEADLINE) => {
                let stage = self.stages.iter().position(|stage| !stage.linked);
                let who = stage.map_or("the coordinator".to_owned(), |stage| format!("stage {stage}"));
                Some((stage, format!("{who} was not linked within {} s", LINK_DEADLINE.as_secs())))
            }
            _ => None,
        }
    }

    fn find(&mut self, node: NodeId) -> Option<&mut Stage> {
        self.stages.iter_mut().find(|stage| stage.node == node)
    }
}
