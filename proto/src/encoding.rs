//! Texts that are read as a whole, for one vector each.

/// A text, or two that are judged together, as a model of vectors reads it: special tokens included.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EncodeText {
    /// All its tokens.
    pub tokens: Vec<u32>,
    /// The first token of the second of two texts, if there are two.
    pub second: Option<usize>,
}

impl EncodeText {
    /// One text.
    pub fn single(tokens: Vec<u32>) -> Self {
        Self { tokens, second: None }
    }

    /// The kind of the token at `position`: 1 in the second of two texts.
    pub fn kind(&self, position: usize) -> u32 {
        u32::from(self.second.is_some_and(|second| position >= second))
    }
}
