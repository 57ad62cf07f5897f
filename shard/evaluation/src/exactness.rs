//! The exactness promise as a check: one text, run in many ways, gives the same bits.
//!
//! A [`Way`] is one choice of everything that must not matter. [`Ways`] gives all of them, or few that contain every
//! pair of choices. [`logits`] runs a text in a way; whoever compares does it with `==` on bits.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use paceline_compute::Device;
use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_gguf::{Gguf, KvType, ModelShape};
use paceline_model::Overrides;

use crate::model_run::{Chunk, Layout, ModelRun};
use crate::{Error, Result};

/// Sessions that run beside the one that is looked at, when it has company.
const OTHERS: u32 = 7;
/// Wrong drafts behind every chunk, and right ones that are its last rows, of a way that speculates.
const WRONG: usize = 3;
const RIGHT: usize = 4;
/// Tokens that are generated after the text.
pub const GENERATED: usize = 8;

/// One way to run a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// Stages.
    pub shards: usize,
    /// The most tokens of the text in one step.
    pub chunk: usize,
    /// Threads of every stage.
    pub threads: usize,
    /// Kernels.
    pub isa: Isa,
    /// Whether seven other busy sessions are in every step.
    pub company: bool,
    /// Whether the last tokens of every chunk are drafts that are accepted, with others behind them that are rejected.
    pub drafts: bool,
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { shards, chunk, threads, isa, company, drafts } = self;
        let company = if *company { "busy" } else { "alone" };
        let drafts = if *drafts { ", with drafts" } else { "" };
        write!(f, "{shards} shards, chunks of {chunk}, {threads} threads, {isa}, {company}{drafts}")
    }
}

/// The first place at which two runs of a text differ.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// The row: the index of its token in the text, or behind it among the generated ones.
    pub row: usize,
    /// The logit of this token.
    pub logit: usize,
    /// In the reference.
    pub expected: f32,
    /// In the other run.
    pub found: f32,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { row, logit, expected, found } = self;
        write!(f, "after token {row} the logit of token {logit} is {found:?} instead of {expected:?}")
    }
}

/// The first logit whose bits differ, if any does. Both runs are of the same text.
pub fn first_difference(reference: &[Vec<u32>], other: &[Vec<u32>]) -> Option<Difference> {
    for (row, (one, two)) in reference.iter().zip(other).enumerate() {
        if let Some(logit) = one.iter().zip(two).position(|(one, two)| one != two) {
            let [expected, found] = [one[logit], two[logit]].map(f32::from_bits);
            return Some(Difference { row, logit, expected, found });
        }
    }
    None
}

/// What must not matter.
#[derive(Debug, Clone)]
pub struct Ways {
    /// Numbers of stages; the model needs as many blocks.
    pub shards: Vec<usize>,
    /// Chunk sizes.
    pub chunks: Vec<usize>,
    /// Numbers of threads.
    pub threads: Vec<usize>,
    /// Kernel sets; those that this machine lacks are left out.
    pub isas: Vec<Isa>,
}

impl Ways {
    /// One, two and four stages; chunks of 1, 7, 64 and 512; one and two threads; every kernel set of this machine.
    pub fn usual() -> Ways {
        let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect();
        Ways { shards: vec![1, 2, 4], chunks: vec![1, 7, 64, 512], threads: vec![1, 2], isas }
    }

    /// Every combination.
    pub fn all(&self) -> Vec<Way> {
        let mut ways = Vec::new();
        for &shards in &self.shards {
            for &chunk in &self.chunks {
                for &threads in &self.threads {
                    for &isa in &self.isas {
                        for drafts in [false, true] {
                            let way = |company| Way { shards, chunk, threads, isa, company, drafts };
                            ways.extend([false, true].map(way));
                        }
                    }
                }
            }
        }
        ways
    }

    /// Combinations that together contain every pair of choices: again and again the one with most new pairs.
    pub fn pairs(&self) -> Vec<Way> {
        let all = self.all();
        let mut missing: Vec<_> = all.iter().flat_map(Way::pairs).collect();
        missing.sort_unstable();
        missing.dedup();
        let mut chosen = Vec::new();
        while !missing.is_empty() {
            let news = |way: &Way| way.pairs().iter().filter(|pair| missing.contains(pair)).count();
            let best = *all.iter().max_by_key(|way| news(way)).expect("there are ways");
            let covered = best.pairs();
            missing.retain(|pair| !covered.contains(pair));
            chosen.push(best);
        }
        chosen
    }
}

impl Way {
    /// Every two choices of this way: which two, and what was chosen.
    fn pairs(&self) -> Vec<[(usize, usize); 2]> {
        let isa = Isa::ALL.iter().position(|isa| *isa == self.isa).expect("every kernel set is in the list");
        let choices = [self.shards, self.chunk, self.threads, isa, usize::from(self.company), usize::from(self.drafts)];
        let mut pairs = Vec::new();
        for second in 1..choices.len() {
            pairs.extend((0..second).map(|first| [(first, choices[first]), (second, choices[second])]));
        }
        pairs
    }
}

/// Cuts the model's blocks into `shards` stages as evenly as they go.
///
/// # Errors
/// A model with fewer blocks.
pub fn splits(model: &Gguf, shards: usize) -> Result<Vec<Range<usize>>> {
    let blocks = ModelShape::read(model)?.blocks();
    if blocks.len() < shards {
        return Err(Error::TooFewBlocks { blocks: blocks.len(), stages: shards });
    }
    let first = |stage: usize| stage * blocks.len() / shards;
    Ok((0..shards).map(|stage| blocks[first(stage)].start..blocks[first(stage + 1) - 1].end).collect())
}

