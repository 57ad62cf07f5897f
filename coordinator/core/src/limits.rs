//! Every bound of the coordinator, with its name, its default and the reason for it.

use std::time::Duration;

use paceline_proto::EntryKey;

use crate::drafts::MOST_DRAFTS;

/// Waiting sessions: beyond some hundreds a new one would wait longer than its client does.
pub const QUEUE: usize = 256;
/// A client that has waited this long for a place is told so rather than kept.
pub const QUEUE_DEADLINE: Duration = Duration::from_secs(60);
/// A session whose row is over waits so long for its place in the next: enough to join a host and to load a stage from
/// it, and no longer than clients and proxies wait for a stream that goes on saying that it is there.
pub const RESTORE_DEADLINE: Duration = Duration::from_secs(120);
/// How often a session may be interrupted by faults without a token in between: it may be what takes down row after row.
pub const RESTORES: u32 = 3;
/// A step that is not back so long after it was expected has met a stage that hangs: far more than a busy machine holds up a
/// process, and no longer than people wait. Nothing else finds such a stage, whose process is there and sends heartbeats.
pub const STEP_DEADLINE: Duration = Duration::from_secs(30);
/// In addition a step may take so many times what it should take: machines are shared, and contexts grow.
pub const STEP_PATIENCE: u32 = 20;
/// While it is not known what steps take, so many times the deadline in addition.
pub const FIRST_STEPS: u32 = 20;
/// Tokens for which a session reserves pages when it is admitted, on top of those it has: a short answer then never waits
/// for a page, and one that was paused goes on for a while before it may be again. More would only stand idle.
pub const GROWTH_TOKENS: usize = 256;
/// How far apart states are kept in a long prompt, where nothing says that others are likely to branch off: as many tokens
/// are run again at most when they do, and that takes one step. Multiples of it, so that users share them.
pub const SNAPSHOT_STRIDE: usize = 512;
/// Steps in flight per stage: one that computes and one that waits behind it, so that no stage idles while a
/// result travels. More would only add to the time to the next token.
pub const CREDITS_PER_STAGE: usize = 2;
/// Rows of prompt in a step while nobody decodes: enough to be bound by arithmetic rather than by reading weights.
pub const PREFILL_ROWS: usize = 512;
/// Rows of prompt that a step takes at least, however slow: prefill must go on too. Few, as they read the weights
/// together with the rows of those who decode.
pub const LEAST_PREFILL_ROWS: usize = 4;
/// Into how many parts per stage the prompts that wait are cut, while nobody decodes: of `n` stages and `p` parts each,
/// filling and emptying the row costs about `1 / p`.
pub const PARTS_PER_STAGE: usize = 4;
/// Rows of such a part at least: fewer are no longer bound by arithmetic.
pub const LEAST_PART_ROWS: usize = 128;
/// How much longer than decode alone a step may take for prefill, in percent: nobody's tokens come at less than about
/// half their pace while others' prompts are read, and the prompts get nearly half of every stage.
pub const PREFILL_PERCENT: u32 = 80;
/// How long a step is held back for sessions that have a new token and have not yet answered. A session answers
/// within microseconds, or its reader is slow; without the wait every decode step would carry one session.
pub const GATHER: Duration = Duration::from_micros(500);

/// The bounds of a [`Coordinator`](crate::Coordinator). [`Limits::new`] gives the defaults for a placement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Stages in the row.
    pub stages: usize,
    /// Sessions that run at once: one recurrent state each.
    pub slots: usize,
    /// Recurrent states kept besides, of prefixes that may come again.
    pub snapshots: usize,
    /// Whether the model has recurrent states: then what is cached is of use only where a snapshot is kept.
    pub has_states: bool,
    /// How far apart snapshots are taken in a long prompt, in tokens.
    pub snapshot_stride: usize,
    /// Pages of keys and values.
    pub pages: usize,
    /// Tokens in a page.
    pub page_tokens: usize,
    /// Tokens of one session, prompt and answer together.
    pub context: usize,
    /// Tokens for which a session reserves pages when it is admitted, on top of those it has.
    pub growth_tokens: usize,
    /// Sessions that wait for a place; more are refused.
    pub queue: usize,
    /// How long a session may wait for a place.
    pub queue_deadline: Duration,
    /// How long a session whose row is over may wait for its place in the next; nothing where no other row is placed.
    pub restore_deadline: Duration,
    /// How often a session may be interrupted by faults without a token in between.
    pub restores: u32,
    /// How long a step may be overdue; nothing where no other row could be placed, so that waiting is all one can do.
    pub step_deadline: Option<Duration>,
    /// The root of what the stages keep on disks; nothing where not all of them have one.
    pub disk: Option<EntryKey>,
    /// Rows of a step, decode and prefill together: the stages' buffers hold as many.
    pub step_rows: usize,
    /// Rows of a step of which a token or a vector is wanted: the tail's logits hold as many.
    pub step_wanted: usize,
    /// Sessions that may have uncertain tokens at once; with 0 no drafts are run.
    pub log_sessions: usize,
    /// Uncertain tokens that a session may have in all chunks under way: the stages' logs hold as many.
    pub log_tokens: usize,
    /// Drafts of one chunk, as far as there are logs for them.
    pub chunk_drafts: usize,
    /// Steps in flight: every link holds at least as many frames, so that no send in the ring ever waits.
    pub credits: usize,
    /// Rows of prompt in a step while nobody decodes.
    pub prefill_rows: usize,
    /// How much longer than decode alone a step may take for prefill, in percent.
    pub prefill_percent: u32,
    /// How long a step is held back for sessions that have not yet answered to their token.
    pub gather: Duration,
    /// Send a session's next step before its token is back. In a row of several stages such a step holds up the
    /// head until the tail has sampled, so there it is sent only when nothing else is ready.
    pub run_ahead: bool,
}

