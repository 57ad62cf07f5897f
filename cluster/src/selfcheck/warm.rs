//! Whether answers from the cache are those of a cold run: through the whole service but HTTP, alone and busy.
//!
//! A prompt is answered, answered again, and continued by its answer and more text while other prompts are answered
//! beside it. A fresh service answers the continued prompt cold. Tokens and their log probabilities must be equal, bit
//! for bit.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_coordinator::Engine;
use paceline_gguf::{Gguf, KvType};
use serde::Serialize;

use super::service::{Setup, answer, difference, greedy};
use crate::cli::{DraftArgs, SelfcheckArgs};

/// Tokens of an answer.
const ANSWER: usize = 8;
/// Prompts that are answered beside the one that is looked at.
const OTHERS: usize = 3;
/// Tokens that follow the answer in the continued prompt.
const MORE: usize = 11;

/// What came of one type of keys and values.
#[derive(Debug, Serialize)]
pub(super) struct Warm {
    #[serde(rename = "type")]
    kind: String,
    /// Tokens of the repeated prompt that came from the cache.
    repeated: usize,
    /// Tokens of the continued prompt that did.
    continued: usize,
    /// Tokens of the continued prompt.
    tokens: usize,
    /// What differed, in words.
    pub(super) differences: Vec<String>,
}

/// Runs a prompt and what continues it, warm and cold.
pub(super) fn check(gguf: &Arc<Gguf>, arguments: &SelfcheckArgs, kind: KvType, text: &[u32]) -> Result<Warm> {
    let (prompt, more) = text.split_at(text.len().saturating_sub(MORE));
    let context = arguments.tokens as usize + 2 * ANSWER;
    let setup = Setup { gguf, arguments, kind, shards: 1, context, sessions: 1 + OTHERS, draft: DraftArgs::NONE };
    let mut checked = setup.serve(async |engine: Engine| {
        let first = answer(&engine, prompt, ANSWER, greedy()).await?;
        let repeated = answer(&engine, prompt, ANSWER, greedy()).await?;
        let longer = [prompt, &first.tokens, more].concat();
        let others: Vec<_> = (1..=OTHERS)
            .map(|other| {
                let (engine, prompt) = (engine.clone(), text[other..].to_vec());
                tokio::spawn(async move { answer(&engine, &prompt, ANSWER, greedy()).await })
            })
            .collect();
        let continued = answer(&engine, &longer, ANSWER, greedy()).await?;
        for other in others {
            other.await.context("an answer was lost")??;
        }
        let differences = difference("the repeated prompt", &first, &repeated);
        let warm = Warm {
            kind: kind.to_string(),
            repeated: repeated.cached,
            continued: continued.cached,
            tokens: longer.len(),
            differences: differences.into_iter().collect(),
        };
        Ok((warm, longer, continued))
    })?;
    let cold = setup.serve(async |engine: Engine| answer(&engine, &checked.1, ANSWER, greedy()).await)?;
    checked.0.differences.extend(difference("the continued prompt", &cold, &checked.2));
    Ok(checked.0)
}

impl Warm {
    /// The type and what differed, for each difference.
    pub(super) fn told(&self) -> impl Iterator<Item = (&str, &str)> {
        self.differences.iter().map(|difference| (self.kind.as_str(), difference.as_str()))
    }
}

impl fmt::Display for Warm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, repeated, continued, tokens, differences } = self;
        let (repeated, continued) = (format!("{repeated} cached"), format!("{continued} of {tokens}"));
        write!(f, "{kind:<8} {repeated:>12} {continued:>12} {:>7}", differences.len())
    }
}
