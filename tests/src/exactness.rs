//! The exactness promise as a check, with the models of the tests: see [`paceline_evaluation::exactness`].

use std::ops::Range;
use std::sync::Arc;

use paceline_evaluation::exactness::{self, Subject};
pub use paceline_evaluation::exactness::{Way, Ways};
use paceline_gguf::{Gguf, KvType};

/// Cuts the model's blocks into `shards` stages as evenly as they go.
///
/// # Panics
/// If the model has fewer blocks.
pub fn splits(model: &Gguf, shards: usize) -> Vec<Range<usize>> {
    exactness::splits(model, shards).expect("the model has as many blocks")
}

/// Runs the text in a way, then generates some tokens greedily; the bits of the logits of every row.
///
/// # Panics
/// If the model cannot be run so.
pub fn logits(model: &Arc<Gguf>, text: &[u32], way: Way, key_value_type: KvType) -> Vec<Vec<u32>> {
    let subject = Subject {
        model: Arc::clone(model),
        overrides: Default::default(),
        text: text.to_vec(),
        key_value_types: [key_value_type; 2],
    };
    exactness::logits(&subject, way).expect("the model runs in this way")
}
