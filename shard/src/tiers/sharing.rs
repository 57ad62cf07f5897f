//! What tiers of several nodes have of the same entries: each node keeps its own layers, and when a row is cut in another
//! way, a layer's new node takes what it needs from the old one, once.
//!
//! A node asks for the list of what another has of a root when its stage's entries are listed, and for a layer of an entry
//! when it is to be staged. Both are requests of 32 bytes and a number, and answers are bytes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use paceline_proto::entries::beginning_with;
use paceline_proto::{Entry, EntryKey, HeldEntry, HeldLayer};
use paceline_tier::{Span, Store};
use tracing::debug;

/// Marks the number of a part of a list; other numbers are layers.
const LIST: u32 = 1 << 31;
/// Entries in a part of a list.
const LISTED: usize = 64;
/// Parts of a list that are asked for.
const PARTS: u32 = 1 << 12;
/// What is not listed by then is not known: the coordinator waits little longer for all lists.
const LOOKING: Duration = Duration::from_secs(6);
/// Tokens of entries that are known of other nodes, 64 MiB of them: what is beyond that is read again.
const MOST_TOKENS: usize = 1 << 24;

/// What another node is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The key of a root or of an entry.
    pub of: [u8; 32],
    /// The number of a part of the root's list, with the highest bit set, or the entry's layer.
    pub number: u32,
}

/// Other nodes that may have what this one lacks.
pub trait Others: Send + Sync {
    /// How many there are.
    fn count(&self) -> usize;

    /// What one of them answers, `None` if it does not have it or is not there. Called where it may block, but whoever
    /// waits for a session waits for this.
    fn ask(&self, other: usize, request: Request) -> Option<Vec<u8>>;
}

/// The other side of a [`Request`].
pub(super) fn give(store: &mut Store, Request { of, number }: Request) -> Option<Vec<u8>> {
    let key = EntryKey(of);
    if number & LIST != 0 {
        let skipped = (number & !LIST) as usize * LISTED;
        let entries = store.entries(key, None, skipped + LISTED).ok()?.into_iter().skip(skipped);
        let held = |entry: Entry| HeldEntry { layers: store.layers(entry.key()), entry };
        return Some(HeldEntry::encode(&entries.map(held).collect::<Vec<_>>()));
    }
    let form = store.layers(key).into_iter().find(|(_, layers)| layers.contains(&number))?.0;
    let mut bytes = Vec::new();
    store.read(key, &form, number, &mut bytes).ok()?.then(|| HeldLayer { form, bytes }.encode())
}

/// What is known of the other nodes of a stage's.
pub(super) struct Elsewhere {
    others: Option<Box<dyn Others>>,
    form: String,
    /// By entry: what it is, and who has which of its layers.
    known: BTreeMap<EntryKey, (Entry, BTreeMap<u32, usize>)>,
}

impl Elsewhere {
    pub(super) fn new(others: Option<Box<dyn Others>>, form: &str) -> Self {
        Self { others, form: form.to_owned(), known: BTreeMap::new() }
    }

