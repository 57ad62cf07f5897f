//! `paceline bench`: prefill and decode, measured through the whole service but HTTP.
//!
//! Decode is set against a roof: the bytes that a token must read, at the bandwidth with which this host's
//! threads read memory, measured in the same run.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use paceline_coordinator::{Engine, Finished, Generate, Update};
use paceline_gguf::{Gguf, ModelShape};
use paceline_proto::SamplingSettings;
use serde::Serialize;

use crate::cli::BenchArgs;
use crate::{layout, model, row, serve};

/// The figures of one run.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    threads: usize,
    shards: usize,
    /// Bytes per second that all threads together read.
    memory_bandwidth: f64,
    prefill: Vec<Prefill>,
    decode: Vec<Decode>,
}

/// How fast a prompt is read.
#[derive(Debug, Serialize)]
struct Prefill {
    tokens: usize,
    tok_s: f64,
}

/// How fast tokens are generated.
#[derive(Debug, Serialize)]
struct Decode {
    depth: usize,
    sessions: usize,
    tok_s: f64,
    /// Tokens per second of one session if reading memory were all there is to do.
    roof: f64,
}

/// What decode must read per step.
struct Roof {
    bandwidth: f64,
    weights: u64,
    states: u64,
    per_token: u64,
}

/// Measures what the arguments ask for and prints it.
pub(crate) fn bench(arguments: &BenchArgs) -> Result<()> {
    let gguf = model::open(&arguments.model)?;
    let mut wanted = arguments.layout.clone();
    let users = arguments.users.iter().copied().max().unwrap_or(1);
    wanted.sessions = users;
    wanted.ctx = Some(arguments.layout.ctx.unwrap_or_else(|| longest(arguments)));
    let mut plan = layout::plan(&gguf, &arguments.model, &wanted, Some(&arguments.compute))?;
    plan.progress = !arguments.json;
    let threads = plan.placement.stages.iter().map(|stage| stage.threads).sum();
    let (name, shards) = (plan.names[0].clone(), plan.placement.stages.len());
    let loaded = row::load(plan)?;
    let roof = Roof::measure(&gguf, arguments, threads)?;
    let (prefill, decode) = row::system()?.block_on(async {
        let running = loaded.start()?;
        let measured = measure(&running.engine, arguments, &roof).await;
        running.stop().await;
        measured
    })?;
    let report = Report { model: name, threads, shards, memory_bandwidth: roof.bandwidth, prefill, decode };
    print(&report, arguments.json)
}

/// The context that the longest measurement needs.
fn longest(arguments: &BenchArgs) -> usize {
    let prefill = arguments.prefill.iter().copied().max().unwrap_or(0) + 1;
    let decode = arguments.depth.iter().copied().max().unwrap_or(0) + arguments.decode + 1;
    prefill.max(decode)
}

async fn measure(engine: &Engine, arguments: &BenchArgs, roof: &Roof) -> Result<(Vec<Prefill>, Vec<Decode>)> {
    ensure!(arguments.repeat > 0, "--repeat must be at least 1");
    ensure!(arguments.decode > 1, "--decode must be at least 2: the first token belongs to prefill");
    serve::warm_up(engine).await?;
    let mut prefill = Vec::new();
    for &tokens in &arguments.prefill {
        let mut rates = Vec::new();
        for round in 0..arguments.repeat {
            let finished = answers(engine, 1, tokens, 1, round).await?;
            rates.push(tokens as f64 / finished[0].timings.prefill.as_secs_f64());
        }
        prefill.push(Prefill { tokens, tok_s: median(rates) });
    }
    let mut decode = Vec::new();
    for &depth in &arguments.depth {
        for &sessions in &arguments.users {
            let mut rates = Vec::new();
            for round in 0..arguments.repeat {
                let finished = answers(engine, sessions, depth, arguments.decode, round).await?;
                rates.push(together(&finished, arguments.decode));
            }
            decode.push(Decode { depth, sessions, tok_s: median(rates), roof: roof.tokens_per_second(depth) });
        }
    }
    Ok((prefill, decode))
}

/// Tokens per second of all sessions together, over the time of the slowest.
fn together(finished: &[Finished], tokens: usize) -> f64 {
    let slowest = finished.iter().map(|one| one.timings.decode).max().unwrap_or(Duration::ZERO);
    (finished.len() * (tokens - 1)) as f64 / slowest.as_secs_f64()
}

