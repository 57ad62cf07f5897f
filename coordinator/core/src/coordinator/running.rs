//! One admitted session: what it wants run, how far that is sent, and what of it is on its way.
//!
//! Run-ahead, one token deep: while the result of step `n` is on its way, the chunk that follows it may be sent
//! as "the token sampled in step `n`". When the session then wants that very token, the wish is *matched* with the
//! chunk instead of sent. The outcome of such a chunk is held back until then: a session never gets a token whose
//! predecessor it has not accepted. Chunks of drafts that are sent ahead (`ahead.rs`) are matched in the same way.

mod matching;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use paceline_proto::{
    Chunk, ChunkInput, Operation, Outcome, PageId, Reused, SamplingSettings, SessionId, Slot, StepId, Verified, Wanted,
};

use super::caching::Caching;
use super::compose::Sent;
use super::following::Following;
use super::speculation::{Speculation, tokens_in};
use super::{Input, Opening, Wish};
use crate::limits::Limits;
use crate::pages::{PagePool, PageTable};

/// What a session may not want.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Misuse {
    /// It has no place yet.
    #[error("the session wants something before it is opened")]
    NotOpened,
    /// Nothing to run, or vectors that are not whole rows.
    #[error("the session wants {rows} rows with {values} values run")]
    Shape {
        /// How many.
        rows: usize,
        /// Of all rows together; 0 for tokens.
        values: usize,
    },
    /// More than it may ever have.
    #[error("the session wants {tokens} tokens, its limit is {limit}")]
    OverLimit {
        /// With this wish.
        tokens: usize,
        /// When it was opened.
        limit: usize,
    },
    /// It has not got what it wanted before.
    #[error("the session wants more before it has the token or vector it wanted")]
    TooEarly,
    /// Its token was run ahead, and it wants something else.
    #[error("the session wants something other than its sampled token, which is already run")]
    NotTheToken,
}

/// How a session could take part in the next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    /// Rows of the prompt wait to be sent.
    Prefill,
    /// Rows after the prompt wait to be sent.
    Decode,
    /// Its next token is on its way and could be run ahead.
    Ahead,
    /// Nothing to send.
    Nothing,
}

/// An outcome for the session.
#[derive(Debug)]
pub(super) struct Came {
    pub(super) outcome: Outcome,
    pub(super) position: usize,
    /// Drafts in its chunk.
    pub(super) drafts: usize,
}

/// What a session may have in a step.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Rows, drafts included.
    pub(super) rows: usize,
    /// Rows of which something is wanted.
    pub(super) wanted: usize,
    /// Drafts.
    pub(super) drafts: usize,
}

/// A chunk that was run ahead and is not yet matched by a wish.
#[derive(Debug)]
struct Ahead {
    /// The step it is in.
    step: StepId,
    /// The token that it runs, once known.
    token: Option<u32>,
    /// Its own result, held back.
    held: Option<Outcome>,
}

/// What a session is given when it is admitted.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) slot: Slot,
    pub(super) pages: PageTable,
    /// Its place among all that ever arrived.
    pub(super) number: u64,
    /// How often faults have interrupted it since its last token.
    pub(super) restores: u32,
}

/// A session with a slot and pages.
#[derive(Debug)]
pub(super) struct Running {
    session: SessionId,
    /// Tokens that it had when it opened.
    tokens: Arc<[u32]>,
    /// It waits for another session's tokens to be run, and has not been told that it is opened.
    pub(super) following: Option<Following>,
    pub(super) caching: Caching,
    /// Of these, the tokens of its prompt.
    prompt_tokens: usize,
    token_limit: usize,
    slot: Slot,
    pages: PageTable,
    /// How often faults have interrupted it since its last token.
    restores: u32,
    /// It was interrupted before: its reader may be slow.
    reopened: bool,
    /// Until the operation that opens it is sent.
    sampling: Option<Box<SamplingSettings>>,
    /// Wanted and not sent, with how many rows of the first are already sent.
    wishes: VecDeque<Wish>,
    first_sent: usize,
    /// Tokens sent, those wanted and not sent not counted.
    sent: usize,
    /// A token or vector was wanted and not yet delivered.
    owed: bool,
    /// The step that will sample the token after all that was wanted; a chunk run ahead of its wish does not count.
    samples: Option<StepId>,
    ahead: Option<Ahead>,
    pub(super) speculation: Speculation,
    unanswered_since: Option<Duration>,
    /// Least recently served first; in the order of arrival before it is served at all.
    turn: (Option<StepId>, u64),
}

