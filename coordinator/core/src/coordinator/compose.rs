//! What goes into the next step.
//!
//! The rules, in this order:
//! 1. A step is sent while a credit is free, and not while sessions that just got a token are about to answer
//!    (at most [`gather`](crate::Limits::gather) long): a decode step of one costs nearly as much as one of all.
//! 2. Decode first, least recently served first. In a row of several stages the sessions that decode are spread evenly
//!    over as many groups as keep its slowest stage busy (as many as stages, where all are equally fast), which follow
//!    each other through the row; half a group never takes longer than the whole. More groups could not be computed at
//!    the same time.
//! 3. Then prefill, least recently served first, within a budget of rows. While nobody decodes that is
//!    [`prefill_rows`](crate::Limits::prefill_rows), or less where several stages could share a short prompt. Else a step may take
//!    [`prefill_percent`](crate::Limits::prefill_percent) longer than decode alone, by measured times, and steps of
//!    prefill alone go out only while fewer steps than groups are under way: so the time between two tokens grows by
//!    that share and no more, however long the prompts are.
//! 4. Run-ahead: a single stage runs steps one after the other, so the token on its way is there before the step
//!    that needs it. In a longer row that step would wait in the head with everything behind it; there it is sent
//!    only when nothing else is ready.
//! 5. Chunks sent ahead: where a longer row has nothing of all that to run and stages would stand idle, drafts follow
//!    drafts of which nothing is known yet (`ahead.rs`). To all other rules they are as if they were not there.
//!
//! Neither starves the other: while prompts wait, decode leaves them some rows and one place among the wanted.

use std::time::Duration;

use paceline_proto::{Chunk, ChunkResult, Operation, Outcome, SessionId, Step, StepId, Wanted};

use super::running::{Bounds, Readiness};
use super::switching::Hold;
use super::{Action, Coordinator};
use crate::limits::{LEAST_PART_ROWS, LEAST_PREFILL_ROWS, PARTS_PER_STAGE};

/// A step on its way.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) id: StepId,
    pub(super) chunks: Vec<Sent>,
    pub(super) prefill_rows: usize,
    pub(super) decode_rows: usize,
    /// When it was sent, or the result before it came back if it is an answer to that; nothing if other steps are under
    /// way too that are not void.
    pub(super) alone_since: Option<Duration>,
    /// Void steps are under way before it.
    pub(super) behind_void: bool,
}

/// A chunk on its way.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) session: SessionId,
    /// How many of the session's tokens are run after it, its drafts not counted.
    pub(super) end: usize,
    pub(super) wanted: Wanted,
    /// The guesses at its end; of a chunk sent ahead all but the first, which is certain if its assumption holds.
    pub(super) drafts: Vec<u32>,
    /// It was sent ahead, and its assumption is known to be wrong.
    pub(super) void: bool,
}

impl InFlight {
    /// Whether `results` are those of its chunks. Void are those of chunks sent ahead that are known to be void, and maybe
    /// those of sessions that no longer run.
    pub(super) fn fits(&self, results: &[ChunkResult], runs: impl Fn(SessionId) -> bool) -> bool {
        let fits = |(sent, result): (&Sent, &ChunkResult)| {
            let outcome = match (&result.outcome, sent.wanted) {
                (Outcome::Void, _) => sent.void || !runs(sent.session),
                _ if sent.void => false,
                (Outcome::Failed(_), _) | (Outcome::Stored, Wanted::Nothing) => true,
                (Outcome::Sampled(_), Wanted::Sample) => true,
                (Outcome::Vector(_), Wanted::Vector) => true,
                (Outcome::Verified(verified), Wanted::Verify(_)) => sent.agrees(verified),
                _ => false,
            };
            outcome && result.session == sent.session
        };
        results.len() == self.chunks.len() && self.chunks.iter().zip(results).all(fits)
    }
}

/// A step in the making.
#[derive(Debug)]
pub(super) struct Making {
    pub(super) id: StepId,
    pub(super) operations: Vec<Operation>,
    pub(super) chunks: Vec<Chunk>,
    pub(super) values: Vec<f32>,
    pub(super) rows_left: usize,
    pub(super) wanted_left: usize,
    prefill_rows: usize,
    pub(super) decode_rows: usize,
}

/// Running sessions by what they could do, each list least recently served first.
#[derive(Debug, Default)]
struct Ready {
    prefill: Vec<SessionId>,
    decode: Vec<SessionId>,
    ahead: Vec<SessionId>,
}

