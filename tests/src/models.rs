//! The models that tests run, by name: stored in `data/models`, drawn again (see [`Preset`]), or part of the program.

use std::io::{Write, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use paceline_gguf::testing::GgufWriter;
use paceline_gguf::{Gguf, TensorType};

use crate::random::Preset;

/// The folder of test data.
pub fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data")
}

/// The trained hybrid that the program embeds, as Q8_0.
pub fn tiny_hybrid() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../cluster/models/tiny-hybrid-mtp-q8_0.gguf")
}

/// SmolLM2-135M-Instruct, a real chat model, if `tests/fetch-models` has fetched it; else says aloud that a test is
/// skipped. In CI it must be there.
///
/// # Panics
/// If it is missing in CI, or not valid.
pub fn smollm2() -> Option<Arc<Gguf>> {
    let path = smollm2_path()?;
    Some(Arc::new(Gguf::open(&path).expect("the fetched model is valid")))
}

/// Where it is.
///
/// # Panics
/// If it is missing in CI.
pub fn smollm2_path() -> Option<PathBuf> {
    fetched("SmolLM2-135M-Instruct.Q4_1.gguf")
}

/// Where a file is that `tests/fetch-models` makes.
///
/// # Panics
/// If it is missing in CI.
pub fn fetched(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/models").join(file);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("CI").is_none(), "{} must be there in CI: run tests/fetch-models", path.display());
    // Straight to the terminal: the output of tests that pass is hidden.
    writeln!(stderr(), "skipped: {} is not there, run tests/fetch-models", path.display()).expect("standard error");
    None
}

/// A file of all-MiniLM-L6-v2, a real model of vectors, if `tests/fetch-models` has made it; else says aloud that a test is
/// skipped. In CI it must be there.
///
/// # Panics
/// If it is missing in CI, or not valid.
pub fn minilm(file: &str) -> Option<Arc<Gguf>> {
    let path = fetched(file)?;
    Some(Arc::new(Gguf::open(&path).expect("the fetched model is valid")))
}

/// Opens a model by name, such as `nano16-f32`, `mini-Q4_K_M` or `tiny-hybrid-mtp-q8_0`.
///
/// # Panics
/// If there is none of that name.
pub fn model(name: &str) -> Arc<Gguf> {
    Arc::new(open(name))
}

/// Opens a model and another one that drafts for it, by their names.
///
/// # Panics
/// If there are none of these names.
pub fn with_draft(name: &str, draft: &str) -> Arc<Gguf> {
    Arc::new(open(name).with_draft(open(draft)))
}

fn open(name: &str) -> Gguf {
    if name == "tiny-hybrid-mtp-q8_0" {
        return Gguf::open(&tiny_hybrid()).expect("the embedded model is valid");
    }
    let path = data().join("models").join(format!("{name}.gguf"));
    if path.exists() {
        return Gguf::open(&path).expect("stored models are valid");
    }
    Gguf::from_vec(drawn(name).to_vec(), name).expect("drawn models are valid")
}

/// Draws a random model again.
fn drawn(name: &str) -> GgufWriter {
    let (preset, kind) = name.rsplit_once('-').expect("names end in a type");
    let (kind, experts) = match kind {
        "f32" => (TensorType::F32, TensorType::F32),
        "F16" => (TensorType::F16, TensorType::F16),
        "BF16" => (TensorType::BF16, TensorType::BF16),
        "Q8_0" => (TensorType::Q8_0, TensorType::Q8_0),
        "MXFP4_MOE" => (TensorType::Q8_0, TensorType::Mxfp4),
        other => panic!("{name} is not stored, and {other} models are not drawn"),
    };
    Preset::named(preset).unwrap_or_else(|| panic!("there is no model {name}")).model(kind, experts)
}
