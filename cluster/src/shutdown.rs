//! How a service ends, in three phases: nobody is admitted any more, running answers finish, and then the row and the
//! server are closed.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;
use tracing::{info, warn};

use crate::supervisor::Supervisor;

/// How long clients may take to read the rest of answers that have ended.
pub(crate) const FLUSH: Duration = Duration::from_secs(5);
/// What remains then ends within this time: a stage after the step it is in, the row, the links.
pub(crate) const STOP: Duration = Duration::from_secs(10);
/// The exit code after a second signal.
const AT_ONCE: i32 = 130;

/// SIGINT and SIGTERM.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Listens from now on.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?,
        })
    }

    /// Waits for the next of either.
    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Waits for a signal and brings the service to its end; ready when the server may close. New requests get 503 until
/// then and `/health` says `draining`, so that load balancers look elsewhere. A second signal ends the process at once.
///
/// `drain` admits nobody and is ready when running answers have finished; `end` ends what still runs, after `patience` at
/// most, and closes the row.
pub(crate) async fn phases(
    mut signals: Signals,
    drain: impl Future<Output = ()>,
    patience: Duration,
    supervisor: Supervisor,
    end: impl Future<Output = ()> + Send + 'static,
) {
    signals.next().await;
    info!("shutting down: running answers may finish; a second signal ends them");
    supervisor.stopping("running answers finish, nobody is admitted");
    tokio::spawn(async move {
        signals.next().await;
        std::process::exit(AT_ONCE);
    });
    if timeout(patience, drain).await.is_err() {
        warn!("answers that still ran after {} s are ended", patience.as_secs());
    }
    supervisor.status("closing the row");
    if timeout(STOP, end).await.is_err() {
        warn!("the row was not closed within {} s", STOP.as_secs());
    }
}
