//! Prompt lookup: what came after the session's last tokens where they stood before.
//!
//! Answers quote: code that is edited, documents that are asked about, names and phrases that come again. So the text
//! itself is a model of what follows, which costs nothing to run. All places where the last three tokens stood are
//! chained, newest first, by a hash of them; of those places the one counts that agrees with the end of the text for
//! longest, and of several the newest.
//!
//! An edited text departs from its source for a few tokens and comes back, and until three tokens agree again nothing
//! would be found. So the place from which was copied last is remembered: near it, one token that agrees is enough.
//!
//! Memory: 4 bytes per token for the chains, and at most 8 for their heads. Work: at most 32 places are
//! looked at for a draft, and a token enters in constant time.

use std::cmp::Reverse;

/// Tokens that must agree somewhere in the text.
const GRAM: usize = 3;
/// Agreement beyond so many tokens makes no difference.
pub const MOST_AGREEMENT: usize = 32;
/// Places that are looked at: a phrase that comes more often than that is a poor guide.
const CANDIDATES: usize = 32;
/// How far from where copying broke off it may go on: edits insert and remove a few tokens.
const NEAR: usize = 12;
/// Tokens after which it is forgotten where copying broke off.
const PATIENCE: usize = 24;

/// A place in the text that the end of the text agrees with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Agreement {
    /// What stood behind it: the position of the first token that may come again.
    pub from: usize,
    /// How many tokens before it agree with the last tokens of the text, [`MOST_AGREEMENT`] at most.
    pub tokens: usize,
}

/// Where copying was last time.
#[derive(Debug, Clone, Copy)]
struct Copying {
    /// Where its next token was expected to come from,
    from: usize,
    /// when the text had so many tokens.
    at: usize,
}

/// An index over a text that grows at its end. The text itself is its owner's.
#[derive(Debug, Default)]
pub struct Lookup {
    /// By hash of [`GRAM`] tokens: the position behind where they stood last; 0 where they never did.
    newest: Vec<u32>,
    /// By position, less [`GRAM`]: the position behind where tokens of the same hash stood before.
    older: Vec<u32>,
    copying: Option<Copying>,
}

impl Lookup {
    /// Takes in what is new of the text, and finds where its end stood before.
    pub fn find(&mut self, text: &[u32]) -> Option<Agreement> {
        let newest = self.enter(text);
        let found = self.longest(text, newest).or_else(|| self.resumed(text));
        if let Some(found) = found {
            self.copying = Some(Copying { from: found.from, at: text.len() });
        }
        found
    }

    /// The `most` tokens that follow if the text goes on as it did there. A text that repeats what it has just begun to
    /// repeat goes on so for ever.
    pub fn continuation(text: &[u32], found: Agreement, most: usize) -> Vec<u32> {
        let mut tokens: Vec<u32> = Vec::with_capacity(most);
        for position in found.from..found.from + most {
            let token = text.get(position).or_else(|| tokens.get(position - text.len())).copied();
            tokens.extend(token);
        }
        tokens
    }

    /// Enters all positions; returns where the end of the text stood last, 0 if nowhere.
    fn enter(&mut self, text: &[u32]) -> usize {
        if text.len() < GRAM {
            return 0;
        }
        self.grow(text);
        for end in self.older.len() + GRAM..=text.len() {
            self.push(&text[end - GRAM..end], end);
        }
        self.older[text.len() - GRAM] as usize
    }

    /// Keeps as many heads as there are tokens, to the next power of two.
    fn grow(&mut self, text: &[u32]) {
        let places = text.len().next_power_of_two().max(256);
        if places <= self.newest.len() {
            return;
        }
        self.newest = vec![0; places];
        let entered = std::mem::take(&mut self.older).len();
        self.older.reserve(places);
        for end in GRAM..GRAM + entered {
            self.push(&text[end - GRAM..end], end);
        }
    }