/// What is run: the same in all ways.
#[derive(Clone)]
pub struct Subject {
    /// The model.
    pub model: Arc<Gguf>,
    /// What is changed of its settings.
    pub overrides: Overrides,
    /// The text.
    pub text: Vec<u32>,
    /// How keys and values are stored.
    pub key_value_types: [KvType; 2],
}

/// Runs the text in a way, then generates some tokens greedily; the bits of the logits of every row.
///
/// # Errors
/// A model that cannot be run so.
pub fn logits(subject: &Subject, way: Way) -> Result<Vec<Vec<u32>>> {
    logits_with(subject, way, None)
}

/// The same, with every second stage from the first on on another device.
///
/// # Errors
/// As [`logits`].
pub fn logits_with(subject: &Subject, way: Way, other: Option<&dyn Device>) -> Result<Vec<Vec<u32>>> {
    let Subject { model, overrides, text, key_value_types } = subject;
    let own = CpuDevice::new(way.threads, Some(way.isa))?;
    let devices: Vec<&dyn Device> = other.into_iter().chain([&own as &dyn Device]).collect();
    let rows = way.chunk.min(text.len()) + WRONG + 8 * OTHERS as usize;
    let layout = Layout {
        splits: splits(model, way.shards)?,
        key_value_types: *key_value_types,
        page_tokens: 16,
        context: text.len() + GENERATED + WRONG,
        sessions: 1 + OTHERS as usize,
        rows,
        wanted: rows,
        uncertain: RIGHT + WRONG,
        overrides: overrides.clone(),
    };
    let mut run = ModelRun::on(&devices, model, layout)?;
    let vocabulary = ModelShape::read(model)?.vocabulary;
    let mut company = way.company.then(|| Company::new(text, vocabulary));
    let mut rows: Vec<Vec<u32>> = Vec::new();
    let mut next = Vec::new();
    for tokens in text.chunks(way.chunk) {
        next = step(&mut run, tokens, way.drafts, company.as_mut(), &mut rows)?;
    }
    for _ in 0..GENERATED {
        let token = argmax(&next);
        next = step(&mut run, &[token], way.drafts, company.as_mut(), &mut rows)?;
    }
    Ok(rows)
}

/// Runs tokens of the session that is looked at, among the others if there are any; keeps the bits of its rows and
/// returns the last of them.
fn step(
    run: &mut ModelRun,
    tokens: &[u32],
    drafts: bool,
    company: Option<&mut Company>,
    kept: &mut Vec<Vec<u32>>,
) -> Result<Vec<f32>> {
    let mut chunks = company.map(|company| company.chunks(run)).transpose()?.unwrap_or_default();
    // In the middle, so that rows of others come before and behind.
    let place = chunks.len() / 2;
    let before: usize = chunks[..place].iter().map(|chunk| chunk.tokens.len()).sum();
    chunks.insert(place, if drafts { speculative(tokens) } else { Chunk::text(0, tokens) });
    let rows = run.step_wanting(&chunks, before..before + tokens.len())?;
    if drafts {
        run.reject(0, WRONG)?;
    }
    kept.extend(rows.iter().map(|row| row.iter().copied().map(f32::to_bits).collect()));
    Ok(rows.into_iter().next_back().unwrap_or_default())
}

/// Tokens of which the last are uncertain, with wrong ones behind them.
fn speculative(tokens: &[u32]) -> Chunk {
    // Any token of the text is one that the model has.
    let wrong = tokens.iter().cycle().take(WRONG);
    let right = RIGHT.min(tokens.len() - 1);
    let tokens: Vec<u32> = tokens.iter().chain(wrong).copied().collect();
    Chunk { uncertain: right + WRONG, ..Chunk::text(0, &tokens) }
}

/// Seven sessions that read and write all the time.
struct Company {
    limit: usize,
    vocabulary: usize,
    steps: usize,
    tokens: [usize; OTHERS as usize],
}

impl Company {
    fn new(text: &[u32], vocabulary: usize) -> Company {
        Company { limit: text.len() + GENERATED, vocabulary, steps: 0, tokens: [0; OTHERS as usize] }
    }

    /// What they run in the next step: one to eight tokens each. Who has reached the limit begins again.
    fn chunks(&mut self, run: &mut ModelRun) -> Result<Vec<Chunk>> {
        self.steps += 1;
        let mut chunks = Vec::new();
        for (session, tokens) in (1..).zip(&mut self.tokens) {
            let count = 1 + (self.steps * 5 + session as usize * 3) % 8;
            if *tokens + count > self.limit {
                run.end(session)?;
                *tokens = 0;
            }
            let count = count.min(self.limit);
            let token = |index: usize| ((*tokens + index) * 31 + session as usize * 17) % self.vocabulary;
            let list: Vec<u32> = (0..count).map(|index| token(index) as u32).collect();
            *tokens += count;
            chunks.push(Chunk::text(session, &list));
        }
        Ok(chunks)
    }
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|(at, a), (other, b)| a.total_cmp(b).then(other.cmp(at)));
    best.map_or(0, |(index, _)| index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_found() {
        let reference = vec![vec![1, 2, 3], vec![4, 5, 6]];
        assert_eq!(first_difference(&reference, &reference), None);
        let mut other = reference.clone();
        other[1][2] = 7;
        let difference = first_difference(&reference, &other).unwrap();
        assert_eq!((difference.row, difference.logit), (1, 2));
        // Bits count, not values: the two zeros differ, and a NaN equals itself.
        let zeros = [0.0f32, -0.0].map(|zero| vec![vec![zero.to_bits()]]);
        assert!(first_difference(&zeros[0], &zeros[1]).is_some());
        let nan = vec![vec![f32::NAN.to_bits()]];
        assert_eq!(first_difference(&nan, &nan), None);
    }
}
