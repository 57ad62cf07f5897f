//! Steps that do not come back: a stage that hangs says nothing, and while it is stuck nobody gets a token.
//!
//! How long a step may take follows what steps took so far, so that no large prompt on a slow machine is taken for a
//! stage that hangs.

use std::time::Duration;

use super::{Action, Coordinator, Loss};
use crate::limits::{FIRST_STEPS, STEP_PATIENCE};

impl Coordinator {
    /// When the oldest step in flight must be back, if there is one and the row has such a deadline.
    pub(super) fn overdue_at(&self) -> Option<Duration> {
        let (oldest, least) = self.steps.front().zip(self.limits.step_deadline)?;
        let expected = self.pace.expected(oldest.prefill_rows, oldest.decode_rows);
        let stages = u32::try_from(self.limits.stages).unwrap_or(u32::MAX);
        let patience = match expected {
            Some(slowest) => slowest.saturating_mul(stages).saturating_mul(STEP_PATIENCE),
            None => least.saturating_mul(FIRST_STEPS),
        };
        Some(self.moved.saturating_add(least).saturating_add(patience))
    }

    /// The row has failed if its oldest step is overdue.
    pub(super) fn expect_results(&mut self, now: Duration, actions: &mut Vec<Action>) {
        if self.overdue_at().is_some_and(|at| at <= now)
            && let Some(oldest) = self.steps.front()
        {
            let loss = Loss::Overdue { step: oldest.id, waited: now.saturating_sub(self.moved) };
            self.fail(loss, now, actions);
        }
    }
}
