//! Prefill and decode as users get them: through the whole service but HTTP.
//!
//! Prefill is set against the multiplications that its tokens need at the rate of the integer dot product, decode
//! against the bytes that its tokens must read at the rate of memory.

use std::fmt;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use paceline_compute::cpu::CpuDevice;
use paceline_coordinator::{Engine, Finished, Generate, Update};
use paceline_gguf::{KvType, Layer, ModelShape};
use paceline_proto::SamplingSettings;
use serde::Serialize;

use super::roofs::{Measured, Roofs};
use super::samples::Spread;
use crate::cli::BenchArgs;
use crate::http;
use crate::row::{self, Plan};

/// The figures of one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    threads: usize,
    shards: usize,
    roofs: Measured,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
}

/// How fast a prompt is read.
#[derive(Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tok_s: f64,
    /// Tokens per second if multiplying were all there is to do.
    roof: f64,
    of_roof: f64,
    spread: Spread,
}

/// How fast tokens are generated, by all sessions together.
#[derive(Debug, Serialize)]
struct Decode {
    depth: usize,
    sessions: usize,
    tok_s: f64,
    /// Tokens per second if reading memory were all there is to do.
    roof: f64,
    of_roof: f64,
    spread: Spread,
}

/// What the roofs are made of.
struct Work {
    shape: ModelShape,
    key_type: KvType,
    value_type: KvType,
}

/// One kind of measurement and its rates so far.
struct Kind {
    prompt: usize,
    sessions: usize,
    /// Tokens to generate; one belongs to prefill.
    tokens: usize,
    rates: Vec<f64>,
}

/// Measures what the arguments ask for.
pub(super) fn measure(plan: Plan, arguments: &BenchArgs) -> Result<Report> {
    let threads = plan.placement.stages.iter().map(|stage| stage.threads).sum();
    let (model, shards) = (plan.names[0].clone(), plan.placement.stages.len());
    let (key_type, value_type) = (plan.memory.key_type, plan.memory.value_type);
    let work = Work { shape: ModelShape::read(&plan.model)?, key_type, value_type };
    // Not pinned: its first thread is this one, where the actors live.
    let isa = plan.isa.map(row::kernels);
    let mut roofs = match &plan.gpu {
        Some(gpu) => Roofs::of_gpu(gpu),
        None => Roofs::new(&CpuDevice::new(threads, isa)?, isa)?,
    };
    let loaded = row::load(plan)?;
    let mut kinds = kinds(arguments);
    row::system()?.block_on(async {
        let running = loaded.start()?;
        let measured = rounds(&running.engine, &mut kinds, &mut roofs, arguments.repeat).await;
        running.stop().await;
        measured
    })?;
    let roofs = roofs.measured();
    let (prefill, decode): (Vec<Kind>, Vec<Kind>) = kinds.into_iter().partition(Kind::is_prefill);
    Ok(Report {
        model,
        threads,
        shards,
        roofs,
        prefill: prefill.into_iter().map(|kind| kind.prefill(&work, &roofs)).collect(),
        decode: decode.into_iter().map(|kind| kind.decode(&work, &roofs)).collect(),
    })
}

fn kinds(arguments: &BenchArgs) -> Vec<Kind> {
    let prefill = arguments.prefill.iter().map(|prompt| (*prompt, 1, 1));
    let with_users = |depth: usize| arguments.users.iter().map(move |users| (depth, *users, arguments.decode));
    let decode = arguments.depth.iter().flat_map(|depth| with_users(*depth));
    let kind = |(prompt, sessions, tokens)| Kind { prompt, sessions, tokens, rates: Vec::new() };
    prefill.chain(decode).map(kind).collect()
}

async fn rounds(engine: &Engine, kinds: &mut [Kind], roofs: &mut Roofs, repeat: usize) -> Result<()> {
    http::warm_up(engine).await?;
    // No prompt comes twice, or begins like another: it would be found in the cache.
    let mut prompts = 0;
    for _ in 0..repeat {
        roofs.sample()?;
        for kind in kinds.iter_mut() {
            let finished = answers(engine, kind, prompts).await?;
            prompts += kind.sessions;
            kind.rates.push(kind.rate(&finished));
        }
    }
    Ok(())
}

impl Kind {
    fn is_prefill(&self) -> bool {
        self.tokens == 1
    }

    /// Tokens per second of all sessions together, over the time of the slowest.
    fn rate(&self, finished: &[Finished]) -> f64 {
        if self.is_prefill() {
            return self.prompt as f64 / finished[0].timings.prefill.as_secs_f64();
        }
        let slowest = finished.iter().map(|one| one.timings.decode).max().unwrap_or(Duration::ZERO);
        (finished.len() * (self.tokens - 1)) as f64 / slowest.as_secs_f64()
    }