impl Running {
    pub(super) fn new(session: SessionId, place: Place, opening: Opening, caching: Caching) -> Self {
        let Place { slot, pages, number, restores } = place;
        Self {
            session,
            tokens: opening.tokens,
            following: None,
            prompt_tokens: opening.prompt_tokens,
            token_limit: opening.token_limit,
            slot,
            pages,
            restores,
            reopened: opening.again,
            sampling: Some(opening.sampling),
            wishes: VecDeque::new(),
            first_sent: 0,
            sent: caching.verified,
            caching,
            owed: false,
            samples: None,
            ahead: None,
            speculation: Speculation::default(),
            unanswered_since: None,
            turn: (None, number),
        }
    }

    /// All tokens that it had when it opened.
    pub(super) fn tokens(&self) -> &Arc<[u32]> {
        &self.tokens
    }

    /// Tokens for which it is promised pages when it begins.
    pub(super) fn wanted_tokens(&self, limits: &Limits) -> usize {
        (self.tokens.len() + limits.growth_tokens).min(self.token_limit)
    }

    /// Tokens sent.
    pub(super) fn sent(&self) -> usize {
        self.sent
    }

    /// Nothing of it is sent or wanted that is not back.
    pub(super) fn is_idle(&self) -> bool {
        self.wishes.is_empty() && self.caching.verified >= self.sent
    }

    /// What it is to have run will be, without anybody's doing but the row's; a session that was just opened for the first
    /// time is about to say what it wants.
    pub(super) fn gets_on(&self) -> bool {
        !self.is_idle() || (self.turn.0.is_none() && self.caching.due.is_none() && !self.reopened)
    }

    /// It has nothing more to say, but the tokens that are not certain are to be: the last one that it got is run too, for
    /// nothing but that.
    pub(super) fn settle(&mut self, limits: &Limits) -> bool {
        if self.speculation.chain.is_ahead() {
            self.retract();
        }
        let known = self.caching.verified == self.sent && self.caching.history.len() == self.sent;
        let Some(last) = self.speculation.last.filter(|_| known && self.wishes.is_empty()) else { return false };
        if self.speculation.uncertain == 0 || self.room(limits) == 0 {
            return false;
        }
        self.speculation.forget();
        self.caching.history.push(last);
        self.wishes.push_back(Wish::new(Input::Tokens(vec![last]), Wanted::Nothing));
        true
    }

    /// Its tokens of which it is known what they are: the one that was run ahead too, when it is back.
    pub(super) fn known_tokens(&self) -> usize {
        self.caching.history.len() + usize::from(self.ahead.as_ref().is_some_and(|ahead| ahead.token.is_some()))
    }

    /// It is over: a token that was run ahead of its wish is its last.
    pub(super) fn know_last_token(&mut self) {
        self.caching.history.extend(self.ahead.take().and_then(|ahead| ahead.token));
    }

    /// Its dealings with the index, and its pages.
    pub(super) fn memory(&mut self) -> (&mut Caching, &[PageId]) {
        (&mut self.caching, self.pages.pages())
    }

    /// It is over.
    pub(super) fn take_caching(&mut self) -> Caching {
        std::mem::take(&mut self.caching)
    }

    pub(super) fn readiness(&self, limits: &Limits) -> Readiness {
        if !self.wishes.is_empty() {
            return match self.decodes() {
                _ if self.room(limits) == 0 => Readiness::Nothing,
                true => Readiness::Decode,
                false => Readiness::Prefill,
            };
        }
        // a token sampled in the last place is never run
        let is_next = self.ahead.is_none() && !self.speculation.chain.is_ahead();
        if self.samples.is_some() && is_next && self.sent + 1 < self.token_limit {
            return Readiness::Ahead;
        }
        Readiness::Nothing
    }

    /// Rows that it wants run and that are not sent.
    pub(super) fn waiting_rows(&self) -> usize {
        self.wishes.iter().map(|wish| wish.input.rows()).sum::<usize>() - self.first_sent
    }

    /// Rows that the pages granted and promised to it have place for.
    pub(super) fn room(&self, limits: &Limits) -> usize {
        (self.pages.pages().len() + self.pages.reserved()) * limits.page_tokens - self.sent
    }

    /// Pages that it lacks for all that it wants run.
    pub(super) fn missing_pages(&self, limits: &Limits) -> usize {
        limits.pages_for(self.waiting_rows().saturating_sub(self.room(limits)))
    }

