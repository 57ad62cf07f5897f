//! What tokens an answer may go on with, given those it has.
//!
//! A guide is a function of the answer's tokens alone. They are recorded under their positions, and what is said of a
//! position replaces what was known from there on, as in the history of penalties: so it does not matter whether a
//! token was sampled here, is read again in another row, or was a draft that was rejected.

use paceline_grammar::{Follower, Grammar, Speller};
use paceline_proto::{ConstraintSettings, SamplingSettings, ThinkingSettings};

use crate::thinking::Phase;
use crate::{Error, Result};

/// Follows one answer.
pub(crate) struct Guide {
    /// Without reasoning the answer begins at once.
    thinking: Option<ThinkingSettings>,
    constraint: Option<Constraint>,
    /// The position of the first token of the answer, once known.
    start: Option<u32>,
    /// The answer's tokens, and what each of them has led to.
    tokens: Vec<(u32, Phase)>,
    /// How many of the first tokens are not the constrained text.
    before_text: usize,
}

/// A text that follows a grammar.
struct Constraint {
    follower: Follower,
    ends: Vec<u32>,
    /// How many tokens of the text the follower was told.
    told: usize,
}

impl Guide {
    /// A guide, if these settings need one.
    pub(crate) fn new(
        settings: &SamplingSettings,
        start: Option<u32>,
        speller: Option<&Speller>,
    ) -> Result<Option<Self>> {
        if !settings.is_guided() {
            return Ok(None);
        }
        let constraint =
            settings.constraint.as_ref().map(|constraint| Constraint::new(constraint, speller)).transpose()?;
        let thinking = settings.thinking.as_deref().cloned();
        Ok(Some(Self { thinking, constraint, start, tokens: Vec::new(), before_text: 0 }))
    }

    /// The position of the first generated token, once known.
    pub(crate) fn start(&self) -> Option<u32> {
        self.start
    }

    /// The answer's tokens and their positions, ascending.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = (u32, u32)> {
        (self.start.unwrap_or(0)..).zip(self.tokens.iter().map(|(token, _)| *token))
    }

    /// Forgets everything at and after a position.
    pub(crate) fn rewind(&mut self, position: u32) -> Result<()> {
        let kept = self.start.map_or(0, |start| position.saturating_sub(start)) as usize;
        self.tokens.truncate(kept);
        self.before_text = self.before_text.min(kept);
        let text = self.tokens.len() - self.before_text;
        self.constraint.as_mut().map_or(Ok(()), |constraint| constraint.keep(text))
    }

    /// From this position on tokens are generated, unless an earlier one was named before.
    pub(crate) fn generate_from(&mut self, position: u32) {
        self.start.get_or_insert(position);
    }

    /// Adds a token. Those of the prompt do not matter, but none of the answer's may be missing.
    pub(crate) fn push(&mut self, position: u32, token: u32) -> Result<()> {
        let Some(place) = self.start.and_then(|start| position.checked_sub(start)) else { return Ok(()) };
        if place as usize != self.tokens.len() {
            return Err(Error::History { position });
        }
        let before = self.phase();
        let phase = self
            .thinking
            .as_ref()
            .map_or(Phase::Answering, |thinking| before.after(token, thinking, self.constraint.is_some()));
        let is_text = phase == Phase::Answering && matches!(before, Phase::Start | Phase::Answering);
        self.tokens.push((token, phase));
        if !is_text {
            self.before_text = self.tokens.len();
        }
        Ok(())
    }

    /// Makes the tokens impossible that may not follow.
    pub(crate) fn restrict(&mut self, logits: &mut [f32]) -> Result<()> {
        let phase = self.phase();
        if let Some(token) = self.thinking.as_ref().and_then(|thinking| phase.forced(thinking)) {
            leave_only(token, logits);
            return Ok(());
        }
        let thinking = self.thinking.as_ref().filter(|_| phase == Phase::Start);
        let opens = thinking.and_then(|thinking| Some((thinking.opens? as usize, thinking.budget)));
        if let Some((token, Some(0))) = opens {
            // Where nothing may be thought, nothing begins to.
            logits[token] = f32::NEG_INFINITY;
        }
        let Some(constraint) = &mut self.constraint else { return Ok(()) };
        match phase {
            // An answer must have the text that is wanted: it does not end before.
            Phase::Thinking(_) | Phase::Closing(_) => {
                constraint.ends.iter().for_each(|end| logits[*end as usize] = f32::NEG_INFINITY);
                Ok(())
            }
            Phase::Start | Phase::Answering => {
                let opening = opens.map(|(token, _)| (token, logits[token]));
                constraint.restrict(&self.tokens[self.before_text..], logits)?;
                if let Some((token, logit)) = opening {
                    logits[token] = logit;
                }
                Ok(())
            }
        }
    }

    fn phase(&self) -> Phase {
        let first = || self.thinking.as_ref().map_or(Phase::Answering, Phase::first);
        self.tokens.last().map_or_else(first, |(_, phase)| *phase)
    }
}

impl Constraint {
    fn new(settings: &ConstraintSettings, speller: Option<&Speller>) -> Result<Self> {
        let speller = speller.ok_or(Error::NoSpeller)?;
        let grammar = Grammar::from_text(settings.grammar.clone()).map_err(Error::Grammar)?;
        let follower = speller.follow(&grammar).map_err(Error::Grammar)?;
        Ok(Self { follower, ends: settings.ends.clone(), told: 0 })
    }

    /// Only the first `count` tokens of the text are left.
    fn keep(&mut self, count: usize) -> Result<()> {
        let gone = self.told.saturating_sub(count);
        if gone > 0 {
            self.follower.forget(gone).map_err(Error::Grammar)?;
            self.told = count;
        }
        Ok(())
    }

    fn restrict(&mut self, text: &[(u32, Phase)], logits: &mut [f32]) -> Result<()> {
        for (token, _) in &text[self.told..] {
            self.follower.take(*token).map_err(Error::Grammar)?;
            self.told += 1;
        }
        self.follower.allowed().map_err(Error::Grammar)?.restrict(logits, f32::NEG_INFINITY);
        Ok(())
    }
}

/// Whatever the model thinks of it.
fn leave_only(token: u32, logits: &mut [f32]) {
    logits.fill(f32::NEG_INFINITY);
    logits[token as usize] = 0.0;
}
