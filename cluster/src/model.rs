//! Which model: a file, or the tiny one inside this program.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use paceline_gguf::{DflashShape, Gguf, ModelShape};
use paceline_model::{Overrides, RopeScaling};

use crate::cli::{DraftArgs, ModelArgs};

/// A trained hybrid of 5.8 M parameters, so that the program answers without any file. Its origin and licence
/// are told beside the file.
static TINY_HYBRID: &[u8] = include_bytes!("../models/tiny-hybrid-mtp-q8_0.gguf");

/// What it is called in the API.
const TINY_HYBRID_NAME: &str = "tiny-hybrid";

/// Opens the model that the arguments name.
pub(crate) fn open(arguments: &ModelArgs) -> Result<Arc<Gguf>> {
    Ok(Arc::new(read(arguments)?))
}

/// Opens the model that the arguments name, and with it the one that drafts for it, if a file of one is named.
pub(crate) fn open_with_draft(arguments: &ModelArgs, draft: &DraftArgs) -> Result<Arc<Gguf>> {
    let gguf = read(arguments)?;
    Ok(Arc::new(match draft.file() {
        None => gguf,
        Some(path) => {
            let draft = open_draft(path, &gguf)?;
            gguf.with_draft(draft)
        }
    }))
}

fn read(arguments: &ModelArgs) -> Result<Gguf> {
    match &arguments.model {
        Some(path) => Gguf::open(path).with_context(|| format!("cannot open the model {}", path.display())),
        None => Gguf::from_static(TINY_HYBRID, TINY_HYBRID_NAME).context("cannot read the model in this program"),
    }
}

/// Opens a model that is to draft for another one, and checks that it can.
fn open_draft(path: &Path, model: &Gguf) -> Result<Gguf> {
    let draft = Gguf::open(path).with_context(|| format!("cannot open the draft model {}", path.display()))?;
    let unusable = || format!("{} cannot draft for {}", path.display(), model.name());
    match DflashShape::is_one(&draft) {
        true => drop(DflashShape::read(&draft, &ModelShape::read(model)?).with_context(unusable)?),
        false => drop(ModelShape::read(&draft).with_context(unusable)?),
    }
    model.check_same_vocabulary(&draft).with_context(unusable)?;
    Ok(draft)
}

/// The model inside this program, and its name.
pub(crate) fn embedded() -> (&'static [u8], &'static str) {
    (TINY_HYBRID, TINY_HYBRID_NAME)
}

/// The model's name in the API, if no alias is given.
pub(crate) fn name(arguments: &ModelArgs) -> String {
    let stem = arguments.model.as_deref().and_then(Path::file_stem);
    stem.map_or_else(|| TINY_HYBRID_NAME.to_owned(), |stem| stem.to_string_lossy().into_owned())
}

/// What the arguments change of the model's settings.
pub(crate) fn overrides(arguments: &ModelArgs) -> Overrides {
    let original_context = arguments.yarn_original_context;
    let yarn = |factor| RopeScaling::Yarn { factor, original_context };
    Overrides { rope_base: arguments.rope_freq_base, rope_scaling: arguments.yarn_factor.map(yarn) }
}
