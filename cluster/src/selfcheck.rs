//! `paceline selfcheck`: runs one text in many ways that must not matter, and compares every bit of the logits.
//!
//! What must not matter: into how many stages the model is cut, in what chunks a prompt is read, with how many threads
//! and which kernels, what else is in the same steps, and with `--device` whether stages are on a GPU. For f16 every pair of choices is run, for each other type of
//! keys and values fewer, with `--full` every combination of all types. Each type is compared with its own first way.
//! Then answers from the cache are compared with cold ones (see [`warm`]), and answers with drafts with those without
//! (see [`drafts`]).

mod drafts;
mod service;
mod warm;

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use paceline_compute::Device;
use paceline_compute::cpu::simd::Isa;
use paceline_evaluation::exactness::{GENERATED, Subject, Way, Ways, first_difference, logits, logits_with};
use paceline_gguf::{KvType, ModelShape};
use paceline_text::{Special, Tokenizer};
use serde::Serialize;

use crate::bench::tell;
use crate::cli::{DraftArgs, DraftSource, SelfcheckArgs};
use crate::devices::Gpu;
use crate::eval::TEXT;
use crate::{host, model};

/// Stages into which models are cut, if they have as many blocks.
const SHARDS: [usize; 3] = [1, 2, 4];
/// The most tokens of the text in one step.
const CHUNKS: [usize; 3] = [1, 7, 64];

/// What came of all runs.
#[derive(Debug, Serialize)]
struct Report {
    model: String,
    /// Tokens of the text.
    tokens: usize,
    /// Tokens generated after it.
    generated: usize,
    types: Vec<Checked>,
    /// Answers from the cache.
    warm: Vec<warm::Warm>,
    /// Types whose answers from the cache time was too short for.
    warm_left_out: usize,
    /// Answers with drafts.
    drafted: Vec<drafts::Drafted>,
    /// Types whose answers with drafts time was too short for.
    drafted_left_out: usize,
    seconds: f64,
}

/// What came of the runs with one type of keys and values.
#[derive(Debug, Serialize)]
struct Checked {
    #[serde(rename = "type")]
    kind: String,
    /// Ways that were run, the one that the others are compared with included.
    ways: usize,
    /// Ways that time was too short for.
    left_out: usize,
    differences: Vec<Found>,
}

/// A way that gave other bits.
#[derive(Debug, Serialize)]
struct Found {
    way: String,
    /// The way that it was compared with.
    against: String,
    first: String,
}

/// Runs everything and prints a table.
///
/// # Errors
/// Any difference, after the table; a model that cannot be run.
pub(crate) fn selfcheck(arguments: &SelfcheckArgs) -> Result<()> {
    let begun = Instant::now();
    let draft = arguments.draft.clone().map_or(DraftSource::None, DraftSource::File);
    let gguf = model::open_with_draft(&arguments.model, &DraftArgs::of(draft))?;
    let shape = ModelShape::read(&gguf)?;
    let tokenizer = Tokenizer::from_gguf(&gguf).context("cannot use the model's vocabulary")?;
    let mut text = tokenizer.encode(TEXT, Special::Plain, tokenizer.adds_bos());
    text.truncate((arguments.tokens as usize).min(shape.context_length.saturating_sub(GENERATED)));
    let subject = Subject {
        model: gguf,
        overrides: model::overrides(&arguments.model),
        text,
        key_value_types: [KvType::default(); 2],
    };
    let gpu = arguments.device.gpu()?;
    let plan = plan(&shape, arguments)?;
    let runs = |ways: &Vec<Way>| ways.len() + gpu.iter().flat_map(|_| on_gpu(ways)).count();
    let mut clock = Clock::new(arguments, begun, plan.iter().map(|(_, ways)| runs(ways)).sum());
    let mut types = Vec::new();
    for (kind, ways) in &plan {
        let subject = Subject { key_value_types: [*kind; 2], ..subject.clone() };
        types.push(check(&subject, *kind, ways, arguments.spoil, gpu.as_ref(), &mut clock)?);
    }
    let mut warm = Vec::new();
    for (kind, _) in &plan {
        if !clock.is_over() {
            warm.push(warm::check(&subject.model, arguments, *kind, &subject.text)?);
        }
    }
    let (mut drafted, mut drafted_left_out) = (Vec::new(), 0);
    // Drafts have nothing to do with how keys and values are stored: one type tells, but for a full check.
    for (kind, _) in plan.iter().take(if arguments.full { plan.len() } else { 1 }) {
        if clock.is_over() {
            drafted_left_out += 1;
        } else {
            drafted.extend(drafts::check(&subject.model, arguments, *kind, &subject.text)?);
        }
    }
    let report = Report {
        model: model::name(&arguments.model),
        tokens: subject.text.len(),
        generated: GENERATED,
        types,
        warm_left_out: plan.len() - warm.len(),
        warm,
        drafted,
        drafted_left_out,
        seconds: begun.elapsed().as_secs_f64(),
    };
    tell(&report, arguments.json)?;
    let ways: usize = report.types.iter().map(|checked| checked.differences.len()).sum();
    let warm = report.warm.iter().map(|warm| warm.differences.len()).sum::<usize>();
    let differ = ways + warm + report.drafted.iter().map(|drafted| drafted.differences.len()).sum::<usize>();
    if differ > 0 {
        bail!("{differ} runs gave other bits; please report this with the table above");
    }
    Ok(())
}

