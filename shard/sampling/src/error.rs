//! What can be wrong with sampling settings, tokens and logits.

/// The result of everything in this crate that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// What is wrong: the setting or token, the number, and what is possible.
#[derive(Debug, thiserror::Error, Clone, PartialEq)]
pub enum Error {
    /// A setting outside of its range, or not a number.
    #[error("{setting} is {value}, it must be {allowed}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// What it is.
        value: f32,
        /// What it may be.
        allowed: &'static str,
    },
    /// A bias that is infinite or not a number.
    #[error("the bias of token {token} is {bias}, it must be finite (ban the token instead)")]
    Bias {
        /// Whose.
        token: u32,
        /// What it is.
        bias: f32,
    },
    /// A token that the model does not have.
    #[error("{what} names token {token}, the vocabulary has {vocabulary} tokens")]
    Token {
        /// Where it was named.
        what: &'static str,
        /// The token.
        token: u32,
        /// How many there are.
        vocabulary: usize,
    },
    /// Positions that cannot be counted.
    #[error("{tokens} tokens from position {start} on reach past the last possible position {}", u32::MAX)]
    Position {
        /// Of the first token.
        start: u32,
        /// How many.
        tokens: usize,
    },
    /// A history whose positions do not ascend.
    #[error("the history of tokens is out of order at position {position}")]
    History {
        /// Where.
        position: u32,
    },
    /// Reasoning that would be closed without its closing token.
    #[error("reasoning is to be closed without token {token}, which closes it")]
    Closing {
        /// The closing token.
        token: u32,
    },
    /// A text that must follow a grammar, where nobody knows how tokens are spelled.
    #[error("the answer must follow a grammar, but this stage does not know how the model's tokens are spelled")]
    NoSpeller,
    /// A grammar that cannot be followed, or is not.
    #[error("the answer's grammar: {0}")]
    Grammar(paceline_grammar::Error),
    /// More log probabilities than are reported.
    #[error("{wanted} log probabilities per token are wanted, the limit is {limit}")]
    TooManyLogprobs {
        /// How many were asked for.
        wanted: u32,
        /// How many are possible.
        limit: u32,
    },
    /// Nothing is left to choose.
    #[error("all {vocabulary} tokens are banned, at least one must be allowed")]
    AllBanned {
        /// How many tokens there are.
        vocabulary: usize,
    },
    /// A model without tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// Every logit is minus infinity or not a number (or its token is banned).
    #[error(
        "no token can be chosen at position {position}: every logit is minus infinity, not a number, or of a banned token"
    )]
    NoCandidate {
        /// Where.
        position: u32,
    },
}
