//! One session's way from logits to a token.

use paceline_proto::{SampledToken, SamplerMemory, SamplingSettings};

use crate::{
    Error, Result,
    guide::Guide,
    history::History,
    logprobs::Reporter,
    random::uniform,
    rank::{Candidate, best, most_probable, usable},
    settings::{check, check_token},
    vocabulary::Vocabulary,
    weight::Scale,
};

#[cfg(test)]
mod tests;

/// How many of the most probable tokens are looked at first when it is not known how many are needed: real models
/// rarely need more.
const FIRST_LOOK: usize = 256;
/// How many times as many are looked at next.
const NEXT_LOOK: usize = 16;

/// Chooses the tokens of one session.
///
/// A row of logits passes, in this order:
///
/// 1. logit biases and bans,
/// 2. penalties: repetition (over a window of all tokens), frequency and presence (over generated tokens); then what may not
///    follow is made impossible (reasoning that must end, a text that must follow a grammar),
/// 3. temperature; 0 takes the most probable token, the lowest of several, and ends here,
/// 4. top-k, then top-p (of what top-k left), then min-p; at least one token stays,
/// 5. one random number, a function of seed, choice and position, which picks from what is left: tokens side by side,
///    most probable first (without any filter in the order of their numbers).
///
/// Log probabilities are reported of the row as the model gave it, before step 1.
///
/// A logit that is not a number, or minus infinity, is of an impossible token; plus infinity counts as the largest
/// number. If no token is possible the result is [`Error::NoCandidate`].
///
/// A token costs a few passes over the row and, with filters, the sorting of as many tokens as may pass them. Buffers
/// are kept from one token to the next.
pub struct Sampler {
    settings: SamplingSettings,
    vocabulary: usize,
    /// Kept only if there are penalties.
    history: Option<History>,
    /// Kept only if reasoning must end in time or the text must follow a grammar.
    guide: Option<Guide>,
    reporter: Reporter,
    /// Scratch, kept for its capacity.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler for a new session of a model with `vocabulary` tokens; the first token it is asked for is the first
    /// that counts as generated.
    pub fn new<'v>(settings: SamplingSettings, vocabulary: impl Into<Vocabulary<'v>>) -> Result<Self> {
        Self::with_prompt_end(settings, vocabulary.into(), None)
    }

    /// A sampler for a session that began elsewhere and is read again from its tokens: those from position
    /// `generated_from` on count as generated, although it will be shown them as input.
    pub fn resume<'v>(
        settings: SamplingSettings,
        vocabulary: impl Into<Vocabulary<'v>>,
        generated_from: u32,
    ) -> Result<Self> {
        Self::with_prompt_end(settings, vocabulary.into(), Some(generated_from))
    }

    /// What this sampler remembers: enough for an equal one elsewhere.
    pub fn memory(&self) -> SamplerMemory {
        let (history, guide) = (self.history.as_ref(), self.guide.as_ref());
        let answer = || guide.map(|guide| guide.tokens().collect());
        SamplerMemory {
            settings: self.settings.clone(),
            generated_from: history.and_then(History::prompt_end).or(guide.and_then(Guide::start)),
            // A history has the answer's tokens as well.
            tokens: history.map(|history| history.tokens().collect()).or_else(answer).unwrap_or_default(),
        }
    }

    /// A sampler that goes on where another one, whose memory this is, has stopped.
    ///
    /// # Errors
    /// As for any settings and tokens; a memory comes from another process.
    pub fn restore<'v>(memory: SamplerMemory, vocabulary: impl Into<Vocabulary<'v>>) -> Result<Self> {
        let vocabulary = vocabulary.into();
        let mut sampler = Self::with_prompt_end(memory.settings, vocabulary, memory.generated_from)?;
        let mut last = None;
        for (position, token) in memory.tokens {
            check_token("the history", token, vocabulary.size)?;
            if last.replace(position).is_some_and(|last| last >= position) {
                return Err(Error::History { position });
            }
            sampler.record(position, token)?;
        }
        Ok(sampler)
    }

    fn with_prompt_end(
        settings: SamplingSettings,
        vocabulary: Vocabulary<'_>,
        prompt_end: Option<u32>,
    ) -> Result<Self> {
        let Vocabulary { size: vocabulary, speller } = vocabulary;
        check(&settings, vocabulary)?;
        let history = History::new(&settings, prompt_end);
        let guide = Guide::new(&settings, prompt_end, speller)?;
        Ok(Self { settings, vocabulary, history, guide, reporter: Reporter::default(), candidates: Vec::new() })
    }

    /// Shows the input tokens of a chunk, of which the first is at position `start`.
    ///
    /// Show every chunk that has tokens, once, before its rows are sampled. What is shown replaces what was known of
    /// these positions and all later ones, so it does no harm to show a sampled token when it comes back as input, a
    /// prompt that is read again, a token that was put in place of a sampled one, or drafts:
    /// [`sample`](Self::sample) looks only at tokens before its position.
    pub fn observe(&mut self, start: u32, tokens: &[u32]) -> Result<()> {
        if tokens.len() > (u32::MAX - start) as usize {
            return Err(Error::Position { start, tokens: tokens.len() });
        }
        for &token in tokens {
            check_token("a chunk", token, self.vocabulary)?;
        }
        self.rewind(start)?;
        tokens.iter().zip(start..).try_for_each(|(&token, position)| self.record(position, token))
    }

    fn rewind(&mut self, position: u32) -> Result<()> {
        if let Some(history) = &mut self.history {
            history.rewind(position);
        }
        self.guide.as_mut().map_or(Ok(()), |guide| guide.rewind(position))
    }

    fn record(&mut self, position: u32, token: u32) -> Result<()> {
        if let Some(history) = &mut self.history {
            history.push(position, token);
        }
        self.guide.as_mut().map_or(Ok(()), |guide| guide.push(position, token))
    }

    /// Chooses the token at `position` (the number of tokens before it) and records it there.
    ///
    /// `logits`, `(vocabulary)`, are those of the row before; they are used up.
    ///
    /// # Panics
    /// If there are not exactly as many logits as the vocabulary has tokens.
    pub fn sample(&mut self, position: u32, logits: &mut [f32]) -> Result<SampledToken> {
        assert_eq!(logits.len(), self.vocabulary, "a row of logits must have one per token");
        logits.iter_mut().for_each(|logit| *logit = usable(*logit));
        if self.settings.logprobs.is_some() {
            self.reporter.keep(logits);
        }
        self.adjust(position, logits)?;
        let token = self.choose(position, logits)?;
        self.record(position, token)?;
        let logprobs = self.settings.logprobs.map(|count| Box::new(self.reporter.report(token, count)));
        Ok(SampledToken { token, logprobs })
    }

    /// Biases, penalties, bans, and what must follow.
    fn adjust(&mut self, position: u32, logits: &mut [f32]) -> Result<()> {
        for &(token, bias) in &self.settings.logit_bias {
            let logit = &mut logits[token as usize];
            *logit = usable(*logit + bias);
        }
        self.rewind(position)?;
        if let Some(history) = &mut self.history {
            history.generate_from(position);
            history.penalise(logits);
        }
        for &token in &self.settings.banned {
            logits[token as usize] = f32::NEG_INFINITY;
        }
        if let Some(guide) = &mut self.guide {
            guide.generate_from(position);
            guide.restrict(logits)?;
        }
        Ok(())
    }

    fn choose(&mut self, position: u32, logits: &mut [f32]) -> Result<u32> {
        let Some(best) = best(logits) else { return Err(Error::NoCandidate { position }) };
        if self.settings.temperature == 0.0 {
            return Ok(best.token);
        }
        let random = uniform(self.settings.seed, self.settings.choice, position);
        let scale = Scale { largest: best.logit, temperature: self.settings.temperature };
        if self.top_k() < self.vocabulary || self.settings.top_p < 1.0 || self.settings.min_p > 0.0 {
            Ok(self.draw_filtered(logits, scale, random))
        } else {
            Ok(draw_from_all(logits, scale, random))
        }
    }

    /// How many tokens top-k leaves.
    fn top_k(&self) -> usize {
        match self.settings.top_k as usize {
            0 => self.vocabulary,
            count => count.min(self.vocabulary),
        }
    }

    /// Draws from the tokens that pass the filters.
    ///
    /// Each filter keeps a beginning of the list of tokens sorted by probability, so only as much of that list is made
    /// as is needed to see where the shortest of these beginnings ends.
    fn draw_filtered(&mut self, logits: &[f32], scale: Scale, random: f64) -> u32 {
        let limit = self.top_k();
        let all_mass = (limit == self.vocabulary && self.settings.top_p < 1.0).then(|| scale.mass(logits));
        let mut count = if limit < self.vocabulary { limit } else { FIRST_LOOK.min(limit) };
        loop {
            most_probable(logits, count, &mut self.candidates);
            let complete = count == limit || self.candidates.len() < count;
            let mass = all_mass.unwrap_or_else(|| self.candidates_mass(scale));
            if let Some(kept) = self.passing(scale, mass, complete) {
                return draw(&self.candidates[..kept], scale, random);
            }
            count = count.saturating_mul(NEXT_LOOK).min(limit);
        }
    }

    fn candidates_mass(&self, scale: Scale) -> f64 {
        self.candidates.iter().map(|candidate| f64::from(scale.weight(candidate.logit))).sum()
    }

    /// How many of the candidates pass top-p of `mass` and min-p; none if candidates would be needed that are not
    /// there (which is not possible if they are complete).
    fn passing(&self, scale: Scale, mass: f64, complete: bool) -> Option<usize> {
        let SamplingSettings { top_p, min_p, .. } = self.settings;
        let enough = if top_p < 1.0 { f64::from(top_p) * mass } else { f64::INFINITY };
        let mut sum = 0.0;
        for (index, candidate) in self.candidates.iter().enumerate() {
            let weight = f64::from(scale.weight(candidate.logit));
            // The most probable token's weight is 1 and it always passes.
            if index > 0 && (sum >= enough || weight < f64::from(min_p)) {
                return Some(index);
            }
            sum += weight;
        }
        (complete || sum >= enough).then_some(self.candidates.len())
    }
}

/// Draws from all tokens, which lie side by side in the order of their numbers; replaces logits by weights.
fn draw_from_all(logits: &mut [f32], scale: Scale, random: f64) -> u32 {
    scale.weigh(logits);
    pick(|| (0..).zip(logits.iter().copied()), random)
}

/// Draws from tokens that lie side by side in the order given.
fn draw(candidates: &[Candidate], scale: Scale, random: f64) -> u32 {
    pick(|| candidates.iter().map(|candidate| (candidate.token, scale.weight(candidate.logit))), random)
}

/// The token in whose weight the random number lies, when all weights are laid side by side from 0 to 1.
fn pick<W: Iterator<Item = (u32, f32)>>(weights: impl Fn() -> W, random: f64) -> u32 {
    let mass: f64 = weights().map(|(_, weight)| f64::from(weight)).sum();
    let point = random * mass;
    let mut end = 0.0;
    for (token, weight) in weights() {
        end += f64::from(weight);
        if end > point {
            return token;
        }
    }
    // The random number is at most 1 - 2⁻⁵³, which leaves the point below the mass, and the mass is the last end.
    unreachable!("the point {point} lies beyond the mass {mass}")
}
