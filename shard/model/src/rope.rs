//! Rotary positions: the frequencies that a file asks for, and what may replace them.

use paceline_compute::program::{Op, Rope, RopeStyle, Rotation, WeightUse, Yarn};

use crate::Result;
use crate::recorder::Recorder;
use crate::settings::Settings;

/// The base of the frequencies in files that do not say.
const DEFAULT_BASE: f32 = 10_000.0;

/// The divisors of the frequencies that Llama 3.1 introduced.
const DIVISORS: &str = "rope_freqs.weight";

/// Settings that replace those of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Overrides {
    /// Base of the rotary frequencies.
    pub rope_base: Option<f32>,
    /// How positions are stretched past the trained context.
    pub rope_scaling: Option<RopeScaling>,
}

/// How positions are stretched past the trained context.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RopeScaling {
    /// Not at all, whatever the file says.
    None,
    /// Positions are divided by the factor.
    Linear {
        /// How many times longer the context becomes.
        factor: f32,
    },
    /// YaRN (arXiv 2309.00071): slow frequencies are divided by the factor, fast ones stay.
    Yarn {
        /// How many times longer the context becomes.
        factor: f32,
        /// Trained context in tokens; the file's if absent.
        original_context: Option<u32>,
    },
}

/// Records the table of rotations, `(rows, dimensions)`; with `sections`, positions have four components.
pub(crate) fn positions(
    recorder: &mut Recorder<'_>,
    settings: &Settings<'_>,
    style: RopeStyle,
    sections: Option<[u32; 4]>,
) -> Result<Rotation> {
    let dimensions = dimensions(settings)?;
    let (factor, yarn) = scaling(settings)?;
    let has_divisors = settings.model.tensor(DIVISORS).is_some();
    let divisors = has_divisors.then(|| recorder.global(DIVISORS, WeightUse::Vector)).transpose()?;
    let rope = Rope { style, dimensions, base: base(settings)?, factor, yarn, sections, divisors };
    let table = recorder.scratch("rope", dimensions);
    recorder.record("rope", Op::RopeTable { rope, output: table });
    Ok(Rotation { style, table })
}

/// How many values of a head rotate.
fn dimensions(settings: &Settings<'_>) -> Result<usize> {
    let name = "rope.dimension_count";
    let key_dim = settings.key_dim();
    let dimensions = match (settings.optional_count(name)?, key_dim) {
        (Some(dimensions), _) | (None, Some(dimensions)) => dimensions,
        (None, None) => settings.count(name)?,
    };
    if dimensions.is_multiple_of(2) && key_dim.is_none_or(|key_dim| dimensions <= key_dim) {
        return Ok(dimensions);
    }
    let heads = key_dim.unwrap_or_default();
    Err(settings.bad(name, &dimensions, format!("an even number of a head's {heads} values can rotate")))
}

/// How many pairs of values follow each of the four components of a position.
pub(crate) fn sections(settings: &Settings<'_>) -> Result<[u32; 4]> {
    let name = "rope.dimension_sections";
    let metadata = settings.model.metadata();
    let key = settings.key(name);
    let values = metadata.u32s(&key)?.ok_or_else(|| metadata.missing(&key))?;
    let pairs = dimensions(settings)? / 2;
    let sum: u64 = values.iter().copied().map(u64::from).sum();
    match <[u32; 4]>::try_from(values.as_slice()) {
        Ok(sections) if sum == pairs as u64 => Ok(sections),
        _ => Err(settings.bad(name, &format!("{values:?}"), format!("four numbers that add up to {pairs} are needed"))),
    }
}

fn base(settings: &Settings<'_>) -> Result<f32> {
    let name = "rope.freq_base";
    let base = match settings.overrides.rope_base {
        Some(base) => base,
        None => settings.optional_number(name)?.unwrap_or(DEFAULT_BASE),
    };
    settings.positive(name, base)
}

/// What positions are divided by, and the parameters of YaRN.
fn scaling(settings: &Settings<'_>) -> Result<(f32, Option<Yarn>)> {
    let scaling = match settings.overrides.rope_scaling {
        Some(scaling) => scaling,
        None => scaling_of_file(settings)?,
    };
    match scaling {
        RopeScaling::None => Ok((1.0, None)),
        RopeScaling::Linear { factor } => Ok((settings.positive("rope.scaling.factor", factor)?, None)),
        RopeScaling::Yarn { factor, original_context } => {
            Ok((settings.positive("rope.scaling.factor", factor)?, Some(yarn(settings, original_context)?)))
        }
    }
}

fn scaling_of_file(settings: &Settings<'_>) -> Result<RopeScaling> {
    let factor = match settings.optional_number("rope.scaling.factor")? {
        // An older key.
        None => settings.optional_number("rope.scale_linear")?,
        factor => factor,
    };
    let Some(factor) = factor.filter(|factor| *factor != 0.0) else {
        return Ok(RopeScaling::None);
    };
    match settings.optional_text("rope.scaling.type")? {
        Some("none") => Ok(RopeScaling::None),
        None | Some("linear") => Ok(RopeScaling::Linear { factor }),
        Some("yarn") => Ok(RopeScaling::Yarn { factor, original_context: None }),
        Some(other) => Err(settings.bad("rope.scaling.type", &format!("{other:?}"), "none, linear and yarn are known")),
    }
}

fn yarn(settings: &Settings<'_>, original_context: Option<u32>) -> Result<Yarn> {
    let metadata = settings.model.metadata();
    let original_context = match original_context {
        Some(tokens) => tokens,
        None => match metadata.get_u32(&settings.key("rope.scaling.original_context_length"))? {
            Some(tokens) => tokens,
            None => metadata.require_u32(&settings.key("context_length"))?,
        },
    };
    if original_context == 0 {
        return Err(settings.bad("rope.scaling.original_context_length", &0, "it must be at least 1"));
    }
    let number = |name: &str, default: f32| Ok::<f32, crate::Error>(settings.optional_number(name)?.unwrap_or(default));
    Ok(Yarn {
        original_context,
        extrapolation: number("rope.scaling.yarn_ext_factor", 1.0)?,
        attention_factor: number("rope.scaling.yarn_attn_factor", 1.0)?,
        beta_fast: number("rope.scaling.yarn_beta_fast", 32.0)?,
        beta_slow: number("rope.scaling.yarn_beta_slow", 1.0)?,
    })
}
