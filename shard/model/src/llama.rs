//! `llama` (arXiv 2307.09288, 2407.21783) and, with experts, Mixtral (arXiv 2401.04088).

use paceline_compute::program::{Program, RopeStyle};

use crate::attention::{Attention, Options};
use crate::feed_forward::{Experts, dense};
use crate::recorder::Recorder;
use crate::settings::Settings;
use crate::{Result, StageLayers, rope};

/// Records `x += attention(norm(x)); x += feed_forward(norm(x))` for every layer.
pub(crate) fn record(settings: &Settings<'_>, stage: &StageLayers) -> Result<Program> {
    let mut recorder = Recorder::begin(settings, stage)?;
    let rotation = rope::positions(&mut recorder, settings, RopeStyle::Adjacent, None)?;
    for layer in stage.layers.clone() {
        recorder.enter(layer)?;
        let attention = Attention::of(settings, layer, Options::default())?;
        let input = recorder.norm_of_stream("attn_norm", "attn_norm.weight")?;
        attention.record(&mut recorder, input, Some(rotation))?;

        let input = recorder.norm_of_stream("ffn_norm", "ffn_norm.weight")?;
        if settings.has_experts(layer) {
            Experts::of(settings, layer, "feed_forward_length")?.record(&mut recorder, input)?;
        } else {
            dense(&mut recorder, input, settings.count_at("feed_forward_length", layer)?)?;
        }
    }
    recorder.finish()
}
