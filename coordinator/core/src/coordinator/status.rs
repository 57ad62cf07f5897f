//! What can be seen of the coordinator from outside: figures for metrics, and accounts for the invariants.

use std::time::Duration;

use paceline_proto::{PageId, SessionId, StageTime, TierCounts};

use super::Coordinator;
use super::running::{Readiness, Running};
use super::speculation::SpeculationCounts;
use crate::disk::DiskCounts;
use crate::pages::PageTable;
use crate::prefix::PrefixCounts;

/// Figures for metrics. Counts run from the program's start, through all epochs.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// Sessions with a slot.
    pub running: usize,
    /// Sessions in the admission queue, interrupted ones too.
    pub waiting: usize,
    /// Sessions that were interrupted and have no place yet.
    pub interrupted: usize,
    /// How often a session was paused because there was no page for one before it.
    pub pauses: u64,
    /// Pages nobody holds, promised or not.
    pub pages_free: usize,
    /// Of the free pages, those promised to running sessions.
    pub pages_reserved: usize,
    /// Pages that sessions hold.
    pub pages_used: usize,
    /// Sessions that may run at once.
    pub slots: usize,
    /// Credits taken.
    pub steps_in_flight: usize,
    /// Credits there are.
    pub credits: usize,
    /// How long, until the last event, something was ready to run and no credit was free.
    pub credit_wait: Duration,
    /// What the stages did since this placement began, in row order; empty before its first result.
    pub stages: Vec<StageTotals>,
    /// Sessions admitted.
    pub admitted: u64,
    /// Steps sent.
    pub steps: u64,
    /// Rows of prompts sent.
    pub prefill_tokens: u64,
    /// Rows after prompts sent, without drafts that were not right.
    pub decode_tokens: u64,
    /// Of those, rows sent before their token was back.
    pub run_ahead_tokens: u64,
    /// What became of drafts.
    pub speculation: SpeculationCounts,
    /// Results of old epochs or unknown steps.
    pub ignored_results: u64,
    /// What a row of prefill takes on the slowest stage, once known.
    pub micros_per_prefill_row: Option<f64>,
    /// What a step of decode alone takes on the slowest stage, once known.
    pub micros_per_decode_step: Option<f64>,
    /// What the cache did.
    pub cache: CacheCounts,
    /// What the cache holds, and what it gave up.
    pub index: PrefixCounts,
    /// Pages that nobody but the cache holds.
    pub pages_idle: usize,
    /// Snapshots there may be.
    pub snapshots: usize,
    /// What the stages keep on disks, if they do.
    pub disk: Option<DiskStatus>,
    /// Why nothing runs, if nothing can.
    pub broken: Option<String>,
}

/// What the stages keep on disks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskStatus {
    /// What was kept and fetched since the service began.
    pub counts: DiskCounts,
    /// Entries that are known, of any stage.
    pub entries: usize,
    /// By stage: what the tier of its process has, which may be that of other stages too.
    pub tiers: Vec<TierCounts>,
}

/// What one stage did for all results of a placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StageTotals {
    /// Results that told of it.
    pub steps: u64,
    /// Microseconds of computing.
    pub busy: u64,
    /// Microseconds of waiting for the next step.
    pub idle: u64,
    /// Bytes of activations passed on.
    pub sent: u64,
}

impl StageTotals {
    /// Figures come from other hosts: whatever they are, sums stop at the largest number.
    fn add(&mut self, time: &StageTime) {
        self.steps += 1;
        self.busy = self.busy.saturating_add(time.busy);
        self.idle = self.idle.saturating_add(time.idle);
        self.sent = self.sent.saturating_add(time.sent);
    }
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
    /// Sessions in the queue that were never admitted.
    pub waiting: usize,
    /// The most.
    pub queue: usize,
    /// Sessions in the queue that were interrupted.
    pub interrupted: usize,
    /// The arrival of the oldest in the queue.
    pub oldest_waiting: Option<u64>,
    /// The arrival of the newest who runs.
    pub newest_running: Option<u64>,
    /// Answers that are waited for.
    pub awaited: usize,
    /// Running sessions that have a token and have not answered.
    pub unanswered: usize,
    /// Running sessions, with those that left and whose last row is under way.
    pub running: usize,
    /// Snapshots there may be.
    pub snapshots: usize,
    /// Snapshots for which there is room.
    pub snapshots_free: usize,
    /// Snapshots in the index, and copies that are not yet.
    pub snapshots_held: usize,
    /// References that the pool has counted.
    pub references: usize,
    /// Pages of sessions, of the index, and those to copy from.
    pub references_held: usize,
    /// Pages that anybody holds.
    pub pages_held: usize,
    /// Pages that they were promised on top of these.
    pub pages_promised: usize,
}

