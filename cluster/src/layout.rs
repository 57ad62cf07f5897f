//! From the command line's wishes to a plan that fits this host.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use paceline_compute::device::{LogSpec, MemorySpec};
use paceline_core::Limits;
use paceline_core::limits::LEAST_PREFILL_ROWS;
use paceline_core::planner::{self, Host, Placement, Wishes};
use paceline_gguf::{Gguf, ModelShape};

use crate::cli::{ComputeArgs, LayoutArgs, ModelArgs};
use crate::row::Plan;
use crate::{host, model};

/// The context of a session if none is asked for: enough for a conversation, little memory.
const USUAL_CONTEXT: usize = 8192;
/// Memory left to everything that is not planned: the program, the vocabulary, text.
pub(crate) const MARGIN: u64 = 256 << 20;
/// The most rows of a prompt in a step; buffers grow with it.
const MOST_PREFILL_ROWS: usize = 8192;

/// Everything needed to load the model as wished. Without `compute` the usual settings.
pub(crate) fn plan(
    gguf: &Arc<Gguf>,
    model: &ModelArgs,
    layout: &LayoutArgs,
    compute: Option<&ComputeArgs>,
) -> Result<Plan> {
    plan_in(gguf, model, layout, compute, None)
}

/// The same in so many bytes of memory, instead of what this host has free.
pub(crate) fn plan_in(
    gguf: &Arc<Gguf>,
    model: &ModelArgs,
    layout: &LayoutArgs,
    compute: Option<&ComputeArgs>,
    memory: Option<u64>,
) -> Result<Plan> {
    let prefill_rows = compute.map(|compute| compute.prefill_chunk);
    let gpu = compute.map_or(Ok(None), |compute| compute.device.gpu())?;
    let free = gpu.as_ref().map(|gpu| gpu.free_bytes.saturating_sub(MARGIN));
    let placement = placement(gguf, model, layout, prefill_rows, memory.into_iter().chain(free).min())?;
    let limits = limits(&placement, prefill_rows);
    limits.check()?;
    let Placement { page_tokens, pages, slots, key_type, value_type, step_rows, step_wanted, logs, .. } = placement;
    let logs = LogSpec { sessions: logs.sessions, tokens: logs.tokens };
    let memory =
        MemorySpec { page_tokens, pages, slots, key_type, value_type, rows: step_rows, wanted: step_wanted, logs };
    Ok(Plan {
        model: gguf.clone(),
        names: vec![model::name(model)],
        overrides: model::overrides(model),
        drafts: layout.draft.settings()?,
        placement,
        limits,
        memory,
        isa: compute.and_then(|compute| compute.isa),
        gpu,
        pin: compute.is_some_and(|compute| compute.pin),
        template: None,
        progress: false,
        disk: None,
    })
}

/// The bounds of a row that is laid out so.
pub(crate) fn limits(placement: &Placement, prefill_rows: Option<usize>) -> Limits {
    let Placement { sessions, pages, page_tokens, context, step_rows, step_wanted, logs, .. } = *placement;
    let usual = Limits::new(placement.stages.len(), sessions, pages, page_tokens, context);
    let (prefill_rows, snapshots) = (prefill_rows.unwrap_or(usual.prefill_rows), placement.cache.snapshots);
    let has_states = placement.state_per_session > 0;
    let (log_sessions, log_tokens, chunk_drafts) = (logs.sessions, logs.tokens, logs.drafts());
    let limits = Limits { step_rows, step_wanted, prefill_rows, snapshots, has_states, ..usual };
    Limits { log_sessions, log_tokens, chunk_drafts, ..limits }
}

/// Where the layers go, in `memory` bytes or in what this host has free.
pub(crate) fn placement(
    gguf: &Gguf,
    model: &ModelArgs,
    layout: &LayoutArgs,
    prefill_rows: Option<usize>,
    memory: Option<u64>,
) -> Result<Placement> {
    let shape = ModelShape::read(gguf)?;
    let wishes = wishes(&shape, model, layout, prefill_rows)?;
    let host = Host {
        memory_bytes: memory.or_else(|| Some(host::available_memory()?.saturating_sub(MARGIN))).unwrap_or(u64::MAX),
        threads: layout.threads.unwrap_or_else(host::cores),
    };
    let ram = layout.cache_ram.unwrap_or_default();
    let placed = planner::with_cache(&shape, &wishes, ram, |wishes| planner::plan(&shape, wishes, &host));
    placed.context("the model cannot be placed")
}

/// What the flags ask of a placement.
pub(crate) fn wishes(
    shape: &ModelShape,
    model: &ModelArgs,
    layout: &LayoutArgs,
    prefill_rows: Option<usize>,
) -> Result<Wishes> {
    let context = layout.ctx.unwrap_or_else(|| shape.context_length.min(USUAL_CONTEXT));
    let mut wishes = Wishes::new(layout.shards, context, layout.sessions);
    if let Some(rows) = prefill_rows {
        ensure!(
            (LEAST_PREFILL_ROWS..=MOST_PREFILL_ROWS).contains(&rows),
            "--prefill-chunk is {rows}, it must be between {LEAST_PREFILL_ROWS} and {MOST_PREFILL_ROWS}"
        );
        wishes.step_rows = rows.saturating_add(layout.sessions);
    }
    wishes.kv_tokens = layout.kv_tokens;
    wishes.key_type = layout.key_type();
    wishes.value_type = layout.value_type();
    wishes.scaled_rope = model.yarn_factor.is_some() || model.rope_freq_base.is_some();
    let drafter = layout.draft.drafter(wishes.key_type, wishes.value_type);
    wishes.drafter = drafter.map(|drafter| drafter.beside(shape));
    Ok(wishes.with_drafts(layout.draft.settings()?.most))
}

/// The text of the chat template that replaces the model's.
pub(crate) fn template(path: Option<&Path>) -> Result<Option<String>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    path.map(read).transpose()
}
