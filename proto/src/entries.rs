//! Names of what stages keep in lower tiers: by content, so that another process, or another placement, finds it again.
//!
//! An [`Entry`] is a run of tokens behind a prefix, and stands for what a row remembers of it: its pages, and where the
//! model is recurrent possibly the state behind its last token. Its [`EntryKey`] is a hash over everything those bytes
//! depend on besides the layer and the device: the model, settings, all tokens before, its own tokens, and where the
//! prefix was divided into entries.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The most tokens of an entry: more than lie between two snapshots, and a list of entries still fits a message.
pub const ENTRY_TOKENS: usize = 4096;
/// What the hash of a root is for: no other hash of the same bytes is equal to it.
const CONTEXT: &str = "paceline 2026-11 entries of lower tiers";

/// Names an entry, or the root that all entries of a model with the same settings have in common.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct EntryKey(pub [u8; 32]);

impl EntryKey {
    /// The parent of all entries that begin with a model's first token. `model` names its content, `settings` whatever
    /// else changes what is computed: rotations that were overridden, the numerics class.
    ///
    /// # Example
    /// ```
    /// use paceline_proto::EntryKey;
    /// let root = EntryKey::root(&[7; 32], "f32 on links");
    /// assert_ne!(root, EntryKey::root(&[7; 32], "int8 on links"));
    /// assert_ne!(root.child(&[1, 2]), root.child(&[1]).child(&[2]));
    /// ```
    pub fn root(model: &[u8; 32], settings: &str) -> Self {
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        hasher.update(model);
        hasher.update(settings.as_bytes());
        Self(*hasher.finalize().as_bytes())
    }

    /// The entries of the first of `tokens` behind this one, for each of these lengths, which ascend: the tokens are read
    /// once. What is longer than all of them is left out.
    ///
    /// # Example
    /// ```
    /// use paceline_proto::EntryKey;
    /// let root = EntryKey::root(&[7; 32], "");
    /// let all: Vec<_> = root.children(&[1, 2, 3], [1, 3, 4]).collect();
    /// assert_eq!(all, [(1, root.child(&[1])), (3, root.child(&[1, 2, 3]))]);
    /// ```
    pub fn children(
        self,
        tokens: &[u32],
        lengths: impl IntoIterator<Item = usize>,
    ) -> impl Iterator<Item = (usize, Self)> {
        let (mut hasher, mut read) = (blake3::Hasher::new_keyed(&self.0), 0);
        lengths.into_iter().take_while(|length| *length <= tokens.len()).map(move |length| {
            for token in &tokens[read..length] {
                hasher.update(&token.to_le_bytes());
            }
            read = length;
            (length, Self(*hasher.finalize().as_bytes()))
        })
    }

    /// The entry of these tokens behind this one.
    #[must_use]
    pub fn child(self, tokens: &[u32]) -> Self {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        Self(*hasher.finalize().as_bytes())
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for EntryKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "EntryKey({self})")
    }
}

/// A run of tokens behind a prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Of its model and settings.
    pub root: EntryKey,
    /// The entry before it; the root where it begins with the first token.
    pub parent: EntryKey,
    /// How many tokens come before it.
    pub start: u32,
    /// At least one, at most [`ENTRY_TOKENS`].
    pub tokens: Vec<u32>,
}

impl Entry {
    /// Its name.
    pub fn key(&self) -> EntryKey {
        self.parent.child(&self.tokens)
    }

    /// How many tokens lie before its end; `None` if it cannot be: no tokens or too many, or the root in the middle.
    pub fn end(&self) -> Option<u32> {
        let count = u32::try_from(self.tokens.len()).ok()?;
        let sound = count > 0 && self.tokens.len() <= ENTRY_TOKENS && (self.start == 0) == (self.parent == self.root);
        self.start.checked_add(count).filter(|_| sound)
    }
}

/// Which entries are of texts that begin with these tokens, or are followed by none but these.
pub fn beginning_with(root: EntryKey, entries: &[Entry], tokens: &[u32]) -> Vec<EntryKey> {
    let mut in_order: Vec<(EntryKey, &Entry)> = entries.iter().map(|entry| (entry.key(), entry)).collect();
    // A parent comes before its children.
    in_order.sort_by_key(|(_, entry)| entry.start);
    // Entries that end inside the text, that part from it, and that go on from it.
    let (mut inside, mut parted, mut going) = (HashSet::from([root]), HashSet::new(), HashSet::new());
    for (key, entry) in &in_order {
        let ahead = tokens.get(entry.start as usize..).unwrap_or_default();
        let common = ahead.len().min(entry.tokens.len());
        let follows = inside.contains(&entry.parent);
        let place = match (follows && ahead[..common] != entry.tokens[..common], follows && common < ahead.len()) {
            (true, _) => &mut parted,
            (false, true) => &mut inside,
            (false, false) if parted.contains(&entry.parent) => &mut parted,
            (false, false) => &mut going,
        };
        place.insert(*key);
    }
    for (key, _) in in_order.iter().rev().filter(|(key, _)| inside.contains(key)) {
        let mut followers = in_order.iter().filter(|(_, entry)| entry.parent == *key).peekable();
        if followers.peek().is_some() && followers.all(|(follower, _)| going.contains(follower)) {
            going.insert(*key);
        }
    }
    going.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_key_is_the_same_on_every_host_and_in_every_release() {
        let key = EntryKey::root(&[3; 32], "settings").child(&[1, 2, 3]).child(&[u32::MAX]);
        // Computed by another implementation: a change makes everybody's disk tier useless.
        assert_eq!(key.to_string(), "94f02133de69e87c95d38dbef7fc6cef82bd6efc49d99e05400b42a41ade4cce");
    }

    #[test]
    fn an_entry_that_cannot_be_has_no_end() {
        let root = EntryKey::root(&[0; 32], "");
        let entry = |parent, start, tokens| Entry { root, parent, start, tokens };
        assert_eq!(entry(root, 0, vec![1; 7]).end(), Some(7));
        assert_eq!(entry(root.child(&[1]), 1, vec![1; 7]).end(), Some(8));
        let inside = root.child(&[1]);
        for wrong in [
            entry(root, 0, vec![]),
            entry(root, 1, vec![1]),
            entry(inside, 0, vec![1]),
            entry(inside, u32::MAX, vec![1]),
            entry(inside, 1, vec![1; ENTRY_TOKENS + 1]),
        ] {
            assert_eq!(wrong.end(), None);
        }
    }

    proptest! {
        #[test]
        fn other_tokens_or_another_division_is_another_key(one: Vec<u32>, other: Vec<u32>, cut: usize) {
            let root = EntryKey::root(&[1; 32], "");
            prop_assert_eq!(root.child(&one) == root.child(&other), one == other);
            let (head, rest) = one.split_at(cut % (one.len() + 1));
            prop_assert_ne!(root.child(head).child(rest), root.child(&one));
        }
    }
}
