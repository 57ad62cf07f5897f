//! Multi-token prediction: one more block behind the layers of the qwen35 hybrids, which guesses the token after the
//! next. It reads the token `x[p]` and the model's last hidden row behind the token before, `h[p - 1]`:
//!
//! `c = eh_proj · [norm(embedding of x[p]), norm(h[p - 1])]`, then a layer with attention over its own keys and values,
//! then a norm, whose result is the `h` of the next guess, and the head.

use paceline_compute::program::{Buffer, Op, Program, RopeStyle, RowSpace, WeightSpec, WeightUse};

use crate::attention::{Attention, Options};
use crate::recorder::{EMBEDDINGS, Recorder, product};
use crate::settings::Settings;
use crate::{Error, Result, StageLayers, rope};

/// Records the block for multi-token prediction: [`Program::input`] is `h`, and every row has a token besides.
pub(crate) fn record(
    settings: &Settings<'_>,
    feed_forward: impl Fn(&mut Recorder<'_>, usize, Buffer) -> Result<()>,
) -> Result<Program> {
    let (layer, blocks) = (settings.layers(), settings.mtp_blocks());
    if blocks != 1 {
        return Err(Error::MtpBlocks { blocks });
    }
    let stage = StageLayers { layers: layer..layer + 1, first: false, last: false };
    let (mut recorder, hidden) = Recorder::begin_draft(settings, &stage);
    let rotation = rope::positions(&mut recorder, settings, RopeStyle::Neox, Some(rope::sections(settings)?))?;
    recorder.enter(layer)?;
    read_inputs(&mut recorder, hidden)?;

    let input = recorder.norm_of_stream("attn_norm", "attn_norm.weight")?;
    let attention = Attention::of(settings, layer, Options { head_norms: true, gated: true, ..Options::default() })?;
    attention.record(&mut recorder, input, Some(rotation))?;
    let input = recorder.norm_of_stream("attn_post_norm", "post_attention_norm.weight")?;
    feed_forward(&mut recorder, layer, input)?;

    let norm = match recorder.optional_vector("nextn.shared_head_norm.weight") {
        Some(norm) => norm,
        None => recorder.global("output_norm.weight", WeightUse::Vector)?,
    };
    let own = "nextn.shared_head_head.weight";
    let head = if recorder.has(own) { recorder.tensor_name(own) } else { settings.head_name().to_owned() };
    recorder.finish_draft(norm, &head)
}

/// Records `stream = eh_proj · [norm(embedding), norm(hidden)]`.
fn read_inputs(recorder: &mut Recorder<'_>, hidden: Buffer) -> Result<()> {
    let (width, epsilon) = (recorder.width(), recorder.epsilon());
    let own = "nextn.embed_tokens.weight";
    let table = if recorder.has(own) { recorder.tensor_name(own) } else { EMBEDDINGS.to_owned() };
    let table = recorder.global(&table, WeightUse::Table)?;
    let embedded = recorder.scratch("mtp_embedding", width);
    recorder.record("mtp_embedding", Op::Embed { table, output: embedded });
    let mut normed = [embedded, hidden];
    for (buffer, [name, tensor]) in
        normed.iter_mut().zip([["mtp_enorm", "nextn.enorm.weight"], ["mtp_hnorm", "nextn.hnorm.weight"]])
    {
        let (weight, output) = (recorder.vector(tensor)?, recorder.scratch(name, width));
        recorder.record(name, Op::Norm { input: *buffer, weight, epsilon, output });
        *buffer = output;
    }
    let [first, second] = normed;
    let joined = recorder.scratch("mtp_concat", 2 * width);
    recorder.record("mtp_concat", Op::Join { first, second, output: joined });
    let projection = recorder.matrix("nextn.eh_proj.weight")?;
    let stream = recorder.stream();
    recorder.linear("mtp_eh_proj", joined, vec![product(projection, stream)]);
    Ok(())
}

/// Adds to the program of a last stage what a draft model reads: the last norm of all rows, not only of those that are
/// wanted.
pub(crate) fn record_features(settings: &Settings<'_>, program: &mut Program) -> Result<()> {
    let tensor = "output_norm.weight";
    settings.tensor(tensor)?;
    let input = program.stream.expect("every stage program has a residual stream");
    let output = program.buffer("h_nextn", settings.width(), RowSpace::Step);
    let weight = program.weight(WeightSpec::whole(tensor, WeightUse::Vector));
    program.record("h_nextn", None, Op::Norm { input, weight, epsilon: settings.epsilon, output });
    program.features = Some(output);
    Ok(())
}
