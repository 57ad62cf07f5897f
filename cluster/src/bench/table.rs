//! Profiles as tables for people.

use std::fmt::{Display, Formatter, Result};

use super::profile::{Line, Phase, Profile, Report};

impl Display for Report {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let Self { model, threads, roofs, steps } = self;
        writeln!(formatter, "{model}, {threads} threads; {roofs}")?;
        steps.iter().try_for_each(|profile| write!(formatter, "\n{profile}"))
    }
}

impl Display for Profile {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let Self { phase, depth, sessions, rows, step_ms, operations, sum } = self;
        let rate = step_ms.map(|milliseconds| *rows as f64 * 1e3 / milliseconds);
        match phase {
            Phase::Decode => write!(formatter, "decode at {depth}, {sessions} sessions")?,
            Phase::Prefill => write!(formatter, "prefill of {rows} rows at {depth}")?,
        }
        let width = operations.iter().map(|line| line.name.len()).max().unwrap_or(0);
        writeln!(formatter, ": step {step_ms:.3} ms, {rate:.1} tokens/s")?;
        writeln!(
            formatter,
            "{:<width$} {:>5} {:>9} {:>19} {:>6} {:>9} {:>7} {:>6} {:>8} {:>6}",
            "operation", "count", "ms", "quartiles", "share", "MB", "GB/s", "roof", "GMAC/s", "roof"
        )?;
        operations.iter().chain([sum]).try_for_each(|line| writeln!(formatter, "{line:width$}"))
    }
}

impl Display for Line {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> Result {
        let Self { name, count, ms, share, bytes, gb_s, of_read_roof, gmac_s, of_dot_roof, .. } = self;
        let quartiles = format!("{:.3}-{:.3}", ms.low, ms.high);
        let of_roof = |share: &Option<f64>| share.map_or_else(String::new, |share| format!("{:.0}%", share * 100.0));
        let width = formatter.width().unwrap_or(0);
        write!(formatter, "{name:<width$} {count:>5} {:>9.3} {quartiles:>19} {:>5.1}%", ms.median, share * 100.0)?;
        write!(formatter, " {:>9.2} {gb_s:>7.2} {:>6}", *bytes as f64 / 1e6, of_roof(of_read_roof))?;
        write!(formatter, " {gmac_s:>8.2} {:>6}", of_roof(of_dot_roof))
    }
}
