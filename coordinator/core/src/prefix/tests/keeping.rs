//! What is pinned stays, what is to be forgotten goes, and what is listed is what is there.

use super::*;

impl Both {
    /// Evicts whatever can be.
    fn evict_all(&mut self) {
        while let Some(slot) = self.index.evict_snapshot() {
            self.lists.take_back(Freed { slots: vec![slot], ..Freed::default() });
        }
        while let Some(freed) = self.index.evict_page(|_| true) {
            self.lists.take_back(freed);
        }
        self.check();
    }
}

#[test]
fn what_is_pinned_stays_until_it_is_unpinned() {
    for has_states in [false, true] {
        let mut both = Both::new(has_states);
        let (system, other) = (document(1, 10), document(2, 10));
        both.keep_state(&system);
        both.keep_state(&other);
        assert_eq!(both.index.pin(&document(3, 10)), 0);
        // of what was asked for, so much is there
        assert_eq!(both.index.pin(&[&system[..], &other].concat()), 10);
        assert_eq!(both.index.pinned(), PinnedCounts { pages: 3, snapshots: usize::from(has_states) });
        both.evict_all();
        assert_eq!((both.find(&system, 10).cached, both.find(&other, 10).cached), (10, 0));
        assert_eq!(both.index.unpin(&system), 10);
        assert_eq!(both.index.pinned(), PinnedCounts::default());
        both.evict_all();
        assert_eq!(both.find(&system, 10).matched, 0);
    }
}

#[test]
fn a_pinned_end_that_others_go_on_from_stays() {
    let mut both = Both::new(true);
    let text = document(1, 30);
    both.keep_state(&text[..10]);
    assert_eq!(both.index.pin(&text[..10]), 10);
    // the page of the last two tokens is now that of four, and pages follow it
    both.keep_state(&text);
    both.learn(&[&text[..10], &document(2, 9)].concat());
    both.evict_all();
    assert_eq!(both.find(&text, 30).cached, 10);
    both.index.unpin(&text[..10]);
    both.evict_all();
    assert_eq!(both.index.counts().pages, 0);
}

#[test]
fn what_is_forgotten_goes_with_all_behind_it_and_what_others_share_stays() {
    let mut both = Both::new(true);
    let text = |end: u32| [document(1, 20), document(end, 18)].concat();
    both.keep_state(&text(2)[..20]);
    both.keep_state(&text(2));
    both.keep_state(&text(3));
    assert!(both.index.pin(&text(2)) > 0);
    assert_eq!(both.index.forget(&document(4, 3)), None);
    assert_eq!(both.index.forget(&[]), None);
    let freed = both.index.forget(&text(2)).expect("it is known");
    assert_eq!((freed.pages.len(), freed.slots.len()), (5, 1));
    both.lists.take_back(freed);
    assert_eq!((both.find(&text(2), 38).cached, both.find(&text(3), 38).cached), (20, 38));
    // who is relied on stays
    let held = both.find(&text(3), 38).node;
    both.index.hold(held);
    let freed = both.index.forget(&text(3)[..7]).expect("it is known");
    assert_eq!(freed.pages.len(), 1, "only the partly filled page at the end");
    both.lists.take_back(freed);
    both.index.release(held);
    let freed = both.index.forget(&text(3)[..7]).expect("it is known");
    both.lists.take_back(freed);
    both.check();
    assert_eq!(both.index.counts().pages, 0);
}

#[test]
fn texts_are_listed_with_the_last_used_first() {
    let mut both = Both::new(true);
    let (short, long) = (document(1, 6), document(2, 90));
    both.keep_state(&short);
    both.keep_state(&long[..50]);
    both.keep_state(&long);
    let found = both.find(&short, 6);
    both.index.touch(&found);
    both.index.pin(&long);
    let (paths, left_off) = both.index.paths(1);
    let first = CachedPath {
        tokens: 6,
        begins: short.clone(),
        snapshots: vec![6],
        pages: 2,
        reuses: 1,
        ..CachedPath::default()
    };
    assert_eq!((&paths[..], left_off), (&[first.clone()][..], 1));
    let (paths, left_off) = both.index.paths(9);
    let second = CachedPath {
        tokens: 90,
        begins: long[..SHOWN_TOKENS].to_vec(),
        ends: long[90 - SHOWN_TOKENS..].to_vec(),
        snapshots: vec![50, 90],
        pages: 23,
        reuses: 0,
        pinned: true,
    };
    assert_eq!((&paths[..], left_off), (&[first, second][..], 0));
}

proptest! {
    #[test]
    fn forgetting_takes_what_begins_so_and_what_led_there_alone(
        known in prop::collection::vec(prop::collection::vec(0u32..2, 1..22), 1..9),
        forgotten in prop::collection::vec(0u32..2, 1..14),
    ) {
        let mut both = Both::new(true);
        known.iter().for_each(|tokens| both.keep_state(tokens));
        let before: Vec<Vec<u32>> = both.lists.pages.iter().map(|(tokens, _)| tokens.clone()).collect();
        let is_known = before.iter().any(|tokens| tokens.starts_with(&forgotten));
        let freed = both.index.forget(&forgotten);
        prop_assert_eq!(freed.is_some(), is_known);
        both.lists.take_back(freed.unwrap_or_default());
        both.check();
        prop_assert!(!is_known || both.find(&forgotten, forgotten.len()).matched < forgotten.len());
        for tokens in before {
            let led_there = tokens.len() <= forgotten.len() && forgotten.starts_with(&tokens);
            let stays = !tokens.starts_with(&forgotten) && !led_there;
            let there = both.lists.pages.iter().any(|(page, _)| *page == tokens);
            prop_assert!(there || !stays, "{tokens:?} went");
        }
    }
}
