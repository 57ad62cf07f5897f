//! The tree against lists in which everything is looked for everywhere.

mod keeping;

use proptest::prelude::*;

use super::snapshots::LEAST_DISTANCE;
use super::*;

const PAGE: usize = 4;

/// What the tree should know: every page by all tokens up to its end, every snapshot by all its tokens.
#[derive(Debug, Default)]
struct Lists {
    pages: Vec<(Vec<u32>, PageId)>,
    snapshots: Vec<(Vec<u32>, Slot)>,
}

impl Lists {
    fn matched(&self, tokens: &[u32]) -> usize {
        self.pages.iter().map(|(known, _)| common(known, tokens)).max().unwrap_or(0)
    }

    fn state(&self, tokens: &[u32], most: usize) -> Option<&(Vec<u32>, Slot)> {
        let fits = |known: &&(Vec<u32>, Slot)| known.0.len() <= most && tokens.starts_with(&known.0);
        self.snapshots.iter().filter(fits).max_by_key(|known| known.0.len())
    }

    fn take_back(&mut self, freed: Freed) {
        for page in freed.pages {
            let place = self.pages.iter().position(|(_, known)| *known == page).expect("it was in the tree");
            self.pages.swap_remove(place);
        }
        for slot in freed.slots {
            let place = self.snapshots.iter().position(|(_, known)| *known == slot).expect("it was in the tree");
            self.snapshots.swap_remove(place);
        }
    }
}

/// A tree and its lists.
struct Both {
    index: PrefixIndex,
    lists: Lists,
    next: u32,
    held: Vec<NodeId>,
}

impl Both {
    fn new(has_states: bool) -> Self {
        Self { index: PrefixIndex::new(20, PAGE, has_states), lists: Lists::default(), next: 0, held: Vec::new() }
    }

    /// A session computed all tokens and leaves them.
    fn learn(&mut self, tokens: &[u32]) -> NodeId {
        let (mut node, mut full) = (ROOT, ROOT);
        for (number, page) in tokens.chunks(PAGE).enumerate() {
            self.next += 1;
            let inserted = self.index.insert(node, page, PageId(self.next));
            if inserted.added {
                self.lists.pages.push((tokens[..number * PAGE + page.len()].to_vec(), PageId(self.next)));
            }
            self.lists.take_back(inserted.freed);
            node = inserted.node;
            full = if page.len() == PAGE { node } else { full };
        }
        full
    }

    /// Its state is kept too.
    fn keep_state(&mut self, tokens: &[u32]) {
        let full = self.learn(tokens);
        let behind = &tokens[tokens.len() / PAGE * PAGE..];
        self.next += 1;
        let slot = Slot(self.next);
        let freed = self.index.add_snapshot(full, behind, slot);
        if freed.slots.is_empty() {
            self.lists.snapshots.push((tokens.to_vec(), slot));
        } else {
            assert_eq!(freed, Freed { slots: vec![slot], ..Freed::default() });
            let before = self.lists.state(tokens, tokens.len()).map_or(0, |(known, _)| known.len());
            assert!(before > 0 && tokens.len() - before < LEAST_DISTANCE, "it was refused for no reason");
        }
    }

    fn find(&self, tokens: &[u32], most: usize) -> Found {
        let found = self.index.find(tokens, most);
        assert_eq!(found.matched, self.lists.matched(tokens));
        if self.index.has_states {
            let state = self.lists.state(tokens, most);
            assert_eq!(found.cached, state.map_or(0, |(known, _)| known.len()));
            assert_eq!(found.snapshot, state.map(|(_, slot)| *slot));
        } else {
            assert_eq!(found.cached, found.matched.min(most));
        }
        let pages = self.index.pages_to(found.node);
        assert_eq!(pages.len(), found.cached / PAGE);
        assert_eq!(found.partial.is_some(), !found.cached.is_multiple_of(PAGE));
        let source = found.partial.map(|partial| self.index.page(partial));
        for (place, page) in pages.iter().chain(&source).enumerate() {
            let (known, _) = self.lists.pages.iter().find(|(_, known)| known == page).expect("a page of the tree");
            let end = found.cached.min((place + 1) * PAGE);
            assert_eq!(known[..end], tokens[..end], "page {place} has other tokens");
        }
        found
    }

