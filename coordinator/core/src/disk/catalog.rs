//! Which entries the stages keep, and which of them begin some tokens.
//!
//! Entries follow one another by their keys (`proto/src/entries.rs`), so the same tokens may be divided in more than one
//! way. Every way is looked at: there are as many as there were snapshots at different positions. Tokens are not kept
//! here: a key is that of its tokens alone.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use paceline_proto::{Entry, EntryKey};

/// The entries of one root.
#[derive(Debug)]
pub struct DiskCatalog {
    root: EntryKey,
    /// How many there are in the row.
    stages: usize,
    entries: HashMap<EntryKey, Known>,
    /// By parent: how long the entries behind it are, and how many there are of each length.
    lengths: HashMap<EntryKey, BTreeMap<usize, usize>>,
}

#[derive(Debug)]
struct Known {
    parent: EntryKey,
    start: u32,
    length: usize,
    /// Stages that keep its pages, and those that keep the state behind it.
    pages: BTreeSet<usize>,
    states: BTreeSet<usize>,
    /// It is being kept, and with its state.
    under_way: Option<bool>,
}

/// Entries that have the memory of a beginning of some tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPath {
    /// From the first token on, each behind the one before, and where each ends.
    pub entries: Vec<(EntryKey, usize)>,
}

impl DiskPath {
    /// How many tokens that are.
    pub fn tokens(&self) -> usize {
        self.entries.last().map_or(0, |(_, end)| *end)
    }
}

impl DiskCatalog {
    /// Nothing yet, of a row with so many stages.
    pub fn new(root: EntryKey, stages: usize) -> Self {
        Self { root, stages, entries: HashMap::new(), lengths: HashMap::new() }
    }

    /// What all entries have in common.
    pub fn root(&self) -> EntryKey {
        self.root
    }

    /// How many entries are known, of any stage.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Is nothing known?
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// A stage keeps an entry's pages, and possibly its state. Entries of other roots, or that cannot be, are ignored.
    pub fn kept(&mut self, stage: usize, entry: &Entry, state: bool) {
        if entry.root != self.root || entry.end().is_none() || stage >= self.stages {
            return;
        }
        let known = self.known(entry);
        known.pages.insert(stage);
        if state {
            known.states.insert(stage);
        }
    }

    /// An entry is being kept, by all stages.
    pub fn begin(&mut self, entry: &Entry, state: bool) {
        let known = self.known(entry);
        known.under_way = Some(state || known.under_way == Some(true));
    }

    /// It no longer is, whatever came of it.
    pub fn end(&mut self, key: EntryKey) {
        let Some(known) = self.entries.get_mut(&key) else { return };
        known.under_way = None;
        if known.pages.is_empty() {
            self.lost(key);
        }
    }

    /// A stage does not keep an entry any more: it is of no use to anybody.
    pub fn lost(&mut self, key: EntryKey) {
        let Some(Known { parent, length, .. }) = self.entries.remove(&key) else { return };
        let Some(lengths) = self.lengths.get_mut(&parent) else { return };
        if let Some(count) = lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                lengths.remove(&length);
            }
        }
        if lengths.is_empty() {
            self.lengths.remove(&parent);
        }
    }

    fn known(&mut self, entry: &Entry) -> &mut Known {
        let (key, length) = (entry.key(), entry.tokens.len());
        if !self.entries.contains_key(&key) {
            *self.lengths.entry(entry.parent).or_default().entry(length).or_default() += 1;
        }
        self.entries.entry(key).or_insert_with(|| Known {
            parent: entry.parent,
            start: entry.start,
            length,
            pages: BTreeSet::new(),
            states: BTreeSet::new(),
            under_way: None,
        })
    }

    fn has(&self, known: &Known, state: bool) -> bool {
        known.pages.len() == self.stages && (!state || known.states.len() == self.stages)
    }

    /// The path that has most of the first `most` tokens; where `states`, it ends where every stage keeps a state. Nothing
    /// if there is none.
    pub fn find(&self, tokens: &[u32], most: usize, states: bool) -> Option<DiskPath> {
        let path = self.deepest(
            &tokens[..most.min(tokens.len())],
            |known| self.has(known, false),
            |known| self.has(known, states),
        );
        (!path.entries.is_empty()).then_some(path)
    }

    /// The entry that ends behind these tokens or comes nearest to that, of those that are kept or being kept, and where
    /// it ends; and whether its state is as well.
    pub fn reach(&self, tokens: &[u32]) -> (Option<Entry>, usize, bool) {
        let kept = |known: &Known| self.has(known, false) || known.under_way.is_some();
        let path = self.deepest(tokens, kept, |_| true);
        let Some((key, end)) = path.entries.last().copied() else { return (None, 0, false) };
        let known = &self.entries[&key];
        let tokens = tokens[known.start as usize..end].to_vec();
        let entry = Entry { root: self.root, parent: known.parent, start: known.start, tokens };
        (Some(entry), end, self.has(known, true) || known.under_way == Some(true))
    }

    /// The path of entries that all pass, whose last one ends, with the most tokens.
    fn deepest(&self, tokens: &[u32], passes: impl Fn(&Known) -> bool, ends: impl Fn(&Known) -> bool) -> DiskPath {
        let mut best = (self.root, 0);
        // Where a path can be; each key has one path to it.
        let mut reached = vec![best];
        while let Some((at, position)) = reached.pop() {
            let lengths = self.lengths.get(&at).into_iter().flat_map(BTreeMap::keys).copied();
            for (length, key) in at.children(&tokens[position..], lengths) {
                let Some(known) = self.entries.get(&key).filter(|known| passes(known)) else { continue };
                let end = position + length;
                if end > best.1 && ends(known) {
                    best = (key, end);
                }
                reached.push((key, end));
            }
        }
        let (mut entries, mut at) = (Vec::new(), best);
        while let Some(known) = self.entries.get(&at.0) {
            entries.push(at);
            at = (known.parent, known.start as usize);
        }
        entries.reverse();
        DiskPath { entries }
    }
}
