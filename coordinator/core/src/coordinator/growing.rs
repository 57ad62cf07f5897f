//! Pages on demand: sessions get them as they grow, and the newest makes room when there are none.
//!
//! Nobody knows how long an answer will be, and pages reserved for the longest would stand idle while others wait. So a
//! session reserves a few more than its tokens need when it is admitted, and asks for more when it has used them up.
//! When none is free, the newest session that runs is *paused*: it goes back into the queue, where it was, as if its row
//! were over (`restoring.rs`), and opens again with all its tokens when there are pages for these and a few more. The
//! oldest is never paused, so somebody always gets on: each session's limit fits the pages there are, so the oldest
//! ends some day, and then another one is the oldest. Where it is alone and still lacks pages, pins yield. What a paused session has under way runs to its end and is ignored.

use std::time::Duration;

use paceline_proto::{Operation, SessionId};

use super::admission::Waiting;
use super::running::Running;
use super::{Action, Coordinator};

impl Coordinator {
    /// Promises pages to all who lack some for what they want run, the oldest first, and pauses the newest while there
    /// are none.
    pub(super) fn grow(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let lacks = |running: &Running| running.missing_pages(&self.limits) > 0;
        let mut growing: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| lacks(running))
            .map(|(session, running)| (running.number(), *session))
            .collect();
        growing.sort_unstable();
        for (_, session) in growing {
            while !self.promise(session) {
                match self.newest() {
                    Some(newest) => self.pause(newest, now, actions),
                    None if self.lingering.is_empty() && self.index.unpin_least() => {}
                    None => break,
                }
            }
        }
    }

    /// Makes sure that `pages` pages can be promised, if it can be done without pausing anybody.
    pub(super) fn make_room(&mut self, pages: usize) -> bool {
        pages <= self.pages.available() || self.evict_pages(pages)
    }

    /// Makes sure that the session has a page for a token that is run ahead, if it can be done without pausing anybody.
    pub(super) fn make_room_ahead(&mut self, session: SessionId) -> bool {
        let running = &self.running[&session];
        running.room(&self.limits) > 0 || (self.make_room(1) && self.promise_pages(session, 1))
    }

    /// Promises the session the pages that it lacks. One that is paused lacks none.
    fn promise(&mut self, session: SessionId) -> bool {
        let Some(running) = self.running.get(&session) else { return true };
        let missing = running.missing_pages(&self.limits);
        self.make_room(missing) && self.promise_pages(session, missing)
    }

    pub(super) fn promise_pages(&mut self, session: SessionId, pages: usize) -> bool {
        let running = self.running.get_mut(&session).expect("it runs");
        self.pages.promise(running.pages_mut(), pages)
    }

    /// The newest of at least two who run.
    fn newest(&self) -> Option<SessionId> {
        let newest = self.running.iter().max_by_key(|(_, running)| running.number());
        newest.filter(|_| self.running.len() > 1).map(|(session, _)| *session)
    }

    /// Takes its pages and its slot from a session that runs, and tells it to open again.
    fn pause(&mut self, session: SessionId, now: Duration, actions: &mut Vec<Action>) {
        let mut running = self.running.remove(&session).expect("it runs");
        if let Some(since) = running.unanswered_since() {
            self.unanswered.remove(&(since, session));
        }
        if running.opened() {
            self.closes.push(Operation::Close { session });
        }
        let (number, restores) = (running.number(), Some(running.restores()));
        if let Some(waiting) = Self::unopened(&mut running) {
            // who followed another session waits again as any other
            self.waiting.insert(number, waiting);
            self.cut_queue(actions);
        } else {
            let waiting = Waiting { session, opening: None, since: now, paused: true, restores, tried: None };
            self.waiting.insert(number, waiting);
            self.counts.pauses += 1;
            actions.push(Action::Paused { session });
        }
        self.shelve(running);
    }
}
