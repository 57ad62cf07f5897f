//! How surprised a model is by a text, as llama.cpp measures it, so that figures compare.
//!
//! The text is cut into windows of as many tokens as the context, one behind the other; what is left is not used. Each
//! window is read from nothing, its first token replaced by the one that begins every text, if the model has one. In
//! the second half of each window every token is judged by the logits of the one before it: the perplexity is the
//! exponential of the mean of −ln p over all of these.

use crate::model_run::Chunk;
use crate::{Error, ModelRun, Result};

/// Rows of a step that are only read.
const READ_ROWS: usize = 256;
/// Rows of a step whose logits are wanted; a row of logits is as long as the vocabulary.
const WANTED_ROWS: usize = 64;

/// The most rows of a step.
pub const ROWS: usize = READ_ROWS;
/// The most rows of a step whose logits are wanted.
pub const WANTED: usize = WANTED_ROWS;

/// How a text is cut.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    /// Tokens of a window, at least 4.
    pub context: usize,
    /// What every window begins with.
    pub begin: Option<u32>,
    /// The most windows.
    pub most: usize,
}

/// How one token was foreseen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Judged {
    /// −ln of its probability.
    pub surprise: f64,
    /// What was most probable in its place.
    pub best: u32,
}

/// How a text was foreseen.
#[derive(Debug, Clone, PartialEq)]
pub struct Foreseen {
    /// Every token that counts.
    pub tokens: Vec<Judged>,
    /// Windows that were read.
    pub windows: usize,
}

impl Foreseen {
    /// The exponential of the mean surprise.
    pub fn perplexity(&self) -> f64 {
        self.mean().exp()
    }

    /// The standard error of the perplexity.
    pub fn uncertainty(&self) -> f64 {
        let (mean, count) = (self.mean(), self.tokens.len() as f64);
        let squares: f64 = self.tokens.iter().map(|token| (token.surprise - mean).powi(2)).sum();
        (squares / count / (count - 1.0).max(1.0)).sqrt() * mean.exp()
    }

    /// The share of tokens in whose place another model, given the same text, finds the same token most probable.
    pub fn agreement(&self, other: &Foreseen) -> f64 {
        let same = self.tokens.iter().zip(&other.tokens).filter(|(one, other)| one.best == other.best).count();
        same as f64 / self.tokens.len() as f64
    }

    fn mean(&self) -> f64 {
        let sum: f64 = self.tokens.iter().map(|token| token.surprise).sum();
        sum / self.tokens.len() as f64
    }
}

/// Reads a text; `run` is laid out for one session of a window's length with [`ROWS`] and [`WANTED`] rows.
///
/// # Errors
/// A text that is shorter than two windows, and what a step can fail with.
pub fn measure(run: &mut ModelRun, tokens: &[u32], windows: &Windows) -> Result<Foreseen> {
    let context = windows.context.max(4);
    if tokens.len() < 2 * context {
        return Err(Error::TooShort { tokens: tokens.len(), context, needed: 2 * context });
    }
    let mut foreseen = Foreseen { tokens: Vec::new(), windows: 0 };
    for (session, window) in (0..).zip(tokens.chunks_exact(context).take(windows.most)) {
        let mut window = window.to_vec();
        if let Some(begin) = windows.begin {
            window[0] = begin;
        }
        read(run, session, &window, &mut foreseen.tokens)?;
        run.end(session)?;
        foreseen.windows += 1;
    }
    Ok(foreseen)
}

fn read(run: &mut ModelRun, session: u32, window: &[u32], judged: &mut Vec<Judged>) -> Result<()> {
    let (unjudged, rest) = window.split_at(window.len() / 2);
    for tokens in unjudged.chunks(READ_ROWS) {
        run.step_wanting(&[Chunk::text(session, tokens)], 0..0)?;
    }
    // The last token foresees nothing that is known.
    let (rest, _) = rest.split_at(rest.len() - 1);
    let mut next = unjudged.len() + 1;
    for tokens in rest.chunks(WANTED_ROWS) {
        for logits in run.step(&[Chunk::text(session, tokens)])? {
            judged.push(judge(&logits, window[next]));
            next += 1;
        }
    }
    Ok(())
}

/// How a row of logits foresaw a token.
fn judge(logits: &[f32], token: u32) -> Judged {
    let mut best = 0;
    for (index, logit) in logits.iter().enumerate() {
        if *logit > logits[best] {
            best = index;
        }
    }
    let most = f64::from(logits[best]);
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - most).exp()).sum();
    let surprise = sum.ln() + most - f64::from(logits[token as usize]);
    Judged { surprise, best: best as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surprise_is_the_negative_logarithm_of_the_probability() {
        let even = judge(&[2.0; 8], 3);
        assert!((even.surprise - 8f64.ln()).abs() < 1e-12 && even.best == 0);
        let sure = judge(&[0.0, 100.0, 0.0], 1);
        assert!(sure.surprise < 1e-12 && sure.best == 1);
        assert!((judge(&[0.0, 100.0, 0.0], 2).surprise - 100.0).abs() < 1e-9);
    }

    #[test]
    fn perplexity_is_the_exponential_of_the_mean() {
        let token = |surprise: f64, best| Judged { surprise, best };
        let one = Foreseen { tokens: vec![token(2f64.ln(), 1), token(8f64.ln(), 2)], windows: 1 };
        assert!((one.perplexity() - 4.0).abs() < 1e-12);
        let other = Foreseen { tokens: vec![token(1.0, 1), token(1.0, 3)], windows: 1 };
        assert!((one.agreement(&other) - 0.5).abs() < 1e-12 && other.uncertainty() < 1e-12);
    }
}
