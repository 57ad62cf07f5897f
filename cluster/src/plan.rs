//! `paceline plan`: what a model needs and where its layers would go.

use std::io::Write;

use anyhow::{Result, ensure};
use paceline_core::planner;

use crate::cli::PlanArgs;
use crate::{layout, model};

/// Reads the model's header and prints the plan.
pub(crate) fn plan(arguments: &PlanArgs) -> Result<()> {
    let gguf = model::open(&arguments.model)?;
    let memory = arguments.memory.map(bytes).transpose()?;
    let placement = layout::placement(&gguf, &arguments.model, &arguments.layout, None, memory)?;
    let mut output = std::io::stdout();
    if arguments.json {
        serde_json::to_writer_pretty(&output, &placement)?;
        return Ok(writeln!(output)?);
    }
    Ok(output.write_all(planner::render(&placement).as_bytes())?)
}

fn bytes(gibibytes: f64) -> Result<u64> {
    ensure!(gibibytes.is_finite() && gibibytes > 0.0, "--memory is {gibibytes} GiB, it must be more than 0");
    Ok((gibibytes * f64::from(1 << 30)) as u64)
}