impl Coordinator {
    /// Sends steps while there are credits and rows to run, and the row is not held.
    pub(super) fn send_steps(&mut self, now: Duration, actions: &mut Vec<Action>) {
        while self.hold == Hold::No && self.steps.len() < self.limits.credits && !self.gathering(now) {
            self.grow(now, actions);
            let Some(making) = self.compose() else { break };
            let alone_since = self.steps.iter().all(InFlight::is_void).then(|| self.begun(now));
            if self.steps.is_empty() {
                self.moved = now;
            }
            actions.push(self.send(making, alone_since));
        }
        self.count_credit_wait(now);
    }

    /// Whether a session that got a token may be about to answer.
    fn gathering(&self, now: Duration) -> bool {
        self.unanswered.last().is_some_and(|(since, _)| now < *since + self.limits.gather)
    }

    fn compose(&mut self) -> Option<Making> {
        let due = self.due();
        let ready = self.ready();
        let mut making = self.making();
        let may_run_ahead = self.limits.stages == 1 || (ready.decode.is_empty() && ready.prefill.is_empty());
        let ahead = self.limits.run_ahead && may_run_ahead && !self.would_draft(&ready.ahead);
        let under_way = || self.steps.iter().filter(|step| !step.is_ahead());
        let (steps, groups) = (under_way().count(), under_way().filter(|step| step.decode_rows > 0).count());
        self.add_settling(&mut making);
        let (spare_rows, spare_wanted) = if ready.prefill.is_empty() { (0, 0) } else { (LEAST_PREFILL_ROWS, 1) };
        making.rows_left = making.rows_left.saturating_sub(spare_rows);
        making.wanted_left -= spare_wanted;
        let (decoding, most_groups) = (self.decoding(), self.groups());
        if groups < most_groups || ahead {
            self.add_decode(&mut making, &ready.decode, decoding.div_ceil(most_groups).max(1));
        }
        if ahead {
            self.add_ahead(&mut making, &ready.ahead);
        }
        making.rows_left += spare_rows;
        making.wanted_left += spare_wanted;
        let room = !making.chunks.is_empty() || steps < most_groups;
        let asks = making.decode_rows > 0 && !ready.prefill.is_empty() && self.pace.asks();
        if decoding == 0 || (room && !asks) {
            self.add_prefill(&mut making, &ready.prefill, decoding > 0);
        }
        if making.chunks.is_empty() && ready.decode.is_empty() && ready.prefill.is_empty() {
            self.send_ahead(&mut making);
        }
        // with nothing in flight no later step would take the closes and the copies along
        let memory_only = (!self.closes.is_empty() || !due.is_empty()) && self.steps.is_empty();
        if making.chunks.is_empty() && !memory_only {
            return None;
        }
        self.take_snapshots(due, &mut making.operations);
        Some(making)
    }

    /// A step that takes along nothing yet.
    pub(super) fn making(&self) -> Making {
        Making {
            id: StepId(self.next_step),
            operations: Vec::new(),
            chunks: Vec::new(),
            values: Vec::new(),
            rows_left: self.limits.step_rows,
            wanted_left: self.limits.step_wanted,
            prefill_rows: 0,
            decode_rows: 0,
        }
    }

    fn ready(&self) -> Ready {
        let mut by_turn: Vec<_> = self
            .running
            .iter()
            .map(|(session, running)| (running.turn(), *session, running.readiness(&self.limits)))
            .collect();
        by_turn.sort_unstable_by_key(|(turn, session, _)| (*turn, *session));
        let mut ready = Ready::default();
        for (_, session, readiness) in by_turn {
            match readiness {
                Readiness::Prefill => ready.prefill.push(session),
                Readiness::Decode => ready.decode.push(session),
                Readiness::Ahead => ready.ahead.push(session),
                Readiness::Nothing => {}
            }
        }
        ready
    }

    /// Into how many groups the sessions that decode are divided.
    fn groups(&self) -> usize {
        self.pace.groups(self.limits.stages).min(self.limits.credits)
    }

    /// How many of these groups have a session.
    pub(super) fn groups_busy(&self) -> usize {
        self.groups().min(self.decoding()).max(1)
    }

    /// When the work of a step that is sent alone began: with the result that it answers, if it does.
    fn begun(&self, now: Duration) -> Duration {
        if now.saturating_sub(self.moved) <= self.limits.gather { self.moved } else { now }
    }

