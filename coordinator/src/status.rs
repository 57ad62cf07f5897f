//! How the service is doing right now: figures that rates can be made of.

use std::collections::BTreeSet;

use paceline_core::coordinator;
use serde::{Deserialize, Serialize};

use crate::placement::{MemoryBytes, StageCard};

/// How the service is doing right now. Totals run from the start, those of stages from the start of their placement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the start: two of these give the time between two samples.
    pub uptime_seconds: f64,
    /// Whether requests are admitted.
    pub ready: bool,
    /// Whether the service is about to end: what runs may finish.
    #[serde(default)]
    pub draining: bool,
    /// Why nothing can run, when it cannot.
    pub broken: Option<String>,
    /// The placement in force.
    pub epoch: u32,
    /// Sessions that run.
    pub running: usize,
    /// Sessions that may run at once.
    pub slots: usize,
    /// Sessions that wait to be admitted, or interrupted ones to be restored.
    pub waiting: usize,
    /// Of these, sessions that were interrupted.
    #[serde(default)]
    pub interrupted: usize,
    /// Sessions admitted.
    pub admitted: u64,
    /// How often one was paused because there was no page for one before it.
    #[serde(default)]
    pub pauses: u64,
    /// Pages that running sessions hold.
    pub pages_used: usize,
    /// Pages promised to them beyond those.
    pub pages_reserved: usize,
    /// Pages there are.
    pub pages: usize,
    /// Steps in the row.
    pub steps_in_flight: usize,
    /// The most there may be: one for each credit.
    pub credits: usize,
    /// Seconds in which something was ready to run and no credit was free.
    pub credit_wait_seconds: f64,
    /// Prompt tokens computed.
    pub prefill_tokens: u64,
    /// Tokens generated.
    pub decode_tokens: u64,
    /// Steps sent.
    pub steps: u64,
    /// What became of guesses at tokens.
    #[serde(default)]
    pub drafts: DraftStatus,
    /// What is remembered, and what that saved.
    #[serde(default)]
    pub cache: CacheStatus,
    /// The stages, in row order.
    pub stages: Vec<StageStatus>,
}

/// What became of guesses at the tokens that follow.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DraftStatus {
    /// Guesses that were run.
    pub run: u64,
    /// Of these, guesses that were right.
    pub accepted: u64,
    /// Guesses that were offered and not run, because that would not have paid or there was no room.
    pub declined: u64,
    /// Chunks with guesses.
    pub chunks: u64,
    /// Chunks of guesses that were sent before it was known what became of those before them.
    pub sent_ahead: u64,
    /// Of these, chunks that were in vain.
    pub void: u64,
}

/// What the stages keep on disks, all of them together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCacheStatus {
    /// Sessions of which something came from there.
    pub hits: u64,
    /// Their cached tokens.
    pub tokens: u64,
    /// Parts of texts that all stages have kept since the start.
    pub kept: u64,
    /// Parts that a stage did not keep.
    pub not_kept: u64,
    /// Texts that came back.
    pub fetched: u64,
    /// Texts that did not, or not in time.
    pub not_fetched: u64,
    /// Entries of all processes' folders; each has that of its own layers.
    pub entries: u64,
    /// Bytes that they take.
    pub bytes: u64,
    /// Bytes that they may take.
    pub budget: u64,
    /// Entries that made room for others.
    pub evicted: u64,
    /// Entries that were dropped because their bytes were not what was kept.
    pub damaged: u64,
}

impl DiskCacheStatus {
    fn new(core: &coordinator::Status, cards: &[StageCard]) -> Option<Self> {
        let disk = core.disk.as_ref()?;
        let counts = disk.counts;
        let mut status = Self {
            hits: core.cache.disk_hits,
            tokens: core.cache.disk_tokens,
            kept: counts.kept,
            not_kept: counts.not_kept,
            fetched: counts.fetched,
            not_fetched: counts.not_fetched,
            ..Self::default()
        };
        // Stages of one process share its folder.
        let mut nodes = BTreeSet::new();
        for (card, tier) in cards.iter().zip(&disk.tiers) {
            if nodes.insert(&card.node) {
                status.entries = status.entries.saturating_add(tier.entries);
                status.bytes = status.bytes.saturating_add(tier.bytes);
                status.budget = status.budget.saturating_add(tier.budget);
                status.evicted = status.evicted.saturating_add(tier.evicted);
                status.damaged = status.damaged.saturating_add(tier.refused);
            }
        }
        Some(status)
    }
}