    fn check(&self) {
        let counts = self.index.counts();
        assert_eq!((counts.pages, counts.snapshots), (self.lists.pages.len(), self.lists.snapshots.len()));
        let mut pages: Vec<_> = self.index.pages().collect();
        let mut known: Vec<_> = self.lists.pages.iter().map(|(_, page)| *page).collect();
        pages.sort_unstable();
        known.sort_unstable();
        assert_eq!(pages, known);
    }
}

#[derive(Debug, Clone)]
enum Work {
    Learn(Vec<u32>),
    Keep(Vec<u32>),
    Find(Vec<u32>),
    Hold(Vec<u32>),
    Release,
    EvictPage,
    EvictSnapshot,
    Clear,
}

fn work() -> impl Strategy<Value = Work> {
    let tokens = || prop::collection::vec(0u32..2, 1..22);
    prop_oneof![
        4 => tokens().prop_map(Work::Learn),
        4 => tokens().prop_map(Work::Keep),
        8 => tokens().prop_map(Work::Find),
        1 => tokens().prop_map(Work::Hold),
        1 => Just(Work::Release),
        3 => Just(Work::EvictPage),
        1 => Just(Work::EvictSnapshot),
        1 => prop::num::u8::ANY.prop_map(|number| if number < 8 { Work::Clear } else { Work::EvictPage }),
    ]
}

proptest! {
    #[test]
    fn everything_is_found_and_nothing_else(has_states: bool, works in prop::collection::vec(work(), 1..120)) {
        let mut both = Both::new(has_states);
        for work in works {
            match work {
                Work::Learn(tokens) => drop(both.learn(&tokens)),
                Work::Keep(tokens) => both.keep_state(&tokens),
                Work::Find(tokens) => {
                    let most = tokens.len() - 1;
                    let found = both.find(&tokens, most);
                    both.index.touch(&found);
                    prop_assert_eq!(found, both.find(&tokens, most));
                }
                Work::Hold(tokens) => {
                    let node = both.find(&tokens, tokens.len()).node;
                    both.index.hold(node);
                    both.held.push(node);
                }
                Work::Release => if let Some(node) = both.held.pop() {
                    both.index.release(node);
                },
                Work::EvictPage => match both.index.evict_page(|_| true) {
                    Some(freed) => {
                        prop_assert_eq!(freed.pages.len(), 1);
                        both.lists.take_back(freed);
                        for node in &both.held {
                            both.index.pages_to(*node);
                        }
                    }
                    None => prop_assert!(both.lists.pages.is_empty() || !both.held.is_empty()),
                },
                Work::EvictSnapshot => match both.index.evict_snapshot() {
                    Some(slot) => both.lists.take_back(Freed { slots: vec![slot], ..Freed::default() }),
                    None => prop_assert!(both.lists.snapshots.is_empty()),
                },
                Work::Clear => {
                    both.held.clear();
                    let freed = both.index.clear();
                    both.lists.take_back(freed);
                    prop_assert!(both.lists.pages.is_empty() && both.lists.snapshots.is_empty());
                }
            }
            both.check();
        }
    }
}

/// Tokens that only this document has.
fn document(number: u32, tokens: usize) -> Vec<u32> {
    (0..tokens as u32).map(|place| number * 10_000 + place).collect()
}

#[test]
fn a_document_as_long_as_the_pool_does_not_evict_what_several_share() {
    let mut both = Both::new(false);
    let system = document(1, 3 * PAGE);
    both.learn(&system);
    let found = both.find(&system, system.len());
    both.index.touch(&found);
    let (pages, long) = (20 - 3, document(2, 20 * PAGE));
    for (number, tokens) in long.chunks(PAGE).enumerate() {
        if number >= pages {
            let freed = both.index.evict_page(|_| true).expect("something can go");
            assert!(freed.pages[0].0 > 3, "a page of the shared prompt went");
        }
        let inserted = both.index.insert(ROOT, tokens, PageId(100 + number as u32));
        assert!(inserted.added);
    }
    assert_eq!(both.index.find(&system, system.len()).cached, system.len());
}

