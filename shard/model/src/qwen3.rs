//! `qwen3` (arXiv 2505.09388): attention with normed queries and keys.

use paceline_compute::program::{Program, RopeStyle};

use crate::attention::{Attention, Options};
use crate::feed_forward::dense;
use crate::recorder::Recorder;
use crate::settings::Settings;
use crate::{Result, StageLayers, rope};

/// Records `x += attention(norm(x)); x += feed_forward(norm(x))` for every layer.
pub(crate) fn record(settings: &Settings<'_>, stage: &StageLayers) -> Result<Program> {
    let mut recorder = Recorder::begin(settings, stage)?;
    let rotation = rope::positions(&mut recorder, settings, RopeStyle::Neox, None)?;
    for layer in stage.layers.clone() {
        recorder.enter(layer)?;
        let attention = Attention::of(settings, layer, Options { head_norms: true, ..Options::default() })?;
        let input = recorder.norm_of_stream("attn_norm", "attn_norm.weight")?;
        attention.record(&mut recorder, input, Some(rotation))?;

        let input = recorder.norm_of_stream("ffn_norm", "ffn_norm.weight")?;
        dense(&mut recorder, input, settings.count_at("feed_forward_length", layer)?)?;
    }
    recorder.finish()
}