/// What is remembered of prompts and answers, and what that saved. But for `disk`, all of it is on the stages' devices.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CacheStatus {
    /// What is kept on disks, if the stages have some.
    pub disk: Option<DiskCacheStatus>,
    /// Sessions that were let in, each time that they were.
    pub lookups: u64,
    /// Of these, sessions of which some tokens were cached.
    pub hits: u64,
    /// Tokens that were cached.
    pub cached_tokens: u64,
    /// Tokens that were run again although they were known, because no state is kept where they end.
    pub reread_tokens: u64,
    /// Pages that the cache holds; running sessions may share them.
    pub pages: usize,
    /// Of these, pages that nobody else holds.
    pub idle_pages: usize,
    /// Bytes of its pages, on all stages together.
    pub page_bytes: u64,
    /// Recurrent states that it keeps.
    pub snapshots: usize,
    /// The most that it may keep.
    pub snapshot_slots: usize,
    /// Bytes of its states, on all stages together.
    pub snapshot_bytes: u64,
    /// Pages that made room for others.
    pub evicted_pages: u64,
    /// States that made room for others.
    pub evicted_snapshots: u64,
    /// States that went because the pages before them did.
    pub stranded_snapshots: u64,
}

impl CacheStatus {
    fn new(core: &coordinator::Status, cards: &[StageCard]) -> Self {
        let memory = |of: fn(&MemoryBytes) -> u64| cards.iter().map(|card| of(&card.memory.actual)).sum::<u64>();
        let share = |bytes: u64, part: usize, whole: usize| bytes.checked_div(whole as u64).unwrap_or(0) * part as u64;
        let (pages, snapshots) = (core.index.pages, core.index.snapshots);
        Self {
            disk: DiskCacheStatus::new(core, cards),
            lookups: core.cache.lookups,
            hits: core.cache.hits,
            cached_tokens: core.cache.cached_tokens,
            reread_tokens: core.cache.reread_tokens,
            pages,
            idle_pages: core.pages_idle,
            page_bytes: share(
                memory(|bytes| bytes.key_value),
                pages,
                core.pages_used + core.pages_idle + core.pages_free,
            ),
            snapshots,
            snapshot_slots: core.snapshots,
            snapshot_bytes: share(memory(|bytes| bytes.states), snapshots, core.slots + core.snapshots),
            evicted_pages: core.index.evicted_pages,
            evicted_snapshots: core.index.evicted_snapshots,
            stranded_snapshots: core.index.stranded_snapshots,
        }
    }
}

/// A stage, and what it did since its placement began.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct StageStatus {
    /// What it is.
    #[serde(flatten)]
    pub card: StageCard,
    /// Steps that it ran.
    pub steps: u64,
    /// Microseconds of computing.
    pub busy_micros: u64,
    /// Microseconds between steps.
    pub idle_micros: u64,
    /// Bytes of activations passed on.
    pub sent_bytes: u64,
}

impl DraftStatus {
    fn of(counts: &coordinator::SpeculationCounts) -> Self {
        let coordinator::SpeculationCounts { drafts, accepted, chunks, declined, sent_ahead, void } = *counts;
        Self { run: drafts, accepted, declined, chunks, sent_ahead, void }
    }
}

impl Status {
    /// The core's figures and the stages' cards together.
    pub(crate) fn new(core: coordinator::Status, cards: &[StageCard]) -> Self {
        let totals = core.stages.iter().copied().chain(std::iter::repeat(Default::default()));
        let stages = cards.iter().cloned().zip(totals).map(|(card, totals)| StageStatus {
            card,
            steps: totals.steps,
            busy_micros: totals.busy,
            idle_micros: totals.idle,
            sent_bytes: totals.sent,
        });
        let cache = CacheStatus::new(&core, cards);
        Self {
            uptime_seconds: 0.0,
            ready: core.broken.is_none(),
            draining: false,
            broken: core.broken,
            epoch: 0,
            running: core.running,
            slots: core.slots,
            waiting: core.waiting,
            interrupted: core.interrupted,
            admitted: core.admitted,
            pauses: core.pauses,
            pages_used: core.pages_used,
            pages_reserved: core.pages_reserved,
            pages: core.pages_used + core.pages_idle + core.pages_free,
            steps_in_flight: core.steps_in_flight,
            credits: core.credits,
            credit_wait_seconds: core.credit_wait.as_secs_f64(),
            prefill_tokens: core.prefill_tokens,
            decode_tokens: core.decode_tokens,
            steps: core.steps,
            drafts: DraftStatus::of(&core.speculation),
            cache,
            stages: stages.collect(),
        }
    }
}
