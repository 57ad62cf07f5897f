//! Whether answers with drafts are those without: greedy and sampled, alone and busy, on one stage and on several.
//!
//! Each prompt says a part of the text twice, so that something is found in it. Tokens and their log probabilities must
//! be equal, bit for bit, whatever was guessed.

use std::fmt;
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_coordinator::Engine;
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_proto::SamplingSettings;
use serde::Serialize;

use super::service::{Answer, Setup, answer, difference, greedy};
use crate::cli::{DraftArgs, DraftSource, SelfcheckArgs};

/// Tokens of an answer.
const ANSWER: usize = 24;
/// Prompts, and prompts of a full check, if nothing else is asked for.
const PROMPTS: [usize; 2] = [4, 40];
/// Seeds of sampled answers besides the greedy one, and those of a full check or one of more prompts.
const SEEDS: [u64; 2] = [1, 4];
/// Sessions at once.
const TOGETHER: usize = 8;

/// What came of one source of drafts.
#[derive(Debug, Serialize)]
pub(super) struct Drafted {
    #[serde(rename = "type")]
    kind: String,
    source: String,
    shards: usize,
    /// Answers that were compared.
    answers: usize,
    drafts: usize,
    accepted: usize,
    /// What differed, in words.
    pub(super) differences: Vec<String>,
}

/// An answer that is asked for.
#[derive(Debug, Clone)]
struct Asked {
    prompt: Vec<u32>,
    sampling: SamplingSettings,
}

/// Runs all prompts without drafts, and then with those of each source, on one stage and on as many as there can be.
pub(super) fn check(gguf: &Arc<Gguf>, arguments: &SelfcheckArgs, kind: KvType, text: &[u32]) -> Result<Vec<Drafted>> {
    let shape = ModelShape::read(gguf)?;
    let asked = asked(arguments, text);
    let context = 2 * text.len() + ANSWER;
    let plain = Setup { gguf, arguments, kind, shards: 1, context, sessions: TOGETHER, draft: DraftArgs::NONE };
    let expected = plain.serve(async |engine: Engine| one_by_one(&engine, &asked).await)?;
    let mtp = (shape.mtp.len() == 1).then_some(DraftSource::Mtp);
    let sources = [DraftSource::Lookup].into_iter().chain(mtp).chain(arguments.draft.clone().map(DraftSource::File));
    let mut all = Vec::new();
    for source in sources {
        for shards in super::ends(&[1, shape.blocks().len().min(4)]) {
            let setup = Setup { shards, draft: DraftArgs::of(source.clone()), ..plain.clone() };
            let found = setup.serve(async |engine: Engine| {
                let alone = one_by_one(&engine, &asked).await?;
                Ok([alone, together(&engine, &asked).await?])
            })?;
            all.push(Drafted::of(kind, &source, shards, &expected, &found));
        }
    }
    Ok(all)
}

fn asked(arguments: &SelfcheckArgs, text: &[u32]) -> Vec<Asked> {
    // Whoever wants more prompts wants to know it well.
    let full = usize::from(arguments.full || arguments.prompts.is_some());
    let sampled = (1..=SEEDS[full]).map(|seed| SamplingSettings { seed, ..SamplingSettings::default() });
    let ways: Vec<SamplingSettings> = std::iter::once(greedy()).chain(sampled).collect();
    let prompts = arguments.prompts.map_or(PROMPTS[full], |prompts| prompts as usize);
    let prompts = (0..prompts).map(|number| {
        let (from, length) = (number * 5 % (text.len() / 2).max(1), text.len() / 2);
        let part = &text[from..from + length];
        [part, &part[..length - number % (length / 2).max(1)]].concat()
    });
    prompts
        .flat_map(|prompt| {
            ways.iter().map(move |sampling| Asked { prompt: prompt.clone(), sampling: sampling.clone() })
        })
        .collect()
}

async fn one_by_one(engine: &Engine, asked: &[Asked]) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for Asked { prompt, sampling } in asked {
        answers.push(answer(engine, prompt, ANSWER, sampling.clone()).await?);
    }
    Ok(answers)
}

async fn together(engine: &Engine, asked: &[Asked]) -> Result<Vec<Answer>> {
    let mut answers = Vec::new();
    for some in asked.chunks(TOGETHER) {
        let ask = |Asked { prompt, sampling }: Asked| {
            let engine = engine.clone();
            tokio::spawn(async move { answer(&engine, &prompt, ANSWER, sampling).await })
        };
        let tasks: Vec<_> = some.iter().cloned().map(ask).collect();
        for task in tasks {
            answers.push(task.await.context("an answer was lost")??);
        }
    }
    Ok(answers)
}

impl Drafted {
    fn of(kind: KvType, source: &DraftSource, shards: usize, expected: &[Answer], found: &[Vec<Answer>; 2]) -> Self {
        let pairs = || found.iter().flat_map(|answers| expected.iter().zip(answers).enumerate());
        let differences =
            pairs().filter_map(|(number, (plain, drafted))| difference(&format!("answer {number}"), plain, drafted));
        Self {
            kind: kind.to_string(),
            source: source.name(),
            shards,
            answers: pairs().count(),
            drafts: pairs().map(|(_, (_, drafted))| drafted.drafts.0).sum(),
            accepted: pairs().map(|(_, (_, drafted))| drafted.drafts.1).sum(),
            differences: differences.collect(),
        }
    }

    /// The type, the source and what differed, for each difference.
    pub(super) fn told(&self) -> impl Iterator<Item = (&str, &str, &str)> {
        self.differences.iter().map(|difference| (self.kind.as_str(), self.source.as_str(), difference.as_str()))
    }
}

impl fmt::Display for Drafted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, source, shards, answers, drafts, accepted, differences } = self;
        let right = format!("{accepted} of {drafts}");
        write!(f, "{kind:<8} {source:<24} {shards:>6} {answers:>8} {right:>14} {:>7}", differences.len())
    }
}
