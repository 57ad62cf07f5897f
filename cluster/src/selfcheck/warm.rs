//! Whether answers from the cache are those of a cold run: through the whole service but HTTP, alone and busy.
//!
//! A prompt is answered, answered again, and continued by its answer and more text while other prompts are answered
//! beside it. A fresh service answers the continued prompt cold. Tokens and their log probabilities must be equal, bit
//! for bit.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::{Gguf, KvType};
use paceline_proto::SamplingSettings;
use serde::Serialize;

use crate::cli::{DraftArgs, LayoutArgs, SelfcheckArgs};
use crate::{layout, row};

/// Tokens of an answer.
const ANSWER: usize = 8;
/// The most probable tokens that are compared.
const COMPARED: u32 = 16;
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

/// An answer: each token, its log probability and those of the most probable ones, as bits.
#[derive(Debug, PartialEq)]
struct Answer {
    tokens: Vec<u32>,
    logprobs: Vec<Vec<(u32, u32)>>,
    cached: usize,
}

/// Runs a prompt and what continues it, warm and cold.
pub(super) fn check(gguf: &Arc<Gguf>, arguments: &SelfcheckArgs, kind: KvType, text: &[u32]) -> Result<Warm> {
    let (prompt, more) = text.split_at(text.len().saturating_sub(MORE));
    let mut checked = serve(gguf, arguments, kind, async |engine: Engine| {
        let first = answer(&engine, prompt).await?;
        let repeated = answer(&engine, prompt).await?;
        let longer = [prompt, &first.tokens, more].concat();
        let others: Vec<_> = (1..=OTHERS)
            .map(|other| {
                let (engine, prompt) = (engine.clone(), text[other..].to_vec());
                tokio::spawn(async move { answer(&engine, &prompt).await })
            })
            .collect();
        let continued = answer(&engine, &longer).await?;
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
    let cold = serve(gguf, arguments, kind, async |engine: Engine| answer(&engine, &checked.1).await)?;
    checked.0.differences.extend(difference("the continued prompt", &cold, &checked.2));
    Ok(checked.0)
}

/// Does something with a fresh service.
fn serve<T>(
    gguf: &Arc<Gguf>,
    arguments: &SelfcheckArgs,
    kind: KvType,
    work: impl AsyncFnOnce(Engine) -> Result<T>,
) -> Result<T> {
    let wanted = LayoutArgs {
        shards: 1,
        threads: arguments.threads,
        ctx: Some(arguments.tokens as usize + 2 * ANSWER),
        sessions: 1 + OTHERS,
        kv_type: kind,
        kv_type_k: None,
        kv_type_v: None,
        kv_tokens: None,
        cache_ram: None,
        draft: DraftArgs::NONE,
        cache_reuse: None,
    };
    let loaded = row::load(layout::plan(gguf, &arguments.model, &wanted, None)?)?;
    row::system()?.block_on(async move {
        let running = loaded.start()?;
        let done = work(running.engine.clone()).await;
        running.stop().await;
        done
    })
}

async fn answer(engine: &Engine, prompt: &[u32]) -> Result<Answer> {
    let sampling = SamplingSettings { temperature: 0.0, logprobs: Some(COMPARED), ..SamplingSettings::default() };
    let mut generation = engine
        .generate(Generate {
            prompt: prompt.to_vec(),
            boundaries: vec![prompt.len() / 2],
            max_tokens: Some(ANSWER),
            stop: Vec::new(),
            sampling,
            ignore_end: true,
            show_special: false,
        })
        .await?;
    let (mut tokens, mut logprobs) = (Vec::new(), Vec::new());
    while let Some(update) = generation.updates.recv().await {
        match update {
            Update::Token(token) => {
                let told = token.logprobs.context("log probabilities were asked for")?;
                let chosen = (token.token, told.chosen.to_bits());
                let top = told.top.iter().map(|one| (one.token, one.logprob.to_bits()));
                tokens.push(token.token);
                logprobs.push(std::iter::once(chosen).chain(top).collect());
            }
            Update::Finished(finished) => return Ok(Answer { tokens, logprobs, cached: finished.usage.cached_tokens }),
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("an answer ended without an end")
}

/// Where two answers to the same prompt differ first.
fn difference(what: &str, cold: &Answer, warm: &Answer) -> Option<String> {
    if cold.tokens.len() != warm.tokens.len() {
        return Some(format!("{what}: {} tokens instead of {}", warm.tokens.len(), cold.tokens.len()));
    }
    let at = cold.logprobs.iter().zip(&warm.logprobs).position(|(cold, warm)| cold != warm)?;
    let (cold, warm) = (&cold.logprobs[at], &warm.logprobs[at]);
    let (cold, warm) = cold.iter().zip(warm).find(|(cold, warm)| cold != warm)?;
    let [expected, found] = [cold.1, warm.1].map(f32::from_bits);
    Some(format!(
        "{what}: at token {at} of the answer, token {} of log probability {found:?} instead of {} of {expected:?}",
        warm.0, cold.0
    ))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_differ_are_told_apart() {
        let answer =
            |bits: u32| Answer { tokens: vec![1, 2], logprobs: vec![vec![(1, 0)], vec![(2, bits)]], cached: 0 };
        assert_eq!(difference("it", &answer(5), &answer(5)), None);
        let text = difference("it", &answer(1f32.to_bits()), &answer(2f32.to_bits())).expect("a difference");
        assert!(text.contains("token 1 of the answer") && text.contains("2.0") && text.contains("1.0"), "{text}");
        let short = Answer { tokens: vec![1], logprobs: vec![vec![(1, 0)]], cached: 0 };
        assert!(difference("it", &answer(5), &short).is_some_and(|text| text.contains("1 tokens instead of 2")));
    }
}
