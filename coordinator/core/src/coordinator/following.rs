//! Sessions that begin alike at the same time: one computes what they share, the others wait for it.
//!
//! Without this, a hit would depend on who comes when: several answers to one prompt, or agents that begin together, would
//! each read all of it. A session is admitted, but not told so, while another one that runs is about to have computed the
//! beginning of its tokens; then it looks again, and goes on from there. If the other one leaves before, it goes on by
//! itself. It never waits for one that waits for somebody itself, be it a session or a slow reader.
//!
//! In the same way a session waits for what the stages' disks know of its tokens (`tiers.rs`).

use paceline_proto::{SessionId, Ticket};

use super::admission::Waiting;
use super::caching::Caching;
use super::positions::{Prompt, worth_keeping};
use super::running::{Place, Running};
use super::{Action, Coordinator, Opening};
use crate::prefix::Found;
use crate::reuse::Tier;

/// Fewer tokens than so many are sooner run than waited for.
pub(super) const LEAST: usize = 32;

/// What a session waits for before it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaits {
    /// Another session.
    Leader {
        /// Which.
        leader: SessionId,
        /// How many of its tokens are then known.
        goal: usize,
    },
    /// The stages are saying what they keep on disk.
    Listing,
    /// It comes from their disks.
    Fetch {
        /// The order.
        ticket: Ticket,
    },
}

/// A session that waits for something before it begins.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) awaits: Awaits,
    /// What it is in the queue: it goes back there when its row is over.
    waiting: Waiting,
}

impl Coordinator {
    /// Who is about to know more of these tokens than `cached`, and how many.
    pub(super) fn leader(&mut self, tokens: &[u32], cached: usize) -> Option<(SessionId, usize)> {
        if !self.limits.caches() {
            return None;
        }
        let (page_tokens, has_states) = (self.limits.page_tokens, self.limits.has_states);
        let ahead = |running: &Running| {
            let common = running.tokens().iter().zip(tokens).take_while(|(one, other)| one == other).count();
            let most = common.min(tokens.len() - 1);
            let waits = running.following.is_some() || running.caching.unknown || !running.gets_on();
            if waits || most < cached + LEAST {
                return None;
            }
            // it can still end a chunk there
            let branches = has_states && running.sent() < most && running.tokens().len() > most;
            let goal = match running.caching.last_awaited(most) {
                _ if !has_states => most / page_tokens * page_tokens,
                Some(awaited) if !branches || awaited + LEAST > most => awaited,
                _ if branches => most,
                _ => return None,
            };
            let known = if has_states { 0 } else { running.caching.verified };
            (goal >= cached + LEAST && goal > known).then_some(goal)
        };
        let all = self.running.iter().filter_map(|(session, running)| Some((*session, ahead(running)?)));
        let (leader, goal) = all.max_by_key(|(_, goal)| *goal)?;
        if has_states && let Some(running) = self.running.get_mut(&leader) {
            running.caching.also_at(goal, running.sent());
        }
        Some((leader, goal))
    }

    /// A session that is admitted waits for something.
    pub(super) fn follow(&mut self, waiting: Waiting, place: Place, awaits: Awaits) {
        let (session, opening) = (waiting.session, waiting.opening.clone().expect("who is admitted has opened"));
        let mut running = Running::new(session, place, opening, Caching::default());
        running.following = Some(Following { awaits, waiting });
        self.running.insert(session, running);
    }

    /// Sessions that need not wait any more begin.
    pub(super) fn begin_followers(&mut self, actions: &mut Vec<Action>) {
        let ready = |running: &Running| running.following.as_ref().is_some_and(|one| self.is_settled(one));
        let ready: Vec<_> = self.running.iter().filter(|(_, one)| ready(one)).map(|(session, _)| *session).collect();
        for session in ready {
            let mut running = self.running.remove(&session).expect("it runs");
            let mut following = running.following.take().expect("it follows");
            if let Some(awaits) = self.await_more(&mut running, following.awaits) {
                following.awaits = awaits;
                running.following = Some(following);
                self.running.insert(session, running);
                continue;
            }
            let Following { awaits, waiting: Waiting { opening, restores, .. } } = following;
            let opening = opening.expect("who is admitted has opened");
            let (slot, number) = (running.slot(), running.number());
            let found = self.find(&opening.tokens);
            let place = Place { slot, pages: running.into_pages(), number, restores: restores.unwrap_or(0) };
            self.counts.admitted += u64::from(restores.is_none());
            let tier = self.tier_of(awaits, &found);
            self.begin(session, place, opening, &found, tier, actions);
        }
    }

    /// Nothing more is to be waited for.
    fn is_settled(&self, following: &Following) -> bool {
        let Awaits::Leader { leader, goal } = following.awaits else { return self.disk_is_settled(following.awaits) };
        let Some(leader) = self.running.get(&leader) else { return true };
        let comes = if self.limits.has_states { leader.caching.awaits(goal) } else { leader.caching.verified < goal };
        !comes || !leader.gets_on()
    }

    /// A session begins with what was found. Its place has pages promised for what it does not share.
    pub(super) fn begin(
        &mut self,
        session: SessionId,
        mut place: Place,
        opening: Opening,
        found: &Found,
        tier: Tier,
        actions: &mut Vec<Action>,
    ) {
        let source = self.hold_found(found);
        for page in self.index.pages_to(found.node) {
            self.pages.share(&mut place.pages, page);
        }
        let wanted = (opening.tokens.len() + self.limits.growth_tokens).min(opening.token_limit);
        let own = self.limits.pages_for(wanted) - place.pages.pages().len();
        self.pages.trim(&mut place.pages, own);
        self.index.touch(found);
        let mut caching = Caching::of(found, source, &opening.tokens, self.limits.page_tokens);
        caching.unknown = !self.limits.caches();
        if self.limits.has_states && self.limits.caches() {
            let prompt = Prompt {
                tokens: opening.tokens.len(),
                prompt_tokens: opening.prompt_tokens,
                cached: found.cached,
                matched: found.matched,
                boundaries: &opening.boundaries,
            };
            caching.cuts = worth_keeping(prompt, &self.limits).into();
        }
        let reuse = self.reuse(found, opening.tokens.len(), tier);
        self.running.insert(session, Running::new(session, place, opening, caching));
        actions.push(Action::Opened { session, reuse });
    }

    /// What a session is in the queue again, if it was not told that it had left it.
    pub(super) fn unopened(running: &mut Running) -> Option<Waiting> {
        running.following.take().map(|following| following.waiting)
    }
}
