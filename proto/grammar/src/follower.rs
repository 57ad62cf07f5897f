//! A text that follows a grammar, token by token.

use std::sync::Arc;

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;

use crate::{Error, Result};

/// Follows one text.
pub struct Follower {
    matcher: Matcher,
    /// Tokens that end a text, sorted.
    ends: Arc<[u32]>,
    /// Size of the vocabulary.
    tokens: usize,
    /// An end token was taken, after so many others.
    ended: bool,
}

/// Which tokens may be next.
#[derive(Debug)]
pub struct Allowed<'f> {
    /// Those that write something.
    tokens: Option<SimpleVob>,
    ends: &'f [u32],
    /// Whether the text may end here.
    may_end: bool,
    size: usize,
}

impl Follower {
    pub(crate) fn new(matcher: Matcher, ends: Arc<[u32]>, tokens: usize) -> Self {
        Self { matcher, ends, tokens, ended: false }
    }

    /// Takes the next token.
    ///
    /// # Errors
    /// A token that may not be next; the follower is of no use then.
    pub fn take(&mut self, token: u32) -> Result<()> {
        let wrong = |reason: String| Error::Token { token, reason };
        if self.ended {
            return Err(wrong("the text has ended".to_owned()));
        }
        if self.ends.binary_search(&token).is_ok() {
            self.ended = true;
            return Ok(());
        }
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Err(wrong("the text is complete".to_owned()));
        }
        self.matcher.consume_token(token).map_err(|error| wrong(error.to_string()))
    }

    /// Forgets the last `count` tokens.
    ///
    /// # Errors
    /// More tokens than were taken.
    pub fn forget(&mut self, count: usize) -> Result<()> {
        let ends = usize::from(self.ended && count > 0);
        if ends > 0 {
            self.ended = false;
        }
        match count - ends {
            0 => Ok(()),
            count => self.matcher.rollback(count).map_err(|error| Error::Work(error.to_string())),
        }
    }

    /// Which tokens may be next. Where nothing more may be written, the end.
    ///
    /// # Errors
    /// Too much work, or a follower that has failed before.
    pub fn allowed(&mut self) -> Result<Allowed<'_>> {
        let size = self.tokens;
        if self.ended || (self.matcher.is_stopped() && !self.matcher.is_error()) {
            return Ok(Allowed { tokens: None, ends: &self.ends, may_end: true, size });
        }
        let tokens = self.matcher.compute_mask().map_err(|error| Error::Work(error.to_string()))?;
        let may_end = tokens.get(size);
        Ok(Allowed { tokens: Some(tokens), ends: &self.ends, may_end, size })
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Follower").field("ended", &self.ended).finish_non_exhaustive()
    }
}

impl Allowed<'_> {
    /// Whether `token` may be next.
    pub fn has(&self, token: u32) -> bool {
        match self.ends.binary_search(&token) {
            Ok(_) => self.may_end,
            Err(_) => self.tokens.as_ref().is_some_and(|set| (token as usize) < self.size && set.is_allowed(token)),
        }
    }

    /// Whether no token may be next.
    pub fn is_empty(&self) -> bool {
        !self.may_end && self.tokens.as_ref().is_none_or(SimpleVob::is_zero)
    }

    /// Puts `never` in the place of every token that may not be next. `values`, one per token, may be more than the
    /// vocabulary has tokens.
    pub fn restrict(&self, values: &mut [f32], never: f32) {
        const BITS: usize = 32;
        let ends: Vec<(usize, f32)> = self
            .ends
            .iter()
            .map(|end| *end as usize)
            .filter(|end| *end < values.len())
            .map(|end| (end, values[end]))
            .collect();
        let words = self.tokens.as_ref().map_or(&[][..], SimpleVob::as_slice);
        for (index, values) in values.chunks_mut(BITS).enumerate() {
            match words.get(index) {
                None | Some(0) => values.fill(never),
                Some(&u32::MAX) => {}
                Some(word) => {
                    let forbidden = values.iter_mut().enumerate().filter(|(bit, _)| word & (1 << bit) == 0);
                    forbidden.for_each(|(_, value)| *value = never);
                }
            }
        }
        // The set counts the end of the text as a token of its own, behind all others.
        values.iter_mut().skip(self.size).for_each(|value| *value = never);
        for (end, value) in ends {
            values[end] = if self.may_end { value } else { never };
        }
    }
}
