//! `paceline bench --tune`: which number of threads and which prefill chunk are best here for this model.

use std::fmt;
use std::sync::Arc;

use anyhow::{Result, ensure};
use paceline_compute::cpu::CpuDevice;
use paceline_gguf::Gguf;
use serde::Serialize;

use super::samples::Spread;
use super::step::{Direct, Step, Wanted};
use crate::cli::BenchArgs;
use crate::row::{self, Plan};
use crate::{host, layout};

/// Rows of a prompt in one step that are tried.
const CHUNKS: [usize; 5] = [64, 128, 256, 512, 1024];
/// Rows that a slice of each runs at least once over.
const SLICE_ROWS: usize = 512;
/// The most numbers of threads that are tried; each loads the model once.
const MOST_COUNTS: usize = 8;
/// A smaller chunk this near to the best is better: others wait less for it.
const NEARLY: f64 = 0.97;

/// The figures of one run, and the best of them.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    model: String,
    decode: Vec<Decode>,
    prefill: Vec<Prefill>,
    best: Best,
}

/// Decode of one session.
#[derive(Debug, Serialize)]
struct Decode {
    threads: usize,
    tok_s: Spread,
}

/// Prefill in chunks of one size.
#[derive(Debug, Serialize)]
struct Prefill {
    threads: usize,
    chunk: usize,
    tok_s: Spread,
}

/// What to choose.
#[derive(Debug, Serialize)]
struct Best {
    threads: usize,
    prefill_chunk: usize,
}

/// The model with one number of threads, and all that is measured with it.
struct Trial {
    threads: usize,
    direct: Direct,
    decode: Kind,
    prefill: Vec<Kind>,
}

/// One kind of step and its rates so far, in tokens per second.
struct Kind {
    step: Step,
    /// Runs of the step in one slice.
    runs: usize,
    rates: Vec<f64>,
}

/// Tries what `--threads` leaves open.
pub(super) fn tune(gguf: &Arc<Gguf>, arguments: &BenchArgs) -> Result<Report> {
    let mut plan = plan(gguf, arguments)?;
    let counts = arguments.layout.threads.map_or_else(|| thread_counts(host::cores()), |threads| vec![threads]);
    check_memory(&plan, counts.len())?;
    // All devices before any runs: the first step pins this thread.
    let mut devices = Vec::new();
    for threads in counts {
        plan.placement.stages[0].threads = threads;
        devices.push((threads, row::device(&plan, 0)?));
    }
    let mut trials = Vec::new();
    for (threads, device) in devices {
        trials.push(Trial::load(&plan, threads, &device, arguments)?);
    }
    for _ in 0..arguments.repeat {
        for trial in &mut trials {
            trial.slice()?;
        }
    }
    Ok(Report::of(plan.names[0].clone(), trials))
}

/// A plan for the largest chunk.
fn plan(gguf: &Arc<Gguf>, arguments: &BenchArgs) -> Result<Plan> {
    let (mut wanted, mut compute) = (arguments.layout.clone(), arguments.compute.clone());
    compute.prefill_chunk = CHUNKS[CHUNKS.len() - 1];
    wanted.sessions = 1;
    wanted.ctx = Some(compute.prefill_chunk.max(depth(arguments).saturating_add(1)));
    layout::plan(gguf, &arguments.model, &wanted, Some(&compute))
}

/// Tokens before those that are decoded.
fn depth(arguments: &BenchArgs) -> usize {
    arguments.depth.first().copied().unwrap_or(0)
}

/// Evenly spread up to all cores.
fn thread_counts(cores: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = (1..=MOST_COUNTS).map(|part| (cores * part).div_ceil(MOST_COUNTS)).collect();
    counts.dedup();
    counts
}

/// All trials are in memory at once, so that they can take turns.
fn check_memory(plan: &Plan, trials: usize) -> Result<()> {
    let one: u64 = plan.placement.stages.iter().map(|stage| stage.memory.total()).sum();
    let free = host::available_memory().unwrap_or(u64::MAX);
    let needed = one.saturating_mul(trials as u64);
    ensure!(
        needed <= free,
        "trying {trials} numbers of threads needs {:.1} GiB, {:.1} GiB are free: give --threads to tune the chunk only",
        gibibytes(needed),
        gibibytes(free)
    );
    Ok(())
}

