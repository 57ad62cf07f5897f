//! What a tail has besides its layers: how tokens are spelled, for answers that follow a grammar, and a block that
//! guesses at the tokens that follow. Whatever of it cannot be had, it serves without, and says so.

use anyhow::Result;
use paceline_compute::program::Program;
use paceline_gguf::Gguf;
use paceline_model::{Overrides, StageLayers, record_features, record_with};
use paceline_shard::{Drafter, Stage};
use paceline_text::Tokenizer;
use tracing::warn;

/// Records a stage; `mtp` for a tail with a draft model, which reads more of it.
pub(crate) fn record(model: &Gguf, layers: &StageLayers, overrides: &Overrides, mtp: bool) -> Result<Program> {
    let mut program = record_with(model, layers, overrides)?;
    if mtp {
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
pub(crate) fn with_drafter(stage: Stage, drafter: paceline_shard::Result<impl Drafter + 'static>) -> Result<Stage> {
    match drafter {
        Ok(drafter) => Ok(stage.with_drafter(Box::new(drafter))?),
        Err(error) => {
            warn!(%error, "the block for multi-token prediction cannot be loaded: no drafts are made with it");
            Ok(stage)
        }
    }
}
