//! `qwen35moe`: the [`qwen35`](crate::qwen35) hybrid with experts, one of them shared by all rows.

use paceline_compute::program::Program;

use crate::feed_forward::Experts;
use crate::qwen35::record_hybrid;
use crate::settings::Settings;
use crate::{Result, StageLayers};

/// Records the hybrid with experts.
pub(crate) fn record(settings: &Settings<'_>, stage: &StageLayers) -> Result<Program> {
    record_hybrid(settings, stage, |recorder, layer, input| {
        Experts::of(settings, layer, "expert_feed_forward_length")?.record(recorder, input)
    })
}