fn gibibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}

impl Trial {
    fn load(plan: &Plan, threads: usize, device: &CpuDevice, arguments: &BenchArgs) -> Result<Self> {
        let direct = Direct::load(plan, device)?;
        let kind = |step, runs| Kind { step, runs, rates: Vec::new() };
        // The middle of each chunk lies at the same depth, so that none has more to attend to than another.
        let middle = CHUNKS[CHUNKS.len() - 1] / 2;
        let chunk =
            |rows: usize| kind(direct.step(1, middle - rows / 2, rows, Wanted::Last), SLICE_ROWS.div_ceil(rows));
        let prefill = CHUNKS.into_iter().map(chunk).collect();
        let decode = kind(direct.step(1, depth(arguments), 1, Wanted::Last), arguments.decode);
        Ok(Self { threads, direct, decode, prefill })
    }

    fn slice(&mut self) -> Result<()> {
        for kind in [&mut self.decode].into_iter().chain(&mut self.prefill) {
            kind.step.run(self.direct.stage.as_mut())?;
            for _ in 0..kind.runs {
                let time = kind.step.run(self.direct.stage.as_mut())?;
                kind.rates.push(kind.step.rows as f64 / time.as_secs_f64());
            }
        }
        Ok(())
    }
}

impl Report {
    fn of(model: String, trials: Vec<Trial>) -> Self {
        let (mut decode, mut prefill) = (Vec::new(), Vec::new());
        for Trial { threads, decode: one, prefill: chunks, .. } in trials {
            decode.push(Decode { threads, tok_s: Spread::of(one.rates) });
            for kind in chunks {
                prefill.push(Prefill { threads, chunk: kind.step.rows, tok_s: Spread::of(kind.rates) });
            }
        }
        let best = best(&decode, &prefill);
        Self { model, decode, prefill, best }
    }
}

/// The threads that decode fastest, and the smallest chunk that is nearly the fastest with them.
fn best(decode: &[Decode], prefill: &[Prefill]) -> Best {
    let fastest = decode.iter().max_by(|one, other| one.tok_s.median.total_cmp(&other.tok_s.median));
    let threads = fastest.map_or(1, |fastest| fastest.threads);
    let with_threads = || prefill.iter().filter(|chunk| chunk.threads == threads);
    let rate = with_threads().map(|chunk| chunk.tok_s.median).fold(0.0, f64::max);
    let nearly = with_threads().filter(|chunk| chunk.tok_s.median >= NEARLY * rate).map(|chunk| chunk.chunk);
    Best { threads, prefill_chunk: nearly.min().unwrap_or(SLICE_ROWS) }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, decode, prefill, best } = self;
        writeln!(formatter, "{model}")?;
        for Decode { threads, tok_s } in decode {
            writeln!(formatter, "{threads} threads: decode {tok_s:.1} tokens/s")?;
            for Prefill { chunk, tok_s, .. } in prefill.iter().filter(|chunk| chunk.threads == *threads) {
                writeln!(formatter, "  chunks of {chunk}: prefill {tok_s:.1} tokens/s")?;
            }
        }
        writeln!(formatter, "best: --threads {} --prefill-chunk {}", best.threads, best.prefill_chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_threads_end_with_all_cores() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(2), [1, 2]);
        assert_eq!(thread_counts(16), [2, 4, 6, 8, 10, 12, 14, 16]);
    }

    #[test]
    fn of_chunks_that_are_nearly_as_fast_the_smallest_is_best() {
        let spread = |median| Spread { low: median, median, high: median };
        let decode = [(1, 10.0), (2, 15.0)].map(|(threads, rate)| Decode { threads, tok_s: spread(rate) });
        let prefill = [(1, 64, 500.0), (2, 64, 90.0), (2, 128, 98.0), (2, 256, 100.0)]
            .map(|(threads, chunk, rate)| Prefill { threads, chunk, tok_s: spread(rate) });
        let Best { threads, prefill_chunk } = best(&decode, &prefill);
        assert_eq!((threads, prefill_chunk), (2, 128));
    }
}
