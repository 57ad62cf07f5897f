//! The exactness promise as a check: one text, run in many ways, gives the same bits.
//!
//! A [`Way`] is one choice of everything that must not matter. [`Ways`] gives all of them, or few that contain every
//! pair of choices. [`logits`] runs a text in a way; whoever compares does it with `==` on bits.

use std::ops::Range;
use std::sync::Arc;

use paceline_compute::cpu::CpuDevice;
use paceline_compute::cpu::simd::Isa;
use paceline_gguf::{Gguf, KvType, ModelShape};

use crate::model_run::{Chunk, Layout, ModelRun};

/// Sessions that run beside the one that is looked at, when it has company.
const OTHERS: u32 = 7;
/// Tokens that are generated after the text.
const GENERATED: usize = 8;

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
                        ways.extend([false, true].map(|company| Way { shards, chunk, threads, isa, company }));
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
        let choices = [self.shards, self.chunk, self.threads, isa, usize::from(self.company)];
        let mut pairs = Vec::new();
        for second in 1..choices.len() {
            pairs.extend((0..second).map(|first| [(first, choices[first]), (second, choices[second])]));
        }
        pairs
    }
}

/// Cuts the model's blocks into `shards` stages as evenly as they go.
///
/// # Panics
/// If the model has fewer blocks.
pub fn splits(model: &Gguf, shards: usize) -> Vec<Range<usize>> {
    let blocks = ModelShape::read(model).expect("the model's shape").blocks();
    assert!(blocks.len() >= shards, "{} blocks cannot be cut into {shards} stages", blocks.len());
    let first = |stage: usize| stage * blocks.len() / shards;
    (0..shards).map(|stage| blocks[first(stage)].start..blocks[first(stage + 1) - 1].end).collect()
}

/// Runs the text in a way, then generates some tokens greedily; the bits of the logits of every row.
///
/// # Panics
/// If the model cannot be run so.
pub fn logits(model: &Arc<Gguf>, text: &[u32], way: Way, key_value_type: KvType) -> Vec<Vec<u32>> {
    let device = CpuDevice::new(way.threads, Some(way.isa)).expect("the kernels are available");
    let layout = Layout {
        splits: splits(model, way.shards),
        key_value_type,
        page_tokens: 16,
        context: text.len() + GENERATED,
        sessions: 1 + OTHERS as usize,
        rows: way.chunk.min(text.len()) + 8 * OTHERS as usize,
    };
    let mut run = ModelRun::new(&device, model, layout);
    let vocabulary = ModelShape::read(model).expect("the model's shape").vocabulary;
    let mut company = way.company.then(|| Company::new(text, vocabulary));
    let mut rows: Vec<Vec<f32>> = Vec::new();
    for tokens in text.chunks(way.chunk) {
        rows.extend(step(&mut run, tokens, company.as_mut()));
    }
    for _ in 0..GENERATED {
        let next = argmax(rows.last().expect("the text has tokens"));
        rows.extend(step(&mut run, &[next], company.as_mut()));
    }
    rows.iter().map(|row| row.iter().copied().map(f32::to_bits).collect()).collect()
}

/// Runs tokens of the session that is looked at, among the others if there are any; its rows.
fn step(run: &mut ModelRun, tokens: &[u32], company: Option<&mut Company>) -> Vec<Vec<f32>> {
    let own = Chunk::text(0, tokens);
    let Some(company) = company else { return run.step(&[own]) };
    let mut chunks = company.chunks(run);
    // In the middle, so that rows of others come before and behind.
    let place = chunks.len() / 2;
    let before: usize = chunks[..place].iter().map(|chunk| chunk.tokens.len()).sum();
    chunks.insert(place, own);
    run.step(&chunks).split_off(before).into_iter().take(tokens.len()).collect()
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
    fn chunks(&mut self, run: &mut ModelRun) -> Vec<Chunk> {
        self.steps += 1;
        let mut chunks = Vec::new();
        for (session, tokens) in (1..).zip(&mut self.tokens) {
            let count = 1 + (self.steps * 5 + session as usize * 3) % 8;
            if *tokens + count > self.limit {
                run.end(session);
                *tokens = 0;
            }
            let count = count.min(self.limit);
            let token = |index: usize| ((*tokens + index) * 31 + session as usize * 17) % self.vocabulary;
            let list: Vec<u32> = (0..count).map(|index| token(index) as u32).collect();
            *tokens += count;
            chunks.push(Chunk::text(session, &list));
        }
        chunks
    }
}

fn argmax(row: &[f32]) -> u32 {
    let best = row.iter().enumerate().max_by(|(at, a), (other, b)| a.total_cmp(b).then(other.cmp(at)));
    best.expect("a row has values").0 as u32
}