/// A limit with which nothing could ever run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the limit {name} is {value}, it must be at least {least}")]
pub struct InvalidLimit {
    /// Which.
    pub name: &'static str,
    /// What it is.
    pub value: usize,
    /// The least that works.
    pub least: usize,
}

impl Limits {
    /// The defaults for a row of `stages` with memory for `slots` states and `pages` of `page_tokens` tokens.
    /// Run-ahead is on for a single stage, where it never holds anything up.
    pub fn new(stages: usize, slots: usize, pages: usize, page_tokens: usize, context: usize) -> Self {
        Self {
            stages,
            slots,
            snapshots: 0,
            has_states: true,
            snapshot_stride: SNAPSHOT_STRIDE,
            pages,
            page_tokens,
            context,
            growth_tokens: GROWTH_TOKENS,
            queue: QUEUE,
            queue_deadline: QUEUE_DEADLINE,
            restore_deadline: RESTORE_DEADLINE,
            restores: RESTORES,
            step_deadline: Some(STEP_DEADLINE),
            disk: None,
            step_rows: PREFILL_ROWS + slots,
            step_wanted: slots + 1,
            log_sessions: 0,
            log_tokens: 0,
            chunk_drafts: MOST_DRAFTS,
            credits: CREDITS_PER_STAGE * stages,
            prefill_rows: PREFILL_ROWS,
            prefill_percent: PREFILL_PERCENT,
            gather: GATHER,
            run_ahead: stages == 1,
        }
    }

    /// Says which limit is too small for anything to run.
    ///
    /// # Errors
    /// The first [`InvalidLimit`].
    pub fn check(&self) -> Result<(), InvalidLimit> {
        let least = [
            ("stages", self.stages, 1),
            ("slots", self.slots, 1),
            ("pages", self.pages, 1),
            ("page_tokens", self.page_tokens, 1),
            ("context", self.context, 1),
            ("snapshot_stride", self.snapshot_stride, 1),
            ("credits", self.credits, 1),
            ("prefill_rows", self.prefill_rows, LEAST_PREFILL_ROWS),
            // one decode row beside the least prefill, and a wanted row for each
            ("step_rows", self.step_rows, LEAST_PREFILL_ROWS + 1),
            ("step_wanted", self.step_wanted, 2),
        ];
        match least.into_iter().find(|(_, value, least)| value < least) {
            Some((name, value, least)) => Err(InvalidLimit { name, value, least }),
            None => Ok(()),
        }
    }

    /// Whether stages of both have the same pages and slots, and sessions the same bounds.
    pub fn same_memory(&self, other: &Self) -> bool {
        let states = |limits: &Self| (limits.slots, limits.snapshots, limits.has_states);
        let memory = |limits: &Self| (limits.pages, limits.page_tokens, limits.context);
        let logs = |limits: &Self| (limits.log_sessions, limits.log_tokens);
        states(self) == states(other) && memory(self) == memory(other) && logs(self) == logs(other)
    }

    /// Whether anything can be reused when its session is over.
    pub fn caches(&self) -> bool {
        !self.has_states || self.snapshots > 0
    }

    /// Pages that hold `tokens` tokens.
    pub fn pages_for(&self, tokens: usize) -> usize {
        tokens.div_ceil(self.page_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_work_and_each_limit_has_a_least() {
        for (stages, slots) in [(1, 1), (4, 64)] {
            assert_eq!(Limits::new(stages, slots, 1, 1, 1).check(), Ok(()));
        }
        let invalid = Limits { step_rows: 4, ..Limits::new(1, 1, 1, 1, 1) }.check();
        assert_eq!(invalid, Err(InvalidLimit { name: "step_rows", value: 4, least: 5 }));
        let message = Limits::new(1, 0, 1, 1, 1).check().map_err(|limit| limit.to_string());
        assert_eq!(message, Err("the limit slots is 0, it must be at least 1".into()));
    }
}