    /// All that it had when it opened is sent.
    pub(super) fn decodes(&self) -> bool {
        self.sent >= self.tokens.len()
    }

    /// Its place among all that ever arrived.
    pub(super) fn number(&self) -> u64 {
        self.turn.1
    }

    pub(super) fn restores(&self) -> u32 {
        self.restores
    }

    pub(super) fn turn(&self) -> (Option<StepId>, u64) {
        self.turn
    }

    pub(super) fn opened(&self) -> bool {
        self.sampling.is_none()
    }

    pub(super) fn slot(&self) -> Slot {
        self.slot
    }

    pub(super) fn pages(&self) -> &PageTable {
        &self.pages
    }

    pub(super) fn pages_mut(&mut self) -> &mut PageTable {
        &mut self.pages
    }

    pub(super) fn into_pages(self) -> PageTable {
        self.pages
    }

    /// It was given a token, and is expected to say at once what it wants next.
    pub(super) fn expect_answer(&mut self, now: Duration) {
        self.unanswered_since = Some(now);
    }

    pub(super) fn unanswered_since(&self) -> Option<Duration> {
        self.unanswered_since
    }

    /// It answered; since when that was expected.
    pub(super) fn answered(&mut self) -> Option<Duration> {
        self.unanswered_since.take()
    }

    /// Takes in a wish; returns an outcome that was held back for it.
    pub(super) fn want(&mut self, wish: Wish) -> Result<Option<Came>, Misuse> {
        if self.owed {
            return Err(Misuse::TooEarly);
        }
        if let Some(ahead) = self.ahead.take() {
            self.speculation.offer(&wish, self.sent, self.token_limit);
            return self.matched(ahead, &wish);
        }
        if self.speculation.chain.is_ahead() {
            return self.matched_ahead(&wish);
        }
        let rows = wish.input.rows();
        if let Input::Rows { values, .. } = &wish.input
            && (values.is_empty() || rows == 0 || values.len() % rows != 0)
        {
            return Err(Misuse::Shape { rows, values: values.len() });
        }
        if rows == 0 {
            return Err(Misuse::Shape { rows, values: 0 });
        }
        let waiting = self.waiting_rows();
        let tokens = self.sent + waiting + rows;
        if tokens > self.token_limit {
            return Err(Misuse::OverLimit { tokens, limit: self.token_limit });
        }
        self.owed = wish.wanted != Wanted::Nothing;
        self.speculation.offer(&wish, tokens, self.token_limit);
        match &wish.input {
            Input::Tokens(tokens) => self.caching.history.extend_from_slice(tokens),
            Input::Rows { .. } => self.caching.unknown = true,
        }
        self.wishes.push_back(wish);
        Ok(None)
    }

    /// Cuts the next chunk from what is wanted, for `step`; its vectors, if it has any, go to the end of `values`. Nothing
    /// if something would be wanted of it and no row may be.
    pub(super) fn cut(&mut self, step: StepId, bounds: Bounds, values: &mut Vec<f32>) -> Option<Chunk> {
        let wish = self.wishes.front()?;
        let all = wish.input.rows();
        let to_cut = self.caching.cuts.front().map_or(usize::MAX, |cut| cut - self.sent);
        let rows = bounds.rows.min(all - self.first_sent).min(to_cut);
        let last = self.first_sent + rows == all;
        let mut wanted = if last { wish.wanted } else { Wanted::Nothing };
        if rows == 0 || (wanted != Wanted::Nothing && bounds.wanted == 0) {
            return None;
        }
        let mut input = slice(&wish.input, self.first_sent, rows, values);
        // a state is not copied while tokens are uncertain
        let drafts =
            if rows == to_cut { 0 } else { bounds.drafts.min(bounds.rows - rows).min(bounds.wanted.saturating_sub(1)) };
        if wanted == Wanted::Sample
            && let ChunkInput::Tokens(tokens) = &mut input
        {
            wanted = self.speculation.append(tokens, drafts);
        }
        self.first_sent += rows;
        if last {
            self.wishes.pop_front();
            self.first_sent = 0;
        }
        self.samples = (wanted == Wanted::Sample).then_some(step);
        Some(self.chunk(step, input, wanted))
    }

    pub(super) fn chunk(&mut self, step: StepId, input: ChunkInput, wanted: Wanted) -> Chunk {
        let start = u32::try_from(self.sent).expect("a context is shorter than 2^32 tokens");
        self.sent += input.rows();
        self.speculation.uncertain = wanted.drafts() as usize;
        self.speculation.has_log |= self.speculation.uncertain > 0;
        self.speculation.certain = self.sent - self.speculation.uncertain;
        self.caching.passed(self.speculation.certain);
        self.turn.0 = Some(step);
        Chunk { session: self.session, start, input, wanted, void: false }
    }