/// The types that the model's heads fit, f16 first, and the ways to run with each.
fn plan(shape: &ModelShape, arguments: &SelfcheckArgs) -> Result<Vec<(KvType, Vec<Way>)>> {
    let threads = arguments.threads.unwrap_or_else(host::cores);
    if threads == 0 {
        bail!("--threads is 0, it must be at least 1");
    }
    let blocks = shape.blocks().len();
    let available = || Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let ways = |isas: Vec<Isa>| Ways {
        shards: SHARDS.into_iter().filter(|shards| *shards <= blocks).collect(),
        chunks: CHUNKS.to_vec(),
        threads: if threads == 1 { vec![1] } else { vec![1, threads] },
        isas,
    };
    let fits = |kind: &KvType| shape.check_key_value_types(*kind, *kind).is_ok();
    let others = KvType::ALL.into_iter().filter(|kind| *kind != KvType::F16);
    let types = std::iter::once(KvType::F16).chain(others).filter(fits);
    let plan = types.map(|kind| {
        if arguments.full {
            return (kind, ways(available().collect()).all());
        }
        // Plain code takes many times as long as the others.
        let all = ways(available().filter(|isa| *isa != Isa::Scalar).collect());
        let all = if all.isas.is_empty() { ways(vec![Isa::Scalar]) } else { all };
        let few = Ways { chunks: vec![7, 64], shards: ends(&all.shards), ..all.clone() };
        (kind, if kind == KvType::F16 { all.pairs() } else { few.pairs() })
    });
    Ok(plan.collect())
}

/// The first and the last, if they are two.
fn ends(all: &[usize]) -> Vec<usize> {
    let mut ends: Vec<usize> = all.first().into_iter().chain(all.last()).copied().collect();
    ends.dedup();
    ends
}

/// The ways that are run with stages on a GPU too: drafts among busy sessions, each cut once.
fn on_gpu(ways: &[Way]) -> impl Iterator<Item = &Way> {
    let mut cuts = Vec::new();
    let busy = ways.iter().filter(|way| way.company && way.drafts);
    busy.filter(move |way| {
        let cut = (way.shards, way.chunk);
        let is_new = !cuts.contains(&cut);
        cuts.extend(is_new.then_some(cut));
        is_new
    })
}