    /// Puts a place at the front of its chain.
    fn push(&mut self, gram: &[u32], end: usize) {
        let hash = gram
            .iter()
            .fold(0u64, |hash, token| (hash.rotate_left(23) ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let place = (hash >> 32) as usize & (self.newest.len() - 1);
        let end = u32::try_from(end).expect("a context is shorter than 2^32 tokens");
        self.older.push(std::mem::replace(&mut self.newest[place], end));
    }

    /// Of the places in the chain, the one that agrees for longest, the newest of several.
    fn longest(&self, text: &[u32], newest: usize) -> Option<Agreement> {
        let older = |end: &usize| self.older.get(end - GRAM).map(|older| *older as usize).filter(|older| *older > 0);
        let places = std::iter::successors(Some(newest).filter(|end| *end > 0), older).take(CANDIDATES);
        let agreements = places.map(|from| Agreement { from, tokens: agreement(text, from) });
        // of equal ones the last is the greatest, which the newest is in reverse
        let all: Vec<_> = agreements.filter(|one| one.tokens >= GRAM).collect();
        all.into_iter().rev().max_by_key(|one| one.tokens)
    }

    /// Where copying goes on that broke off a few tokens ago.
    fn resumed(&mut self, text: &[u32]) -> Option<Agreement> {
        let Copying { from, at } = self.copying?;
        let passed = text.len() - at.min(text.len());
        if passed > PATIENCE {
            self.copying = None;
            return None;
        }
        // a token that took the place of another is the most likely case
        let expected = from + passed;
        let places = expected.saturating_sub(NEAR).max(1)..(expected + NEAR).min(text.len());
        let agreements = places.map(|from| Agreement { from, tokens: agreement(text, from) });
        let agreements = agreements.filter(|one| one.tokens > 0);
        agreements.max_by_key(|one| (one.tokens, Reverse(one.from.abs_diff(expected))))
    }
}

/// How many tokens before `from` are the last ones of the text.
fn agreement(text: &[u32], from: usize) -> usize {
    let pairs = text[..from].iter().rev().zip(text.iter().rev());
    pairs.take(MOST_AGREEMENT).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What it finds of a text that grew token by token.
    fn grown(text: &[u32]) -> Option<Agreement> {
        let mut lookup = Lookup::default();
        for end in 1..text.len() {
            lookup.find(&text[..end]);
        }
        lookup.find(text)
    }

    /// The obvious way: all places, the longest agreement, the newest of several.
    fn by_force(text: &[u32]) -> Option<Agreement> {
        let places = (1..text.len()).map(|from| Agreement { from, tokens: agreement(text, from) });
        places.filter(|one| one.tokens >= GRAM).max_by_key(|one| (one.tokens, one.from))
    }

    fn drafts(text: &[u32], most: usize) -> Vec<u32> {
        grown(text).map_or_else(Vec::new, |found| Lookup::continuation(text, found, most))
    }

    #[test]
    fn what_followed_before_follows_again() {
        assert_eq!(drafts(&[1, 2, 3, 4, 5, 6, 9, 1, 2, 3], 3), [4, 5, 6]);
        assert_eq!(drafts(&[1, 2, 3, 4, 7, 1, 2, 3, 5, 7, 1, 2, 3], 2), [5, 7], "the newest of equals");
        assert_eq!(drafts(&[9, 1, 2, 3, 4, 7, 8, 1, 2, 3, 5, 7, 9, 1, 2, 3], 2), [4, 7], "the longest");
        assert_eq!(drafts(&[1, 2, 3, 4], 2), [0; 0]);
        assert_eq!(drafts(&[], 2), [0; 0]);
    }

    #[test]
    fn what_repeats_itself_goes_on_for_ever() {
        assert_eq!(drafts(&[1, 2, 1, 2, 1, 2], 5), [1, 2, 1, 2, 1]);
        assert_eq!(drafts(&[5, 5, 5, 5], 4), [5, 5, 5, 5]);
    }

    #[test]
    fn copying_goes_on_behind_an_edit() {
        let source: Vec<u32> = (100..140).collect();
        let mut text = source.clone();
        text.push(1);
        text.extend(&source[..10]);
        let mut lookup = Lookup::default();
        let next = |lookup: &mut Lookup, text: &[u32]| {
            lookup.find(text).map_or_else(Vec::new, |found| Lookup::continuation(text, found, 1))
        };
        assert_eq!(next(&mut lookup, &text), [110]);
        text.push(7); // in the place of 110
        assert_eq!(next(&mut lookup, &text), [0; 0]);
        text.push(111);
        assert_eq!(next(&mut lookup, &text), [112], "one token is enough where the source is known");
        text.extend([112, 115]); // two are left out
        assert_eq!(next(&mut lookup, &text), [116]);
        text.extend([8, 9, 116]); // and two more come in
        assert_eq!(next(&mut lookup, &text), [117]);
        text.extend(200..200 + PATIENCE as u32);
        text.push(139);
        assert_eq!(next(&mut lookup, &text), [0; 0], "it is forgotten");
    }

    proptest! {
        #[test]
        fn it_finds_the_longest_and_newest(text in prop::collection::vec(0u32..4, 0..CANDIDATES)) {
            // no chain is longer than what is looked at
            let expected = by_force(&text);
            let found = grown(&text);
            prop_assert!(found.is_some() || expected.is_none());
            if let Some(expected) = expected {
                prop_assert_eq!(found, Some(expected));
            }
        }

        #[test]
        fn it_does_not_matter_how_the_text_came(text in prop::collection::vec(0u32..30, 0..600)) {
            let at_once = Lookup::default().find(&text);
            let grown = grown(&text).filter(|found| found.tokens >= GRAM);
            prop_assert_eq!(at_once, grown);
            if let Some(found) = at_once {
                let continuation = Lookup::continuation(&text, found, 9);
                prop_assert_eq!(continuation.len(), 9);
                prop_assert!(text[found.from..].iter().zip(&continuation).all(|(one, other)| one == other));
            }
        }

        #[test]
        fn its_memory_is_bounded_by_the_text(tokens in 1usize..5000) {
            let text: Vec<u32> = (0..tokens as u32).map(|token| token % 7).collect();
            let mut lookup = Lookup::default();
            lookup.find(&text);
            prop_assert!(lookup.older.len() <= tokens);
            prop_assert!(lookup.newest.len() <= (2 * tokens).max(256));
        }
    }
}