    /// The operations that the chunk just cut needs before it.
    pub(super) fn prepare(&mut self, limits: &Limits, pool: &mut PagePool, operations: &mut Vec<Operation>) {
        let session = self.session;
        if let Some(sampling) = self.sampling.take() {
            let generated_from = u32::try_from(self.prompt_tokens).expect("a context is shorter than 2^32 tokens");
            let (slot, reused) = (self.slot, self.reused(&sampling));
            operations.push(Operation::Open { session, slot, sampling, generated_from, reused });
        }
        let restore = self.caching.restore();
        if let Some(from) = restore.and_then(|restore| restore.snapshot) {
            operations.push(Operation::CopyState { from, to: self.slot });
        }
        let shared = if restore.is_some() { self.pages.pages().to_vec() } else { Vec::new() };
        // rejected drafts leave pages behind that are not full
        let missing = limits.pages_for(self.sent).saturating_sub(self.pages.pages().len());
        if missing > 0 {
            let mut pages = shared;
            pages.extend_from_slice(pool.grant(&mut self.pages, missing));
            // the first of its own pages is the one behind those that it shares
            let copied = restore.and_then(|restore| restore.source).zip(pages.get(pages.len() - missing).copied());
            operations.push(Operation::Grant { session, pages });
            operations.extend(copied.map(|(from, to)| Operation::CopyPage { from, to }));
        } else if !shared.is_empty() {
            operations.push(Operation::Grant { session, pages: shared });
        }
    }

    /// What the tail must know of tokens that are not run. To be asked before any is.
    fn reused(&self, sampling: &SamplingSettings) -> Reused {
        let history = &self.tokens[..self.caching.verified];
        let tokens = u32::try_from(history.len()).expect("a context is shorter than 2^32 tokens");
        let last = &history[history.len() - sampling.tokens_seen(history.len(), self.prompt_tokens)..];
        Reused { tokens, last: last.to_vec() }
    }

    /// Takes in the outcome of a chunk of `step`. Nothing comes of it yet if the chunk was sent ahead of its wish.
    pub(super) fn came_back(&mut self, step: StepId, sent: &Sent, outcome: Outcome) -> Option<Came> {
        let position = sent.position(&outcome);
        if !matches!(outcome, Outcome::Void | Outcome::Failed(_)) {
            self.caching.verified = position;
        }
        if let Some(ahead) = &mut self.ahead
            && ahead.step == step
        {
            ahead.held = Some(outcome);
            return None;
        }
        if tokens_in(&outcome) > 0 && self.ahead.is_none() && !self.speculation.chain.follows(step) {
            // what was rejected is as if it had never been sent
            self.sent = position;
        }
        let came = Came { outcome, position, drafts: sent.drafts.len() };
        self.speculation.chain.hold(step, came).map(|came| self.got(came))
    }

    /// What came is for the session.
    fn got(&mut self, came: Came) -> Came {
        match &came.outcome {
            Outcome::Sampled(sampled) => {
                self.got_token();
                self.speculation.last = Some(sampled.token);
                if let Some(ahead) = &mut self.ahead {
                    ahead.token = Some(sampled.token);
                }
            }
            Outcome::Verified(Verified { tokens, .. }) => {
                self.got_token();
                self.speculation.last = tokens.last().map(|last| last.token);
                self.speculation.certain += tokens.len() - 1;
                self.caching.history.extend(tokens.iter().rev().skip(1).rev().map(|accepted| accepted.token));
            }
            Outcome::Vector(_) => self.owed = false,
            Outcome::Stored | Outcome::Void | Outcome::Failed(_) => {}
        }
        came
    }

    fn got_token(&mut self) {
        self.owed = false;
        self.restores = 0;
        self.samples = None;
    }
}

/// `rows` rows of `input` from `start`; vectors go to the end of `values`.
fn slice(input: &Input, start: usize, rows: usize, values: &mut Vec<f32>) -> ChunkInput {
    match input {
        Input::Tokens(tokens) => ChunkInput::Tokens(tokens[start..start + rows].to_vec()),
        Input::Rows { positions, values: all } => {
            let width = all.len() / positions.len();
            values.extend_from_slice(&all[start * width..(start + rows) * width]);
            ChunkInput::Rows { positions: positions[start..start + rows].to_vec() }
        }
    }
}
