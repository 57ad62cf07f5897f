//! Model architectures, recorded once as stage programs.
//!
//! Read [`record`] first: it turns a model file and a range of layers into a [`Program`]. Each architecture is one
//! short file that reads like the paper; what several of them really share (attention, the delta net, feed-forward
//! networks, rotary positions) has a file of its own. This crate must never know which device runs a program, nor
//! of sessions, steps or sockets.

use std::ops::Range;

use paceline_compute::program::Program;
use paceline_gguf::{Architecture, DflashShape, EncoderShape, Gguf, ModelShape, Pooling};

mod attention;
mod bert;
mod delta_net;
mod dflash;
mod error;
mod feed_forward;
mod llama;
mod mtp;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod recorder;
mod rope;
mod settings;
#[cfg(test)]
mod tests;

pub use dflash::{DRAFT, INJECT};
pub use error::{Error, Result};
pub use rope::{Overrides, RopeScaling};

use settings::Settings;

/// Which part of a model a stage holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageLayers {
    /// Its layers, counted from the model's first. Blocks for multi-token prediction are not among them.
    pub layers: Range<usize>,
    /// Does it look up embeddings? Only the stage with layer 0 can.
    pub first: bool,
    /// Does it compute the final norm and the logits? Only the stage with the last layer can.
    pub last: bool,
}

impl StageLayers {
    /// The part of a model of `count` layers that holds `layers`: first and last follow from the range.
    pub fn of(layers: Range<usize>, count: usize) -> StageLayers {
        StageLayers { first: layers.start == 0, last: layers.end == count, layers }
    }
}

/// Records what a stage with these layers of `model` computes, as the file says.
///
/// # Errors
/// An unknown architecture, settings that are missing or contradict one another, missing tensors, tensors of the
/// stage's layers that the architecture does not use, and layers that the model does not have.
pub fn record(model: &Gguf, stage: &StageLayers) -> Result<Program> {
    record_with(model, stage, &Overrides::default())
}

/// Records as [`record`] does, with some of the file's settings replaced.
///
/// # Errors
/// As [`record`]; overrides that are not positive numbers.
pub fn record_with(model: &Gguf, stage: &StageLayers, overrides: &Overrides) -> Result<Program> {
    record_settings(&Settings::read(model, overrides)?, stage)
}

/// Records as [`record_with`] does, and what a DFlash draft model, open together with `model`, reads of the inputs of
/// its layers: a sum that grows from stage to stage, beside the residual stream from where it begins, until it is
/// the [`Program::features`] of the last stage.
///
/// # Errors
/// As [`record_with`]; a model without such a draft model, or with one that does not fit it.
pub fn record_tapped(model: &Gguf, stage: &StageLayers, overrides: &Overrides) -> Result<Program> {
    let (_, shape) = dflash_of(model)?;
    record_settings(&Settings::read(model, overrides)?.with_taps(&shape), stage)
}

fn record_settings(settings: &Settings<'_>, stage: &StageLayers) -> Result<Program> {
    match Architecture::of(settings.model)? {
        Architecture::Llama => llama::record(settings, stage),
        Architecture::Qwen3 => qwen3::record(settings, stage),
        Architecture::Qwen35 => qwen35::record(settings, stage),
        Architecture::Qwen35Moe => qwen35moe::record(settings, stage),
    }
}

/// Records a model that reads whole texts: [`Program::hidden`] are the wanted rows after all layers, or a classifier's scores
/// of them, and there are no logits. `pooling` replaces what the file says of it. Also returns its shape.
///
/// # Errors
/// As [`record_with`]; a file of which nobody says how its rows are pooled.
pub fn record_encoder(
    model: &Gguf,
    pooling: Option<Pooling>,
    overrides: &Overrides,
) -> Result<(Program, EncoderShape)> {
    let shape = EncoderShape::read(model, pooling)?;
    let program = match shape.bidirectional {
        true => bert::record(&Settings::of_bert(model, overrides, &shape)?, &shape)?,
        false => {
            let layers = shape.layers.len();
            let settings = Settings::read(model, overrides)?.without_head();
            record_settings(&settings, &StageLayers::of(0..layers, layers))?
        }
    };
    Ok((program, shape))
}

/// Records the DFlash draft model that is open together with `model`, in two entries over the same memories: [`INJECT`]
/// stores keys and values for rows of the features of `model`, [`DRAFT`] computes the logits of blocks of tokens. Also
/// returns its shape.
///
/// # Errors
/// A model without such a draft model, or with one that does not fit it; tensors that are missing or not known.
pub fn record_dflash(model: &Gguf) -> Result<(Program, DflashShape)> {
    let (draft, shape) = dflash_of(model)?;
    let overrides = Overrides::default();
    let (target, settings) = (Settings::read(model, &overrides)?, Settings::of_draft(draft, &overrides, &shape)?);
    Ok((dflash::record(&target, &settings)?, shape))
}

/// The draft model that is open together with `model`, and its shape.
fn dflash_of(model: &Gguf) -> Result<(&Gguf, DflashShape)> {
    model.draft().zip(ModelShape::read(model)?.dflash).ok_or(Error::NoDraft)
}

/// Has the file a block for multi-token prediction, so that [`record_mtp`] has something to record?
///
/// # Errors
/// A file whose settings contradict one another.
pub fn has_mtp(model: &Gguf) -> Result<bool> {
    Ok(!ModelShape::read(model)?.mtp.is_empty())
}

/// Records the block for multi-token prediction as a program of its own: [`Program::input`] takes the hidden row
/// behind the token before, every row has a token besides, and [`Program::hidden`] is the hidden row of the next guess.
///
/// # Errors
/// As [`record`]; a file without such a block, or with several that follow one another.
pub fn record_mtp(model: &Gguf, overrides: &Overrides) -> Result<Program> {
    let settings = Settings::read(model, overrides)?;
    match Architecture::of(model)? {
        Architecture::Qwen35 => mtp::record(&settings, |recorder, layer, input| {
            feed_forward::dense(recorder, input, settings.count_at("feed_forward_length", layer)?)
        }),
        Architecture::Qwen35Moe => mtp::record(&settings, |recorder, layer, input| {
            feed_forward::Experts::of(&settings, layer, "expert_feed_forward_length")?.record(recorder, input)
        }),
        Architecture::Llama | Architecture::Qwen3 => Err(Error::MtpBlocks { blocks: 0 }),
    }
}

/// Adds to the program of a last stage the rows that a draft model reads, [`Program::features`].
///
/// # Errors
/// A file without the last norm.
pub fn record_features(model: &Gguf, overrides: &Overrides, program: &mut Program) -> Result<()> {
    mtp::record_features(&Settings::read(model, overrides)?, program)
}
