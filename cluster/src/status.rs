//! `paceline status`: what every stage of a running service holds and does.
//!
//! [`server`] asks the service, [`rates`] makes rates of two answers, [`table`] shows them. `paceline top` does the
//! same again and again.

pub(crate) mod rates;
pub(crate) mod server;
pub(crate) mod table;

use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use paceline_api::StatusReport;
use serde::Serialize;

use crate::cli::StatusArgs;
use rates::Rates;
use server::Server;

/// Between two samples; what happens in a second is what people call now.
pub(crate) const SAMPLE: Duration = Duration::from_secs(1);

/// A service at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct View {
    /// What it says of itself.
    #[serde(flatten)]
    pub(crate) report: StatusReport,
    /// How fast it is, once there are two samples.
    pub(crate) rates: Option<Rates>,
}

impl View {
    /// A sample, and the one before it.
    pub(crate) fn new(before: Option<&StatusReport>, report: StatusReport) -> Self {
        let rates = before.and_then(|before| Rates::between(&before.status, &report.status));
        Self { report, rates }
    }

    /// Takes two samples.
    #[expect(clippy::disallowed_methods, reason = "a rate needs time to pass, and nothing else is waited for")]
    pub(crate) fn take(server: &Server) -> Result<Self> {
        let before = server.status()?;
        std::thread::sleep(SAMPLE);
        Ok(Self::new(Some(&before), server.status()?))
    }
}

/// Prints a table, or all figures as JSON.
pub(crate) fn status(arguments: &StatusArgs) -> Result<()> {
    let server = Server::new(&arguments.server)?;
    if arguments.live {
        return server.live();
    }
    let view = View::take(&server)?;
    let mut output = std::io::stdout();
    if arguments.json {
        serde_json::to_writer_pretty(&mut output, &view)?;
        writeln!(output)?;
    } else {
        output.write_all(table::text(&view).as_bytes())?;
    }
    Ok(())
}
