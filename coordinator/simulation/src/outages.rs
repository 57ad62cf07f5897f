//! Faults as they happen, and what each costs.

use std::time::Duration;

use paceline_core::coordinator::Event;
use paceline_proto::Epoch;
use serde::Serialize;

use crate::faults::{Fault, FaultKind};
use crate::world::{Mail, Simulation};

/// A fault and what it cost.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outage {
    /// What it was, and after how many sessions.
    #[serde(flatten)]
    pub fault: Fault,
    /// When it began; nothing if it never did, since too few sessions came.
    pub at_seconds: Option<f64>,
    /// Sessions that it interrupted.
    pub sessions_interrupted: u64,
    /// Tokens that had been run for them, and were run again.
    pub tokens_again: u64,
    /// Sessions that were not restored in time.
    pub sessions_lost: u64,
    /// Sessions that came meanwhile and were refused.
    pub sessions_refused: u64,
    /// For how long nothing ran.
    pub down_seconds: f64,
    /// What the slow stage computed longer, or for how long frames were held in the link, one after another.
    pub delay_seconds: f64,
}

/// All faults of a run.
#[derive(Debug)]
pub(crate) struct Outages {
    /// In the order of their beginning.
    pub(crate) all: Vec<Outage>,
    /// The next to begin.
    next: usize,
    /// Those slow or stalled now.
    active: Vec<usize>,
    /// The loss for which nothing runs.
    down: Option<usize>,
}

impl Outages {
    pub(crate) fn new(faults: &[Fault]) -> Self {
        let mut faults = faults.to_vec();
        faults.sort_by_key(|fault| fault.after_sessions);
        let outage = |fault| Outage {
            fault,
            at_seconds: None,
            sessions_interrupted: 0,
            tokens_again: 0,
            sessions_lost: 0,
            sessions_refused: 0,
            down_seconds: 0.0,
            delay_seconds: 0.0,
        };
        Self { all: faults.into_iter().map(outage).collect(), next: 0, active: Vec::new(), down: None }
    }

    /// A session was interrupted for which so many tokens were run.
    pub(crate) fn interrupted(&mut self, tokens: usize) {
        if let Some(down) = self.down {
            self.all[down].sessions_interrupted += 1;
            self.all[down].tokens_again += tokens as u64;
        }
    }

    /// A session could not go on.
    pub(crate) fn lost(&mut self) {
        if let Some(down) = self.down {
            self.all[down].sessions_lost += 1;
        }
    }

    /// A session came while nothing ran.
    pub(crate) fn refused(&mut self) {
        if let Some(down) = self.down {
            self.all[down].sessions_refused += 1;
        }
    }

    /// How many times as long a stage takes now.
    fn factor(&self, stage: usize) -> f64 {
        let factor = |index: &usize| match self.all[*index].fault.kind {
            FaultKind::Slow { stage: slow, factor, .. } if slow == stage => Some(factor),
            _ => None,
        };
        self.active.iter().filter_map(factor).product()
    }
}

impl Simulation<'_> {
    /// Begins the faults whose time has come.
    pub(crate) fn begin_faults(&mut self) {
        while let Some(outage) = self.outages.all.get_mut(self.outages.next)
            && outage.fault.after_sessions as u64 <= self.tally.ends.begun
        {
            let (index, fault) = (self.outages.next, outage.fault);
            outage.at_seconds = Some(self.events.now().as_secs_f64());
            self.outages.next += 1;
            self.fault_begins(index, fault);
        }
    }

    fn fault_begins(&mut self, index: usize, fault: Fault) {
        let now = self.events.now();
        if let Some(lasts) = fault.lasts() {
            self.outages.active.push(index);
            self.outages.all[index].delay_seconds = -self.delayed(&fault).as_secs_f64();
            self.events.post(now + lasts, Mail::FaultEnds(index));
        }
        match fault.kind {
            FaultKind::Slow { stage, .. } => self.row.slow_down(stage, self.outages.factor(stage)),
            FaultKind::Stalled { link, .. } => {
                let until = now + fault.lasts().unwrap_or_default();
                self.row.links[link].stall(until);
            }
            FaultKind::Lost { stage } => self.stage_lost(index, stage),
        }
    }

    /// What a slow stage or a stalled link has delayed so far.
    fn delayed(&self, fault: &Fault) -> Duration {
        match fault.kind {
            FaultKind::Slow { stage, .. } => self.row.stages[stage].extra,
            FaultKind::Stalled { link, .. } => self.row.links[link].held,
            FaultKind::Lost { .. } => Duration::ZERO,
        }
    }

    pub(crate) fn fault_ends(&mut self, index: usize) {
        let fault = self.outages.all[index].fault;
        self.outages.active.retain(|active| *active != index);
        self.outages.all[index].delay_seconds += self.delayed(&fault).as_secs_f64();
        if let FaultKind::Slow { stage, .. } = fault.kind {
            self.row.slow_down(stage, self.outages.factor(stage));
        }
    }

    /// What is on its way arrives nowhere; the coordinator hears of it later. While a row is down no more can be lost.
    fn stage_lost(&mut self, index: usize, stage: usize) {
        if self.outages.down.is_some() {
            return;
        }
        let now = self.events.now();
        self.outages.down = Some(index);
        self.row.restart(Epoch(self.row.epoch.0 + 1), now);
        let known = now + self.scenario.detect;
        let reason = "it is gone".to_owned();
        self.events.post(known, Mail::Coordinator(Event::Failed { stage, reason }));
        self.events.post(known + self.scenario.restore, Mail::Restored);
    }

    pub(crate) fn restored(&mut self) {
        let limits = Box::new(self.scenario.limits.clone());
        self.tell_coordinator(Event::Reset { epoch: self.row.epoch, limits });
        if let Some(down) = self.outages.down.take() {
            self.outages.all[down].down_seconds = (self.scenario.detect + self.scenario.restore).as_secs_f64();
        }
    }
}
