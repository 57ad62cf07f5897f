//! What a tail has besides its layers: how tokens are spelled, for answers that follow a grammar, and what guesses at the
//! tokens that follow. Whatever of it cannot be had, it serves without, and says so.

use std::sync::Arc;

use anyhow::Result;
use paceline_compute::Device;
use paceline_compute::device::MemorySpec;
use paceline_compute::program::Program;
use paceline_core::planner::TailDrafter;
use paceline_gguf::Gguf;
use paceline_model::{Overrides, StageLayers, record_features, record_tapped, record_with};
use paceline_shard::{DflashDrafter, Drafter, ModelDrafter, MtpDrafter, Stage};
use paceline_text::Tokenizer;
use tracing::warn;

/// Records a stage; with a drafter for one that makes drafts or computes something for those who do.
pub(crate) fn record(
    model: &Gguf,
    layers: &StageLayers,
    overrides: &Overrides,
    drafter: Option<TailDrafter>,
) -> Result<Program> {
    if let Some(TailDrafter::Dflash { .. }) = drafter {
        return Ok(record_tapped(model, layers, overrides)?);
    }
    let mut program = record_with(model, layers, overrides)?;
    if drafter == Some(TailDrafter::Mtp) {
        record_features(model, overrides, &mut program)?;
    }
    Ok(program)
}

/// Lets a tail hold answers to grammars.
pub(crate) fn with_speller(stage: Stage, tokenizer: &Tokenizer) -> Stage {
    match tokenizer.speller() {
        Ok(speller) => stage.with_speller(speller),
        Err(error) => {
            warn!(%error, "answers cannot be held to schemas and grammars");
            stage
        }
    }
}

/// Lets a tail, recorded for it, guess at the tokens that follow.
pub(crate) fn with_drafter(
    stage: Stage,
    drafter: TailDrafter,
    device: &dyn Device,
    model: &Arc<Gguf>,
    overrides: &Overrides,
    progress: &mut dyn FnMut(u64),
) -> Result<Stage> {
    let memory = stage.loaded().memory();
    let loaded: paceline_shard::Result<Box<dyn Drafter>> = match drafter {
        TailDrafter::Mtp => MtpDrafter::load(device, model, memory, overrides, progress).map(|mtp| Box::new(mtp) as _),
        TailDrafter::Model { key_type, value_type } => {
            let memory = MemorySpec { key_type, value_type, ..memory };
            ModelDrafter::load(device, model, memory, progress).map(|draft| Box::new(draft) as _)
        }
        TailDrafter::Dflash { key_type, value_type } => {
            let memory = MemorySpec { key_type, value_type, ..memory };
            DflashDrafter::load(device, model, memory, progress).map(|draft| Box::new(draft) as _)
        }
    };
    match loaded {
        Ok(drafter) => Ok(stage.with_drafter(drafter)?),
        Err(error) => {
            let what = match drafter {
                TailDrafter::Mtp => "the block for multi-token prediction",
                TailDrafter::Model { .. } | TailDrafter::Dflash { .. } => "the draft model",
            };
            warn!(%error, "{what} cannot be loaded: no drafts are made with it");
            Ok(stage)
        }
    }
}
