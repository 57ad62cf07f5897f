//! `bert` (arXiv 1810.04805): an encoder, whose every token sees all others. Norms follow the residual sums that they are
//! of, positions and kinds of tokens are learned and part of the embeddings.

use paceline_compute::program::{Op, Program, WeightUse};
use paceline_gguf::{EncoderShape, Pooling};

use crate::attention::{Attention, Options};
use crate::recorder::{EMBEDDINGS, Recorder, product};
use crate::settings::Settings;
use crate::{Result, StageLayers};

/// Which component of a row's position counts tokens.
const POSITION: usize = 0;

/// Which component says what kind of token it is: 0, or 1 in the second of two texts.
const KIND: usize = 3;

/// Records `x = norm(x + attention(x)); x = norm(x + feed_forward(x))` for every layer, and the rows or scores behind them.
pub(crate) fn record(settings: &Settings<'_>, shape: &EncoderShape) -> Result<Program> {
    let stage = StageLayers::of(0..settings.layers(), settings.layers());
    let mut recorder = Recorder::begin(settings, &stage)?;
    embed(&mut recorder)?;
    for layer in stage.layers.clone() {
        recorder.enter(layer)?;
        let attention = Attention::of(settings, layer, Options { bidirectional: true, ..Options::default() })?;
        let stream = recorder.stream();
        attention.record(&mut recorder, stream, None)?;
        close_branch(&mut recorder, "attn_output.bias", "attn_output_norm")?;
        feed_forward(&mut recorder, settings.count_at("feed_forward_length", layer)?)?;
        close_branch(&mut recorder, "ffn_down.bias", "layer_output_norm")?;
    }
    match shape.pooling {
        Pooling::Rank => recorder.finish_scores(),
        Pooling::Mean | Pooling::First | Pooling::Last => recorder.finish_rows(),
    }
}

/// Adds what is learned of positions and kinds to the embeddings of the tokens, and norms the sum.
fn embed(recorder: &mut Recorder<'_>) -> Result<()> {
    let stream = recorder.stream();
    for (tensor, component) in [("position_embd.weight", POSITION), ("token_types.weight", KIND)] {
        let table = recorder.global(tensor, WeightUse::Vector)?;
        recorder.record(EMBEDDINGS, Op::AddEmbedding { table, component, output: stream });
    }
    let weight = recorder.global("token_embd_norm.weight", WeightUse::Vector)?;
    let bias = recorder.global("token_embd_norm.bias", WeightUse::Vector)?;
    let epsilon = recorder.epsilon();
    recorder.record("inp_norm", Op::LayerNorm { buffer: stream, weight, bias, epsilon });
    Ok(())
}

/// Adds the bias of the product that a branch ends with, and norms the sum.
fn close_branch(recorder: &mut Recorder<'_>, bias: &str, norm: &'static str) -> Result<()> {
    let stream = recorder.stream();
    if let Some(bias) = recorder.optional_vector(bias) {
        recorder.record(norm, Op::AddBias { buffer: stream, bias });
    }
    let (weight, bias) = (recorder.vector(&format!("{norm}.weight"))?, recorder.vector(&format!("{norm}.bias"))?);
    let epsilon = recorder.epsilon();
    recorder.record(norm, Op::LayerNorm { buffer: stream, weight, bias, epsilon });
    Ok(())
}

/// Records `stream += down · gelu(up · stream + bias)`; the network is `width` wide inside.
fn feed_forward(recorder: &mut Recorder<'_>, width: usize) -> Result<()> {
    let (stream, inner) = (recorder.stream(), recorder.scratch("ffn_up", width));
    let up = recorder.matrix("ffn_up.weight")?;
    recorder.linear("ffn_up", stream, vec![product(up, inner)]);
    if let Some(bias) = recorder.optional_vector("ffn_up.bias") {
        recorder.record("ffn_up", Op::AddBias { buffer: inner, bias });
    }
    recorder.record("ffn_gelu", Op::Gelu { buffer: inner });
    let down = recorder.matrix("ffn_down.weight")?;
    recorder.add_to_stream("l_out", down, inner);
    Ok(())
}
