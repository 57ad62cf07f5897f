//! What can be seen of the coordinator from outside: figures for metrics, and accounts for the invariants.

use paceline_proto::{PageId, SessionId};

use super::Coordinator;
use super::running::Running;
use crate::pages::PageTable;

/// Figures for metrics. Counts run from the program's start, through all epochs.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Sessions with a slot.
    pub running: usize,
    /// Sessions in the admission queue.
    pub waiting: usize,
    /// Pages nobody holds, promised or not.
    pub pages_free: usize,
    /// Of the free pages, those promised to running sessions.
    pub pages_reserved: usize,
    /// Pages held.
    pub pages_used: usize,
    /// Credits taken.
    pub steps_in_flight: usize,
    /// Sessions admitted.
    pub admitted: u64,
    /// Steps sent.
    pub steps: u64,
    /// Rows of prompts sent.
    pub prefill_tokens: u64,
    /// Rows after prompts sent.
    pub decode_tokens: u64,
    /// Of those, rows sent before their token was back.
    pub run_ahead_tokens: u64,
    /// Results of old epochs or unknown steps.
    pub ignored_results: u64,
    /// What a row of prefill takes on the slowest stage, once known.
    pub micros_per_prefill_row: Option<f64>,
    /// What a step of decode alone takes on the slowest stage, once known.
    pub micros_per_decode_step: Option<f64>,
    /// Why nothing runs, if nothing can.
    pub broken: Option<String>,
}

/// Who holds how much. [`invariants`](crate::invariants) says what must hold of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Accounts {
    /// Pages there are.
    pub pages: usize,
    /// Pages nobody holds.
    pub pages_free: usize,
    /// Of those, how many are promised.
    pub pages_reserved: usize,
    /// Slots there are.
    pub slots: usize,
    /// Slots nobody has.
    pub slots_free: usize,
    /// Steps in flight.
    pub steps: usize,
    /// The most.
    pub credits: usize,
    /// Sessions in the queue.
    pub waiting: usize,
    /// The most.
    pub queue: usize,
    /// Answers that are waited for.
    pub awaited: usize,
    /// Running sessions that have a token and have not answered.
    pub unanswered: usize,
    /// Running sessions.
    pub running: usize,
    /// Pages that they hold.
    pub pages_held: usize,
    /// Pages that they were promised on top of these.
    pub pages_promised: usize,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) admitted: u64,
    pub(super) steps: u64,
    pub(super) prefill_tokens: u64,
    pub(super) decode_tokens: u64,
    pub(super) run_ahead_tokens: u64,
    pub(super) ignored_results: u64,
}

impl Coordinator {
    /// Figures for metrics.
    pub fn status(&self) -> Status {
        Status {
            running: self.running.len(),
            waiting: self.waiting.len(),
            pages_free: self.pages.free(),
            pages_reserved: self.pages.reserved(),
            pages_used: self.pages.total() - self.pages.free(),
            steps_in_flight: self.steps.len(),
            admitted: self.counts.admitted,
            steps: self.counts.steps,
            prefill_tokens: self.counts.prefill_tokens,
            decode_tokens: self.counts.decode_tokens,
            run_ahead_tokens: self.counts.run_ahead_tokens,
            ignored_results: self.counts.ignored_results,
            micros_per_prefill_row: self.pace.micros_per_prefill_row(),
            micros_per_decode_step: self.pace.micros_per_decode_step(),
            broken: self.broken.as_ref().map(ToString::to_string),
        }
    }

    /// Who holds how much.
    pub fn accounts(&self) -> Accounts {
        let tables = || self.running.values().map(Running::pages);
        Accounts {
            pages: self.pages.total(),
            pages_free: self.pages.free(),
            pages_reserved: self.pages.reserved(),
            slots: self.limits.slots,
            slots_free: self.slots.free(),
            steps: self.steps.len(),
            credits: self.limits.credits,
            waiting: self.waiting.len(),
            queue: self.limits.queue,
            awaited: self.unanswered.len(),
            unanswered: self.running.values().filter(|running| running.unanswered_since().is_some()).count(),
            running: self.running.len(),
            pages_held: tables().map(|table| table.pages().len()).sum(),
            pages_promised: tables().map(PageTable::reserved).sum(),
        }
    }

    /// By running session: the pages it holds.
    pub fn page_tables(&self) -> impl Iterator<Item = (SessionId, &[PageId])> {
        self.running.iter().map(|(session, running)| (*session, running.pages().pages()))
    }
}
