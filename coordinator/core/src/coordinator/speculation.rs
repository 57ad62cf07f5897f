//! How drafts are run.
//!
//! A session says with its wish what it thinks comes next ([`Wish::drafts`]). When its step is composed, it is decided how
//! many of them go along: as many as bring the most tokens in the time ([`allot()`]), as far as rows,
//! pages and logs of uncertain tokens last. What comes back says how many were right; the others are as if they had never
//! been sent, and the session's next chunk starts where the truth ends.
//!
//! Recurrent states are certain only behind a chunk without drafts, and only such are copied or kept. So a session
//! that is over *settles*: the last token that it got is run too, alone.
//!
//! What steps of some width take is only known from such steps. So from time to time one is sent although it seems not
//! to pay, and one without drafts although they do ([`PROBE`]).

use paceline_proto::{Chunk, ChunkInput, Outcome, SessionId, Verified, Verify, Wanted};

use super::ahead::Chain;
use super::compose::{InFlight, Making, Sent};
use super::running::{Bounds, Running};
use super::{Coordinator, Input, Wish};
use crate::drafts::{Draft, Proposals, Way, allot, expected};

/// So many steps of one kind before one of the other.
const PROBE: u32 = 64;
/// Drafts in a step that only finds out what it takes.
const PROBE_DRAFTS: usize = 3;
/// Such a step is worth it where so many drafts would be accepted.
const PROBE_EXPECTED: f64 = 0.5;

/// What a session guesses, and what of it is not certain.
#[derive(Debug, Default)]
pub(super) struct Speculation {
    /// Of its last wish, until its row is sent.
    pub(super) offer: Vec<Draft>,
    proposals: Proposals,
    /// The tail may be asked for guesses.
    proposes: bool,
    /// Of its drafts under way, and what may follow them.
    pub(super) chain: Chain,
    /// Of the tokens that are sent, the last ones that are uncertain on the stages, or were when they were sent.
    pub(super) uncertain: usize,
    /// How many of its tokens are sent and accepted by it: those that the stages may take for certain.
    pub(super) certain: usize,
    /// It has had uncertain tokens: the stages keep a log for it until it is closed.
    pub(super) has_log: bool,
    /// The last token that it got: certain, and not run.
    pub(super) last: Option<u32>,
}

impl Speculation {
    /// Takes in the guesses of a wish after which it has `tokens` tokens.
    pub(super) fn offer(&mut self, wish: &Wish, tokens: usize, token_limit: usize) {
        self.forget();
        if wish.wanted == Wanted::Sample && matches!(wish.input, Input::Tokens(_)) {
            let most = most_drafts(tokens, token_limit);
            self.offer.extend(wish.drafts.iter().take(most));
            self.proposals = wish.proposals;
            self.proposes = wish.proposals.most > 0;
            self.proposals.most = self.proposals.most.min(u32::try_from(most).unwrap_or(u32::MAX));
        }
    }

    /// Takes in the guesses of a wish that was matched with a chunk sent ahead.
    pub(super) fn offer_further(&mut self, wish: &Wish, token_limit: usize) {
        self.forget();
        self.chain.offer(&wish.drafts[..wish.drafts.len().min(most_drafts(self.certain, token_limit))]);
    }

    /// Keeps to what is done about drafts this time.
    pub(super) fn restrict(&mut self, way: Way) {
        if way < Way::Asking {
            self.proposals = Proposals::default();
        }
        if way < Way::Own {
            self.offer.clear();
        }
    }

    pub(super) fn forget(&mut self) {
        self.offer.clear();
        self.proposals = Proposals::default();
    }

    /// Appends the first drafts to the token behind which they come; says what is wanted of them.
    pub(super) fn append(&mut self, tokens: &mut Vec<u32>, drafts: usize) -> Wanted {
        let drafts = drafts.min(self.offer.len());
        let Proposals { most, least_probability } = self.proposals;
        tokens.extend(self.offer.iter().take(drafts).map(|draft| draft.token));
        self.chain.begin(&self.offer, drafts);
        self.forget();
        if drafts == 0 && most == 0 {
            return Wanted::Sample;
        }
        let drafts = u32::try_from(drafts).expect("a chunk has fewer rows than that");
        Wanted::Verify(Verify { drafts, propose: most, least_probability })
    }
}

/// How many drafts a session with so many tokens may have: the token behind the last one must be one that it may have.
fn most_drafts(tokens: usize, token_limit: usize) -> usize {
    token_limit.saturating_sub(tokens + 1)
}

