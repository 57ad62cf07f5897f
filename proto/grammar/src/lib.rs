//! What a text must look like: grammars, and which tokens may come next.
//!
//! A [`Grammar`] is made from a JSON schema, a regular expression, a list of choices or the text of a grammar. It is
//! plain text, so that it can be sent to whoever chooses the tokens. There a [`Speller`], which knows how every token of
//! a vocabulary is spelled, makes a [`Follower`] of it: told the tokens one by one, it says which may be next.
//!
//! This crate knows nothing of models, sampling or HTTP. The work is done by `llguidance`.

mod error;
mod follower;
mod grammar;
mod speller;
#[cfg(test)]
mod tests;

pub use error::{Error, Result};
pub use follower::{Allowed, Follower};
pub use grammar::{Grammar, MAX_GRAMMAR_BYTES, quoted};
pub use speller::{Speller, Spelling};
