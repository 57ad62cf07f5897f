//! What a sampler knows of the model's tokens.

use paceline_grammar::Speller;

/// The tokens of a model.
#[derive(Debug, Clone, Copy)]
pub struct Vocabulary<'s> {
    /// How many logits a row has.
    pub size: usize,
    /// How the tokens are spelled. Without it no answer can be constrained.
    pub speller: Option<&'s Speller>,
}

impl From<usize> for Vocabulary<'_> {
    fn from(size: usize) -> Self {
        Self { size, speller: None }
    }
}
