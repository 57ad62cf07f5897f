//! `paceline bench --draft-accept P`: what drafts bring, end to end, of which this share is right.
//!
//! Two services of one model take turns: one decodes an answer without drafts; at the tail of the other sits a drafter that
//! knows this answer, and gets one draft wrong where chance wants it. Whether drafts are run, and how many, is decided as
//! always.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Result, ensure};
use paceline_compute::device::{MemoryOperation, MemoryUse};
use paceline_coordinator::Engine;
use paceline_core::drafts::DraftSettings;
use paceline_proto::Drafted;
use paceline_shard::{Certain, Drafter};
use serde::Serialize;

use super::samples::Spread;
use super::service::{Answer, answer, prompt};
use crate::cli::BenchArgs;
use crate::http;
use crate::row::{self, Plan};

/// The figures of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    threads: usize,
    shards: usize,
    /// Share of drafts that are right where those before them are.
    accept: f64,
    /// Drafts of a chunk at most.
    most: usize,
    decode: Vec<Decode>,
}

/// How fast one session decodes.
#[derive(Debug, Serialize)]
struct Decode {
    depth: usize,
    plain_tok_s: Spread,
    drafted_tok_s: Spread,
    /// With drafts over without, of neighbouring answers.
    ratio: Spread,
    drafts: usize,
    accepted: usize,
}

/// One depth and its figures so far.
#[derive(Default)]
struct Kind {
    depth: usize,
    plain: Vec<f64>,
    drafted: Vec<f64>,
    ratios: Vec<f64>,
    drafts: usize,
    accepted: usize,
}

/// An answer that is known, behind a prompt of so many tokens.
#[derive(Debug, Default)]
struct Script {
    prompt: usize,
    answer: Vec<u32>,
}

/// Guesses what a script says, and sometimes something else.
struct Scripted {
    script: Arc<Mutex<Script>>,
    accept: f64,
}

impl Drafter for Scripted {
    fn features(&self) -> Option<usize> {
        None
    }

    fn memory_use(&self) -> MemoryUse {
        MemoryUse::default()
    }

    fn apply(&mut self, _: MemoryOperation) -> paceline_shard::Result<()> {
        Ok(())
    }

    fn follow(&mut self, chunks: &[Certain<'_>], _: &[f32]) -> paceline_shard::Result<Vec<Vec<Drafted>>> {
        let script = self.script.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(chunks.iter().map(|chunk| script.guesses(chunk.end() + 1, chunk.propose, self.accept)).collect())
    }
}

impl Script {
    /// Guesses at the tokens from position `from` on.
    fn guesses(&self, from: usize, count: usize, accept: f64) -> Vec<Drafted> {
        let known = from.checked_sub(self.prompt).and_then(|first| self.answer.get(first..)).unwrap_or_default();
        let guess = |(position, token): (usize, &u32)| {
            let token = if is_right(position, accept) { *token } else { token.checked_sub(1).unwrap_or(1) };
            Drafted { token, probability: accept as f32 }
        };
        (from..).zip(known).take(count).map(guess).collect()
    }
}

/// Chance, the same in every run.
fn is_right(position: usize, accept: f64) -> bool {
    let mixed = (position as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed >> 40) as f64 / (1_u64 << 24) as f64) < accept
}

/// Measures what the arguments ask for. `plan` makes a plan for each of the two services.
pub(super) fn measure(plan: impl Fn() -> Result<Plan>, arguments: &BenchArgs, accept: f64) -> Result<Report> {
    ensure!((0.0..=1.0).contains(&accept), "--draft-accept is {accept}, it must be from 0 to 1");
    let [mut plain, mut drafted] = [plan()?, plan()?];
    let most = drafted.drafts.most;
    ensure!(most > 0, "--draft-accept needs drafts: --draft-max is 0, or --draft is none");
    plain.drafts = DraftSettings::NONE;
    drafted.drafts = DraftSettings { lookup: false, proposals: most, ..drafted.drafts };
    let threads = plain.placement.stages.iter().map(|stage| stage.threads).sum();
    let (model, shards) = (plain.names[0].clone(), plain.placement.stages.len());
    let script = Arc::new(Mutex::new(Script::default()));
    let drafter = Scripted { script: Arc::clone(&script), accept };
    let (plain, drafted) = (row::load(plain)?, row::load(drafted)?.with_drafter(Box::new(drafter))?);
    let mut kinds: Vec<Kind> = arguments.depth.iter().map(|depth| Kind { depth: *depth, ..Kind::default() }).collect();
    row::system()?.block_on(async {
        let [plain, drafted] = [plain.start()?, drafted.start()?];
        let engines = [&plain.engine, &drafted.engine];
        let measured = rounds(engines, &script, &mut kinds, arguments).await;
        plain.stop().await;
        drafted.stop().await;
        measured
    })?;
    let decode = kinds.into_iter().map(Kind::figures).collect();
    Ok(Report { model, threads, shards, accept, most, decode })
}