    fn prefill(self, work: &Work, roofs: &Measured) -> Prefill {
        let (spread, roof) = (Spread::of(self.rates), roofs.dot.best / work.multiplications_per_token());
        let tok_s = spread.median;
        Prefill { tokens: self.prompt, tok_s, roof, of_roof: tok_s / roof, spread }
    }

    fn decode(self, work: &Work, roofs: &Measured) -> Decode {
        let Self { prompt: depth, sessions, rates, .. } = self;
        // The middle of the measured tokens.
        let bytes = work.bytes_per_step(depth + self.tokens / 2, sessions);
        let (spread, roof) = (Spread::of(rates), sessions as f64 * roofs.read.best / bytes);
        let tok_s = spread.median;
        Decode { depth, sessions, tok_s, roof, of_roof: tok_s / roof, spread }
    }
}

impl Work {
    /// Products of the layers; the head multiplies only the last token of a prompt.
    fn multiplications_per_token(&self) -> f64 {
        self.shape.layers.iter().map(|layer| layer.active().parameters as f64).sum()
    }

    /// Weights once, states (read and written), keys and values of every session.
    fn bytes_per_step(&self, depth: usize, sessions: usize) -> f64 {
        let layers = 0..self.shape.layers.len();
        let states = 2 * self.shape.state_bytes(layers.clone());
        let per_token = self.shape.key_value_bytes_per_token(layers, self.key_type, self.value_type);
        let memories = (sessions as u64 * (states + per_token * depth as u64)) as f64;
        self.weights_per_step(sessions) + self.shape.head().bytes as f64 + memories
    }

    /// Of the layers. Sessions that choose their experts independently share some of them.
    fn weights_per_step(&self, sessions: usize) -> f64 {
        let weights = |layer: &Layer| {
            let Some(experts) = layer.experts else { return layer.weights.bytes as f64 };
            let unused = (1.0 - experts.used as f64 / experts.count as f64).powf(sessions as f64);
            layer.weights.bytes as f64 - experts.weights.bytes as f64 * unused
        };
        self.shape.layers.iter().map(weights).sum()
    }
}

/// What was said, and how long it took.
pub(super) struct Answer {
    pub(super) tokens: Vec<u32>,
    pub(super) finished: Finished,
}

impl Answer {
    /// Tokens per second behind the first one, which belongs to prefill.
    pub(super) fn decode_rate(&self) -> f64 {
        (self.tokens.len() - 1) as f64 / self.finished.timings.decode.as_secs_f64()
    }
}

/// Runs the answers of one measurement at once; the first has the prompt of this number.
async fn answers(engine: &Engine, kind: &Kind, first: usize) -> Result<Vec<Finished>> {
    let tasks: Vec<_> = (0..kind.sessions)
        .map(|session| {
            let prompt = prompt(engine, kind.prompt, first + session);
            let (engine, tokens) = (engine.clone(), kind.tokens);
            tokio::spawn(async move { answer(&engine, prompt, tokens).await })
        })
        .collect();
    let mut finished = Vec::new();
    for task in tasks {
        finished.push(task.await.context("a measurement was lost")??.finished);
    }
    Ok(finished)
}

/// Tokens without meaning, different for every prompt.
pub(super) fn prompt(engine: &Engine, tokens: usize, number: usize) -> Vec<u32> {
    let vocabulary = engine.model().vocabulary as u64;
    let token = |index: usize| ((index + 1) as u64 * 2_654_435_761 + number as u64 * 40_503) % vocabulary;
    (0..tokens.max(1)).map(|index| u32::try_from(token(index)).expect("below the vocabulary's size")).collect()
}

/// So many tokens behind a prompt, and how long they took.
pub(super) async fn answer(engine: &Engine, prompt: Vec<u32>, tokens: usize) -> Result<Answer> {
    let request = Generate {
        prompt,
        boundaries: Vec::new(),
        max_tokens: Some(tokens),
        stop: Vec::new(),
        sampling: SamplingSettings::default(),
        ignore_end: true,
        show_special: false,
    };
    let mut generation = engine.generate(request).await?;
    let mut tokens = Vec::new();
    while let Some(update) = generation.updates.recv().await {
        match update {
            Update::Token(token) => tokens.push(token.token),
            Update::Finished(finished) => return Ok(Answer { tokens, finished }),
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("an answer ended without an end")
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, threads, shards, roofs, prefill, decode } = self;
        writeln!(formatter, "{model}, {shards} shards, {threads} threads; {roofs}")?;
        for Prefill { tokens, roof, of_roof, spread, .. } in prefill {
            write!(formatter, "prefill of {tokens}: {spread:.1} tokens/s")?;
            writeln!(formatter, ", {:.0}% of the roof {roof:.0}", of_roof * 100.0)?;
        }
        for Decode { depth, sessions, roof, of_roof, spread, .. } in decode {
            write!(formatter, "decode at {depth}, {sessions} sessions: {spread:.1} tokens/s")?;
            writeln!(formatter, ", {:.0}% of the roof {roof:.1}", of_roof * 100.0)?;
        }
        Ok(())
    }
}