/// What the cache did. Counts run from the program's start, through all epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Sessions that were let in, each time that they were.
    pub lookups: u64,
    /// Of these, sessions of which some tokens were cached.
    pub hits: u64,
    /// Tokens that were cached.
    pub cached_tokens: u64,
    /// Tokens that were run again although they are known, because no state was kept where they end.
    pub reread_tokens: u64,
    /// States that were copied to be kept.
    pub snapshots_taken: u64,
    /// Of the hits, those of which something came from disks.
    pub disk_hits: u64,
    /// Of the cached tokens, those of such sessions.
    pub disk_tokens: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) admitted: u64,
    pub(super) pauses: u64,
    pub(super) cache: CacheCounts,
    /// Of the rows before.
    pub(super) disk: DiskCounts,
    pub(super) steps: u64,
    pub(super) prefill_tokens: u64,
    pub(super) decode_tokens: u64,
    pub(super) run_ahead_tokens: u64,
    pub(super) speculation: SpeculationCounts,
    pub(super) ignored_results: u64,
    /// Of the placement in force.
    pub(super) stages: Vec<StageTotals>,
    pub(super) credit_wait: Duration,
    /// Since when something waits for a credit.
    pub(super) waits_since: Option<Duration>,
}

impl Counts {
    /// Adds what the stages of a row, `stages` of them, say of a step.
    pub(super) fn count_times(&mut self, stages: usize, times: &[StageTime]) {
        let known = times.len().min(stages);
        if self.stages.len() < known {
            self.stages.resize(known, StageTotals::default());
        }
        for (total, time) in self.stages.iter_mut().zip(times) {
            total.add(time);
        }
    }
}

impl Coordinator {
    /// Counts the time since the last event if something waited for a credit, and sees whether something does now.
    pub(super) fn count_credit_wait(&mut self, now: Duration) {
        if let Some(since) = self.counts.waits_since {
            self.counts.credit_wait += now.saturating_sub(since);
        }
        let is_ready =
            |running: &Running| matches!(running.readiness(&self.limits), Readiness::Prefill | Readiness::Decode);
        let waits = self.steps.len() >= self.limits.credits && self.running.values().any(is_ready);
        self.counts.waits_since = waits.then_some(now);
    }

    /// Figures for metrics.
    pub fn status(&self) -> Status {
        Status {
            running: self.running.len(),
            waiting: self.waiting.len(),
            interrupted: self.interrupted(),
            pauses: self.counts.pauses,
            pages_free: self.pages.free(),
            pages_reserved: self.pages.reserved(),
            pages_used: self.pages.total() - self.pages.free() - self.pages.idle(),
            slots: self.limits.slots,
            steps_in_flight: self.steps.len(),
            credits: self.limits.credits,
            credit_wait: self.counts.credit_wait,
            stages: self.counts.stages.clone(),
            admitted: self.counts.admitted,
            steps: self.counts.steps,
            prefill_tokens: self.counts.prefill_tokens,
            decode_tokens: self.counts.decode_tokens + self.counts.speculation.accepted,
            speculation: self.counts.speculation,
            run_ahead_tokens: self.counts.run_ahead_tokens,
            ignored_results: self.counts.ignored_results,
            micros_per_prefill_row: self.pace.micros_per_prefill_row(),
            micros_per_decode_step: self.pace.micros_per_decode_step(),
            cache: self.counts.cache,
            index: self.index.counts(),
            pages_idle: self.pages.idle(),
            snapshots: self.limits.snapshots,
            disk: self.disk_status(),
            broken: self.broken.as_ref().map(ToString::to_string),
        }
    }

    /// Who holds how much.
    pub fn accounts(&self) -> Accounts {
        let all = || self.running.values().chain(self.lingering.values());
        let tables = || all().map(Running::pages);
        let copies = all().map(|running| running.caching.taken().count()).sum::<usize>();
        let sources = all().filter(|running| running.caching.restore().is_some_and(|restore| restore.source.is_some()));
        Accounts {
            pages: self.pages.total(),
            pages_free: self.pages.free(),
            pages_reserved: self.pages.reserved(),
            slots: self.limits.slots,
            slots_free: self.slots.free(),
            steps: self.steps.len(),
            credits: self.limits.credits,
            waiting: self.waiting.len() - self.interrupted(),
            queue: self.limits.queue,
            interrupted: self.interrupted(),
            oldest_waiting: self.waiting.first_key_value().map(|(number, _)| *number),
            newest_running: self.running.values().map(Running::number).max(),
            awaited: self.unanswered.len(),
            unanswered: self.running.values().filter(|running| running.unanswered_since().is_some()).count(),
            running: all().count(),
            snapshots: self.limits.snapshots,
            snapshots_free: self.slots.free_snapshots(),
            snapshots_held: self.index.slots().count() + copies,
            references: self.pages.total_references(),
            references_held: tables().map(|table| table.pages().len()).sum::<usize>()
                + self.index.counts().pages
                + sources.count()
                + self.pinned_pages(),
            pages_held: self.pages.held(),
            pages_promised: tables().map(PageTable::reserved).sum(),
        }
    }

    /// Sessions in the queue that were interrupted.
    pub(super) fn interrupted(&self) -> usize {
        self.waiting.values().filter(|waiting| waiting.is_interrupted()).count()
    }

    /// By running session: the pages it holds.
    pub fn page_tables(&self) -> impl Iterator<Item = (SessionId, &[PageId])> {
        self.running.iter().map(|(session, running)| (*session, running.pages().pages()))
    }
}