#[test]
fn a_path_is_given_up_from_its_end_and_what_was_used_last_goes_last() {
    let mut both = Both::new(false);
    let (first, second) = (document(1, 8), document(2, 8));
    both.learn(&first);
    both.learn(&second);
    let cached = |both: &Both| (both.find(&first, 8).cached, both.find(&second, 8).cached);
    let evict = |both: &mut Both| {
        let freed = both.index.evict_page(|_| true).expect("nothing is held");
        both.lists.take_back(freed);
        cached(both)
    };
    assert_eq!(evict(&mut both), (4, 8));
    let found = both.find(&first, 8);
    both.index.touch(&found);
    assert_eq!(evict(&mut both), (4, 4));
    assert_eq!(evict(&mut both), (4, 0));
    assert_eq!(evict(&mut both), (0, 0));
    assert_eq!(both.index.evict_page(|_| true), None);
}

#[test]
fn held_paths_and_snapshots_in_use_stay() {
    let mut both = Both::new(true);
    let tokens = document(1, 10);
    both.keep_state(&tokens);
    let found = both.find(&tokens, 10);
    assert_eq!((found.cached, found.snapshot.is_some(), found.partial.is_some()), (10, true, true));
    let slot = found.snapshot.expect("it was kept");
    both.index.hold(found.node);
    both.index.use_snapshot(slot);
    assert_eq!(both.index.evict_snapshot(), None);
    // the partly filled page is not held: it goes, and with it the snapshot, but not its slot
    let freed = both.index.evict_page(|_| true).expect("the tail can go");
    assert_eq!((freed.pages.len(), freed.slots.len()), (1, 0));
    assert_eq!(both.index.evict_page(|_| true), None);
    assert_eq!(both.index.find(&tokens, 10).cached, 0);
    assert_eq!(both.index.done_with(slot).slots, [slot]);
    both.index.release(found.node);
    assert!(both.index.evict_page(|_| true).is_some());
}

#[test]
fn snapshots_go_that_save_least_and_the_last_of_a_used_beginning_stays() {
    let mut both = Both::new(true);
    let system = document(1, 100);
    both.keep_state(&system[..40]);
    both.keep_state(&system);
    for _ in 0..3 {
        let found = both.find(&system, 100);
        both.index.touch(&found);
    }
    // every new document is worth more than what is left of others, and less than what is used
    for number in 2..40 {
        both.keep_state(&document(number, 90));
        if both.index.counts().snapshots > 4 {
            let slot = both.index.evict_snapshot().expect("nothing is in use");
            both.lists.take_back(Freed { slots: vec![slot], ..Freed::default() });
        }
        let found = both.find(&system, 100);
        assert_eq!(found.cached, 100, "document {number}");
        if number % 4 == 0 {
            both.index.touch(&found);
        }
        if number > 4 {
            assert_eq!(both.find(&document(number, 90), 90).cached, 90, "a new one was not taken in");
        }
    }
    assert_eq!(both.find(&system[..60], 60).cached, 0, "the one that was never used went first");
}

#[test]
fn short_prompts_have_snapshots_and_close_ones_have_none() {
    let mut both = Both::new(true);
    let tokens = document(1, 60);
    both.keep_state(&tokens[..3]);
    assert_eq!(both.find(&tokens, 59).cached, 3);
    both.keep_state(&tokens[..3 + LEAST_DISTANCE - 1]);
    assert_eq!(both.find(&tokens, 59).cached, 3);
    both.keep_state(&tokens[..3 + LEAST_DISTANCE]);
    assert_eq!(both.find(&tokens, 59).cached, 3 + LEAST_DISTANCE);
}