impl Sent {
    pub(super) fn of(chunk: &Chunk) -> Self {
        let drafts = match (&chunk.input, chunk.wanted) {
            (ChunkInput::Tokens(tokens), Wanted::Verify(Verify { drafts, .. })) => {
                // the first row of a chunk is certain, or assumed to be
                tokens[tokens.len().saturating_sub(drafts as usize).max(1)..].to_vec()
            }
            _ => Vec::new(),
        };
        let end = chunk.start as usize + chunk.input.rows() - drafts.len();
        Self { session: chunk.session, end, wanted: chunk.wanted, drafts, void: false }
    }

    /// How many of the session's tokens are run after it.
    pub(super) fn position(&self, outcome: &Outcome) -> usize {
        match outcome {
            Outcome::Verified(Verified { tokens, .. }) => self.end + tokens.len().saturating_sub(1),
            _ => self.end,
        }
    }

    /// Whether these may be the tokens that the tail agreed with, and one more.
    pub(super) fn agrees(&self, verified: &Verified) -> bool {
        let Some((_, accepted)) = verified.tokens.split_last() else { return false };
        let mut pairs = accepted.iter().zip(&self.drafts);
        accepted.len() <= self.drafts.len() && pairs.all(|(token, draft)| token.token == *draft)
    }
}

/// How many tokens a session got.
pub(super) fn tokens_in(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Sampled(_) => 1,
        Outcome::Verified(verified) => verified.tokens.len(),
        Outcome::Stored | Outcome::Vector(_) | Outcome::Void | Outcome::Failed(_) => 0,
    }
}

/// What became of drafts. Counts run from the program's start, through all epochs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpeculationCounts {
    /// Drafts that came back.
    pub drafts: u64,
    /// Of these, drafts that were right.
    pub accepted: u64,
    /// Chunks with drafts that came back.
    pub chunks: u64,
    /// Drafts that sessions offered for a chunk and that were not run, because it would not have paid or there was no room.
    pub declined: u64,
    /// Chunks that were sent ahead of a result.
    pub sent_ahead: u64,
    /// Of these, those that came back void, because their assumption was wrong.
    pub void: u64,
}

impl SpeculationCounts {
    pub(super) fn count(&mut self, sent: &Sent, outcome: &Outcome) {
        if let Outcome::Verified(Verified { tokens, .. }) = outcome
            && !sent.drafts.is_empty()
        {
            self.drafts += sent.drafts.len() as u64;
            self.accepted += tokens.len().saturating_sub(1) as u64;
            self.chunks += 1;
        }
    }
}

/// Steps since one of the other kind.
#[derive(Debug, Default)]
pub(super) struct Probes {
    plain: u32,
    drafted: u32,
}

impl Coordinator {
    /// How many of their drafts sessions of one row each run in a step together.
    pub(super) fn allot_drafts(&mut self, sessions: &[SessionId], making: &Making) -> Vec<usize> {
        let plain = vec![0; sessions.len()];
        let room = making.rows_left.min(making.wanted_left).saturating_sub(sessions.len());
        let offers = self.offers(sessions);
        let best = offers.iter().map(|offer| expected(offer)).fold(0.0, f64::max);
        let offered: usize = offers.iter().map(|offer| offer.len()).sum();
        if offered == 0 || room == 0 {
            return plain;
        }
        if self.trials.way(self.in_decode()) == Way::Plain {
            self.counts.speculation.declined += offered as u64;
            return plain;
        }
        let time = |rows: usize| self.pace.period(rows, self.groups_busy(), self.hides(rows - sessions.len()));
        let others = self.decoding().saturating_sub(sessions.len());
        let mut allotted = allot(&offers, others, room, time);
        let probe = allot(&offers, 0, room.min(PROBE_DRAFTS), |_| self.pace.period(1, 1, false));
        let Probes { plain: plain_steps, drafted } = &mut self.probes;
        if allotted.iter().all(|drafts| *drafts == 0) {
            *drafted = 0;
            *plain_steps += u32::from(best >= PROBE_EXPECTED);
            if *plain_steps >= PROBE {
                *plain_steps = 0;
                allotted = probe;
            }
        } else {
            *plain_steps = 0;
            *drafted += 1;
            if *drafted >= PROBE {
                *drafted = 0;
                allotted = plain;
            }
        }
        self.counts.speculation.declined += (offered - allotted.iter().sum::<usize>()) as u64;
        allotted
    }

    /// Logs that no session has.
    pub(super) fn free_logs(&self) -> usize {
        let all = self.running.values().chain(self.lingering.values());
        self.limits.log_sessions.saturating_sub(all.filter(|running| running.speculation.has_log).count())
    }

