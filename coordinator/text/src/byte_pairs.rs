//! Byte-level byte pair encoding: bytes joined by a ranked list of merges.

use std::collections::HashMap;
use std::sync::Arc;

use crate::byte_alphabet;
use crate::error::{Error, Result};
use crate::merging::{Merge, Merger};
use crate::pretokenizer::PreTokenizer;
use crate::vocabulary::Vocabulary;

/// A merge with a given left token.
#[derive(Debug, Clone, Copy)]
struct Rule {
    right: u32,
    merge: Merge,
}

/// The encoder of [`VocabularyModel::Gpt2`](crate::VocabularyModel::Gpt2).
#[derive(Debug)]
pub(crate) struct BytePairs {
    pretokenizer: PreTokenizer,
    /// The token of each byte. Vocabularies exist that lack rare bytes; those bytes are left out of the
    /// tokens, as in every other implementation, because no token says what they say.
    byte_tokens: [Option<u32>; 256],
    /// All merges, by left token, then by right token.
    rules: Vec<Rule>,
    /// The rules of left token `t` are `rules[first_rule[t]..first_rule[t + 1]]`.
    first_rule: Vec<u32>,
    /// Words that are tokens whatever the merges say, where the family wants that; by spelling.
    whole_words: Option<Arc<HashMap<Box<str>, u32>>>,
}

impl BytePairs {
    /// Builds the tables; `ids` finds tokens by spelling.
    pub(crate) fn new(vocabulary: &Vocabulary, ids: &Arc<HashMap<Box<str>, u32>>) -> Result<Self> {
        let pretokenizer = PreTokenizer::from_name(&vocabulary.pre)?;
        let byte_tokens = std::array::from_fn(|byte| {
            let spelling = byte_alphabet::character(byte as u8);
            ids.get(spelling.encode_utf8(&mut [0; 4]) as &str).copied()
        });
        let (rules, first_rule) = index_merges(vocabulary, ids)?;
        let whole_words = pretokenizer.prefers_whole_words().then(|| Arc::clone(ids));
        Ok(Self { pretokenizer, byte_tokens, rules, first_rule, whole_words })
    }

    /// Appends the tokens of `text`, which holds no special tokens.
    pub(crate) fn encode(&self, text: &str, tokens: &mut Vec<u32>) {
        let mut merger = Merger::default();
        let mut rest = text;
        while !rest.is_empty() {
            let (word, tail) = rest.split_at(self.pretokenizer.first_word(rest));
            self.encode_word(word, &mut merger, tokens);
            rest = tail;
        }
    }

    fn encode_word(&self, word: &str, merger: &mut Merger, tokens: &mut Vec<u32>) {
        if let Some(token) = self.whole_word(word) {
            tokens.push(token);
            return;
        }
        merger.clear();
        for &byte in word.as_bytes() {
            merger.push(1, self.byte_tokens[byte as usize]);
        }
        merger.run(|left, right| self.merge(left.token?, right.token?));
        tokens.extend(merger.symbols().filter_map(|symbol| symbol.token));
    }

    fn whole_word(&self, word: &str) -> Option<u32> {
        let ids = self.whole_words.as_ref()?;
        let spelling: String = word.bytes().map(byte_alphabet::character).collect();
        ids.get(spelling.as_str()).copied()
    }

    /// What `left` and `right` become, if anything.
    fn merge(&self, left: u32, right: u32) -> Option<Merge> {
        let first = self.first_rule[left as usize] as usize;
        let last = self.first_rule[left as usize + 1] as usize;
        let rules = &self.rules[first..last];
        let found = rules.binary_search_by_key(&right, |rule| rule.right).ok()?;
        Some(rules[found].merge)
    }
}

/// The merges sorted by left and right token, and where each left token's begin.
fn index_merges(vocabulary: &Vocabulary, ids: &HashMap<Box<str>, u32>) -> Result<(Vec<Rule>, Vec<u32>)> {
    let mut merges = Vec::with_capacity(vocabulary.merges.len());
    for (index, merge) in vocabulary.merges.iter().enumerate() {
        let bad = || Error::BadMerge { index, merge: merge.to_string() };
        let priority = u32::try_from(index).map_err(|_| bad())?;
        let (left, right, joined) = resolve(merge, ids).ok_or_else(bad)?;
        // Vocabularies that were cut down have merges to tokens that are gone: those would make text unwritable.
        if let Some(token) = joined {
            merges.push((left, right, Merge { priority, token }));
        }
    }
    // Stable, so the best of several equal pairs comes first and is the one that stays.
    merges.sort_by_key(|&(left, right, _)| (left, right));
    merges.dedup_by_key(|&mut (left, right, _)| (left, right));

    let mut first_rule = vec![0; vocabulary.tokens.len() + 1];
    for &(left, _, _) in &merges {
        first_rule[left as usize + 1] += 1;
    }
    for index in 1..first_rule.len() {
        first_rule[index] += first_rule[index - 1];
    }
    let rules = merges.into_iter().map(|(_, right, merge)| Rule { right, merge }).collect();
    Ok((rules, first_rule))
}

/// The two tokens of a merge, which must exist, and the token that it makes.
fn resolve(merge: &str, ids: &HashMap<Box<str>, u32>) -> Option<(u32, u32, Option<u32>)> {
    let (left, right) = merge.split_once(' ')?;
    let joined = [left, right].concat();
    Some((*ids.get(left)?, *ids.get(right)?, ids.get(joined.as_str()).copied()))
}