    fn add_decode(&mut self, making: &mut Making, sessions: &[SessionId], most: usize) {
        let sessions = &sessions[..sessions.len().min(most)];
        let drafts = self.allot_drafts(sessions, making);
        let way = self.trials.way(self.in_decode());
        for session in sessions {
            self.running.get_mut(session).expect("ready sessions run").speculation.restrict(way);
        }
        for (place, (session, drafts)) in sessions.iter().zip(drafts).enumerate() {
            let drafts = self.make_room_for_drafts(*session, drafts);
            // those behind it have a row each
            let behind = if drafts > 0 { sessions.len() - place - 1 } else { 0 };
            let rows = making.rows_left.saturating_sub(behind);
            making.decode_rows += self.add(making, *session, rows, drafts);
        }
    }

    fn add_ahead(&mut self, making: &mut Making, sessions: &[SessionId]) {
        for session in sessions {
            if making.rows_left == 0 || making.wanted_left == 0 {
                return;
            }
            if !self.make_room_ahead(*session) {
                continue;
            }
            let running = self.running.get_mut(session).expect("ready sessions run");
            let chunk = running.run_ahead(making.id).expect("its token is on its way");
            making.decode_rows += 1;
            self.counts.run_ahead_tokens += 1;
            self.push(making, chunk);
        }
    }

    fn add_prefill(&mut self, making: &mut Making, sessions: &[SessionId], beside_decode: bool) {
        let (most, percent) = (self.limits.prefill_rows, self.limits.prefill_percent);
        let mut budget =
            if beside_decode { self.pace.prefill_rows(percent, most) } else { self.prefill_alone(sessions) };
        for session in sessions {
            let rows = self.add(making, *session, budget.min(making.rows_left), 0);
            making.prefill_rows += rows;
            budget -= rows;
        }
    }

    /// Rows of prompts in a step while nobody decodes. In a row of several stages, prompts are cut so that every stage
    /// soon has some; their last parts are smaller, so that the row empties quickly.
    fn prefill_alone(&self, sessions: &[SessionId]) -> usize {
        let (most, groups) = (self.limits.prefill_rows, self.groups());
        if groups == 1 {
            return most;
        }
        let waiting: usize =
            sessions.iter().filter_map(|session| Some(self.running.get(session)?.waiting_rows())).sum();
        waiting.div_ceil(PARTS_PER_STAGE * groups).clamp(LEAST_PART_ROWS.min(most), most)
    }

    /// Sessions that wait for their next token. A reader too slow to answer does not count.
    pub(super) fn decoding(&self) -> usize {
        self.running.values().filter(|running| running.decodes() && running.unanswered_since().is_none()).count()
    }

    /// The same with those whose reader is slow: a number that changes only when sessions come, go, or have read their
    /// prompts.
    pub(super) fn in_decode(&self) -> usize {
        self.running.values().filter(|running| running.decodes()).count()
    }

    /// Adds the session's next chunk of at most `most` rows, of these at most `drafts` drafts; returns how many it has.
    fn add(&mut self, making: &mut Making, session: SessionId, most: usize, drafts: usize) -> usize {
        let running = self.running.get_mut(&session).expect("ready sessions run");
        let bounds = Bounds { rows: most.min(running.room(&self.limits)), wanted: making.wanted_left, drafts };
        let Some(chunk) = running.cut(making.id, bounds, &mut making.values) else { return 0 };
        let rows = chunk.input.rows();
        self.push(making, chunk);
        rows
    }

    pub(super) fn push(&mut self, making: &mut Making, chunk: Chunk) {
        let running = self.running.get_mut(&chunk.session).expect("ready sessions run");
        running.prepare(&self.limits, &mut self.pages, &mut making.operations);
        self.restored(chunk.session);
        making.rows_left -= chunk.input.rows();
        making.wanted_left -= chunk.wanted.wanted_rows(chunk.input.rows());
        making.chunks.push(chunk);
    }

    /// Takes a credit.
    pub(super) fn send(&mut self, making: Making, alone_since: Option<Duration>) -> Action {
        let Making { id, operations, chunks, values, prefill_rows, decode_rows, .. } = making;
        self.next_step += 1;
        self.counts.steps += 1;
        self.counts.prefill_tokens += prefill_rows as u64;
        // all rows of a chunk sent ahead are guesses
        let guesses = |chunk: &Chunk| chunk.input.rows().min(chunk.wanted.drafts() as usize);
        self.counts.decode_tokens += (decode_rows - chunks.iter().map(guesses).sum::<usize>()) as u64;
        let chunks_sent = chunks.iter().map(Sent::of).collect();
        let behind_void = !self.steps.is_empty();
        let sent = InFlight { id, chunks: chunks_sent, prefill_rows, decode_rows, alone_since, behind_void };
        self.steps.push_back(sent);
        let mut all = std::mem::take(&mut self.closes);
        all.extend(operations);
        Action::Send { step: Step { epoch: self.epoch, id, operations: all, chunks }, rows: values }
    }
}
