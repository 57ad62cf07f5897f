//! DFlash (arXiv 2602.06036): a small Qwen 3 model that drafts whole blocks. Its queries are a block of rows, the newest
//! token and a mask for each token that is drafted; they see one another and keys and values that were made of the
//! target's residual stream at every position before:
//!
//! `c = norm(Σ_k fc_k · h_k)` over the inputs `h_k` of some of the target's layers; each draft layer stores
//! `K = rope(norm(Wk · c))` and `V = Wv · c`.
//!
//! The sum grows from stage to stage of the target (see [`Taps`]), so its tail gets one row per token, whatever the cut.

use std::ops::Range;

use paceline_compute::program::{Buffer, Cache, Op, Program, RopeStyle, RowSpace, WeightUse};
use paceline_gguf::DflashShape;

use crate::attention::{Attention, Options};
use crate::feed_forward::dense;
use crate::recorder::{EMBEDDINGS, Recorder};
use crate::settings::Settings;
use crate::{Result, StageLayers, rope};

/// The entry of the program that stores keys and values for rows of [`Program::features`] of the target.
pub const INJECT: usize = 0;

/// The entry of the program that computes the logits of blocks.
pub const DRAFT: usize = 1;

/// The parts of the target's residual stream that a draft model reads, summed as they come.
#[derive(Debug)]
pub(crate) struct Taps {
    /// Layers whose input is read, in their order, and the columns of the projection that it meets.
    layers: Vec<(usize, Range<usize>)>,
    /// Values per row of the sum.
    width: usize,
}

impl Taps {
    pub(crate) fn of(shape: &DflashShape) -> Taps {
        let width = shape.embedding_length;
        let columns = (0..).map(|index| index * width..(index + 1) * width);
        let mut layers: Vec<_> = shape.target_layers.iter().copied().zip(columns).collect();
        layers.sort_by_key(|(layer, _)| *layer);
        Taps { layers, width }
    }

    /// Values per row of the sum.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    /// Is there anything in the sum before this layer?
    pub(crate) fn begin_before(&self, layer: usize) -> bool {
        self.layers.first().is_some_and(|(first, _)| *first < layer)
    }

    /// What of the projection meets the input of a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> impl Iterator<Item = Range<usize>> {
        self.layers.iter().filter(move |(own, _)| *own == layer).map(|(_, columns)| columns.clone())
    }
}

/// Records both entries of the draft model: [`INJECT`] takes rows of the sum, [`DRAFT`] takes tokens.
pub(crate) fn record(target: &Settings<'_>, draft: &Settings<'_>) -> Result<Program> {
    let stage = StageLayers { layers: 0..draft.layers(), first: false, last: false };
    let mut recorder = Recorder::begin_block_draft(draft, target, &stage);
    let options = Options { head_norms: true, bidirectional: true, ..Options::default() };
    let attentions = stage.layers.clone().map(|layer| Attention::of(draft, layer, options));
    let attentions = attentions.collect::<Result<Vec<_>>>()?;

    let caches = inject(&mut recorder, draft, &attentions)?;
    let program = recorder.program();
    program.cuts.push(program.ops.len());

    recorder.leave_layers();
    let (table, stream) = (recorder.of_target(EMBEDDINGS, WeightUse::Table)?, recorder.stream());
    recorder.record("model.input_embed", Op::Embed { table, output: stream });
    let rotation = rope::positions(&mut recorder, draft, RopeStyle::Neox, None)?;
    for ((layer, attention), cache) in attentions.iter().enumerate().zip(caches) {
        recorder.enter(layer)?;
        let input = recorder.norm_of_stream("attn_norm", "attn_norm.weight")?;
        attention.record_in(cache, &mut recorder, input, Some(rotation))?;
        let input = recorder.norm_of_stream("ffn_norm", "ffn_norm.weight")?;
        dense(&mut recorder, input, draft.count_at("feed_forward_length", layer)?)?;
    }
    recorder.finish_block_draft()
}

/// Records the entry that makes keys and values of the target's rows, and returns where each layer keeps them.
fn inject(recorder: &mut Recorder<'_>, draft: &Settings<'_>, attentions: &[Attention]) -> Result<Vec<Cache>> {
    let input = recorder.program().buffer("dflash_features", draft.width(), RowSpace::Step);
    recorder.program().input = Some(input);
    recorder.program().embeds = true;
    let encoded: Buffer = recorder.scratch("dflash_encoded", draft.width());
    let (weight, epsilon) = (recorder.global("enc.output_norm.weight", WeightUse::Vector)?, recorder.epsilon());
    recorder.record("dflash_encoded", Op::Norm { input, weight, epsilon, output: encoded });
    let rotation = rope::positions(recorder, draft, RopeStyle::Neox, None)?;
    let mut caches = Vec::with_capacity(attentions.len());
    for (layer, attention) in attentions.iter().enumerate() {
        recorder.enter(layer)?;
        let cache = attention.cache(recorder);
        attention.store(cache, recorder, encoded, Some(rotation))?;
        caches.push(cache);
    }
    Ok(caches)
}
