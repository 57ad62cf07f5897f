//! The whole service but HTTP, for one check: rows of this process that answer, and answers whose bits are compared.

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use paceline_coordinator::{Engine, Generate, Update};
use paceline_gguf::{Gguf, KvType};
use paceline_proto::SamplingSettings;

use crate::cli::{DraftArgs, LayoutArgs, SelfcheckArgs};
use crate::{layout, row};

/// The most probable tokens that are compared.
const COMPARED: u32 = 16;

/// A row to answer with.
#[derive(Debug, Clone)]
pub(super) struct Setup<'a> {
    pub(super) gguf: &'a Arc<Gguf>,
    pub(super) arguments: &'a SelfcheckArgs,
    pub(super) kind: KvType,
    pub(super) shards: usize,
    /// Tokens of a session.
    pub(super) context: usize,
    pub(super) sessions: usize,
    pub(super) draft: DraftArgs,
}

/// An answer: each token, its log probability and those of the most probable ones, as bits.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    logprobs: Vec<Vec<(u32, u32)>>,
    pub(super) cached: usize,
    /// Drafts that were run for it, and those that were right.
    pub(super) drafts: (usize, usize),
}

impl Setup<'_> {
    /// Does something with a fresh service.
    pub(super) fn serve<T>(&self, work: impl AsyncFnOnce(Engine) -> Result<T>) -> Result<T> {
        let wanted = LayoutArgs {
            shards: self.shards,
            threads: self.arguments.threads,
            ctx: Some(self.context),
            sessions: self.sessions,
            kv_type: self.kind,
            kv_type_k: None,
            kv_type_v: None,
            kv_tokens: None,
            cache_ram: None,
            draft: self.draft.clone(),
            cache_reuse: None,
        };
        let loaded = row::load(layout::plan(self.gguf, &self.arguments.model, &wanted, None)?)?;
        row::system()?.block_on(async move {
            let running = loaded.start()?;
            let done = work(running.engine.clone()).await;
            running.stop().await;
            done
        })
    }
}

/// The greedy way to choose tokens.
pub(super) fn greedy() -> SamplingSettings {
    SamplingSettings { temperature: 0.0, ..SamplingSettings::default() }
}

/// So many tokens behind a prompt.
pub(super) async fn answer(
    engine: &Engine,
    prompt: &[u32],
    count: usize,
    sampling: SamplingSettings,
) -> Result<Answer> {
    let sampling = SamplingSettings { logprobs: Some(COMPARED), ..sampling };
    let mut generation = engine
        .generate(Generate {
            prompt: prompt.to_vec(),
            boundaries: vec![prompt.len() / 2],
            max_tokens: Some(count),
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
            Update::Finished(finished) => {
                let usage = finished.usage;
                let drafts = (usage.drafts, usage.accepted_drafts);
                return Ok(Answer { tokens, logprobs, cached: usage.cached_tokens, drafts });
            }
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("an answer ended without an end")
}

/// Where two answers to the same prompt differ first.
pub(super) fn difference(what: &str, cold: &Answer, warm: &Answer) -> Option<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_that_differ_are_told_apart() {
        let answer = |bits: u32| Answer {
            tokens: vec![1, 2],
            logprobs: vec![vec![(1, 0)], vec![(2, bits)]],
            cached: 0,
            drafts: (0, 0),
        };
        assert_eq!(difference("it", &answer(5), &answer(5)), None);
        let text = difference("it", &answer(1f32.to_bits()), &answer(2f32.to_bits())).expect("a difference");
        assert!(text.contains("token 1 of the answer") && text.contains("2.0") && text.contains("1.0"), "{text}");
        let short = Answer { tokens: vec![1], logprobs: vec![vec![(1, 0)]], cached: 0, drafts: (0, 0) };
        assert!(difference("it", &answer(5), &short).is_some_and(|text| text.contains("1 tokens instead of 2")));
    }
}
