//! `qwen35`, the hybrid of Qwen3.5, 3.6 and 3.8: most layers are gated delta nets (arXiv 2412.06464), every fourth is
//! gated attention with partial rotary positions of four components.

use paceline_compute::program::{Buffer, Program, RopeStyle};

use crate::attention::{Attention, Options};
use crate::delta_net::DeltaNet;
use crate::feed_forward::dense;
use crate::recorder::Recorder;
use crate::settings::Settings;
use crate::{Result, StageLayers, rope};

/// Records the hybrid with dense feed-forward networks.
pub(crate) fn record(settings: &Settings<'_>, stage: &StageLayers) -> Result<Program> {
    record_hybrid(settings, stage, |recorder, layer, input| {
        dense(recorder, input, settings.count_at("feed_forward_length", layer)?)
    })
}

/// Records `x += mixer(norm(x)); x += feed_forward(norm(x))` for every layer, where the mixer is attention or a delta
/// net.
pub(crate) fn record_hybrid(
    settings: &Settings<'_>,
    stage: &StageLayers,
    feed_forward: impl Fn(&mut Recorder<'_>, usize, Buffer) -> Result<()>,
) -> Result<Program> {
    let mut recorder = Recorder::begin(settings, stage)?;
    let rotation = rope::positions(&mut recorder, settings, RopeStyle::Neox, Some(rope::sections(settings)?))?;
    for layer in stage.layers.clone() {
        recorder.enter(layer)?;
        let input = recorder.norm_of_stream("attn_norm", "attn_norm.weight")?;
        if settings.is_recurrent(layer) {
            DeltaNet::of(settings, layer)?.record(&mut recorder, input)?;
        } else {
            let attention =
                Attention::of(settings, layer, Options { head_norms: true, gated: true, ..Options::default() })?;
            attention.record(&mut recorder, input, Some(rotation))?;
        }
        // The norm before the feed-forward network, whatever its name says.
        let input = recorder.norm_of_stream("attn_post_norm", "post_attention_norm.weight")?;
        feed_forward(&mut recorder, layer, input)?;
    }
    recorder.finish()
}
