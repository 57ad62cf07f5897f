//! Chunks that are sent before their token is known, and how wishes are matched with them.

use paceline_proto::{Chunk, ChunkInput, StepId, Wanted};

use super::{Ahead, Came, Misuse, Running};
use crate::coordinator::ahead::Chain;
use crate::coordinator::{Input, Wish};

impl Running {
    /// Matches a wish with the chunk that was run ahead of it.
    pub(super) fn matched(&mut self, ahead: Ahead, wish: &Wish) -> Result<Option<Came>, Misuse> {
        let token = ahead.token.expect("the token was delivered, or the session would be owed it");
        if wish.wanted != Wanted::Sample || wish.input != Input::Tokens(vec![token]) {
            return Err(Misuse::NotTheToken);
        }
        self.caching.history.push(token);
        if let Some(outcome) = ahead.held {
            return Ok(Some(Came { outcome, position: self.sent, drafts: 0 }));
        }
        self.owed = true;
        self.samples = Some(ahead.step);
        Ok(None)
    }

    /// Matches a wish with the first chunk of drafts that was sent ahead.
    pub(super) fn matched_ahead(&mut self, wish: &Wish) -> Result<Option<Came>, Misuse> {
        let (first, held) = self.speculation.chain.matched(wish).ok_or(Misuse::NotTheToken)?;
        self.caching.history.push(first);
        self.speculation.certain += 1;
        self.owed = true;
        if held.is_none() {
            self.speculation.offer_further(wish, self.token_limit);
        }
        Ok(held.map(|came| self.got(came)))
    }

    /// The chunk that runs the token on its way.
    pub(in crate::coordinator) fn run_ahead(&mut self, step: StepId) -> Option<Chunk> {
        let sampled = self.samples?;
        self.ahead = Some(Ahead { step, token: None, held: None });
        Some(self.chunk(step, ChunkInput::Sampled { step: sampled }, Wanted::Sample))
    }

    /// All that it wants is sent, a token is owed for it, and that token is not run ahead.
    pub(in crate::coordinator) fn waits_for_token(&self) -> bool {
        self.owed && self.wishes.is_empty() && self.ahead.is_none()
    }

    /// Whatever was sent ahead is as if it had never been sent.
    pub(super) fn retract(&mut self) {
        self.speculation.chain = Chain::default();
        self.sent = self.sent.min(self.speculation.certain);
        self.caching.verified = self.caching.verified.min(self.sent);
    }
}
