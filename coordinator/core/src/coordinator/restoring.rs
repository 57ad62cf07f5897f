//! What becomes of sessions when their row is over: they go on in the next one.
//!
//! A session that runs is *interrupted*. What it had on the stages is gone, and what was under way is as if it had never
//! been sent. It goes back into the queue where it was, and is told. What it wanted before it heard of that is ignored;
//! then it opens again, with its prompt and every token that it has accepted, and these are run as its prompt. So the
//! next token that it gets is the one after the last, and no token comes twice.

use std::time::Duration;

use paceline_proto::{Epoch, SessionId};

use super::admission::Waiting;
use super::running::Running;
use super::switching::Hold;
use super::{Action, Coordinator, Loss, Opening, status};
use crate::limits::Limits;

impl Coordinator {
    /// The memory of all stages is worth nothing any more: who runs is interrupted, and nobody is let in.
    pub(super) fn fail(&mut self, loss: Loss, now: Duration, actions: &mut Vec<Action>) {
        self.end_row(loss, now, actions);
        // who followed another session waits again as any other
        self.cut_queue(actions);
    }

    fn end_row(&mut self, loss: Loss, now: Duration, actions: &mut Vec<Action>) {
        self.hold = Hold::No;
        self.steps.clear();
        self.closes.clear();
        self.unanswered.clear();
        for waiting in self.waiting.values_mut().filter(|waiting| waiting.paused) {
            (waiting.paused, waiting.since) = (false, now);
        }
        for (session, running) in std::mem::take(&mut self.running) {
            actions.extend(self.interrupt(session, running, &loss, now));
        }
        for (_, running) in std::mem::take(&mut self.lingering) {
            self.discard(running);
        }
        self.end_disk();
        self.clear_index();
        self.broken.get_or_insert(loss);
    }

    fn interrupt(&mut self, session: SessionId, mut running: Running, loss: &Loss, since: Duration) -> Option<Action> {
        let (number, restores) = (running.number(), running.restores());
        let unopened = Self::unopened(&mut running);
        self.discard(running);
        if let Some(waiting) = unopened {
            self.waiting.insert(number, waiting);
            return None;
        }
        // that a row which works is replaced is nobody's fault
        let restores = restores + u32::from(!matches!(loss, Loss::Replaced { .. } | Loss::Ended));
        if restores > self.limits.restores {
            let loss = Loss::Restores { restores: self.limits.restores, reason: loss.to_string() };
            return Some(Action::Lost { session, loss });
        }
        let restores = Some(restores);
        self.waiting.insert(number, Waiting { session, opening: None, since, paused: false, restores, tried: None });
        Some(Action::Interrupted { session })
    }

    /// Takes in what an interrupted session asks for. One that is not known has left, or was lost meanwhile.
    pub(super) fn reopen(&mut self, session: SessionId, opening: Opening, actions: &mut Vec<Action>) {
        let token_limit = opening.token_limit;
        let mut waiting = self.waiting.values_mut();
        let Some(waiting) = waiting.find(|one| one.session == session && one.is_interrupted()) else { return };
        waiting.opening = Some(opening);
        if self.broken.is_none()
            && let Some(refusal) = self.too_small(token_limit)
        {
            self.lose(session, Loss::TooSmall(refusal), actions);
        }
    }

    /// Another placement: those who wait, wait for that one.
    pub(super) fn reset(&mut self, epoch: Epoch, limits: Limits, now: Duration, actions: &mut Vec<Action>) {
        self.end_row(Loss::Replaced { epoch }, now, actions);
        let counts = status::Counts { stages: Vec::new(), ..std::mem::take(&mut self.counts) };
        let (waiting, arrivals) = (std::mem::take(&mut self.waiting), self.arrivals);
        let tickets = self.tickets;
        *self = Self { counts, waiting, arrivals, tickets, ..Self::new(epoch, limits) };
        self.begin_disk(now);
        self.end_misfits(actions);
        self.admit(actions);
        self.cut_queue(actions);
    }

    /// Ends those who wait and never fit this placement.
    fn end_misfits(&mut self, actions: &mut Vec<Action>) {
        let misfit =
            |(number, one): (&u64, &Waiting)| Some((*number, self.too_small(one.opening.as_ref()?.token_limit)?));
        for (number, refusal) in self.waiting.iter().filter_map(misfit).collect::<Vec<_>>() {
            let one = self.waiting.remove(&number).expect("it waits");
            let session = one.session;
            actions.push(if one.is_interrupted() {
                Action::Lost { session, loss: Loss::TooSmall(refusal) }
            } else {
                Action::Refused { session, refusal }
            });
        }
    }

    /// Everybody is lost, and nobody is let in any more.
    pub(super) fn stop(&mut self, actions: &mut Vec<Action>) {
        self.hold = Hold::No;
        self.steps.clear();
        let waiting = self.waiting.values().map(|waiting| waiting.session);
        for session in self.running.keys().copied().chain(waiting).collect::<Vec<_>>() {
            self.lose(session, Loss::Stopped, actions);
        }
        for (_, running) in std::mem::take(&mut self.lingering) {
            self.shelve(running);
        }
        self.closes.clear();
        self.broken = Some(Loss::Stopped);
    }
}