/// Runs `sessions` answers of `tokens` tokens to prompts of `depth` tokens at once.
async fn answers(engine: &Engine, sessions: usize, depth: usize, tokens: usize, round: usize) -> Result<Vec<Finished>> {
    let tasks: Vec<_> = (0..sessions)
        .map(|session| {
            let (engine, prompt) = (engine.clone(), prompt(engine, depth, round * sessions + session));
            tokio::spawn(async move { answer(&engine, prompt, tokens).await })
        })
        .collect();
    let mut finished = Vec::new();
    for task in tasks {
        finished.push(task.await.context("a measurement was lost")??);
    }
    Ok(finished)
}

/// Tokens without meaning, different for every prompt.
fn prompt(engine: &Engine, tokens: usize, number: usize) -> Vec<u32> {
    let vocabulary = engine.model().vocabulary as u64;
    let token = |index: usize| ((index + 1) as u64 * 2_654_435_761 + number as u64 * 40_503) % vocabulary;
    (0..tokens.max(1)).map(|index| u32::try_from(token(index)).expect("below the vocabulary's size")).collect()
}

async fn answer(engine: &Engine, prompt: Vec<u32>, tokens: usize) -> Result<Finished> {
    let request = Generate {
        prompt,
        max_tokens: Some(tokens),
        stop: Vec::new(),
        sampling: SamplingSettings::default(),
        ignore_end: true,
        show_special: false,
    };
    let mut generation = engine.generate(request).await?;
    while let Some(update) = generation.updates.recv().await {
        match update {
            Update::Token(_) => {}
            Update::Finished(finished) => return Ok(finished),
            Update::Failed(error) => return Err(error.into()),
        }
    }
    bail!("an answer ended without an end")
}

impl Roof {
    fn measure(gguf: &Gguf, arguments: &BenchArgs, threads: usize) -> Result<Self> {
        let shape = ModelShape::read(gguf)?;
        let layers = 0..shape.layers.len();
        let (key, value) = (arguments.layout.key_type(), arguments.layout.value_type());
        let active: u64 = shape.layers.iter().map(|layer| layer.active().bytes).sum();
        Ok(Self {
            bandwidth: read_bandwidth(threads)?,
            weights: active + shape.head().bytes,
            // Read and written once per token.
            states: 2 * shape.state_bytes(layers.clone()),
            per_token: shape.key_value_bytes_per_token(layers, key, value),
        })
    }

    /// For one session with `depth` tokens before.
    fn tokens_per_second(&self, depth: usize) -> f64 {
        let bytes = self.weights + self.states + self.per_token * depth as u64;
        self.bandwidth / bytes as f64
    }
}

/// Bytes per second with which `threads` threads together read memory that no cache holds: the best of some
/// rounds over 512 MiB.
fn read_bandwidth(threads: usize) -> Result<f64> {
    const BYTES: usize = 512 << 20;
    const ROUNDS: usize = 4;
    let words: Arc<Vec<u64>> = Arc::new((0..BYTES as u64 / 8).collect());
    let share = words.len().div_ceil(threads.max(1));
    let mut best = f64::MAX;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let sum: u64 = std::thread::scope(|scope| {
            let sums: Vec<_> = words.chunks(share).map(|part| scope.spawn(move || add_up(part))).collect();
            sums.into_iter().map(|thread| thread.join().unwrap_or(0)).fold(0, u64::wrapping_add)
        });
        ensure!(sum != 0, "a thread that measures memory died");
        best = best.min(begun.elapsed().as_secs_f64());
    }
    Ok(BYTES as f64 / best)
}

fn add_up(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| sum.wrapping_add(*word))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print(report: &Report, json: bool) -> Result<()> {
    use std::io::Write;
    let mut output = std::io::stdout();
    if json {
        serde_json::to_writer(&output, report)?;
        return Ok(writeln!(output)?);
    }
    let Report { model, threads, shards, memory_bandwidth, .. } = report;
    writeln!(output, "{model}, {shards} shards, {threads} threads, memory {:.1} GB/s", memory_bandwidth / 1e9)?;
    for Prefill { tokens, tok_s } in &report.prefill {
        writeln!(output, "prefill of {tokens} tokens: {tok_s:.1} tokens/s")?;
    }
    for Decode { depth, sessions, tok_s, roof } in &report.decode {
        writeln!(output, "decode at {depth}, {sessions} sessions: {tok_s:.1} tokens/s (roof of one: {roof:.1})")?;
    }
    Ok(())
}
