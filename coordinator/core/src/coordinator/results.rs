//! What comes back from the row: every step teaches how fast it is, and brings its sessions what they wait for.

use std::time::Duration;

use paceline_proto::{Operation, Outcome, SessionId, StepDone, Verify, Wanted};

use super::compose::{InFlight, Sent};
use super::loss::Loss;
use super::running::Came;
use super::speculation::tokens_in;
use super::{Action, Coordinator};
use crate::drafts::Brought;

impl Coordinator {
    /// A step is back.
    pub(super) fn done(&mut self, done: StepDone, now: Duration, actions: &mut Vec<Action>) {
        let known = done.epoch == self.epoch && self.steps.iter().any(|step| step.id == done.step);
        if !known {
            self.counts.ignored_results += 1;
            return;
        }
        let step = self.steps.pop_front().expect("a known step is in flight");
        self.moved = now;
        if step.id != done.step {
            return self.fail(Loss::Missing { missing: step.id, came: done.step }, now, actions);
        }
        if !step.fits(&done.results, |session| self.running.contains_key(&session)) {
            return self.fail(Loss::Results { step: step.id }, now, actions);
        }
        self.pace.observe(step.prefill_rows, step.decode_rows, &done.times);
        // a step that every stage has waited for was held up by nobody
        let alone = !step.behind_void || done.times.iter().all(|time| time.idle > 0);
        self.pace.observe_round(step.alone_since.filter(|_| step.prefill_rows == 0 && alone), now, &done.times);
        self.counts.count_times(self.limits.stages, &done.times);
        if !step.is_void() {
            self.trials.observe(now, self.brought(&step, &done));
        }
        for (chunk, result) in step.chunks.into_iter().zip(done.results) {
            let session = chunk.session;
            if chunk.void {
                self.counts.speculation.void += 1;
            } else if let Some(running) = self.running.get_mut(&session) {
                self.counts.speculation.count(&chunk, &result.outcome);
                // its first token was a guess when it was sent
                self.counts.decode_tokens += u64::from(chunk.is_ahead());
                let is_void = running.speculation.chain.breaks(&chunk, &result.outcome, step.id);
                let came = running.came_back(step.id, &chunk, result.outcome);
                if is_void {
                    self.void_ahead(session);
                }
                self.learn(session);
                if let Some(came) = came {
                    self.deliver(session, came, now, actions);
                }
            } else if !chunk.is_ahead()
                && let Some(mut running) = self.lingering.remove(&session)
            {
                running.came_back(step.id, &chunk, result.outcome);
                self.closes.push(Operation::Close { session });
                self.shelve(running);
            }
        }
    }

    fn brought(&self, step: &InFlight, done: &StepDone) -> Brought {
        let asks = |chunk: &Sent| matches!(chunk.wanted, Wanted::Verify(Verify { propose: 1.., .. }));
        Brought {
            sessions: self.in_decode(),
            tokens: done.results.iter().map(|result| tokens_in(&result.outcome)).sum(),
            decodes: step.prefill_rows == 0,
            drafted: step.chunks.iter().any(|chunk| !chunk.drafts.is_empty() || chunk.is_ahead()),
            asked: step.chunks.iter().any(asks),
        }
    }

    /// A session is told what came of its chunk.
    pub(super) fn deliver(&mut self, session: SessionId, came: Came, now: Duration, actions: &mut Vec<Action>) {
        match came.outcome {
            Outcome::Failed(reason) => return self.lose(session, Loss::Session { reason }, actions),
            Outcome::Sampled(_) | Outcome::Verified(_) => {
                self.running.get_mut(&session).expect("outcomes belong to running sessions").expect_answer(now);
                self.unanswered.insert((now, session));
            }
            _ => {}
        }
        let Came { outcome, position, drafts } = came;
        actions.push(Action::Outcome { session, outcome, position, drafts });
    }
}