/// Runs all ways with one type and compares them with the first.
fn check(
    subject: &Subject,
    kind: KvType,
    ways: &[Way],
    spoil: bool,
    gpu: Option<&Gpu>,
    clock: &mut Clock,
) -> Result<Checked> {
    let mut checked = Checked { kind: kind.to_string(), ways: 0, left_out: 0, differences: Vec::new() };
    let Some((first, others)) = ways.split_first() else { return Ok(checked) };
    if clock.is_over() {
        checked.left_out = ways.len();
        return Ok(checked);
    }
    let mut reference = logits(subject, *first)?;
    clock.tick()?;
    checked.ways = 1;
    if spoil && let Some(logit) = reference.last_mut().and_then(|row| row.last_mut()) {
        *logit ^= 1;
    }
    let device = gpu.map(|gpu| gpu.device.as_ref() as &dyn Device);
    let with_gpu = device.into_iter().flat_map(|device| on_gpu(ways).map(move |way| (way, Some(device))));
    for (way, device) in others.iter().map(|way| (way, None)).chain(with_gpu) {
        if clock.is_over() {
            checked.left_out += 1;
            continue;
        }
        let found = logits_with(subject, *way, device)?;
        clock.tick()?;
        checked.ways += 1;
        if let Some(difference) = first_difference(&reference, &found) {
            let place = device.map_or_else(String::new, |device| format!(", {} first", device.describe().name));
            let (way, against) = (format!("{way}{place}"), first.to_string());
            checked.differences.push(Found { way, against, first: difference.to_string() });
        }
    }
    Ok(checked)
}

/// Says how long it will take, and when time is up.
struct Clock {
    begun: Instant,
    limit: Option<Duration>,
    all: usize,
    done: usize,
    quiet: bool,
}

impl Clock {
    /// After so many ways there is a guess how long all take.
    const GUESS_AFTER: usize = 3;

    fn new(arguments: &SelfcheckArgs, begun: Instant, all: usize) -> Self {
        let limit = (!arguments.full).then(|| Duration::from_secs(arguments.minutes.saturating_mul(60)));
        Self { begun, limit, all, done: 0, quiet: arguments.json }
    }

    /// One more way has been run.
    fn tick(&mut self) -> Result<()> {
        self.done += 1;
        if self.done == Self::GUESS_AFTER && !self.quiet {
            let guess = self.begun.elapsed().as_secs_f64() * self.all as f64 / self.done as f64;
            let limit = self.limit.map_or(f64::INFINITY, |limit| limit.as_secs_f64());
            writeln!(std::io::stderr(), "{} runs, about {:.0} seconds", self.all, guess.min(limit))?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, tokens, generated, types, warm, warm_left_out, drafted, drafted_left_out, seconds } = self;
        writeln!(
            f,
            "{model}: {tokens} tokens read and {generated} generated, every logit compared, in {seconds:.0} s"
        )?;
        writeln!(f, "{:<8} {:>5} {:>7} {:>9}", "kv type", "ways", "differ", "left out")?;
        for Checked { kind, ways, left_out, differences } in types {
            writeln!(f, "{kind:<8} {ways:>5} {:>7} {left_out:>9}", differences.len())?;
        }
        for (kind, found) in
            types.iter().flat_map(|checked| checked.differences.iter().map(|found| (&checked.kind, found)))
        {
            let Found { way, against, first } = found;
            writeln!(f, "{kind}, {way}: {first} (against {against})")?;
        }
        writeln!(f, "\n{:<8} {:>12} {:>12} {:>7}", "kv type", "repeated", "continued", "differ")?;
        for warm in warm {
            writeln!(f, "{warm}")?;
        }
        for (kind, difference) in warm.iter().flat_map(warm::Warm::told) {
            writeln!(f, "{kind}, from the cache, {difference}")?;
        }
        writeln!(
            f,
            "\n{:<8} {:<24} {:>6} {:>8} {:>14} {:>7}",
            "kv type", "drafts", "shards", "answers", "right", "differ"
        )?;
        for drafted in drafted {
            writeln!(f, "{drafted}")?;
        }
        for (kind, source, difference) in drafted.iter().flat_map(drafts::Drafted::told) {
            writeln!(f, "{kind}, with drafts of {source}, {difference}")?;
        }
        if *warm_left_out + *drafted_left_out > 0 || types.iter().any(|checked| checked.left_out > 0) {
            writeln!(f, "time was up before all ways were run: give more --minutes, or --full for every combination")?;
        }
        Ok(())
    }
}
