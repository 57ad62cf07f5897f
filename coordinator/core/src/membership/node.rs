//! A node that attends, and what it has of which row.

use std::collections::BTreeMap;
use std::time::Duration;

use paceline_proto::Epoch;

use crate::planner::DeviceSpec;

/// What a node has to do with an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Duty {
    /// It holds a stage, or makes it.
    Stage,
    /// It was told to drop that, and has not said that it did.
    Releasing {
        /// When it was told, or last heard to be at it.
        since: Duration,
    },
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) device: DeviceSpec,
    /// It is used only when others are too few.
    pub(super) standby: bool,
    pub(super) heard: Duration,
    /// Not used before this time.
    pub(super) held_off: Duration,
    /// One for each row that it has a part of: two while a row takes over from another.
    pub(super) duties: BTreeMap<Epoch, Duty>,
    pub(super) stay: Stay,
}

/// Whether a node stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    Stays,
    /// It wants to end, and its work is to be given to others before.
    WantsToLeave,
    /// It is let go as soon as nothing takes over from it.
    MayLeave,
}

impl Node {
    pub(super) fn new(device: DeviceSpec, standby: bool, now: Duration) -> Self {
        let duties = BTreeMap::new();
        Self { device, standby, heard: now, held_off: Duration::ZERO, duties, stay: Stay::Stays }
    }

    /// It has nothing of any row.
    pub(super) fn is_free(&self) -> bool {
        self.duties.is_empty()
    }

    /// Tells it to drop what it holds of an epoch, if it does; returns whether there is something to tell.
    pub(super) fn release(&mut self, epoch: Epoch, now: Duration) -> bool {
        match self.duties.get_mut(&epoch) {
            Some(duty @ Duty::Stage) => {
                *duty = Duty::Releasing { since: now };
                true
            }
            _ => false,
        }
    }

    /// Dropping a stage that still loads waits for that.
    pub(super) fn progressed(&mut self, epoch: Epoch, now: Duration) {
        if let Some(Duty::Releasing { since }) = self.duties.get_mut(&epoch) {
            *since = now;
        }
    }

    /// The epoch that it was told to drop, and did not within a time.
    pub(super) fn overdue(&self, now: Duration, deadline: Duration) -> Option<Epoch> {
        let late = |duty: &Duty| matches!(duty, Duty::Releasing { since } if now.saturating_sub(*since) >= deadline);
        self.duties.iter().find(|(_, duty)| late(duty)).map(|(epoch, _)| *epoch)
    }
}