    /// Asks everybody what they have under a root, as far as time and room go.
    pub(super) fn look(&mut self, root: EntryKey) {
        self.known.clear();
        let begun = Instant::now();
        let (others, mut room) = (self.others.as_ref().map_or(0, |others| others.count()), MOST_TOKENS);
        'others: for other in 0..others {
            for part in 0..PARTS {
                if begun.elapsed() > LOOKING || room == 0 {
                    break 'others;
                }
                let Some(held) = self.list(other, root, part) else { break };
                let is_last = held.len() < LISTED;
                for held in held.into_iter().filter(|held| held.entry.root == root && held.entry.end().is_some()) {
                    room = room.saturating_sub(held.entry.tokens.len());
                    self.note(held, other);
                }
                if is_last {
                    break;
                }
            }
        }
        debug!(entries = self.known.len(), "entries are kept by other nodes");
    }

    /// A part of what a node has.
    fn list(&self, other: usize, root: EntryKey, part: u32) -> Option<Vec<HeldEntry>> {
        let answer = self.others.as_ref()?.ask(other, Request { of: root.0, number: LIST | part })?;
        HeldEntry::decode(&answer).ok()
    }

    fn note(&mut self, HeldEntry { entry, layers }: HeldEntry, other: usize) {
        let layers = layers.into_iter().filter(|(form, _)| *form == self.form).flat_map(|(_, layers)| layers);
        let (_, known) = self.known.entry(entry.key()).or_insert_with(|| (entry, BTreeMap::new()));
        for layer in layers {
            known.entry(layer).or_insert(other);
        }
    }

    pub(super) fn has(&self, key: EntryKey, layer: u32) -> bool {
        self.known.get(&key).is_some_and(|(_, layers)| layers.contains_key(&layer))
    }

    pub(super) fn entry(&self, key: EntryKey) -> Option<Entry> {
        self.known.get(&key).map(|(entry, _)| entry.clone())
    }

    pub(super) fn span(&self, key: EntryKey) -> Option<Span> {
        let (Entry { parent, start, .. }, end) =
            self.known.get(&key).and_then(|(entry, _)| Some((entry, entry.end()?)))?;
        Some(Span { parent: *parent, start: *start, end })
    }

    /// Entries with keys after this one, by key.
    pub(super) fn entries(&self, after: Option<EntryKey>, limit: usize) -> Vec<(EntryKey, Entry)> {
        let behind = self.known.iter().filter(|(key, _)| after.is_none_or(|after| **key > after));
        behind.take(limit).map(|(key, (entry, _))| (*key, entry.clone())).collect()
    }

    /// The bytes of a layer, from who has it. Who turns out not to is not asked again.
    pub(super) fn fetch(&mut self, key: EntryKey, layer: u32) -> Option<Vec<u8>> {
        let (_, layers) = self.known.get_mut(&key)?;
        let other = *layers.get(&layer)?;
        let answer = self.others.as_ref().and_then(|others| others.ask(other, Request { of: key.0, number: layer }));
        let found = answer.and_then(|answer| HeldLayer::decode(&answer).ok());
        let found = found.filter(|found| found.form == self.form);
        if found.is_none() {
            layers.remove(&layer);
        }
        found.map(|found| found.bytes)
    }

    /// Forgets texts that begin with these tokens, as a store does.
    pub(super) fn forget(&mut self, root: EntryKey, tokens: &[u32]) {
        let entries: Vec<Entry> = self.known.values().map(|(entry, _)| entry.clone()).collect();
        for key in beginning_with(root, &entries, tokens) {
            self.known.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Another node, which answers so.
    struct Other<F>(F);

    impl<F: Fn(Request) -> Option<Vec<u8>> + Send + Sync> Others for Other<F> {
        fn count(&self) -> usize {
            1
        }

        fn ask(&self, _: usize, request: Request) -> Option<Vec<u8>> {
            (self.0)(request)
        }
    }

    fn root() -> EntryKey {
        EntryKey::root(&[1; 32], "")
    }

    fn held(root: EntryKey, start: u32, tokens: Vec<u32>) -> HeldEntry {
        HeldEntry { entry: Entry { root, parent: root, start, tokens }, layers: vec![("cpu".to_owned(), vec![3])] }
    }

    fn elsewhere(answer: impl Fn(Request) -> Option<Vec<u8>> + Send + Sync + 'static) -> Elsewhere {
        let mut elsewhere = Elsewhere::new(Some(Box::new(Other(answer))), "cpu");
        elsewhere.look(root());
        elsewhere
    }

    #[test]
    fn a_list_without_end_is_heard_to_a_bound() {
        let elsewhere = elsewhere(|request| {
            let entry = |index: u32| held(root(), 0, vec![request.number ^ (index << 16); 1 << 12]);
            Some(HeldEntry::encode(&(0..LISTED as u32).map(entry).collect::<Vec<_>>()))
        });
        assert!(elsewhere.known.len() <= (MOST_TOKENS >> 12) + LISTED && elsewhere.known.len() >= LISTED);
    }

    #[test]
    fn what_makes_no_sense_is_not_known() {
        assert!(elsewhere(|_| Some(vec![0xff; 40])).known.is_empty());
        let other = EntryKey::root(&[2; 32], "");
        let odd =
            HeldEntry::encode(&[held(other, 0, vec![1]), held(root(), 0, vec![]), held(root(), u32::MAX, vec![1; 9])]);
        assert!(elsewhere(move |_| Some(odd.clone())).known.is_empty());
    }

    #[test]
    fn who_turns_out_not_to_have_a_layer_is_not_asked_again() {
        static ASKED: AtomicUsize = AtomicUsize::new(0);
        let entry = held(root(), 0, vec![5; 9]);
        let key = entry.entry.key();
        let mut elsewhere = elsewhere(move |request| {
            if request.number & LIST != 0 {
                return Some(HeldEntry::encode(std::slice::from_ref(&entry)));
            }
            ASKED.fetch_add(1, Ordering::Relaxed);
            Some(HeldLayer { form: "another".to_owned(), bytes: vec![1] }.encode())
        });
        assert!(elsewhere.has(key, 3) && !elsewhere.has(key, 4));
        assert_eq!([elsewhere.fetch(key, 3), elsewhere.fetch(key, 3)], [None, None]);
        assert!(!elsewhere.has(key, 3));
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }
}
