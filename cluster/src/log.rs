//! The log: warnings on the terminal, unless more is asked for, and everything that matters in files where asked for.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::path::Path;

use anyhow::{Context, Result};
use metrics::counter;
use paceline_api::AUDIT_TARGET;
use tracing::{Subscriber, warn};
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};
use tracing_appender::rolling::{RollingFileAppender, Rotation};
use tracing_subscriber::filter::{FilterExt, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use crate::cli::{LogArgs, LogFormat};

/// The variable that says what is logged, crate by crate.
const FILTER: &str = "PACELINE_LOG";
/// Lines that wait for the disk; more are dropped and counted: nobody waits for a log.
const WAITING: usize = 16_384;

/// Keeps the files open. What waits for the disk is written when it is dropped.
#[derive(Default)]
pub(crate) struct Log {
    files: Vec<(WorkerGuard, ErrorCounter)>,
}

impl Log {
    /// A file that is written by a thread of its own.
    fn file(&mut self, file: impl Write + Send + 'static, metric: &'static str) -> Counted {
        let builder = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING).thread_name("log");
        let (lines, guard) = builder.finish(file);
        let dropped = lines.error_counter();
        self.files.push((guard, dropped.clone()));
        Counted { lines, dropped, metric }
    }
}

/// Starts logging.
pub(crate) fn start(arguments: &LogArgs, audit: Option<&Path>, verbose: u8, command: &str) -> Result<Log> {
    let colours = std::io::stderr().is_terminal();
    let terminal = layer(arguments.log_format, std::io::stderr, colours, filter(verbose, "warn"));
    let mut log = Log::default();
    let file = match &arguments.log_dir {
        None => None,
        Some(folder) => {
            let appender = RollingFileAppender::builder()
                .rotation(Rotation::DAILY)
                .filename_prefix(format!("paceline-{command}"))
                .filename_suffix("log")
                .max_log_files(usize::from(arguments.log_keep))
                .build(folder)
                .with_context(|| format!("cannot write log files into {}", folder.display()))?;
            let lines = log.file(appender, "paceline_log_lines_dropped_total");
            Some(layer(arguments.log_format, lines, false, filter(verbose, "info")))
        }
    };
    let audit = audit.map(|path| audit_layer(path, &mut log)).transpose()?;
    tracing_subscriber::registry().with(terminal).with(file).with(audit).init();
    Ok(log)
}

/// One line of JSON for every request, and nothing else.
fn audit_layer<S>(path: &Path, log: &mut Log) -> Result<Box<dyn Layer<S> + Send + Sync>>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
{
    let file = OpenOptions::new().create(true).append(true).open(path);
    let file = file.with_context(|| format!("cannot write the audit log {}", path.display()))?;
    let lines = log.file(file, "paceline_audit_lines_dropped_total");
    let lines = fmt::layer().with_writer(lines).with_ansi(false).json().flatten_event(true);
    let lines = lines.with_target(false).with_level(false).with_current_span(false).with_span_list(false);
    Ok(lines.with_filter(filter_fn(|event| event.target() == AUDIT_TARGET)).boxed())
}

/// `usual` holds unless more is asked for, by `-v` or in the environment.
fn filter(verbose: u8, usual: &str) -> EnvFilter {
    let level = match verbose {
        0 => usual,
        1 => "info,paceline=debug,paceline_coordinator=debug,paceline_shard=debug,paceline_api=debug",
        _ => "info,paceline=trace,paceline_coordinator=trace,paceline_shard=trace,paceline_api=trace",
    };
    EnvFilter::try_from_env(FILTER).unwrap_or_else(|_| EnvFilter::new(level))
}

fn layer<S, W>(format: LogFormat, writer: W, colours: bool, filter: EnvFilter) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    W: for<'writer> MakeWriter<'writer> + Send + Sync + 'static,
{
    let lines = fmt::layer().with_writer(writer);
    // Left alone, they are there unless the environment says NO_COLOR.
    let lines = if colours { lines } else { lines.with_ansi(false) };
    let no_audit = filter_fn(|event| event.target() != AUDIT_TARGET);
    match format {
        LogFormat::Text => lines.with_filter(filter.and(no_audit)).boxed(),
        LogFormat::Json => lines.json().with_filter(filter.and(no_audit)).boxed(),
    }
}

/// Lines on their way to a file, and the count of those that were dropped.
struct Counted {
    lines: NonBlocking,
    dropped: ErrorCounter,
    metric: &'static str,
}

impl<'writer> MakeWriter<'writer> for Counted {
    type Writer = NonBlocking;

    fn make_writer(&'writer self) -> NonBlocking {
        counter!(self.metric).absolute(self.dropped.dropped_lines() as u64);
        self.lines.clone()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let count: usize = self.files.iter().map(|(_, dropped)| dropped.dropped_lines()).sum();
        if count > 0 {
            warn!(count, "lines of the log were dropped: the disk was too slow");
        }
    }
}