async fn rounds(
    [plain, drafted]: [&Engine; 2],
    script: &Mutex<Script>,
    kinds: &mut [Kind],
    arguments: &BenchArgs,
) -> Result<()> {
    http::warm_up(plain).await?;
    http::warm_up(drafted).await?;
    for round in 0..arguments.repeat {
        for (index, kind) in kinds.iter_mut().enumerate() {
            let prompt = prompt(plain, kind.depth, round * arguments.depth.len() + index);
            let known = answer(plain, prompt.clone(), arguments.decode).await?;
            let told = Script { prompt: prompt.len(), answer: known.tokens.clone() };
            *script.lock().unwrap_or_else(PoisonError::into_inner) = told;
            let found = answer(drafted, prompt, arguments.decode).await?;
            ensure!(found.tokens == known.tokens, "an answer with drafts is another one than without: this is a fault");
            kind.add(&known, &found);
        }
    }
    Ok(())
}

impl Kind {
    fn add(&mut self, plain: &Answer, drafted: &Answer) {
        let [plain_rate, rate] = [plain, drafted].map(Answer::decode_rate);
        self.plain.push(plain_rate);
        self.drafted.push(rate);
        self.ratios.push(rate / plain_rate);
        self.drafts += drafted.finished.usage.drafts;
        self.accepted += drafted.finished.usage.accepted_drafts;
    }

    fn figures(self) -> Decode {
        let Self { depth, plain, drafted, ratios, drafts, accepted } = self;
        let (plain_tok_s, drafted_tok_s, ratio) = (Spread::of(plain), Spread::of(drafted), Spread::of(ratios));
        Decode { depth, plain_tok_s, drafted_tok_s, ratio, drafts, accepted }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, threads, shards, accept, most, decode } = self;
        writeln!(formatter, "{model}, {shards} shards, {threads} threads; drafts right with {accept}, {most} at most")?;
        for Decode { depth, plain_tok_s, drafted_tok_s, ratio, drafts, accepted } in decode {
            write!(formatter, "decode at {depth}: {ratio:.2} times plain")?;
            write!(formatter, " ({drafted_tok_s:.1} tokens/s against {plain_tok_s:.1})")?;
            writeln!(formatter, ", {accepted} of {drafts} drafts accepted")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_right_as_often_as_it_is_told() {
        let script = Script { prompt: 10, answer: (100..1100).collect() };
        for (accept, least, most) in [(0.0, 0, 0), (0.8, 760, 840), (1.0, 1000, 1000)] {
            let guesses = script.guesses(10, 2000, accept);
            assert_eq!(guesses.len(), 1000, "nothing is known behind the answer");
            let right = guesses.iter().zip(&script.answer).filter(|(guess, token)| guess.token == **token).count();
            assert!((least..=most).contains(&right), "{right} of 1000 are right at {accept}");
        }
        let tokens = |guesses: Vec<Drafted>| guesses.into_iter().map(|guess| guess.token).collect::<Vec<_>>();
        assert_eq!(tokens(script.guesses(12, 3, 1.0)), [102, 103, 104]);
        assert_eq!(tokens(script.guesses(9, 3, 1.0)), [] as [u32; 0], "the prompt is not guessed at");
        assert_eq!(tokens(script.guesses(1009, 3, 1.0)), [1099]);
    }
}
