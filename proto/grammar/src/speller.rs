//! How the tokens of a vocabulary are spelled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};

use crate::{Error, Follower, Grammar, Result};

/// Stands for the end of a text: a token behind all others, which the vocabulary does not have.
const END: &[u8] = b"\xff<|end of text|>";

/// What a token writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spelling<'t> {
    /// These bytes.
    Text(&'t [u8]),
    /// Nothing: it stands for itself, under this name. A grammar may ask for it as `<name>`, brackets included.
    Special(&'t str),
    /// It is never written.
    Unused,
}

/// Knows every token of a vocabulary, and makes followers of grammars.
///
/// Takes some ten bytes per byte of all spellings; shared by all sessions.
pub struct Speller {
    factory: ParserFactory,
    /// Tokens that end a text, sorted.
    ends: Arc<[u32]>,
}

impl Speller {
    /// A speller of tokens 0, 1, ... as they are spelled; `ends` are those that end a text.
    ///
    /// # Errors
    /// A vocabulary without tokens, or with one that is too long.
    pub fn new<'t>(spellings: impl Iterator<Item = Spelling<'t>>, ends: &[u32]) -> Result<Self> {
        let mut words: Vec<Vec<u8>> = spellings.map(word).collect();
        let end = u32::try_from(words.len()).map_err(|_| Error::Grammar("the vocabulary is too large".to_owned()))?;
        if words.iter().any(|word| word.len() > usize::from(u8::MAX) * 16) {
            return Err(Error::Grammar("a token of the vocabulary is too long".to_owned()));
        }
        words.push(END.to_vec());
        let build = || {
            let trie = TokTrie::from(&TokRxInfo::new(end + 1, end), &words);
            let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
            ParserFactory::new_simple(&environment)
        };
        let factory = guarded(build).and_then(|factory| factory.map_err(|error| Error::Grammar(error.to_string())));
        let mut factory = factory?;
        factory.quiet();
        factory.limits_mut().verbose_errors = false;
        let mut ends = ends.to_vec();
        ends.sort_unstable();
        Ok(Self { factory, ends: ends.into() })
    }

    /// A follower at the beginning of a text.
    ///
    /// # Errors
    /// A grammar that cannot be read, that no text can follow, or that costs too much.
    pub fn follow(&self, grammar: &Grammar) -> Result<Follower> {
        let parsed = grammar.parse()?;
        let parser = guarded(|| self.factory.create_parser(parsed))?;
        let parser = parser.map_err(|error| Error::Grammar(format!("{error:#}")))?;
        let mut follower = Follower::new(Matcher::new(Ok(parser)), Arc::clone(&self.ends), self.size());
        if follower.allowed()?.is_empty() {
            return Err(Error::Grammar("no text can follow it".to_owned()));
        }
        Ok(follower)
    }

    fn size(&self) -> usize {
        self.factory.tok_env().tok_trie().vocab_size() - 1
    }
}

impl std::fmt::Debug for Speller {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Speller").field("tokens", &self.size()).finish_non_exhaustive()
    }
}

/// A token as the tree of tokens has it: special ones begin with a byte that no text has.
fn word(spelling: Spelling<'_>) -> Vec<u8> {
    match spelling {
        Spelling::Text(bytes) if bytes.first() != Some(&TokTrie::SPECIAL_TOKEN_MARKER) => bytes.to_vec(),
        Spelling::Text(_) | Spelling::Unused => Vec::new(),
        Spelling::Special(name) => [&[TokTrie::SPECIAL_TOKEN_MARKER], name.as_bytes()].concat(),
    }
}

/// A library that gives up on a grammar from outside must not take the process along.
fn guarded<T>(work: impl FnOnce() -> T) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| Error::Grammar("it is too hard to understand".to_owned()))
}