    /// What each session offers for a chunk, as far as there is a log for it.
    fn offers(&self, sessions: &[SessionId]) -> Vec<&[Draft]> {
        let mut free = self.free_logs();
        let offer = |session: &SessionId| {
            let running = &self.running[session];
            let offer = &running.speculation.offer[..];
            if offer.is_empty() || self.limits.log_tokens == 0 {
                return &[][..];
            }
            if !running.speculation.has_log {
                let Some(left) = free.checked_sub(1) else { return &[][..] };
                free = left;
            }
            &offer[..offer.len().min(self.limits.log_tokens).min(self.limits.chunk_drafts)]
        };
        sessions.iter().map(offer).collect()
    }

    /// Whether a step with so many drafts hides the way of its result: run-ahead does, and with drafts there is none.
    fn hides(&self, drafts: usize) -> bool {
        drafts == 0 && self.limits.run_ahead && self.limits.stages == 1
    }

    /// Whether running these sessions ahead would cost more tokens than it brings, because some have drafts that pay, or
    /// may, which is to be found out. Nor is anybody run ahead while drafts are under way: those who wait for them and
    /// those who do not would be in different steps from then on, and each step reads all weights.
    pub(super) fn would_draft(&mut self, sessions: &[SessionId]) -> bool {
        let verifies = |step: &InFlight| step.chunks.iter().any(|chunk| matches!(chunk.wanted, Wanted::Verify(_)));
        let proposes = |session: &SessionId| self.running[session].speculation.proposes;
        let way = self.trials.way(self.in_decode());
        let asks = way == Way::Asking && sessions.iter().any(proposes);
        if asks || self.steps.iter().any(verifies) {
            return true;
        }
        if way == Way::Plain {
            return false;
        }
        let offers = self.offers(sessions);
        let best = offers.iter().map(|offer| expected(offer)).fold(0.0, f64::max);
        if best == 0.0 {
            return false;
        }
        let time = |rows: usize| self.pace.period(rows, self.groups_busy(), self.hides(rows - sessions.len()));
        let most = self.limits.step_wanted.saturating_sub(sessions.len());
        let others = self.decoding().saturating_sub(sessions.len());
        let pays = allot(&offers, others, most, time).iter().any(|drafts| *drafts > 0);
        if pays || best < PROBE_EXPECTED {
            return pays;
        }
        self.probes.plain += 1;
        self.probes.plain >= PROBE
    }

    /// Promises pages for as many of the drafts as there is room for without pausing anybody; returns how many these
    /// are.
    pub(super) fn make_room_for_drafts(&mut self, session: SessionId, drafts: usize) -> usize {
        let running = &self.running[&session];
        let (rows, room) = (running.waiting_rows() + drafts, running.room(&self.limits));
        let missing = self.limits.pages_for(rows.saturating_sub(room));
        if drafts > 0 && missing > 0 && self.make_room(missing) {
            self.promise_pages(session, missing);
        }
        let running = &self.running[&session];
        drafts.min(running.room(&self.limits).saturating_sub(running.waiting_rows()))
    }

    /// Whether a session that leaves is worth running one more token for: then its state can be kept.
    pub(super) fn settles(&self, session: SessionId, running: &mut Running) -> bool {
        self.limits.caches()
            && self.limits.has_states
            && self.broken.is_none()
            && !self.awaits_result(session, running)
            && running.settle(&self.limits)
    }

    /// Whether a chunk of the session is in flight that has its turn.
    fn awaits_result(&self, session: SessionId, running: &Running) -> bool {
        let steps = self.steps.iter().filter(|step| !running.speculation.chain.has(step.id));
        steps.flat_map(|step| &step.chunks).any(|chunk| chunk.session == session && !chunk.void)
    }

    /// Takes along the last tokens of those who settle.
    pub(super) fn add_settling(&mut self, making: &mut Making) {
        for running in self.lingering.values_mut() {
            let bounds = Bounds { rows: making.rows_left.min(1), wanted: 0, drafts: 0 };
            let Some(chunk) = running.cut(making.id, bounds, &mut making.values) else { continue };
            running.prepare(&self.limits, &mut self.pages, &mut making.operations);
            making.rows_left -= 1;
            making.decode_rows += 1;
            making.chunks.push(chunk);
        }
    }

    /// Nobody settles any more: the row is to be still.
    pub(super) fn end_settling(&mut self) {
        for (session, running) in std::mem::take(&mut self.lingering) {
            self.closes.push(paceline_proto::Operation::Close { session });
            self.shelve(running);
        }
    }
}
