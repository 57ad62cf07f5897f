//! What `paceline simulate` prints.

use std::fmt;

use paceline_core::planner::{LeftOut, Placement};
use paceline_simulation::{Report, render};
use serde::{Serialize, Serializer};

/// Devices left out that are named one by one.
const NAMED: usize = 4;

/// The placement, if there is one, and the reports.
#[derive(Serialize)]
pub(super) struct Output<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) placement: Option<&'a Placement>,
    pub(super) report: &'a Report,
    /// The same run without its faults.
    #[serde(skip_serializing_if = "Option::is_none", serialize_with = "report")]
    pub(super) without_faults: Option<&'a Report>,
}

fn report<S: Serializer>(report: &Option<&Report>, serializer: S) -> Result<S::Ok, S::Error> {
    report.serialize(serializer)
}

impl fmt::Display for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(placement) = self.placement {
            devices(f, placement)?;
        }
        f.write_str(&render(self.report))?;
        match self.without_faults {
            Some(without) => cost(f, self.report, without),
            None => Ok(()),
        }
    }
}

fn devices(f: &mut fmt::Formatter<'_>, placement: &Placement) -> fmt::Result {
    for (index, stage) in placement.stages.iter().enumerate() {
        let last = stage.layers.end.saturating_sub(1);
        writeln!(
            f,
            "stage {index}: layers {}-{last} on {}",
            stage.layers.start,
            place(&stage.device_name, &stage.host)
        )?;
    }
    left_out(f, &placement.left_out, placement.stages.len())?;
    writeln!(f)
}

fn left_out(f: &mut fmt::Formatter<'_>, left_out: &[LeftOut], used: usize) -> fmt::Result {
    if left_out.is_empty() {
        return Ok(());
    }
    writeln!(f, "{used} of {} devices are used; left out are:", used + left_out.len())?;
    for device in left_out.iter().take(NAMED) {
        writeln!(f, "  {}: {}", place(&device.device_name, &device.host), device.reason)?;
    }
    if left_out.len() > NAMED {
        writeln!(f, "  and {} more (--json names all)", left_out.len() - NAMED)?;
    }
    Ok(())
}

fn place(device: &str, host: &str) -> String {
    if host.is_empty() { device.to_owned() } else { format!("{device} of {host}") }
}

fn cost(f: &mut fmt::Formatter<'_>, with: &Report, without: &Report) -> fmt::Result {
    writeln!(f, "\nwith faults and without:")?;
    let mut line = |name: &str, with: f64, without: f64| writeln!(f, "  {name:<26}{with:>12.1}{without:>12.1}");
    line("sessions finished", with.sessions.finished as f64, without.sessions.finished as f64)?;
    line("tokens a second", with.throughput.tok_s, without.throughput.tok_s)?;
    line("first token, p95, ms", with.first_token_ms.p95, without.first_token_ms.p95)?;
    line("between tokens, p99, ms", with.gap_ms.p99, without.gap_ms.p99)?;
    line("between tokens, max, ms", with.gap_ms.max, without.gap_ms.max)
}
